"""What a loop says at its end, how long it may take, and the public cases about comparing runs."""

import itertools
import math
from types import SimpleNamespace

import msgspec
import pytest

from gpuworkshop import cli
from gpuworkshop.course import replay
from gpuworkshop.instruments.flops import Achieved
from gpuworkshop.instruments.watch_findings import LEAST_WINDOWS
from gpuworkshop.loop import climb, ledger, remedies, trial
from gpuworkshop.loop.budget import Budget, Spent
from gpuworkshop.loop.climb import USUAL, USUAL_ON_CPU
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.look_result import Look, Traced, Watched
from gpuworkshop.loop.pace import FEW_ROUNDS, SHARE, pace_for
from gpuworkshop.loop.remedies import explaining, parts
from gpuworkshop.timing import Clock, Plan, Rate, in_turn, plan_for, warm_up
from gpuworkshop.workloads.config import TrainConfig, changed

RECORDED = replay.load("loop")
"""A loop on an H200, by a kit that did not look at where the time of a step goes."""

WINDOW = 0.2
"""Seconds of one window of the driver."""


def titles(result: climb.LoopResult) -> dict[str, str]:
    return {finding.title: finding.evidence for finding in climb.findings(result)}


# ---------------------------------------------------------------- what is said


def flop_rate(value: float) -> Rate:
    return Rate(value, 0.99 * value, 1.01 * value, 8, "FLOP/s")


def looks() -> tuple[Look, Look]:
    """A starved look and one that computes, on a card."""
    first = Look(
        RECORDED.baseline, Traced(20, 9e4, 900, 4.0, busy=8e3, copying=0.0), watched=Watched(0.15, 25), memory=0.1
    )
    whole = 1e6 * RECORDED.final.batch_size / RECORDED.final.real.value
    last = Look(
        RECORDED.final,
        Traced(20, whole, 900, 40.0, busy=0.98 * whole, copying=0.0),
        Achieved(flop_rate(1.2e14), of_product=0.154, of_peak=0.121),
        Watched(0.99, 25),
        0.3,
        flop_rate(7.8e14),
        "bf16",
    )
    return first, last


def with_looks() -> climb.LoopResult:
    return msgspec.structs.replace(RECORDED, looks=looks())


def test_a_loop_that_was_recorded_before_still_says_what_it_knows() -> None:
    assert RECORDED.looks == () and RECORDED.kept
    said = titles(RECORDED)
    assert any(title.startswith("It began with: the step waits for data") for title in said)
    assert not any("computes" in title or "guide" in title for title in said), "nothing is invented"
    assert all(record.limit_after == "" and record.at_most is None for record in RECORDED.records)


def test_a_loop_ends_with_what_is_left_of_the_card() -> None:
    said = titles(with_looks())
    (title,) = [title for title in said if title.startswith("It computes")]
    assert "120 TFLOP/s" in title and "15% of a large matrix product measured here" in title
    assert "780 TFLOP/s" in said[title] and "12% of the published peak" in said[title]


def test_more_cards_are_named_with_the_verb_that_measures_them() -> None:
    findings = {finding.title: finding for finding in climb.findings(with_looks())}
    more = findings["More cards are not tried here"]
    assert more.fix == "gpuworkshop scale" and more.level == "notice"
    starved = msgspec.structs.replace(RECORDED, looks=looks()[:1])
    assert "More cards are not tried here" not in titles(starved)


def test_without_a_published_peak_that_is_said() -> None:
    first, last = looks()
    last = msgspec.structs.replace(
        last, achieved=Achieved(flop_rate(3e9), 0.024, None, "a CPU has no published peak here")
    )
    said = titles(msgspec.structs.replace(RECORDED, looks=(first, last)))
    (evidence,) = [said[title] for title in said if title.startswith("It computes 3.00 GFLOP/s")]
    assert "peak n/a: a CPU has no published peak here" in evidence


