"""The loop: remedies as data, one change at a time, kept only if faster and still learning, every one in the ledger."""

import json
import math
import signal
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop import state
from gpuworkshop.child import Tell
from gpuworkshop.instruments import memory, memory_sweep
from gpuworkshop.instruments.feed import LoaderFault
from gpuworkshop.instruments.learning import Judgement, Learned, judge
from gpuworkshop.instruments.starve import StarveResult
from gpuworkshop.loop import climb, climber, ledger, remedies, trial
from gpuworkshop.loop.budget import Budget
from gpuworkshop.loop.climb import Request
from gpuworkshop.loop.diagnose import bound, diagnose, ranked
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.look_result import Look
from gpuworkshop.loop.remedies import Facts, by_id, explaining, parts, proposals
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import Clock, Comparison, Plan, Rate, compare, in_turn
from gpuworkshop.workloads import config as configs
from gpuworkshop.workloads import pictures
from gpuworkshop.workloads.config import Job, TrainConfig, changed

WAIT = 30
"""Seconds that a test waits for something that must happen; how fast it happens is not tested."""
QUICK = Plan(block_seconds=0.03, budget_seconds=0.4)
NAIVE = TrainConfig()
BY_ID = {remedy.id: remedy for remedy in remedies.remedies()}


def ratio(value: float, spread: float = 0.001) -> Comparison:
    """A comparison with this ratio."""
    return compare([math.log(value) + spread * (-1) ** n for n in range(8)])


def rate(value: float) -> Rate:
    return Rate(value, 0.99 * value, 1.01 * value, 8)


def facts(cpus: int = 8, card: bool = True, knee: int = 128) -> Facts:
    return Facts(cpus, card, lambda config: knee)


def configs_of_all_kinds() -> st.SearchStrategy[TrainConfig]:
    """Any config that can be made."""
    shared = dict(
        data_path=st.sampled_from(["cpu-decode", "card-decode", "pre-decoded"]),
        pin_memory=st.booleans(),
        batch_size=st.sampled_from([16, 32, 128]),
        precision=st.sampled_from(["fp32", "tf32", "bf16"]),
        memory_format=st.sampled_from(["contiguous", "channels_last"]),
    )
    with_workers = dict(
        workers=st.integers(1, 16), persistent_workers=st.booleans(), prefetch_factor=st.none() | st.just(4)
    )
    return st.builds(TrainConfig, **shared) | st.builds(TrainConfig, **shared, **with_workers)


# ---------------------------------------------------------------- remedies


def test_remedies_are_data_that_fits_the_settings() -> None:
    found = remedies.remedies()
    assert len({remedy.id for remedy in found}) == len(found) == len(remedies._PROPOSE)
    assert {remedy.id for remedy in found} == set(remedies._PROPOSE)
    for remedy in found:
        assert remedy.touches and set(remedy.touches) <= set(TrainConfig.__struct_fields__), remedy.id
        assert remedy.title and remedy.reason and remedy.code


def test_every_setting_can_be_changed_by_some_remedy() -> None:
    """A config has only the settings that some remedy changes."""
    assert {name for remedy in remedies.remedies() for name in remedy.touches} == set(TrainConfig.__struct_fields__)


@given(now=configs_of_all_kinds(), cpus=st.integers(1, 64), card=st.booleans(), knee=st.sampled_from([32, 512]))
def test_a_proposal_is_one_change_that_its_remedy_declares(now, cpus, card, knee) -> None:
    for remedy in remedies.remedies():
        for config in proposals(remedy, now, facts(cpus, card, knee)):
            assert 0 < len(changed(now, config)) and set(changed(now, config)) <= set(remedy.touches)
            assert explaining(now, config) is not None
            assert remedy.code_for(config) and "{" not in remedy.code_for(config)


def test_the_code_of_a_remedy_has_the_new_values() -> None:
    (config,) = proposals(by_id("workers"), NAIVE, facts(cpus=16))
    assert "num_workers=15" in by_id("workers").code_for(config)


@pytest.mark.parametrize(("cpus", "counts"), [(1, [1, 2]), (2, [1, 2]), (3, [2]), (16, [15])])
def test_workers_follow_the_cpus(cpus, counts) -> None:
    assert [config.workers for config in proposals(by_id("workers"), NAIVE, facts(cpus))] == counts


def test_what_needs_a_card_is_not_proposed_without_one() -> None:
    """Pinning warns and does nothing there: pytorch/pytorch#174546, torchgeo/torchgeo-bench#253."""
    for remedy in remedies.remedies():
        for config in proposals(remedy, NAIVE, facts(card=False)):
            assert not config.pin_memory and config.data_path != "card-decode"
    assert proposals(by_id("pin"), NAIVE, facts()) and proposals(by_id("card-decode"), NAIVE, facts())


def test_the_batch_grows_to_the_knee_and_never_shrinks() -> None:
    assert [config.batch_size for config in proposals(by_id("batch"), NAIVE, facts(knee=256))] == [256]
    assert proposals(by_id("batch"), NAIVE.with_(batch_size=512), facts(knee=256)) == ()


