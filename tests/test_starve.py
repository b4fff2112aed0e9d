"""Does starve see what was planted? Real loaders and steps that wait, and what its results are said to mean."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from gpuworkshop.child import ChildFailed, Progress, Tell
from gpuworkshop.instruments import arms, starve
from gpuworkshop.instruments.feed import LoaderFault
from gpuworkshop.instruments.starve_report import strip
from gpuworkshop.instruments.starve_result import SweepPoint, is_starved, tells_same_story, which_limit
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import Comparison, Plan, Rate, compare
from gpuworkshop.workloads.config import Job, TrainConfig

QUICK = Plan(block_seconds=0.05, budget_seconds=0.5)
WAIT = 30
"""Seconds that a test waits for something that must happen; how fast it happens is not tested."""


class Slow(Dataset):
    """Samples that each really take ``seconds`` to come. The wait needs no CPU, so workers bring their number."""

    def __init__(self, seconds: float, count: int = 64):
        self.seconds, self.count = seconds, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((2,), float(index))


class Fragile(Slow):
    """A worker that comes to sample 3 is killed."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() and index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def loader(seconds: float, workers: int = 0, **rest) -> DataLoader:
    """Batches of eight slow samples."""
    return DataLoader(Slow(seconds), batch_size=8, num_workers=workers, **rest)


def step_of(seconds: float):
    """A step that takes so long."""
    return lambda batch: time.sleep(seconds)


@pytest.fixture(autouse=True)
def no_children_left():
    """Whatever is measured here, no worker process stays."""
    before = set(multiprocessing.active_children())
    yield
    assert not set(multiprocessing.active_children()) - before


# ---------------------------------------------------------------- the first door


def test_a_slow_loader_limits_and_the_wait_is_the_planted_one() -> None:
    """32 ms of loading before 16 ms of step: two thirds of the time, and three times the rate without it."""
    seen = starve.measure(loader(0.004), step_of(0.016), device="cpu", plan=QUICK)
    assert seen.limit == "data"
    assert (seen.wait_name, seen.workers, seen.batch_size) == ("loader wait", 0, 8)
    assert seen.wait_share == pytest.approx(2 / 3, abs=0.1)
    assert seen.headroom.ratio == pytest.approx(3, rel=0.25)
    assert seen.loader.value == pytest.approx(1.5 * seen.real.value, rel=0.25)
    assert seen.agrees is True
    assert abs(seen.slowed_share) < 0.1 and seen.data_work_share < 0.1


def test_a_slow_step_limits_and_a_perfect_loader_brings_nothing() -> None:
    seen = starve.measure(loader(0.0), step_of(0.04), device="cpu", plan=QUICK)
    assert seen.limit == "compute"
    assert seen.wait_share < 0.1 and seen.agrees is True
    assert 0.9 < seen.headroom.ratio < 1.1
    assert seen.loader.value > 5 * seen.real.value


def test_work_in_prepare_is_data_work_and_belongs_to_the_headroom() -> None:
    def prepare(batch: torch.Tensor) -> torch.Tensor:
        time.sleep(0.025)
        return batch

    seen = starve.measure(loader(0.0), step_of(0.025), prepare, device="cpu", plan=QUICK)
    assert seen.data_work_share == pytest.approx(0.5, abs=0.1)
    assert seen.wait_share < 0.15
    assert seen.headroom.ratio == pytest.approx(2, rel=0.25)
    assert seen.limit == "data" and seen.agrees is True


def test_d12_four_slow_workers_are_still_the_limit() -> None:
    """D12, from pytorch/pytorch#19836, pytorch/pytorch#2978, pytorch/pytorch#8371: items of 5 ms in batches of 8 over
    4 workers take 10 ms a batch, the step 2.5 ms: bound by the loader. Waits come in bursts, one long and three short
    ones, and the start of the workers lies in no block. Told is the mean over whole periods with its interval, and not
    the median and p95 of single waits: that median is a short one, and a card is not synchronized in every step.
    """
    late = loader(0.005, 4, worker_init_fn=lambda worker: time.sleep(0.5))
    seen = starve.measure(late, step_of(0.0025), device="cpu", plan=QUICK)
    assert seen.limit == "data" and seen.workers == 4
    assert seen.agrees is None
    assert seen.headroom.ratio == pytest.approx(4, rel=0.4)
    assert seen.wait_share > 0.5
    assert seen.startup_seconds >= 0.5