def kept(**changes) -> climb.LoopResult:
    """The recorded loop with its first kept change altered."""
    first = next(record for record in RECORDED.records if record.kind == "change" and record.kept)
    records = tuple(msgspec.structs.replace(r, **changes) if r == first else r for r in RECORDED.records)
    return msgspec.structs.replace(RECORDED, records=records)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("data", "compute", "the bottleneck moved: data -> compute"),
        ("data", "data", "the bottleneck stayed: data"),
    ],
)
def test_a_kept_change_says_whether_the_bottleneck_moved(before, after, says) -> None:
    result = kept(limit_before=before, limit_after=after)
    assert any(says in evidence for evidence in titles(result).values())


def test_what_was_paid_once_is_told_with_the_steps_that_pay_it_back() -> None:
    result = kept(paid_once_seconds=50.0)
    (record,) = [record for record in result.kept if record.paid_once_seconds == 50.0]
    assert any(
        f"paid once: 50 s, paid back after {record.pays_back_after} step" in words for words in titles(result).values()
    )


# ---------------------------------------------------------------- how long it may take


def test_without_a_card_a_loop_has_a_usual_budget_and_a_card_has_none() -> None:
    assert Budget(USUAL, "cpu", lambda: 0.0).seconds == USUAL_ON_CPU
    assert Budget(USUAL, "cuda:0", lambda: 0.0).seconds is None
    assert Budget(None, "cpu", lambda: 0.0).seconds is None
    assert Budget(30.0, "cuda:0", lambda: 0.0).seconds == 30.0


def test_no_change_is_begun_that_would_probably_end_too_late() -> None:
    time = SimpleNamespace(now=0.0)
    budget = Budget(USUAL, "cpu", lambda: time.now)
    time.now = USUAL_ON_CPU - 15
    assert budget.used_up() == "", "nothing is known yet of what a change takes"
    time.now += 8
    budget.changed(8)
    words = budget.used_up()
    assert "a change takes about 8 s, and 7 s are left" in words and "--budget none" in words
    time.now = 2 * USUAL_ON_CPU
    assert budget.used_up().startswith(f"the budget of {USUAL_ON_CPU:.0f} s is used up (")
    asked = Budget(10.0, "cpu", iter([0.0, 20.0]).__next__)
    assert asked.used_up() == "the budget of 10 s is used up", "whoever asked for it need not be told how to lift it"


def test_what_is_done_within_something_else_counts_once() -> None:
    time = SimpleNamespace(now=0.0)
    spent = Spent(lambda: time.now)
    with spent.on("trials"):
        time.now += 3
        with pytest.raises(KeyError), spent.on("learning"):
            time.now += 4
            raise KeyError
        time.now += 1
    time.now += 100
    with spent.on("learning"):
        time.now += 2
    assert spent.seconds == {"trials": 4.0, "learning": 6.0}


def test_a_loop_says_where_its_time_went_and_what_it_left_untried() -> None:
    stopped = "the budget of 150 s is used up"
    told = msgspec.structs.replace(
        RECORDED, spent={"looks": 20.4, "trials": 80.0}, untried=("fused optimizer", "TF32"), stopped=stopped
    )
    said = {finding.title: finding for finding in climb.findings(told)}
    assert said[f"The loop took {RECORDED.seconds:.0f} s"].evidence == "trials 80 s, looks 20 s"
    left = said["Not tried: fused optimizer, TF32"]
    assert stopped in left.evidence and "--budget none" in left.fix
    assert not any(title.startswith(("The loop took", "Not tried")) for title in titles(RECORDED))
    assert RECORDED.spent == {} and msgspec.json.decode(msgspec.json.encode(told), type=climb.LoopResult) == told