def test_no_workers_is_proposed_where_they_have_little_to_do() -> None:
    decoding = TrainConfig(workers=2, prefetch_factor=4)
    assert proposals(by_id("fewer-workers"), decoding, facts()) == ()
    (config,) = proposals(by_id("fewer-workers"), decoding.with_(data_path="pre-decoded"), facts())
    assert config == TrainConfig("pre-decoded")


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"workers": 2}, "workers"),
        ({"workers": 2, "persistent_workers": True, "prefetch_factor": 4}, "workers"),
        ({"data_path": "pre-decoded"}, "pre-decode"),
        ({"precision": "bf16"}, "bf16"),
        ({"batch_size": 64}, "batch"),
        ({"workers": 4, "batch_size": 128}, None),
        ({"precision": "bf16", "memory_format": "channels_last"}, None),
        ({}, None),
    ],
)
def test_a_difference_is_explained_by_one_remedy_or_not_at_all(change, remedy) -> None:
    found = explaining(NAIVE, NAIVE.with_(**change))
    assert (found and found.id) == remedy


# ---------------------------------------------------------------- decisions


LEARNS = Judgement(True, "learns as before")


@pytest.mark.parametrize(
    ("comparison", "learning", "names", "kept", "why"),
    [
        (ratio(1.5), LEARNS, ("workers",), True, "faster: 1.50x"),
        (ratio(1.5), Judgement(None, "not judged"), ("workers",), True, "faster: 1.50x"),
        (ratio(1.5), Judgement(False, "does not learn"), ("workers",), False, "but does not learn"),
        (ratio(0.8), None, ("workers",), False, "slower: 0.80x"),
        (ratio(1.02), None, ("workers",), False, "no real difference"),
        (ratio(1.5), LEARNS, (), False, "nothing was changed"),
    ],
)
def test_a_change_is_kept_only_if_it_is_one_faster_and_still_learns(comparison, learning, names, kept, why) -> None:
    found, says = trial._decision(comparison, learning, names)
    assert found is kept and why in says