@pytest.mark.alone
def test_enough_workers_hide_the_loader() -> None:
    plan = Plan(block_seconds=0.1, min_rounds=20, budget_seconds=5.0)  # one late wake-up is a fifth of a block
    seen = starve.measure(loader(0.001, 2), step_of(0.05), device="cpu", plan=plan)
    assert seen.limit == "compute"
    assert seen.wait_share < 0.1


def test_the_loader_alone_can_be_left_out() -> None:
    seen = starve.measure(loader(0.0), step_of(0.01), device="cpu", plan=QUICK, loader_alone=False)
    assert seen.loader is None
    assert "None" not in str(starve.report(seen))


def test_the_ceiling_uses_eight_different_batches() -> None:
    """One batch again and again would stay in the caches of the device."""
    used: set[float] = set()

    def step(batch: torch.Tensor) -> None:
        time.sleep(0.005)
        if sys._getframe(1).f_code is arms.Resident.step.__code__:
            used.add(float(batch[0, 0]))

    starve.measure(loader(0.0), step, device="cpu", plan=QUICK, loader_alone=False)
    assert len(used) == 8


def test_progress_comes_in_order() -> None:
    shares = []

    class Told(Tell):
        def progress(self, share: float, text: str = "") -> None:
            shares.append(share)

    starve.measure(loader(0.0), step_of(0.005), device="cpu", plan=QUICK, tell=Told())
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] > 0.5


def test_a_step_that_raises_passes_its_own_error() -> None:
    def step(batch: torch.Tensor) -> None:
        raise ZeroDivisionError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(ZeroDivisionError, match="^mat1 and mat2 shapes cannot be multiplied$"):
        starve.measure(loader(0.0, 2), step, device="cpu", plan=QUICK)


def test_d15_a_loader_without_batches_is_named() -> None:
    """D15, from huggingface/datasets#7113, arm/neural-graphics-model-gym#147, RasmussenLab/vamb#425."""
    few = DataLoader(Slow(0.0, 33), batch_size=64, drop_last=True)
    with pytest.raises(LoaderFault, match="33 samples < batch size 64 with drop_last=True"):
        starve.measure(few, step_of(0.0), device="cpu", plan=QUICK)


def test_an_iterator_instead_of_a_loader_is_named() -> None:
    with pytest.raises(LoaderFault, match="hand over the loader itself"):
        starve.measure(iter(loader(0.0)), step_of(0.0), device="cpu", plan=QUICK)


def test_a_worker_that_dies_is_named() -> None:
    with pytest.raises(LoaderFault, match="a worker died"):
        starve.measure(DataLoader(Fragile(0.001), num_workers=2), step_of(0.001), device="cpu", plan=QUICK)


def test_an_interrupt_ends_the_workers() -> None:
    steps = iter(range(30))

    def step(batch: torch.Tensor) -> None:
        time.sleep(0.005)
        if next(steps, None) is None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        starve.measure(loader(0.001, 2), step, device="cpu", plan=QUICK)


def test_batches_of_any_shape_are_counted_and_moved() -> None:
    batch = {"x": torch.zeros(6, 2), "more": [torch.zeros(6), ("name",)]}
    assert arms.size(batch) == arms.size((torch.zeros(6, 2), torch.zeros(6))) == arms.size([[1] * 6]) == 6
    assert arms.size(torch.tensor(3.0)) == arms.size("a name") == arms.size({}) == 1
    there = arms.moved(batch, "meta")
    assert there["x"].is_meta and there["more"][0].is_meta and there["more"][1] == ("name",)


# ---------------------------------------------------------------- the sweep


def sweep(counts: tuple[int, ...], dataset: Dataset | None = None, step: float = 0.001) -> starve.SweepResult:
    """A sweep over a loader that waits 8 ms a batch."""
    given = DataLoader(dataset or Slow(0.001), batch_size=8)
    return starve.sweep(given, step_of(step), lambda batch: batch, counts, device="cpu", plan=QUICK)


