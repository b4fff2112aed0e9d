"""What limits a run, by where the time of a step goes; the published guide beside it; planted jobs, looked at live."""

import math
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop.course import replay
from gpuworkshop.instruments import arms
from gpuworkshop.instruments.flops import Achieved
from gpuworkshop.instruments.samples import WatchedCard
from gpuworkshop.instruments.starve import StarveResult
from gpuworkshop.instruments.starve_result import which_limit as by_headroom
from gpuworkshop.instruments.watch_result import CardWatch
from gpuworkshop.loop import guide, ledger, trial
from gpuworkshop.loop import look as looking
from gpuworkshop.loop.diagnose import bound, diagnose, ranked, which_limit
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.look import Eye
from gpuworkshop.loop.look_result import Look, Traced, Watched, shares, traced
from gpuworkshop.loop.pace import pace_for
from gpuworkshop.loop.parked import Parked, tensors
from gpuworkshop.loop.remedies import Facts, by_id, proposals, remedies
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import Clock, Plan, Rate, compare
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.planted import PLANTED, by_name, that_show_on

QUICK = Plan(block_seconds=0.05, budget_seconds=0.5)
CARD = msgspec.structs.replace(conditions("cpu"), device="cuda:0", machine="NVIDIA Test Card")
ON_CPU = conditions("cpu")
MS = 10.0
"""Milliseconds of a plain step in the made-up looks."""


def rate(value: float, unit: str = "samples/s") -> Rate:
    return Rate(value, 0.99 * value, 1.01 * value, 8, unit)


def starved(wait: float = 0.0, work: float = 0.0, here=CARD, headroom: float | None = None) -> StarveResult:
    """A run of 10 ms a step that waits and works on its batch for these shares of the time."""
    ratio = headroom or 1 / (1 - wait - work)
    comparison = compare([math.log(ratio) + 0.001 * (-1) ** n for n in range(8)])
    now = rate(32_000 / MS)
    return StarveResult(
        workload="a test", real=now, ceiling=rate(now.value * ratio), loader=rate(1.3 * now.value), headroom=comparison,
        wait_name="loader wait" if here.device == "cpu" else "stall", wait_share=wait, data_work_share=work,
        slowed_share=0.0, agrees=True, limit=by_headroom(comparison, True, wait + work), startup_seconds=0.0, workers=0,
        batch_size=32, config=None, planted="", conditions=here, origin=here.origin,
    )  # fmt: skip


def profiled(
    busy: float = 1.0, copying: float = 0.0, late: float = 0.0, waited: float = 0.0, up: float = 0.0
) -> Traced:
    """A profile of a card: milliseconds a step that it was busy, and why it was idle in the profiled time."""
    return Traced(
        steps=20, step=3e3 * MS, calls=900, median=4.0, busy=1e3 * MS * busy, copying=1e3 * MS * copying, to_card=up,
        idle_launching=late, idle_synchronizing=waited,
    )  # fmt: skip


def on_host(heavy: float, mean: float = 8.0) -> Traced:
    """A profile on a CPU: the share of a step in large operators, and the mean operator."""
    return Traced(steps=20, step=1e3 * MS, calls=900, median=4.0, heavy=1e3 * MS * heavy, mean=mean)


SLOW = Achieved(rate(1e14, "FLOP/s"), of_product=0.2)
FAST = Achieved(rate(4e14, "FLOP/s"), of_product=0.8)