class Steps:
    """A simulated arm: so many samples in so many seconds a step."""

    period = 1

    def __init__(self, name: str, time: SimpleNamespace, samples: int, seconds: float):
        self.name, self.time, self.samples, self.seconds = name, time, samples, seconds

    def resume(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def step(self, clock: Clock) -> int:
        self.time.now += self.seconds
        return self.samples


def test_runs_are_compared_in_samples_and_two_changes_are_not_attributed() -> None:
    """A step that takes longer because its batch doubled is no slower run; and nobody knows which change did it.

    Stands in for Lightning-AI/pytorch-lightning#5276, p-e-w/heretic#362.
    """
    before, after = NAIVE.with_(batch_size=64), NAIVE.with_(batch_size=128, workers=4)
    time = SimpleNamespace(now=0.0)
    arms = [Steps("before", time, 64, 0.21), Steps("after", time, 128, 0.32)]
    seen = in_turn(arms, Clock(now=lambda: time.now), Plan()).compare("before", "after")
    assert seen.verdict == "faster" and seen.ratio == pytest.approx((128 / 0.32) / (64 / 0.21))
    assert explaining(before, after) is None, "so a trial of both is measured and not kept"
    kept, why = trial._decision(seen, LEARNS, changed(before, after), parts(before, after))
    assert not kept and why.startswith("faster: 1.31x") and "loader workers and batch at the knee were both" in why


@pytest.mark.parametrize(
    ("changes", "names", "numerics"),
    [
        (dict(workers=4, batch_size=128), ("loader workers", "batch at the knee"), "training"),
        (dict(workers=4, data_path="card-decode"), ("decode on the card", "loader workers"), "close"),
        (dict(precision="tf32", fused=True), ("fused optimizer", "TF32"), "close"),
        (dict(workers=4, reads_loss="each step"), ("loader workers", "reads_loss"), "same"),
        (dict(checkpointing=True, batch_size=64, fused=True), ("fused optimizer", "activation checkpointing"),
         "training"),
    ],
)  # fmt: skip
def test_several_changes_are_named_and_judged_by_the_strictest_of_them(changes, names, numerics) -> None:
    found = parts(NAIVE, NAIVE.with_(**changes))
    assert set(found.names) == set(names) and found.numerics == numerics


def test_what_undoes_a_remedy_goes_by_its_settings() -> None:
    undone = parts(TrainConfig("pre-decoded", precision="bf16", workers=2), NAIVE)
    assert set(undone.names) == {"data_path", "precision", "no workers"}


@given(before=configs_of_all_kinds(), after=configs_of_all_kinds())
def test_every_difference_has_its_parts_and_each_setting_only_one(before, after) -> None:
    if not changed(before, after):
        with pytest.raises(ValueError, match="nothing differs"):
            parts(before, after)
        return
    found = parts(before, after)
    assert found.names and len(set(found.names)) == len(found.names)
    if explaining(before, after) is None:
        assert len(found.names) > 1


@pytest.mark.parametrize("learns", [LEARNS, Judgement(False, "does not learn")])
def test_several_changes_at_once_are_measured_judged_and_never_kept(monkeypatch, learns) -> None:
    """Not even where both are faster and the run still learns: its gain belongs to no one change."""
    rounds = SimpleNamespace(compare=lambda *_: ratio(2.0), rate=lambda name: rate(100.0))
    bench, asked = trial.Bench(Job(), NAIVE, "cpu"), []
    monkeypatch.setattr(bench, "_in_turn", lambda *_: (rounds, 0.0))
    monkeypatch.setattr(bench, "judge", lambda config, numerics, before: asked.append(numerics) or learns)
    found = bench.trial(NAIVE, NAIVE.with_(workers=2, batch_size=64, precision="bf16"))
    assert not found.kept and found.learning == learns and found.rate_after == rate(100.0)
    assert asked == ["training"] and ("does not learn" in found.why) is (learns.ok is False)
    assert found.why.startswith("faster: 2.00x") and "cannot be attributed to one change" in found.why
    assert found.why.endswith("were all changed")


# ---------------------------------------------------------------- a faster run must still learn


def learned(end: float, start: float = 2.0) -> Learned:
    return Learned(1600, start, end)


USUAL = (learned(0.60), learned(0.64))


@pytest.mark.parametrize(
    ("candidate", "numerics", "ok"),
    [
        (learned(0.62), "same", True),
        (learned(0.40), "close", True),  # better is no fault
        (learned(0.71), "same", True),  # 5 % of the starting loss above the unchanged run
        (learned(0.80), "close", False),
        (learned(2.00), "same", False),  # a learning rate of 0
        (learned(2.00), "training", False),
        (learned(1.50), "training", True),  # falls 25%
        (learned(1.70), "training", False),
        (learned(math.nan), "close", False),
        (learned(math.inf), "training", False),
    ],
)
def test_the_gate(candidate, numerics, ok) -> None:
    found = judge(USUAL, [candidate], numerics)
    assert found.ok is ok
    assert f"{candidate.end:.2f}" in found.says and "0.62" in found.says


@pytest.mark.parametrize("apart", [(0.1, 1.5), (0.01, 1.59), (1.0, 1.58)])
@pytest.mark.parametrize("numerics", ["same", "close", "training"])
def test_a_learning_rate_of_zero_never_passes_however_far_the_seeds_are_apart(apart, numerics) -> None:
    assert judge([learned(end) for end in apart], [learned(2.0)], numerics).ok is False


@pytest.mark.parametrize("ends", [(0.6, 1.7), (1.9, 1.9)])
def test_a_reference_that_learns_little_judges_nobody(ends) -> None:
    found = judge([learned(end) for end in ends], [learned(0.6)], "same")
    assert found.ok is None and f"falls {1 - max(ends) / 2:.0%}" in found.says


@pytest.mark.parametrize("ends", [(2.0, 2.0), (0.6, math.nan), (math.nan, 0.6)])
def test_a_reference_that_learns_nothing_keeps_nothing(ends) -> None:
    assert judge([learned(end) for end in ends], [learned(0.6)], "same").ok is False


def test_one_seed_is_enough_for_a_verdict() -> None:
    assert judge([learned(0.6)], [learned(0.65)], "same").ok is True
    assert judge([learned(0.6)], [learned(0.75)], "same").ok is False


def test_the_runs_of_several_seeds_are_judged_by_their_mean() -> None:
    assert judge(USUAL, [learned(0.80)], "same").ok is False
    assert judge(USUAL, [learned(0.80), learned(0.60)], "same").ok is True
    assert judge(USUAL, [learned(0.80), learned(0.80)], "same").ok is False


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small(cache, monkeypatch) -> configs.Preset:
    """The tiny preset with few pictures, kept for all tests here."""
    preset = msgspec.structs.replace(
        configs.PRESETS["tiny"], pictures=msgspec.structs.replace(configs.PRESETS["tiny"].pictures, count=192)
    )
    monkeypatch.setitem(configs.PRESETS, "tiny", preset)
    monkeypatch.setattr(pictures, "HELD_OUT", 64)
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(cache))
    return preset


DECODED = TrainConfig("pre-decoded")


def test_a_real_run_with_a_learning_rate_of_zero_fails_the_gate(small, monkeypatch) -> None:
    bench = trial.Bench(Job(), DECODED, "cpu", QUICK)
    honest = bench.judge(DECODED.with_(batch_size=16), "close")
    assert honest.ok is True, honest.says
    monkeypatch.setitem(configs.PRESETS, "tiny", msgspec.structs.replace(small, learning_rate=0.0))
    assert bench.judge(DECODED.with_(batch_size=16), "close").ok is False
    assert bench.judge(DECODED.with_(batch_size=16), "training").ok is False
    nowhere = trial.Bench(Job(), DECODED, "cpu", QUICK)
    assert nowhere.judge(DECODED, "same").ok is False, "also where the unchanged run does not learn"