def test_a_sweep_finds_the_workers_that_help() -> None:
    seen = sweep((0, 2, 4))
    assert [point.workers for point in seen.points] == [0, 2, 4]
    assert seen.points[0].against_zero is None
    assert [point.against_zero.verdict for point in seen.points[1:]] == ["faster", "faster"]
    assert seen.points[1].against_zero.ratio == pytest.approx(2.2, rel=0.35)
    assert seen.ceiling.value > 3 * seen.points[0].rate.value


def test_d09_a_sweep_goes_on_where_a_number_of_workers_is_not_possible() -> None:
    """D09, from FoNDUE-HTR/Documentation#13, ymoslem/OpenNMT-Tutorial#6, open-mmlab/mmrotate#501."""
    seen = sweep((0, 1), Fragile(0.001))
    assert seen.points[0].rate is not None
    assert seen.points[1].rate is None and "a worker died" in seen.points[1].note
    assert any(finding.title == "1 worker: not possible" for finding in starve.findings(seen))


def test_d03_a_sweep_goes_on_where_the_data_cannot_be_sent() -> None:
    """D03 and D01, from catalyst-team/catalyst#1024, pytorch/pytorch#87016: 0 workers are measured, a row says why."""
    given = DataLoader(Slow(0.001), batch_size=8, collate_fn=lambda rows: torch.stack(rows), num_workers=1,
                       multiprocessing_context="spawn")  # fmt: skip
    seen = starve.sweep(given, step_of(0.001), lambda batch: batch, (0, 2), device="cpu", plan=QUICK)
    assert seen.points[0].rate is not None and seen.points[1].rate is None
    assert "collate_fn cannot be sent to a worker started by spawn" in seen.points[1].note
    assert any(finding.title == "2 workers: not possible" for finding in starve.findings(seen))


def test_a_sweep_of_what_has_no_workers_says_so() -> None:
    seen = starve.sweep([torch.zeros(8, 2)] * 4, step_of(0.002), lambda batch: batch, (0, 2), device="cpu", plan=QUICK)
    assert seen.points[0].rate is not None
    assert "cannot be rebuilt with 2 workers" in seen.points[1].note


def test_a_sweep_in_which_nothing_is_possible_raises() -> None:
    nothing = DataLoader(Slow(0.001, count=3), batch_size=8, drop_last=True)
    with pytest.raises(LoaderFault, match="3 samples < batch size 8"):
        starve.sweep(nothing, step_of(0.001), lambda batch: batch, (1, 2), device="cpu", plan=QUICK)


def test_two_loaders_of_ones_own_are_compared_in_turn() -> None:
    seen = starve.compare(loader(0.002), loader(0.0005), step_of(0.004), device="cpu", plan=QUICK)
    assert seen.verdict == "faster" and seen.ratio == pytest.approx(20 / 8, rel=0.3)
    same = starve.compare(loader(0.001), loader(0.001), step_of(0.004), device="cpu", plan=QUICK)
    assert same.verdict == "no real difference"


def test_two_steps_of_ones_own_are_compared_over_one_loader() -> None:
    one = loader(0.001)
    seen = starve.compare(one, one, step_of(0.016), after_step=step_of(0.004), device="cpu", plan=QUICK)
    assert seen.verdict == "faster" and seen.ratio == pytest.approx(24 / 12, rel=0.3)
    with pytest.raises(TypeError, match="step is 7"):
        starve.compare(one, one, step_of(0.001), after_step=7, device="cpu", plan=QUICK)


def test_a_sweep_always_holds_0_workers_to_compare_with() -> None:
    seen = sweep((2,))
    assert [point.workers for point in seen.points] == [0, 2]
    assert seen.points[1].against_zero.verdict == "faster"


@pytest.mark.parametrize(
    ("cpus", "counts"),
    [(1, (0, 1)), (2, (0, 1, 2)), (4, (0, 1, 2, 3, 4)), (6, (0, 1, 2, 4, 5, 6)), (16, (0, 1, 2, 4, 8, 15, 16))],
)
def test_the_sweep_goes_up_to_the_cpus_and_looks_at_the_rule(cpus, counts) -> None:
    assert starve.worker_counts(cpus) == counts