@pytest.mark.parametrize("budget", [30.0, 60.0, 150.0, 300.0, 600.0])
def test_with_a_budget_on_a_card_no_part_takes_much_of_it(budget) -> None:
    found, usual = pace_for("cuda:0", budget), pace_for("cuda:0")
    for plan in (found.trial, found.baseline, found.quick):
        least = plan.min_rounds * 2 * plan.block_seconds
        assert max(plan.budget_seconds, least, 2 * plan.min_seconds) <= max(3.2, SHARE * budget) + 1e-9
        assert plan.width >= usual.trial.width and plan.min_rounds >= FEW_ROUNDS
        assert plan.block_seconds <= usual.trial.block_seconds
    assert found.trial.width == usual.trial.width and found.trial.min_rounds == usual.trial.min_rounds
    assert found.watch_seconds / WINDOW >= LEAST_WINDOWS, "enough windows of the driver to say anything"


def test_a_long_budget_measures_as_if_there_were_none_and_a_cpu_always_does() -> None:
    assert pace_for("cuda:0", 600.0).trial == pace_for("cuda:0").trial == plan_for("cuda:0")
    assert pace_for("cuda:0", 600.0).baseline == plan_for("cuda:0", baseline=True) == pace_for("cuda:0").baseline
    assert pace_for("cpu", 50.0) == pace_for("cpu") and pace_for("cpu").trial == plan_for("cpu")


def test_a_loop_of_150_s_on_a_card_has_time_for_five_changes() -> None:
    """What measuring alone takes, when nothing gets narrow before its time is up: two arms a change, three at first.

    A block may be half as long again, and warming up takes a second an arm.
    """
    pace, arm = pace_for("cuda:0", 150.0), 1.0
    longest = 1.5 * pace.trial.block_seconds
    first = 1.5 * pace.baseline.budget_seconds + 3 * (longest + arm) + 2 * pace.product_seconds
    first += pace.watch_seconds + pace.profile_seconds
    change = pace.trial.budget_seconds + 2 * (longest + arm)
    look = 2 * (FEW_ROUNDS * longest + arm) + pace.watch_seconds + pace.quick_profile_seconds
    assert first + 5 * (change + look) < 150.0


@pytest.mark.parametrize(("words", "asked"), [([], {}), (["--budget", "none"], {"budget_seconds": None})])
def test_the_command_hands_the_budget_on(words, asked, monkeypatch) -> None:
    heard = []
    monkeypatch.setattr(climb, "run", lambda job, **how: heard.append(how) or RECORDED)
    assert cli.main(["loop", "--preset", "tiny", *words]) == 0
    assert {name: value for name, value in heard[0].items() if name in ("budget_seconds", "max_changes")} == asked