def test_a_run_that_looks_worse_gets_a_second_seed(small, monkeypatch) -> None:
    bench, asked = trial.Bench(Job(), DECODED, "cpu", QUICK), []

    def learn(training) -> Learned:
        asked.append((training.config.batch_size, training.job.seed))
        return learned(0.8 if asked[-1] == (16, 0) else 0.6)

    monkeypatch.setattr(bench, "learn", learn)
    assert bench.judge(DECODED.with_(batch_size=16), "same").ok is True
    assert asked == [(32, 0), (16, 0), (32, 1), (16, 1)]


def test_what_changes_are_held_against_is_trained_once_for_each_batch_size(small, monkeypatch) -> None:
    """And it stays the first one, so that each change is held against it and not against the one before."""
    bench, asked = trial.Bench(Job(), DECODED, "cpu", QUICK), []
    monkeypatch.setattr(bench, "build", lambda config, seed=0: SimpleNamespace(
        can_learn=True, config=config, job=SimpleNamespace(seed=seed or 0)))  # fmt: skip
    ends = {"fp32": 0.60, "tf32": 0.65, "bf16": 0.71}

    def learn(training) -> Learned:
        asked.append((training.config.batch_size, training.config.precision, training.job.seed))
        return learned(ends[training.config.precision])

    monkeypatch.setattr(bench, "learn", learn)
    tf32 = DECODED.with_(precision="tf32")
    assert bench.judge(tf32, "close", DECODED).ok is True
    assert asked == [(32, "fp32", 0), (32, "tf32", 0)], "one seed of each suffices"
    assert bench.judge(tf32.with_(precision="bf16"), "close", tf32).ok is False, "0.06 worse than the one before it"
    assert asked[2:] == [(32, "bf16", 0), (32, "fp32", 1), (32, "bf16", 1)]
    asked.clear()
    larger = tf32.with_(batch_size=128)
    assert bench.judge(larger, "training", tf32).ok is True and asked == [(128, "tf32", 0)]
    asked.clear()
    assert bench.judge(larger.with_(fused=True), "close", larger).ok is True
    assert asked == [(128, "tf32", 0)], "the larger batch was trained when it was judged itself"


def test_the_learning_rate_of_a_judged_run_falls_to_zero(small) -> None:
    bench = trial.Bench(Job(), DECODED, "cpu", QUICK)
    training = bench.build(DECODED)
    rates = []
    step = training.step
    training.step = lambda x, y: rates.append(training.optimizer.param_groups[0]["lr"]) or step(x, y)
    assert bench.learn(training).samples >= small.learning_samples
    assert rates[0] == small.learning_rate and rates[-1] < 0.05 * small.learning_rate
    assert rates == sorted(rates, reverse=True)


def test_a_real_trial_keeps_pre_decoded_pictures(small) -> None:
    bench = trial.Bench(Job(), DECODED, "cpu", QUICK)
    found = bench.trial(NAIVE, DECODED)
    assert found.comparison.verdict == "faster" and found.comparison.ratio > 2
    assert found.learning.ok is True and found.kept
    assert found.changed == ("data_path",)
    assert found.rate_after.value > found.rate_before.value
    assert found.paid_once_seconds > 0
    assert msgspec.json.decode(msgspec.json.encode(found), type=trial.Trial) == found


def test_a_real_trial_of_nothing_or_of_a_slower_run_keeps_nothing(small) -> None:
    bench = trial.Bench(Job(), DECODED, "cpu", QUICK)
    back = bench.trial(DECODED, NAIVE)
    assert not back.kept and back.why.startswith("slower") and back.learning is None
    assert bench.trial(DECODED, DECODED).why == "nothing was changed"


def test_a_trial_whose_loader_fails_is_refused_with_the_reason(small, monkeypatch) -> None:
    bench = trial.Bench(Job(), DECODED, "cpu", QUICK)

    def fail(*args, **kwargs):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr(trial, "in_turn", fail)
    found = bench.trial(DECODED, DECODED.with_(workers=1))
    assert not found.kept and found.comparison is None
    assert found.why.startswith("not possible: a worker died")

    def no(config):
        raise LoaderFault("no batch")

    monkeypatch.setattr(bench, "build", no)
    assert bench.trial(DECODED, NAIVE).why == "not possible: no batch"


def test_pictures_without_classes_are_not_judged(small, tmp_path) -> None:
    noise(tmp_path, 16)
    bench = trial.Bench(Job(data=str(tmp_path)), NAIVE, "cpu", QUICK)
    found = bench.judge(NAIVE.with_(batch_size=4), "same")
    assert found.ok is None and "no classes" in found.says