LOOKS: dict[str, tuple[str, Look]] = {
    "a loader that is waited for": ("data", Look(starved(wait=0.7), profiled(0.3, late=0.1))),
    "pictures that are cropped on the host": ("data", Look(starved(work=0.7), profiled(0.3, late=0.6))),
    "launches that come late": ("launches", Look(starved(wait=0.02), profiled(0.4, late=0.6))),
    "late in the profile only": ("compute", Look(starved(), profiled(0.99, late=0.6))),
    "the loss in each step": ("synchronizing", Look(starved(), profiled(0.7, late=0.05, waited=0.3))),
    "copies to the card": ("copies", Look(starved(wait=0.05, work=0.6), profiled(0.9, copying=0.55, up=1.0))),
    "copies from the card": ("copies", Look(starved(), profiled(1.0, copying=0.6))),
    "a step that computes": ("compute", Look(starved(wait=0.02), profiled(0.97, late=0.02))),
    "no room for a batch": ("memory", Look(starved(), profiled(0.6, late=0.3), memory=0.9)),
    "no room, and slow": ("memory", Look(starved(), profiled(0.99), SLOW, memory=0.9)),
    "full, and well used": ("compute", Look(starved(), profiled(0.99), FAST, memory=0.9)),
    "full, and starved": ("data", Look(starved(wait=0.6), profiled(0.4), SLOW, memory=0.9)),
    "waits that cost nothing": ("unknown", Look(starved(wait=0.4, headroom=1.01), profiled(0.9))),
    "small operators": ("launches", Look(starved(here=ON_CPU), on_host(0.1))),
    "large operators": ("compute", Look(starved(here=ON_CPU), on_host(0.8))),
    "long operators of other kinds": ("compute", Look(starved(here=ON_CPU), on_host(0.1, mean=400.0))),
    "a loader on a CPU": ("data", Look(starved(wait=0.6, here=ON_CPU), on_host(0.1))),
}


@pytest.mark.parametrize(("limit", "look"), LOOKS.values(), ids=LOOKS.keys())
def test_a_diagnosis_names_where_the_time_goes_with_its_numbers(limit, look) -> None:
    found = diagnose(look)
    assert found.limit == limit
    assert f"{look.starve.wait_name} {look.starve.wait_share:.0%}" in found.reason
    assert "headroom <= " in found.reason
    assert ("900 kernels" if look.traced.busy is not None else "900 operators") in found.reason
    if limit in ("launches", "synchronizing", "copies"):
        assert f"{limit} {look.shares.of(limit):.0%}" in found.reason


@given(
    wait=st.floats(0, 0.5), work=st.floats(0, 0.49), busy=st.floats(0, 3), copying=st.floats(0, 1),
    late=st.floats(0, 1), waited=st.floats(0, 1), up=st.floats(0, 1),
)  # fmt: skip
def test_the_shares_of_a_step_add_up(wait, work, busy, copying, late, waited, up) -> None:
    found = shares(starved(wait, work), profiled(max(busy, copying), copying, late, waited, up))
    parts = (found.data, found.copies, found.launches, found.synchronizing, found.compute)
    assert all(-1e-9 <= part <= 1 + 1e-9 for part in parts)
    assert sum(parts) == pytest.approx(1) or found.data + found.copies > 1


def test_a_profiled_step_is_longer_and_its_idle_time_is_not_believed() -> None:
    """Only what the card did counts, against the plain step: profiled, this card idled two thirds of the time."""
    found = shares(starved(), profiled(0.95, late=0.66))
    assert found.launches == pytest.approx(0.05) and found.compute == pytest.approx(0.95)


def test_a_recorded_profile_is_read_as_it_is() -> None:
    """ResNet-50 on an H200: the digest agrees with what the profile's own report says."""
    recorded = replay.load("profile")
    found, card = traced(recorded.sums), recorded.sums.main
    assert found.steps == 20 and found.calls == pytest.approx(recorded.sums.kernels / 20)
    assert found.busy == pytest.approx(card.busy * card.span / 20)
    assert 0 < found.copying < found.busy and found.heavy is None
    assert found.busy < 1.05e3 * recorded.plain_ms, "the card cannot work longer than a plain step takes"


def test_a_profile_without_the_card_says_nothing_about_it() -> None:
    recorded = replay.load("profile").sums
    assert traced(msgspec.structs.replace(recorded, cards=())) is None
    assert traced(msgspec.structs.replace(recorded, steps=0)) is None


# ---------------------------------------------------------------- what could help, and at most how much


@pytest.mark.parametrize(
    ("remedy", "most"),
    [("rare-loss", 1 / 0.4), ("fused", 1 / 0.5), ("tf32", 1 / 0.8), ("pin", 1.43), ("pre-decode", 1.43)],
)
def test_a_bound_follows_from_the_share_that_a_remedy_helps_against(remedy, most) -> None:
    """10% wait, 20% copies to the card, 30% late launches, 10% after waiting, 20% computing."""
    look = Look(starved(wait=0.1, work=0.2), profiled(0.4, copying=0.2, late=0.3, waited=0.1, up=1.0))
    found = look.shares
    assert (found.data, found.copies) == pytest.approx((0.1, 0.2))
    assert (found.launches, found.synchronizing, found.compute) == pytest.approx((0.375, 0.125, 0.2))
    exact = {"rare-loss": 1 / (1 - 0.7), "fused": 1 / (1 - 0.575), "tf32": 1 / 0.8}
    assert bound(by_id(remedy), look, 8) == pytest.approx(exact.get(remedy, most), rel=0.01)