# ---------------------------------------------------------------- verdicts


def ratio(value: float, spread: float = 0.01) -> Comparison:
    """A comparison with this ratio."""
    return compare([np.log(value) + spread * (-1) ** n for n in range(8)])


@pytest.mark.parametrize(
    ("share", "headroom", "same"),
    [
        (0.5, ratio(2.0), True),
        (0.45, ratio(2.0), True),
        (0.3, ratio(2.0), False),  # half of the wait is missing
        (0.7, ratio(2.0), False),  # more wait than it would bring to remove it
        (0.0, ratio(1.0), True),
        (0.9, ratio(10.0), True),
        (0.5, ratio(10.0), False),
        (0.3, ratio(2.0, 0.4), True),  # noise may explain it
    ],
)
def test_wait_and_headroom_tell_the_same_story_or_not(share, headroom, same) -> None:
    assert tells_same_story(share, headroom) is same


@pytest.mark.parametrize(
    ("headroom", "agrees", "share", "limit"),
    [
        (ratio(2.0), True, 0.5, "data"),
        (ratio(2.0), None, 0.5, "data"),
        (ratio(2.0), False, 0.5, "unknown"),
        (ratio(2.0), None, 0.03, "unknown"),  # the step is slowed, and nobody waits
        (ratio(1.05), True, 0.04, "compute"),  # certain, and little
        (ratio(1.3, 0.8), True, 0.3, "unknown"),  # nobody knows whether there is any
        (ratio(2.6, 1.4), True, 0.6, "unknown"),
        (ratio(0.9), None, 0.0, "compute"),
        (compare([0.7]), None, 0.5, "unknown"),
    ],
)
def test_which_of_the_two_limits(headroom, agrees, share, limit) -> None:
    assert which_limit(headroom, agrees, share) == limit


@pytest.mark.parametrize(
    ("headroom", "waits", "starved", "limit"),
    [
        (ratio(1.3, 0.8), (0.00, 0.03), False, "compute"),  # noise, and hardly any waiting in any block
        (ratio(1.3, 0.8), (0.00, 0.03), None, "compute"),
        (ratio(1.3, 0.8), (0.00, 0.15), False, "unknown"),
        (ratio(1.3, 0.8), (0.00, 0.03), True, "unknown"),  # the loader alone contradicts
        (ratio(2.6, 1.4), (0.85, 0.95), True, "data"),
        (ratio(2.6, 1.4), (0.05, 0.95), True, "unknown"),
        (ratio(2.6, 1.4), (0.85, 0.95), None, "unknown"),  # and nobody asked the loader, or noise hides it
        (ratio(2.6, 1.4), (0.85, 0.95), False, "unknown"),
        (ratio(2.0), (0.00, 0.03), False, "unknown"),  # certainly slowed, and not by waiting
        (compare([0.7]), (0.85, 0.95), True, "unknown"),
    ],
)
def test_where_noise_leaves_the_headroom_open_the_waiting_decides_if_it_is_clear(headroom, waits, starved, limit):
    assert which_limit(headroom, None, sum(waits) / 2, waits, starved) == limit
    if limit in ("data", "compute"):
        assert which_limit(headroom, False, sum(waits) / 2, waits, starved) == "unknown", "a contradiction stays one"


@pytest.mark.parametrize(
    ("loader", "ceiling", "starved"),
    [(150.0, 300.0, True), (3000.0, 300.0, False), (300.0, 305.0, None), (None, 300.0, None)],
)
def test_a_loader_that_cannot_keep_up_alone_is_one_beyond_the_noise(loader, ceiling, starved) -> None:
    assert is_starved(loader and rate(loader), rate(ceiling)) is starved


def test_work_on_the_batch_is_part_of_what_data_take() -> None:
    found = result(wait_interval=(0.01, 0.03), data_work_share=0.2)
    assert found.data_share == pytest.approx((0.21, 0.23))
    assert result(wait_interval=(0.5, 0.99), data_work_share=0.2).data_share == (0.7, 1.0)