def noise(folder, count: int) -> None:
    """Write small pictures of noise."""
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(random.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")


def test_the_knee_is_looked_for_among_batches_that_the_pictures_can_fill(small, tmp_path) -> None:
    noise(tmp_path, 50)  # 40 to train on: 16 and 32 can be tried, 64 cannot
    bench = trial.Bench(Job(data=str(tmp_path)), NAIVE, "cpu", QUICK)
    assert memory.knee(bench.build, DECODED.with_(batch_size=16), bench.clock, QUICK) in (16, 32)


def test_the_knee_is_the_smallest_batch_near_the_best(monkeypatch) -> None:
    """Steps of 10 ms up to 64 samples and in proportion above: 64 is as good as any larger one."""
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        memory_sweep,
        "_fits",
        lambda build, config: Steps(str(config.batch_size), time, n := config.batch_size, max(n, 64) * 1e-4),
    )
    training = SimpleNamespace(device="cpu", loader=SimpleNamespace(dataset=range(4096)))
    clock = Clock(now=lambda: time.now)
    assert memory.knee(lambda config: training, NAIVE, clock, Plan()) == 64
    assert memory.knee(lambda config: training, NAIVE.with_(batch_size=256), clock, Plan()) == 256


# ---------------------------------------------------------------- diagnosis


def seen(headroom: float = 3.0, limit: str = "data", loader: float = 130.0, workers: int = 0) -> StarveResult:
    """A run at 100 images/s."""
    here = conditions("cpu")
    return StarveResult(
        workload="a test", real=rate(100), ceiling=rate(100 * headroom), loader=rate(loader), headroom=ratio(headroom),
        wait_name="loader wait", wait_share=1 - 1 / headroom, data_work_share=0.0, slowed_share=0.0, agrees=True,
        limit=limit, startup_seconds=0.0, workers=workers, batch_size=32, config=None, planted="", conditions=here,
        origin=here.origin,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "says"),
    [("data", "waits for data"), ("compute", "the step itself takes"), ("unknown", "everything is tried")],
)
def test_a_diagnosis_has_its_numbers(limit, says) -> None:
    found = diagnose(seen(3.0, limit))
    assert found.limit == limit
    assert says in found.reason and "loader wait 67%" in found.reason and "headroom <= 3.00x" in found.reason


def test_no_remedy_is_promised_more_than_it_can_bring() -> None:
    starved = seen(3.0, loader=130.0)
    assert bound(by_id("pre-decode"), starved, 8) == pytest.approx(starved.at_most), "the data ceiling"
    assert bound(by_id("workers"), starved, 2) == pytest.approx(2.6), "two loaders side by side"
    assert bound(by_id("workers"), starved, 8) == pytest.approx(starved.at_most)
    assert bound(by_id("bf16"), starved, 8) == pytest.approx(1.5, rel=0.01), "a third of the time is the step's"
    assert bound(by_id("bf16"), seen(1.0, "compute"), 8) == math.inf
    assert bound(by_id("pre-decode"), seen(0.98, "compute"), 8) == 1.0


@pytest.mark.parametrize("headroom", [1.5, 3.0])
def test_a_starved_run_is_fed_first(headroom) -> None:
    """Also where the step takes most of the time, and a faster step could bring more."""
    order = [remedy.id for remedy, _ in ranked(seen(headroom), 8)]
    assert order[0] == "workers", "equal bounds: the cheapest first"
    first_step = min(order.index(name) for name in ("one-call", "bf16", "channels-last", "batch"))
    on_data_path = ("pre-decode", "card-decode", "fewer-workers", "pin", "device-transform")
    assert max(order.index(name) for name in on_data_path) < first_step


def test_a_larger_bound_comes_first() -> None:
    """Two loaders side by side bring less than a path without decoding."""
    assert [remedy.id for remedy, _ in ranked(seen(3.0), 2)][0] == "pre-decode"


def test_a_run_that_is_not_starved_is_not_offered_another_loader() -> None:
    offered = {remedy.id for remedy, _ in ranked(seen(1.02, "compute"), 8)}
    assert offered == {"one-call", "bf16", "channels-last", "batch", "rare-loss", "fused", "tf32", "compile"}


def test_an_unknown_limit_tries_everything() -> None:
    assert {remedy.id for remedy, _ in ranked(seen(1.5, "unknown"), 8)} == set(BY_ID) - {"checkpointing"}
    bounds = [most for _, most in ranked(seen(1.5, "unknown"), 8)]
    assert bounds == sorted(bounds, reverse=True)


# ---------------------------------------------------------------- the climb, on a bench that computes