@pytest.mark.parametrize(("limit", "look"), LOOKS.values(), ids=LOOKS.keys())
def test_what_helps_against_the_limit_comes_first(limit, look) -> None:
    order = [remedy for remedy, _ in ranked(look, 8)]
    first = [limit in remedy.limits or "any" in remedy.limits for remedy in order]
    if limit != "unknown":
        assert first[0] and first == sorted(first, reverse=True)


def test_checkpointing_is_only_tried_where_memory_is_the_limit() -> None:
    for limit, look in LOOKS.values():
        offered = {remedy.id for remedy, _ in ranked(look, 8)}
        assert ("checkpointing" in offered) == (limit == "memory"), limit


def test_checkpointing_comes_with_the_larger_batch_that_pays_for_it() -> None:
    facts = Facts(8, True, lambda config: 64)
    now = TrainConfig(batch_size=16)
    made = proposals(by_id("checkpointing"), now, facts)
    assert made and all(config.checkpointing and config.batch_size > now.batch_size for config in made)
    assert proposals(by_id("checkpointing"), made[0], facts) == ()


def test_every_limit_has_a_remedy() -> None:
    against = {limit for remedy in remedies() for limit in remedy.limits}
    assert against >= {one.limit for one in PLANTED}


def test_more_cards_are_never_a_remedy() -> None:
    assert not any("card" in name for remedy in remedies() for name in remedy.touches)


# ---------------------------------------------------------------- what a change costs once


