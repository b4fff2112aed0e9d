"""Public cases of data loaders, D05 to D16: what starve says of CPUs, threads and shared memory."""

import os
import warnings

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpuworkshop.instruments import shared_memory, starve
from gpuworkshop.instruments.feed import Feed, rebuilt
from gpuworkshop.instruments.shared_memory import Shared
from gpuworkshop.machine import allocation
from gpuworkshop.machine.conditions import Conditions, known
from gpuworkshop.report import Finding
from gpuworkshop.timing import Comparison, Plan, Rate

MIB = 2**20
QUICK = Plan(block_seconds=0.02, budget_seconds=0.2, min_rounds=4)


def here(**facts) -> Conditions:
    """Eight CPUs of a larger machine."""
    cores = allocation.Cpus(8, "SLURM_CPUS_PER_TASK", {"SLURM_CPUS_PER_TASK": 8, "machine": 208})
    return msgspec.structs.replace(known("cpu", (), cores, ""), **facts)


def starved(conditions: Conditions | None = None, **facts) -> starve.StarveResult:
    """A run that its loader limits, with four workers."""
    here_ = conditions or here()
    rate = Rate(100, 98, 102, 8)
    usual = dict(
        workload="a test", real=rate, ceiling=rate, loader=None, headroom=Comparison(3, 2.8, 3.2, 8, 0.05, "faster"),
        wait_name="loader wait", wait_share=0.6, data_work_share=0.0, slowed_share=0.0, agrees=None, limit="data",
        startup_seconds=0.4, workers=4, batch_size=32, config=None, planted="", conditions=here_, origin=here_.origin,
    )  # fmt: skip
    return starve.StarveResult(**usual | facts)


def said(result: starve.StarveResult | starve.SweepResult, words: str) -> list[Finding]:
    """The findings with these words."""
    return [one for one in starve.findings(result) if words in f"{one.title} {one.evidence}"]


# ---------------------------------------------------------------- CPUs


def test_d05_the_cpus_of_the_job_count_and_not_those_of_the_machine(monkeypatch, tmp_path) -> None:
    """D05, from embeddings-benchmark/mteb#1331, codalab/codalab-worksheets#2046, Netflix/metaflow#2160,
    AILab-CVC/YOLO-World#413: 208 cores, of which the job has 8.
    """
    monkeypatch.setattr(os, "cpu_count", lambda: 208)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    cores = allocation.cpus({"SLURM_CPUS_PER_TASK": "8"}, tmp_path, tmp_path / "none")
    found = said(starved(known("cpu", (), cores, ""), workers=104), "104 workers on 8 CPUs")[0]
    assert (found.level, found.fix) == ("warning", "num_workers=7")
    assert "by SLURM_CPUS_PER_TASK" in found.evidence
    assert max(starve.worker_counts(cores.count)) == 8