class World:
    """A made-up machine of eight cores with a card: milliseconds a batch of 32 for every config."""

    def __init__(self, **costs: float):
        self.costs = {"decode": 320.0, "copy": 4.0, "handing": 1.0, "step": 25.0, "bf16": 0.4, "last": 0.7} | costs
        self.trials: list[tuple[TrainConfig, TrainConfig]] = []
        self.now = 0.0

    def load(self, c: TrainConfig) -> float:
        own = {"cpu-decode": self.costs["decode"], "card-decode": 20.0, "pre-decoded": self.costs["copy"]}[c.data_path]
        return own / min(c.workers, 8) if c.workers else own

    def step(self, c: TrainConfig) -> float:
        faster = self.costs["bf16"] if c.precision == "bf16" else 1.0
        layout = self.costs["last"] if c.memory_format == "channels_last" and c.precision == "bf16" else 1.0
        return self.costs["step"] * faster * layout

    def rate(self, c: TrainConfig) -> float:
        load, step = self.load(c), self.step(c) + self.costs["handing"] * c.workers
        return 32_000 / (max(load, step) if c.workers else load + step)

    def seen(self, c: TrainConfig) -> StarveResult:
        headroom = 32_000 / self.step(c) / self.rate(c)
        found = seen(headroom, "data" if headroom >= 1.1 else "compute", 32_000 / self.load(c), c.workers)
        return msgspec.structs.replace(found, real=rate(self.rate(c)), config=c)

    def trial(self, before: TrainConfig, after: TrainConfig, tell=None) -> trial.Trial:
        self.trials.append((before, after))
        self.now += 10.0
        found = ratio(self.rate(after) / self.rate(before))
        kept, why = trial._decision(found, LEARNS, changed(before, after))
        learning = LEARNS if found.verdict == "faster" else None
        return trial.Trial(
            before=before, after=after, changed=changed(before, after), comparison=found, learning=learning, kept=kept,
            rate_before=rate(self.rate(before)), rate_after=rate(self.rate(after)), why=why, planted="",
            origin=conditions("cpu").origin,
        )  # fmt: skip