def test_the_help_tells_the_usual_budget(capsys) -> None:
    assert cli.main(["loop", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{USUAL_ON_CPU:.0f}s" in said and "none" in said


# ---------------------------------------------------------------- public cases


class Series:
    """An arm whose steps take these milliseconds, one after the other; its last ones again and again."""

    period = 1

    def __init__(self, name: str, time: SimpleNamespace, first: list[float], then: list[float], samples: int = 64):
        self.name, self.time, self.samples = name, time, samples
        self.milliseconds = itertools.chain(first, itertools.cycle(then))

    def resume(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def step(self, clock: Clock) -> int:
        self.time.now += next(self.milliseconds) / 1e3
        return self.samples


COLD = [820.0, 290.0]
STEADY = [101.0, 97.0, 103.0, 99.0, 100.0, 104.0, 98.0]


def against_steady(then: list[float], first: list[float] = COLD, samples: int = 64):
    """A baseline that starts cold, and another run, in turn."""
    time = SimpleNamespace(now=0.0)
    pair = [Series("before", time, COLD, STEADY), Series("after", time, first, then, samples)]
    return in_turn(pair, Clock(now=lambda: time.now), Plan())


def test_l01_a_gain_within_the_noise_is_none_and_the_first_steps_do_not_count() -> None:
    """pyg-team/pytorch_geometric#10773, pytorch/torchdynamo#900, ofsoundof/IMDN#2.

    Series of our own like the case's: the same cold start, then 100 ms; one that really takes 70, one that takes 98.
    """
    faster = against_steady([72.0, 69.0, 71.0, 70.0, 68.0])
    assert faster.compare("before", "after").verdict == "faster"
    assert faster.rate("before").value == pytest.approx(64 / 0.1, rel=0.02), "cold steps are no part of it"
    same = against_steady([96.0, 103.0, 95.0, 101.0, 98.0, 104.0, 97.0]).compare("before", "after")
    assert same.verdict == "no real difference" and "would have seen" in str(same)
    assert trial._decision(same, None, ("precision",))[0] is False


def test_l01_a_series_of_another_shape_is_not_the_same_work() -> None:
    """Half the batch in half the time is no gain, and the setting that differs is named."""
    before, after = TrainConfig(batch_size=64), TrainConfig(batch_size=32)
    halved = against_steady([52.0, 51.0, 53.0], samples=32).compare("before", "after")
    assert halved.verdict != "faster" and halved.ratio < 1
    assert changed(before, after) == ("batch_size",)
    assert explaining(before, after).numerics == "training"


def test_l01_warming_up_ends_with_steps_that_agree() -> None:
    time = SimpleNamespace(now=0.0)
    arm = Series("cold", time, COLD, [100.0])
    warm_up(arm, Clock(now=lambda: time.now), Plan())
    assert next(arm.milliseconds) == 100.0


def test_m11_a_kept_record_says_what_checkpointing_does_to_batchnorm() -> None:
    """pytorch/pytorch#96136, Tencent/YOLO-Master#262: losses and gradients match, so only the record can say it."""
    after = TrainConfig(batch_size=128, checkpointing=True)
    said = dict(changed=("checkpointing", "batch_size"), kept=True, why="", origin=RECORDED.origin, planted="")
    then = trial.Trial(before=TrainConfig(batch_size=64), after=after, comparison=RECORDED.kept[0].comparison, **said)
    known = dict(run="1", workload="resnet50 at 224 px", conditions=RECORDED.records[0].conditions)
    record = ledger.change(then, remedies.by_id("checkpointing"), **known)
    assert "BatchNorm" in record.aside and "twice" in record.aside
    told = climb.findings(msgspec.structs.replace(RECORDED, records=(*RECORDED.records, record)))
    assert any("checkpointing" in one.title and record.aside in one.evidence for one in told)
    assert not ledger.change(then, remedies.by_id("bf16"), **known).aside


def test_l02_runs_that_differ_in_two_settings_are_compared_in_samples_and_no_cause_is_named() -> None:
    """Lightning-AI/pytorch-lightning#5276, p-e-w/heretic#362.

    Numbers of our own: 64 samples in 210 ms before; 128 in 330 ms after, with workers as well.
    """
    before, after = TrainConfig(batch_size=64), TrainConfig(batch_size=128, workers=4)
    time = SimpleNamespace(now=0.0)
    pair = [Series("before", time, [], [210.0]), Series("after", time, [], [330.0], 128)]
    seen = in_turn(pair, Clock(now=lambda: time.now), Plan()).compare("before", "after")
    assert seen.verdict == "faster" and seen.ratio == pytest.approx((128 / 330) / (64 / 210))
    assert set(changed(before, after)) == {"batch_size", "workers"}, "every setting that differs is listed"
    kept, why = trial._decision(seen, None, changed(before, after), parts(before, after))
    assert not kept and why.startswith("faster") and "cannot be attributed to one change" in why
    assert "loader workers" in why and "batch" in why


def test_l02_a_record_lists_what_differs_with_its_values() -> None:
    record = next(record for record in RECORDED.records if len(record.changed) > 1)
    assert isinstance(record, Record)
    words = climb.change_words(record)
    assert all(f"{name} {getattr(record.config, name)}" in words for name in record.changed)
    assert math.isclose(record.comparison.ratio, record.rate.value / record.rate_before.value, rel_tol=0.05)