def test_d05_the_warning_of_pytorch_is_heard_once_from_the_learners_own_loader() -> None:
    """D05: a rebuilt loader warns no second time; that it has too many workers is a finding, in one line."""
    with pytest.warns(UserWarning, match="will create 64 worker"):
        loader = DataLoader(torch.zeros(4, 2), num_workers=64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rebuilt(loader).num_workers == 64
        with Feed(loader, workers=3) as feed:
            feed.next()


@pytest.mark.parametrize(("asked", "count", "warns"), [(16, 1, True), (8, 8, False), (None, 2, False), (4, 8, False)])
def test_d07_a_task_that_may_use_fewer_cpus_than_the_job_asked_for_is_told(asked, count, warns) -> None:
    """D07, from snakemake/snakemake-executor-plugin-slurm#41, Lightning-AI/pytorch-lightning#18650,
    reframe-hpc/reframe#2655, ULHPC/ulhpc-docs#55.
    """
    limits = {"affinity": count} | ({"SLURM_CPUS_PER_TASK": asked} if asked else {})
    result = starved(known("cpu", (), allocation.Cpus(count, "affinity", limits), ""), workers=0)
    found = said(result, "CPUs that its job asked for")
    assert bool(found) is warns
    if warns:
        (one,) = found
        assert one.level == "warning" and f"may use {count} of the {asked} CPUs" in one.title
        assert "said by affinity" in one.evidence
        assert f"--cpus-per-task={asked}" in one.fix and "SRUN_CPUS_PER_TASK" in one.fix


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize(
    ("threads", "workers", "level"),
    [(64, 8, "warning"), (2, 8, "warning"), (1, 8, "ok"), (None, 8, "ok"), (2, 4, "ok")],
)
def test_d16_threads_times_workers_are_held_against_the_cpus(threads, workers, level) -> None:
    """D16, from Lumi-supercomputer/LUMI-AI-Guide#110, fishaudio/fish-speech#102, embeddings-benchmark/mteb#1331."""
    found = said(starved(workers=workers, omp_threads=threads), "OMP_NUM_THREADS")
    assert found[0].level == level
    if level == "warning":
        assert found[0].title == f"{workers} workers x {threads} threads on 8 CPUs"
        assert "OMP_NUM_THREADS=1" in found[0].fix
    else:
        assert len(found) == 1 and f"OMP_NUM_THREADS is {threads or 'not set'}" in found[0].evidence


@pytest.mark.parametrize(("value", "threads"), [(None, None), ("1", 1), ("64", 64), ("4,2", None), ("", None)])
def test_d16_what_the_environment_allows_a_library_is_part_of_the_result(monkeypatch, value, threads) -> None:
    """D16: torchrun sets it to 1, elsewhere it is not set; OpenMP's lists for nested threads are not one number."""
    if value is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    loader = DataLoader(torch.zeros(64, 2), batch_size=8)
    assert starve.measure(loader, torch.sum, device="cpu", plan=QUICK, loader_alone=False).omp_threads == threads


# ---------------------------------------------------------------- shared memory


def images(workers: int = 0, **options) -> DataLoader:
    """Batches of 4 MiB: eight samples of 512 KiB, with a label each."""
    data = TensorDataset(torch.zeros(16, 131072), torch.zeros(16, dtype=torch.int32))
    return DataLoader(data, batch_size=8, num_workers=workers, **options)


def test_d08_what_workers_have_ready_is_held_against_the_shared_memory() -> None:
    """D08, from pytorch/pytorch#5040, fastai/docker-containers#21, bytedance/Protenix#2, open-mmlab/mmdetection#1997:
    batches of 48 MiB, four workers, two of them ready each, and 64 MiB as in a container.
    """
    need = Shared(workers=4, ahead=2, batch=48 * MIB, free=64 * MIB)
    (found,) = said(starved(shared=need), "hared memory")
    assert found.level == "warning" and "--shm-size" in found.fix
    assert "4 workers x 2 ready x 48 MiB a batch = 384 MiB" in found.evidence and "64 MiB free" in found.evidence
    for fits in (msgspec.structs.replace(need, free=384 * MIB), msgspec.structs.replace(need, free=None), None):
        assert not said(starved(shared=fits), "hared memory")


@pytest.mark.parametrize(("options", "ahead"), [({}, 2), ({"prefetch_factor": 3}, 3)])
def test_d08_the_need_is_read_from_the_first_batch_and_the_prefetch(monkeypatch, options, ahead) -> None:
    """D08: bytes of every tensor in a batch, as many batches as the workers may have ready; free before they start."""
    monkeypatch.setattr(shared_memory, "free", lambda: 100 * MIB)
    with Feed(images(2, **options)) as feed:
        assert feed.shared is None
        feed.next()
        assert feed.shared == Shared(2, ahead, 4 * MIB + 8 * 4, 100 * MIB)
        assert feed.shared.fits
    with Feed(images(0)) as feed:
        feed.next()
        assert feed.shared is None, "without workers nothing goes through shared memory"


def test_d08_a_sweep_starts_no_workers_that_shared_memory_cannot_hold(monkeypatch) -> None:
    """D08: they would be killed on the way; the numbers that fit are measured."""
    monkeypatch.setattr(shared_memory, "free", lambda: 20 * MIB)
    step = lambda batch: batch[0].sum()  # noqa: E731
    seen = starve.sweep(images(), step, lambda batch: batch, (0, 2, 3), device="cpu", plan=QUICK)
    assert [bool(point.rate) for point in seen.points] == [True, True, False]
    assert "3 workers x 2 ready x 4 MiB a batch = 24 MiB of shared memory" in seen.points[2].note
    assert said(seen, "3 workers: not possible")[0].level == "warning"


def test_d08_a_system_without_a_place_for_shared_memory_is_not_judged(monkeypatch) -> None:
    """D08, where there is no /dev/shm, as on macOS."""
    monkeypatch.setattr(shared_memory, "PLACE", "/nowhere/shm")
    assert shared_memory.free() is None
    assert Shared(8, 2, 2**40, shared_memory.free()).fits


# ---------------------------------------------------------------- pinned memory


def test_d11_pinning_without_a_card_is_left_out_without_a_warning() -> None:
    """D11, from pytorch/pytorch#174546, pytorch/pytorch#163102, torchgeo/torchgeo-bench#253,
    LaurentMazare/tch-rs#941: it does nothing there, and PyTorch warns at each new iterator.
    """
    loader = DataLoader(torch.zeros(64, 2), batch_size=8, pin_memory=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = starve.measure(loader, torch.sum, device="cpu", plan=QUICK)
    assert seen.real.value > 0 and loader.pin_memory


def test_d11_pinning_stays_where_there_is_a_card_and_no_device_is_named(monkeypatch) -> None:
    """D11: pin_memory_device and a device for pin_memory() are deprecated, and flood logs."""
    loader = DataLoader(torch.zeros(4, 2), pin_memory=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    again = rebuilt(loader)
    assert again.pin_memory and not again.pin_memory_device