class Heard(Tell):
    """What a climb says."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.records: list[Record] = []

    def progress(self, share: float, text: str = "") -> None:
        self.shares.append(share)

    def record(self, value: Record) -> None:
        self.records.append(value)


@pytest.fixture
def climbed(monkeypatch):
    """Climb in a world: gives the climb, why it stopped, and what it said."""

    def go(world: World, start: TrainConfig = NAIVE, **asked):
        made = climber.Climb(Request(Job(), start, **asked), heard := Heard())
        made.bench = SimpleNamespace(device="cuda:0", trial=world.trial)
        made.facts = facts(cpus=8, knee=32)
        made.budget = Budget(made.asked.budget_seconds, "cuda:0", lambda: world.now)
        monkeypatch.setattr(made, "look", lambda quick=False: Look(world.seen(made.now)))
        monkeypatch.setattr(made, "finish", lambda stopped: stopped)
        return made, made.climb(), heard

    return go


def kept(heard: Heard) -> list[str]:
    return [record.remedy for record in heard.records if record.kept and record.kind == "change"]


def test_a_climb_changes_one_thing_at_a_time_and_reaches_the_top(climbed) -> None:
    """Each change is tried on top of what was kept before, until the loader and the step are both as fast as can be."""
    made, stopped, heard = climbed(World())
    assert made.now == TrainConfig("pre-decoded", precision="bf16", memory_format="channels_last")
    assert kept(heard) == ["pre-decoded pictures", "BF16 autocast", "channels_last"]
    assert "nothing that is left to try pays" in stopped
    now = NAIVE
    for record in heard.records[1:]:
        assert record.before == now
        assert explaining(record.before, record.config) is not None
        assert record.kept == (record.comparison.verdict == "faster")
        assert record.why and record.code and record.changed == changed(record.before, record.config)
        now = record.config if record.kept else now
    assert now == made.now


def test_a_climb_goes_back_to_no_workers_when_they_have_little_left_to_do(climbed) -> None:
    made, _, heard = climbed(World(), TrainConfig(workers=7, persistent_workers=True))
    assert kept(heard)[:2] == ["pre-decoded pictures", "no workers"]
    assert (made.now.workers, made.now.persistent_workers) == (0, False)


def test_a_climb_records_where_it_began_and_every_trial_at_once(climbed) -> None:
    world = World()
    _, _, heard = climbed(world)
    assert heard.records[0].kind == "baseline" and heard.records[0].config == NAIVE and heard.records[0].kept
    assert [(r.before, r.config) for r in heard.records[1:]] == world.trials
    assert len({r.run for r in heard.records}) == 1
    assert any(not r.kept for r in heard.records), "refused ones are recorded as well"


def test_a_refused_change_is_not_tried_again_while_nothing_speaks_for_it(climbed) -> None:
    """More workers do not pay after pre-decoding, and a faster step does not change that as long as data limits."""
    _, _, heard = climbed(World())
    tried = [record.remedy for record in heard.records[1:]]
    assert tried.count("loader workers") == tried.count("pinned memory") == 1
    assert tried.index("loader workers") < tried.index("BF16 autocast")


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_climb_stops_at_the_changes_it_may_make(climbed, most) -> None:
    _, stopped, heard = climbed(World(), max_changes=most)
    assert len(kept(heard)) == most
    assert f"{most} changes were kept, as many as allowed" in stopped


def test_a_climb_stops_at_its_budget(climbed) -> None:
    """A trial takes 10 s here: when only 5 s are left no other one is begun."""
    world = World()
    _, stopped, _ = climbed(world, budget_seconds=25.0)
    assert len(world.trials) == 2
    assert "the budget of 25 s is used up: a change takes about 10 s, and 5 s are left" in stopped


def test_a_climb_that_had_to_stop_names_what_it_has_not_tried(climbed, monkeypatch) -> None:
    made, _, _ = climbed(World(), budget_seconds=25.0)
    tried = {record.remedy for record in made.records}
    monkeypatch.setattr(made, "facts", facts(cpus=8, knee=pytest.fail))  # nothing is measured for it
    left = made.untried(made.looks[-1])
    assert left and not tried & set(left) and {"BF16 autocast", "batch at the knee"} <= set(left)
    assert "decode on the card" not in left, "what does not apply is not left over"


def test_the_time_for_choosing_a_batch_is_part_of_that_change(climbed, monkeypatch) -> None:
    """Each other trial takes 10 s, and finding the knee 40: the next change is judged by what changes really take."""
    world = World(decode=1.0, copy=1.0, handing=10.0, bf16=1.0, last=1.0)

    def knee(config: TrainConfig) -> int:
        world.now += 40.0
        return 64

    made, _, _ = climbed(world, max_changes=0)
    monkeypatch.setattr(made, "facts", Facts(8, True, knee))
    made.asked = msgspec.structs.replace(made.asked, max_changes=6)
    made.refused = {name: remedy for name, remedy in BY_ID.items() if name != "batch"}
    made.next_change(made.looks[-1])
    assert made.budget._changes[-1] == 50.0


def test_what_is_trained_once_is_no_part_of_what_the_next_change_will_take(climbed, monkeypatch) -> None:
    """The first change takes 40 s, in 30 of which the unchanged run is trained: there is time for a second one."""
    world, usual = World(), World.trial

    def first(self, *how):
        if not self.trials:
            self.now += 30.0
            made.spent.seconds[trial.UNCHANGED] = 30.0
        return usual(self, *how)

    monkeypatch.setattr(World, "trial", first)
    made, _, _ = climbed(World(), max_changes=0)  # only to have one at hand
    made.bench.trial, made.asked = world.trial, msgspec.structs.replace(made.asked, max_changes=6)
    made.budget = Budget(55.0, "cuda:0", lambda: world.now)
    made.next_change(made.looks[-1])
    assert made.budget._changes == [10.0] and made.budget.used_up() == ""


def test_a_climb_stops_when_nothing_pays(climbed) -> None:
    flat = World(decode=1.0, copy=1.0, handing=10.0, bf16=1.0, last=1.0)
    made, stopped, heard = climbed(flat)
    assert made.now == NAIVE and kept(heard) == []
    assert len(heard.records) > 1, "it tried"
    assert "nothing that is left to try pays" in stopped


def test_a_climb_tells_a_share_that_grows(climbed) -> None:
    _, _, heard = climbed(World())
    assert heard.shares == sorted(heard.shares) and heard.shares[-1] < 1


def test_what_need_not_be_tried_again_while_the_limit_stays() -> None:
    refused = {name: BY_ID[name] for name in ("workers", "pre-decode", "channels-last", "fewer-workers", "bf16")}
    after_step = climber.still_refused(refused, BY_ID["bf16"])
    assert set(after_step) == {"workers", "pre-decode", "bf16"}
    after_data = climber.still_refused(refused, BY_ID["pre-decode"])
    assert set(after_data) == {"pre-decode", "channels-last", "bf16"}


# ---------------------------------------------------------------- the ledger


def record(number: int = 0, **changes) -> Record:
    here = conditions("cpu")
    made = Record(ledger.now(), f"run {number}", "a test", "baseline", NAIVE, rate(100), here, kept=True)
    return msgspec.structs.replace(made, **changes)


def full_record() -> Record:
    """A record of a change, with everything in it."""
    return record(
        kind="change", config=DECODED, before=NAIVE, remedy="pre-decoded pictures", code="np.save(...)",
        changed=("data_path",), comparison=ratio(6.0), learning=LEARNS, why="faster", paid_once_seconds=12.5,
    )  # fmt: skip


def test_what_is_added_is_read_again_oldest_first() -> None:
    given = [record(0), full_record(), record(1, rate=None, kept=False, why="not possible")]
    assert all(ledger.add(one) for one in given)
    assert ledger.read() == (given, 0)
    assert ledger.of_run(given, "run 1") == [given[2]]


def test_an_empty_ledger_is_no_error() -> None:
    assert ledger.read() == ([], 0)


def test_broken_lines_are_skipped_and_counted() -> None:
    ledger.add(record(0))
    file = state.folder() / ledger.FILE
    whole = file.read_text()
    impossible = json.loads(whole)
    impossible["config"]["workers"] = -3
    file.write_text(
        whole + whole[:40] + "\n" + '{"another": "shape"}\n' + json.dumps(impossible) + "\n" + whole[: len(whole) // 2]
    )
    ledger.add(record(1))
    found, torn = ledger.read()
    assert [one.run for one in found] == ["run 0", "run 1"]
    assert torn == 4


def test_two_writers_lose_nothing() -> None:
    script = """
import sys
import msgspec
from gpuworkshop.loop import ledger
one = msgspec.json.decode(sys.stdin.buffer.read(), type=ledger.Record)
for number in range(60):
    assert ledger.add(msgspec.structs.replace(one, run=f"{sys.argv[1]} {number}", why="x" * 5000))
