"""Results as a run on a card may give them: made up, for what a job script and the list before batch make of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpuworkshop.cluster.jobstats_result import Card, JobUse, Node
from gpuworkshop.course import replay
from gpuworkshop.instruments.memory_result import BatchPoint, BatchSweep
from gpuworkshop.instruments.scaling_result import ScalingResult, World
from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import envelope
from gpuworkshop.timing import Comparison, Rate

GIB = 2**30
B200 = Conditions(
    device="cuda:0", machine="NVIDIA B200", uuid="GPU-0", driver="580", cpus=8, cpus_said_by="SLURM_CPUS_PER_TASK",
    threads=8, python="3.11", torch="2.11", kit="0.1.0", date="2026-12-01",
)  # fmt: skip
CPU = msgspec.structs.replace(B200, device="cpu", machine="2 CPU cores, a processor", uuid="", driver="")
RESNET = "resnet50 at 224 px"


def rate(value: float, unit: str = "images/s") -> Rate:
    return Rate(value, 0.99 * value, 1.01 * value, 10, unit)


def starve(workers: int = 6, batch: int = 64, value: float = 640.0, limit: str = "compute", **config) -> StarveResult:
    """The recording of a starve with other numbers; a step takes batch / value seconds."""
    old = replay.load("starve")
    changes = dict(workers=workers, batch_size=batch, persistent_workers=workers > 0, **config)
    return msgspec.structs.replace(
        old, workload=RESNET, real=rate(value), workers=workers, batch_size=batch, limit=limit, conditions=B200,
        config=old.config.with_(**changes), origin=B200.origin,
    )  # fmt: skip


def scale(
    efficiencies: dict[int, float], conditions: Conditions = B200, spread: float = 0.01, planted: str = ""
) -> ScalingResult:
    """Worlds with these efficiencies, each rank with 64 samples a step; one alone does 100 images/s."""

    def world(size: int, share: float) -> World:
        ratio = Comparison(size * share, size * (share - spread), size * (share + spread), 10, 0.03, "faster")
        return World(size, "weak", 64, rate(100 * size * share), ratio)

    even = Comparison(1.0, 0.99, 1.01, 10, 0.03, "no real difference")
    return ScalingResult(
        workload=RESNET, ranks=max(efficiencies), backend="gloo" if conditions.device == "cpu" else "nccl",
        batch_size=64, alone=rate(100), wrapped=rate(200), taken=even, communicating=even,
        worlds=tuple(world(*one) for one in efficiencies.items()), gradient_bytes=10**8, reduce_seconds=None,
        alone_wait=0.0, world_wait=0.0, wait_name="stall", members=(), config=replay.load("starve").config,
        planted=planted, notes=(), conditions=conditions, origin=conditions.origin,
    )  # fmt: skip


def watch(busy: float | None = 0.9, used: float = 40.0, total: float = 178.0, why: str = "") -> WatchResult:
    """One card, with its memory in GiB."""
    old = replay.load("watch")
    facts = dict(busy=busy, busy_why=why, memory_used=int(used * GIB), memory_total=int(total * GIB))
    card = msgspec.structs.replace(old.cards[0], **facts)
    return msgspec.structs.replace(old, cards=(card,), conditions=B200, origin=B200.origin)


def batches(rates: dict[int, float]) -> BatchSweep:
    """Throughput by batch size."""
    return BatchSweep(RESNET, tuple(BatchPoint(size, rate(value)) for size, value in rates.items()), B200, B200.origin)


def report_card(host: float, cards: int = 1) -> JobUse:
    """What jobstats says of a finished job: its peak of host memory in GiB, and a card or several."""
    own = tuple(Card(str(number), 0.9, 40 * GIB, 178 * GIB, 0.22) for number in range(cards))
    return JobUse("JSON", "104212", nodes=(Node("n1", 8, 0.5, int(host * GIB), 64 * GIB, 0.4, own),), gpu=0.9)


def saved(folder: Path, **results) -> list[str]:
    """Each result in a file, as --json prints it."""
    return [str(_save(folder / f"{name}.json", one)) for name, one in results.items()]


def _save(file: Path, result, findings: Iterable = ()) -> Path:
    file.write_bytes(envelope(result, result.origin, findings))
    return file