def record(**changes) -> Record:
    made = Record(
        when=ledger.now(), run="r", workload="w", kind="change", config=TrainConfig(batch_size=50), rate=rate(1000),
        conditions=ON_CPU, before=TrainConfig(batch_size=50), rate_before=rate(500), paid_once_seconds=30.0, kept=True,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_what_is_paid_once_is_paid_back_after_so_many_steps() -> None:
    """50 samples took 100 ms and take 50 ms: 30 s are saved after 600 steps."""
    assert record().pays_back_after == 600
    assert record(paid_once_seconds=0.0).pays_back_after is None
    assert record(rate=rate(400)).pays_back_after is None, "nothing is saved"
    assert record(rate=None).pays_back_after is None


# ---------------------------------------------------------------- the published guide


@pytest.mark.parametrize(
    ("busy", "memory", "against", "does"),
    [
        (0.10, 0.10, ("data",), "the data pipeline: workers"),
        (0.49, 0.95, ("data",), "the data pipeline"),
        (0.60, 0.20, ("launches",), "a larger batch"),
        (0.60, 0.40, ("compute",), "try BF16"),
        (0.60, 0.85, ("compute",), "try BF16"),
        (0.60, 0.88, (), "profile"),
        (0.60, 0.95, ("memory",), "a smaller batch, or checkpointing"),
        (0.60, None, (), "profile"),
        (0.80, 0.60, ("compute",), "try BF16"),
        (0.95, 0.60, (), "nothing on this card; more cards only if"),
        (0.95, 0.95, (), "profile"),
    ],
)
def test_the_guide_as_published(busy, memory, against, does) -> None:
    found = guide.guide(busy, memory)
    assert found.against == against and found.do.startswith(does)


def test_the_guide_out_of_memory_and_without_a_utilization() -> None:
    assert guide.guide(0.3, 0.99, out_of_memory=True).do == "BF16, then checkpointing, then a smaller batch"
    assert guide.guide(None, 0.5) is None
    assert "settings" in guide.guide(0.2, 0.5, workers=4).do


def looked(name: str, busy: float, memory: float = 0.6, **changes) -> tuple[Look, str]:
    """A look with what the driver said, and its limit."""
    look = msgspec.structs.replace(LOOKS[name][1], watched=Watched(busy, 25), memory=memory, **changes)
    return look, which_limit(look)


@pytest.mark.parametrize(
    ("name", "busy", "says"),
    [
        ("launches that come late", 0.3, "not for want of data: stall 2%"),
        ("the loss in each step", 0.4, "host and card wait for each other"),
        ("copies from the card", 0.3, "copies take 60%"),
        ("a loader that is waited for", 0.6, "no batch and no precision helps a run that waits for data"),
        ("launches that come late", 0.95, "launches still take"),
        ("pictures that are cropped on the host", 0.9, "is no training"),
    ],
)
def test_a_disagreement_is_shown_and_explained(name, busy, says) -> None:
    look, limit = looked(name, busy)
    found = guide.beside(look, limit)
    assert found.level == "notice" and f"Measured, the limit is {limit}" in found.title
    assert says in found.evidence and f"utilization {busy:.0%}" in found.evidence


def test_full_utilization_in_fp32_is_not_the_end() -> None:
    most = rate(7.7e14, "FLOP/s")
    look, limit = looked("a step that computes", 1.0, achieved=SLOW, most=most)
    found = guide.beside(look, limit)
    assert "not how fast: 100 TFLOP/s" in found.evidence and "770 TFLOP/s" in found.evidence
    done, limit = looked("a step that computes", 1.0, achieved=SLOW, precision="bf16")
    assert guide.beside(done, limit).title.startswith("The published guide agrees")


def test_the_guide_agrees_where_a_starved_card_idles() -> None:
    look, limit = looked("a loader that is waited for", 0.2)
    assert guide.beside(look, limit).level == "ok"


def test_no_utilization_is_said_and_not_invented() -> None:
    on_cpu = guide.beside(LOOKS["small operators"][1], "launches")
    assert "n/a" in on_cpu.title and "CPU" in on_cpu.evidence
    quiet = msgspec.structs.replace(LOOKS["a step that computes"][1], watched=Watched(None, 3, "on a MIG slice"))
    assert guide.beside(quiet, "compute").evidence == "on a MIG slice"


# ---------------------------------------------------------------- planted jobs, live


def test_there_are_ten_planted_jobs_and_each_says_where_it_shows() -> None:
    assert len(that_show_on("cpu")) >= 10 and len(that_show_on("cuda:0")) >= 10
    assert len({one.name for one in PLANTED}) == len(PLANTED)
    assert {one.limit for one in that_show_on("cuda:0")} >= {"data", "launches", "synchronizing", "copies", "memory"}
    assert by_name("a batch of one").limit == "launches"
    with pytest.raises(KeyError, match="decoding in one process"):
        by_name("nothing")


@pytest.mark.alone
@pytest.mark.parametrize("planted", that_show_on("cpu"), ids=lambda one: one.name.replace(" ", "-"))
def test_the_diagnosis_names_what_was_planted(planted) -> None:
    """Really run: ratios within one run."""
    look = Eye(trial.Bench(planted.job, planted.start, "cpu", QUICK)).look(planted.start, quick=True)
    found = diagnose(look)
    assert found.limit == planted.limit, found.reason
    assert look.watched is None and look.memory is None and look.traced.steps >= 5
    assert look.achieved.of_product is not None and look.achieved.of_peak is None
    assert msgspec.json.decode(msgspec.json.encode(look), type=Look) == look


# ---------------------------------------------------------------- two runs of which only one fits


def test_a_parked_run_trains_on_and_leaves_nothing_behind_on_the_device() -> None:
    bench = trial.Bench(Job("gpt-tiny"), TrainConfig(), "cpu", QUICK)
    training = bench.build(TrainConfig(batch_size=8))
    with Parked("one", training) as arm:
        moved = []
        arm._move = lambda device: moved.append(device) or Parked._move(arm, device)
        for _ in range(2):
            arm.resume()
            before = [weight.clone() for weight in training.model.parameters()]
            assert arm.step(Clock()) == 8
            assert any(not torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
            arm.pause()
            assert all(weight.grad is None for weight in training.model.parameters())
        assert moved == ["cpu"] * 4
        weights = len(list(training.model.parameters()))
        assert len(list(tensors(training))) == 3 * weights, (
            "weights, and two moments of each; its step count is no tensor"
        )


def test_runs_that_do_not_fit_together_are_measured_one_at_a_time(monkeypatch) -> None:
    bench = trial.Bench(Job("gpt-tiny"), TrainConfig(), "cpu", QUICK)
    bench.device, asked = "cuda:0", []

    def rounds(before, after, arm, tell):
        asked.append(arm)
        if arm is arms.real:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return "rounds", 0.0

    monkeypatch.setattr(bench, "_rounds", rounds)
    assert bench._in_turn(TrainConfig(), TrainConfig(batch_size=64), trial.Tell()) == ("rounds", 0.0)
    assert asked == [arms.real, Parked]


# ---------------------------------------------------------------- what a card says meanwhile, on stand-ins


def eye(monkeypatch, **card) -> Eye:
    """An eye on a card that is not there; ``card`` is what its watch saw."""
    made = Eye(trial.Bench(Job("gpt-tiny"), TrainConfig(), "cpu", QUICK))
    made.card, made.bench.device = True, "cuda:0"
    seen = tuple(CardWatch(WatchedCard(f"GPU-{n}", "NVIDIA Test Card", f"cuda:{n}"), **card) for n in (1, 0))

    class Watch:
        def __init__(self, **how) -> None:
            self.result = SimpleNamespace(cards=seen if card else (), problem="the driver does not answer")

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            pass

    monkeypatch.setattr(looking, "Watch", Watch)
    monkeypatch.setattr(looking, "in_turn", lambda *how, **more: None)
    return made


def on_card():
    """A training run that says it is on a card."""
    training = trial.Bench(Job("gpt-tiny"), TrainConfig(), "cpu", QUICK).build(TrainConfig())
    training.device = "cuda:0"
    return training


def test_utilization_is_the_drivers_or_none(monkeypatch) -> None:
    assert eye(monkeypatch, busy=0.4, windows=25)._watch(on_card(), 100.0) == Watched(0.4, 25)
    few = eye(monkeypatch, busy=0.4, windows=3)._watch(on_card(), 100.0)
    assert few.busy is None and "3 windows" in few.why
    slice_of_one = eye(monkeypatch, busy_why="a MIG slice has no utilization", windows=0)._watch(on_card(), 100.0)
    assert slice_of_one == Watched(None, 0, "a MIG slice has no utilization")
    assert eye(monkeypatch)._watch(on_card(), 100.0) == Watched(None, why="the driver does not answer")


@pytest.mark.parametrize(("steps_a_second", "seconds"), [(2.0, 1.0), (130.0, 1.0), (20_000.0, 1.0)])
def test_the_driver_watches_for_seconds_however_fast_the_steps_are(monkeypatch, steps_a_second, seconds) -> None:
    """Three blocks, the first to warm up; steps of 50 us are not measured for less than a few windows."""
    made, asked = eye(monkeypatch, busy=0.4, windows=25), []
    made.bench.pace = pace_for("cuda:0", 150.0)
    monkeypatch.setattr(looking, "in_turn", lambda arms, clock, plan: asked.append(plan))
    made._watch(on_card(), steps_a_second)
    (plan,) = asked
    assert plan.min_steps / steps_a_second == pytest.approx(seconds, rel=0.01)
    assert (plan.min_rounds, plan.max_warm_up_blocks) == (2, 1)


@pytest.mark.parametrize(("limit", "share"), [(None, 0.25), (20.0, 0.5), (5.0, 1.0)])
def test_the_memory_is_a_share_of_what_this_job_may_use(limit, share, monkeypatch) -> None:
    """10 GiB at most, of 30 free ones and 10 that PyTorch holds, or of a planted limit."""
    made = eye(monkeypatch)
    made.bench.job = Job("gpt-tiny", memory_gib=limit)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * 2**30, 140 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 10 * 2**30)
    assert made._memory() == pytest.approx(share)


def test_a_profiler_that_is_refused_leaves_stall_and_headroom_to_decide(monkeypatch) -> None:
    def refuse(*how, **more):
        raise looking.profile.CannotProfile("another profiler is at work")

    monkeypatch.setattr(looking.profile, "measure", refuse)
    found = Eye(trial.Bench(Job("gpt-tiny"), TrainConfig(), "cpu", QUICK)).look(TrainConfig(), quick=True)
    assert found.traced is None and which_limit(found) == found.starve.limit