"""
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen([*command, name], stdin=subprocess.PIPE) for name in "ab"]
    for process in both:
        process.stdin.write(msgspec.json.encode(full_record()))
        process.stdin.close()
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    found, torn = ledger.read()
    assert torn == 0
    for name in "ab":
        assert [one.run for one in found if one.run.startswith(name)] == [f"{name} {number}" for number in range(60)]


# ---------------------------------------------------------------- what a loop says


def result(world: World, heard: Heard, stopped: str) -> climb.LoopResult:
    """The result of a climb in a world."""
    last = next(r.config for r in reversed(heard.records) if r.kept)
    here = conditions("cpu")
    gains = [r.comparison.ratio for r in heard.records if r.kept and r.comparison]
    return climb.LoopResult(
        run="a", job=Job(), baseline=world.seen(NAIVE), records=tuple(heard.records), final=world.seen(last),
        of_synthetic=ratio(0.9), synthetic=rate(2000), jpegs=rate(500),
        jpegs_config=last.with_(data_path="cpu-decode", workers=7), gain=math.prod(gains), stopped=stopped,
        seconds=60.0, conditions=here, origin=here.origin,
    )  # fmt: skip


def test_a_loop_says_what_was_kept_what_was_not_and_why_it_stopped(climbed) -> None:
    world = World()
    _, stopped, heard = climbed(world)
    found = result(world, heard, stopped)
    said = {finding.title: finding for finding in climb.findings(found)}
    for one in found.kept:
        assert said[f"{one.remedy}: {one.comparison}"].level == "ok"
    for one in found.refused:
        assert one.why in said[f"{one.remedy}: not kept"].evidence
    assert len(found.kept) == 3 and len(found.refused) == len(heard.records) - 4 > 0
    assert any(stopped in finding.evidence for finding in said.values())
    assert any("JPEGs" in title and "500" in title for title in said)
    product = world.rate(found.kept[-1].config) / world.rate(NAIVE)
    assert any(f"In all {product:.1f}x" in title for title in said)


def test_a_loop_has_one_row_for_each_config_and_survives_json(climbed) -> None:
    world = World()
    _, stopped, heard = climbed(world)
    found = result(world, heard, stopped)
    assert msgspec.json.decode(msgspec.json.encode(found), type=climb.LoopResult) == found
    rows = climb.table(found).rows
    assert len(rows) == len(heard.records) + 3
    assert [row[0] for row in rows[1:-3]] == [one.remedy for one in heard.records[1:]]
    text = str(climb.report(found))
    assert "Loop: small-cnn at 64 px" in text


def test_a_loop_that_changed_nothing_says_so(climbed) -> None:
    flat = World(decode=1.0, copy=1.0, handing=10.0, bf16=1.0, last=1.0)
    _, stopped, heard = climbed(flat)
    assert any(finding.title == "Nothing worth changing" for finding in climb.findings(result(flat, heard, stopped)))


def test_an_interrupt_leaves_no_process_and_whole_records(tmp_path, tmp_path_factory, monkeypatch) -> None:
    """What was recorded until then is in the ledger, each line whole."""
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    noise(folder, 48)
    others, started = set(psutil.Process().children(recursive=True)), []

    def interrupt(progress) -> None:
        if ledger.read()[0] and not started:
            started.extend(set(psutil.Process().children(recursive=True)) - others)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        climb.run(Job(data=str(folder)), start=NAIVE.with_(batch_size=8), progress=interrupt)
    found, torn = ledger.read()
    assert torn == 0 and [one.kind for one in found][:1] == ["baseline"]
    assert started
    _, alive = psutil.wait_procs(started, timeout=WAIT)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_a_whole_loop_runs_to_its_end(tmp_path) -> None:
    """The main job, in its child, on pictures of one's own: result, report and ledger tell the same."""
    for number in range(60):
        place = tmp_path / ("red" if number % 2 else "blue")
        place.mkdir(exist_ok=True)
        pictures.draw(4 * number).resize((200, 150)).save(place / f"{number}.jpg")
    job = Job(data=str(tmp_path))
    result = climb.run(job, start=TrainConfig(batch_size=8), max_changes=1, budget_seconds=20.0)

    assert result.records[0].kind == "baseline" and result.records[0].rate == result.baseline.real
    assert len(result.kept) <= 1 and result.stopped
    assert all(len(set(record.changed) - set(remedies.explaining(record.before, record.config).touches)) == 0
               for record in result.records[1:])  # fmt: skip
    assert result.gain == pytest.approx(math.prod(record.comparison.ratio for record in result.kept))
    assert result.final.config == (result.kept[-1].config if result.kept else TrainConfig(batch_size=8))
    assert result.of_synthetic.ratio == pytest.approx(result.final.real.value / result.synthetic.value, rel=0.2)
    assert msgspec.json.decode(msgspec.json.encode(result), type=climb.LoopResult) == result
    assert ledger.read() == (list(result.records), 0)
    text = str(climb.report(result))
    assert "Loop: small-cnn at 64 px, own pictures" in text and result.stopped in text