def test_a_step_that_limits_within_the_noise_is_told_by_what_data_take_of_its_time() -> None:
    found = result(limit="compute", headroom=ratio(1.2, 0.4), wait_interval=(0.0, 0.02), data_work_share=0.01)
    (finding,) = starve.findings(found)
    assert finding.title == "The step limits this run: data take at most 3% of its time"
    assert "headroom between" in finding.evidence and finding.level == "ok"


@pytest.mark.parametrize("config", [None, TrainConfig()])
def test_where_workers_cannot_be_enough_the_fix_says_so(config) -> None:
    here = msgspec.structs.replace(conditions("cpu"), cpus=2)
    (far,) = starve.findings(result(headroom=ratio(12.0), conditions=here, config=config))
    assert "2 workers bring at most 2 times: do that work once" in far.fix and "num_workers" not in far.fix
    (near,) = starve.findings(result(headroom=ratio(3.0), conditions=here, config=config))
    assert "at most" not in near.fix
    (many,) = starve.findings(result(headroom=ratio(12.0), config=config))  # 8 CPUs
    assert "at most" not in many.fix and ("gpuworkshop loop" if config else "num_workers=7") in many.fix


def test_the_bound_is_the_upper_end_of_the_interval_and_never_below_1() -> None:
    assert result(headroom=ratio(3.0)).at_most == ratio(3.0).high > 3.0
    assert result(headroom=ratio(0.8)).at_most == 1.0
    assert "<= 1.00x" in next(iter(said(result(limit="compute", headroom=ratio(0.8)))))


# ---------------------------------------------------------------- what is said


def rate(value: float) -> Rate:
    return Rate(value, 0.98 * value, 1.02 * value, 8)


def result(**changes) -> starve.StarveResult:
    """A starved run without workers, with changes."""
    here = msgspec.structs.replace(conditions("cpu"), cpus=8, cpus_said_by="SLURM_CPUS_PER_TASK")
    starved = starve.StarveResult(
        workload="a test", real=rate(100), ceiling=rate(300), loader=rate(150), headroom=ratio(3.0),
        wait_name="loader wait", wait_share=0.6, data_work_share=0.05, slowed_share=0.02, agrees=True, limit="data",
        startup_seconds=0.4, workers=0, batch_size=32, config=None, planted="", conditions=here, origin=here.origin,
    )  # fmt: skip
    return msgspec.structs.replace(starved, **changes)


def said(found) -> dict[str, str]:
    """Levels by title."""
    return {finding.title: finding.level for finding in starve.findings(found)}


def test_a_starved_run_is_told_its_wait_and_its_bound() -> None:
    (finding,) = starve.findings(result())
    assert finding.level == "warning"
    assert finding.title == "Data limits this run: 60% loader wait, headroom <= 3.0x"
    assert "100 samples/s" in finding.evidence and "300 samples/s" in finding.evidence and "150" in finding.evidence
    assert "num_workers" in finding.fix


def test_a_run_that_is_not_starved_is_told_to_leave_its_loader_alone() -> None:
    (finding,) = starve.findings(result(limit="compute", headroom=ratio(1.04), wait_share=0.03))
    assert finding.level == "ok" and "<= 1.05x" in finding.title and "leave the loader alone" in finding.fix


def test_a_contradiction_is_unknown_and_shows_its_terms() -> None:
    levels = said(result(limit="unknown", agrees=False))
    assert set(levels.values()) == {"unknown"} and len(levels) == 2


def test_a_step_slowed_by_the_loader_is_named() -> None:
    levels = said(result(slowed_share=0.2, workers=2, agrees=None))
    assert levels["The step itself is slowed by the loader: 20% of the time"] == "notice"
    assert not any("slowed" in title for title in said(result(slowed_share=0.04)))


def test_d05_more_workers_than_cpus_are_a_warning_with_the_limit_that_counts() -> None:
    """D05, from embeddings-benchmark/mteb#1331, codalab/codalab-worksheets#2046, Netflix/metaflow#2160."""
    found = next(
        f for f in starve.findings(result(workers=104, agrees=None)) if "104 workers" in f.title and "CPUs" in f.title
    )
    assert found.level == "warning"
    assert "8 CPUs by SLURM_CPUS_PER_TASK" in found.evidence and found.fix == "num_workers=7"
    assert not any("on 8 CPUs" in title for title in said(result(workers=8, agrees=None)))


def test_the_start_of_workers_is_said_apart() -> None:
    assert "Starting 4 workers took 0.4 s, measured apart" in said(result(workers=4, agrees=None))
    assert not any("Starting" in title for title in said(result()))


def test_what_was_planted_is_said_first() -> None:
    job = Job(storage_wait_ms=20)
    first = next(starve.findings(result(planted=job.planted)))
    assert "Planted" in first.title and "20 ms" in first.title
    assert Job().planted == ""


@pytest.mark.parametrize("workers", [0, 4])
def test_d11_pinning_is_not_offered_without_a_card(workers) -> None:
    """D11, from pytorch/pytorch#174546, pytorch/pytorch#163102, torchgeo/torchgeo-bench#253,
    LaurentMazare/tch-rs#941.
    """
    assert "pin" not in str(starve.report(result(workers=workers))).lower()


def test_the_parts_of_a_step_add_up() -> None:
    now, ceiling = strip(result())
    assert sum(seconds for _, seconds, _ in now) == pytest.approx(32 / 100)
    assert sum(seconds for _, seconds, _ in ceiling) == pytest.approx(32 / 300)


def swept(*points: SweepPoint, cpus: int = 2) -> starve.SweepResult:
    here = conditions("cpu")
    return starve.SweepResult("a test", points, rate(400), cpus, "", here, here.origin)


def test_a_sweep_says_the_best_number_and_what_the_rule_would_have_brought() -> None:
    found = swept(
        SweepPoint(0, rate(100), None), SweepPoint(1, rate(101), ratio(1.01)), SweepPoint(2, rate(170), ratio(1.7))
    )
    best, rule = starve.findings(found)
    assert best.title.startswith("2 workers do as well as the best: faster: 1.70x") and best.fix == "num_workers=2"
    assert rule.title.startswith("The rule CPUs - 1 says 1: no real difference")


def test_a_sweep_without_a_difference_says_so() -> None:
    found = swept(SweepPoint(0, rate(100), None), SweepPoint(1, rate(101), ratio(1.01)))
    assert next(starve.findings(found)).title == "No number of workers made a real difference here"


def test_a_result_survives_its_way_through_json() -> None:
    one, many = (
        result(config=TrainConfig()),
        swept(SweepPoint(0, rate(1), None), SweepPoint(3, None, None, "not possible")),
    )
    for found in (one, many):
        assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
        assert str(starve.report(found))


# ---------------------------------------------------------------- the second door


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Job:
    """A job on a few small pictures of one's own; nothing is written outside the tests' folder."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for number in range(64):
        Image.fromarray(random.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    return Job(data=str(folder))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_a_built_in_workload_is_measured_in_a_child(job) -> None:
    seen: list[Progress] = []
    found = starve.run(TrainConfig(batch_size=16), job, progress=seen.append)
    assert found.config == TrainConfig(batch_size=16) and found.batch_size == 16
    assert found.workload == job.title and "own pictures" in found.workload
    assert found.limit in ("data", "compute", "unknown") and found.headroom.pairs >= 8
    assert found.real.value < found.loader.value
    shares = [message.share for message in seen]
    assert shares == sorted(shares) and len(shares) > 3


def test_what_the_child_cannot_do_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed) as caught:
        starve.run(job=Job(data=str(tmp_path)))
    assert "no JPEG file" in str(caught.value) and "\n" not in str(caught.value)


def test_an_interrupt_in_a_sweep_leaves_no_process(job) -> None:
    others, started = set(psutil.Process().children(recursive=True)), []

    def interrupt(progress: Progress) -> None:
        if progress.text == "all worker counts in turn" and not started:
            started.extend(set(psutil.Process().children(recursive=True)) - others)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        starve.run_sweep(TrainConfig(batch_size=16), job, workers=(0, 1, 2), progress=interrupt)
    assert len(started) >= 4, "the child and its three workers"
    _, alive = psutil.wait_procs(started, timeout=WAIT)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
