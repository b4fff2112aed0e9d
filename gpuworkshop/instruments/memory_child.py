"""What a child does that measures the memory of a built-in workload: its life, a sweep, the ceiling, or a cure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments import memory_beside
from gpuworkshop.instruments.builtin import Asked
from gpuworkshop.instruments.memory_ceiling import Limits
from gpuworkshop.instruments.memory_result import BatchSweep, CeilingResult, CureResult, MemoryResult, Probe
from gpuworkshop.instruments.memory_room import check_limit
from gpuworkshop.instruments.memory_sweep import FEWEST, LARGEST, doublings, largest_for, quick, sweep
from gpuworkshop.timing import Plan, plan_for


class Request(Asked, frozen=True, kw_only=True):
    """What a memory child is asked for."""

    what: Literal["life", "sweep", "ceiling", "probe", "cure"]
    sizes: tuple[int, ...] = ()
    limit_bytes: int | None = None
    anyway: bool = False
    knee: bool = False
    share: float = 0.9
    seconds: float = 120.0

    def __post_init__(self) -> None:
        check_limit(self.limit_bytes)
        Limits(seconds=self.seconds)
        if not (isinstance(self.share, float) and 0 < self.share < 1):
            raise ValueError(f"share is {self.share!r:.40}: above 0 and below 1")


class Isolated(msgspec.Struct, frozen=True):
    """A probe that ran in a process of its own, and what that process saw of the card before."""

    probe: Probe
    room: int | None
    most: int
    seen: CeilingResult


def in_child(request: Any, tell: Tell) -> MemoryResult | BatchSweep | CeilingResult | CureResult | Isolated:
    """What the child does with a :class:`Request`."""
    asked = msgspec.convert(request, Request)
    before = memory_beside.used_before()  # before PyTorch wakes the card
    device = asked.where()
    if asked.what in ("ceiling", "probe") and device == "cpu" and asked.limit_bytes is None:
        raise ValueError(
            "a batch ceiling needs a GPU: a CPU's memory is the whole machine's; give a limit to see the search at work"
        )
    if asked.what == "cure":
        from gpuworkshop.instruments.memory_cure import cure

        return cure(asked.config, asked.job, device, asked.limit_bytes, asked.share, tell)
    training = asked.training(tell)
    if asked.what == "life":
        return _life(training, asked, before, tell)
    return {"sweep": _sweep, "ceiling": _search, "probe": _probe}[asked.what](training, asked, tell)


def _life(training: Any, asked: Request, before: int | None, tell: Tell) -> MemoryResult:
    from gpuworkshop.instruments.memory import measure

    batch = training.task.random_batch()
    tell.progress(0.5, "two steps, phase by phase")
    result = measure(
        training.model,
        training.optimizer,
        lambda: training.loss(*batch),
        device=training.device,
        batch_size=asked.config.batch_size,
        workload=asked.job.title,
        before=before,
    )
    return msgspec.structs.replace(result, config=asked.config)


def _sweep(training: Any, asked: Request, tell: Tell) -> BatchSweep:
    now = asked.config.batch_size
    sizes = asked.sizes or doublings(min(FEWEST, now), largest_for(training, now))
    return _swept(training, asked, sizes, None, tell)


def _swept(training: Any, asked: Request, sizes: Sequence[int], plan: Plan | None, tell: Tell) -> BatchSweep:
    """The sweep of a training run over random batches that lie ready on the device."""
    ready: dict[int, list] = {}

    def step(batch: int) -> None:
        if batch not in ready:
            ready[batch] = [training.task.random_batch(batch) for _ in range(2)]
        ready[batch].reverse()
        training.step(*ready[batch][0])

    return sweep(step, sizes, device=training.device, **asked.names, plan=plan, tell=tell.part(0.1, 1.0))


def _search(training: Any, asked: Request, tell: Tell) -> CeilingResult:
    found = _searched(training, asked, Tell() if asked.knee else tell)
    if not asked.knee or not found.ceiling:
        return found
    tell.progress(0.3, "the knee: all batch sizes in turn")
    sizes = [size for size in doublings(FEWEST, asked.config.batch_size * LARGEST["card"]) if size <= found.ceiling]
    plan = quick(plan_for(training.device))
    swept = _swept(training, asked, sizes or (found.ceiling,), plan, tell.part(0.3, 1.0))
    return msgspec.structs.replace(found, knee=swept)


def _searched(training: Any, asked: Request, tell: Tell, **only: int) -> CeilingResult:
    """The ceiling of a training run; each step makes its batch on the device."""
    from gpuworkshop.instruments.memory import ceiling

    found = ceiling(
        lambda batch: training.step(*training.task.random_batch(batch)),
        **{"most": len(training.loader.dataset), **only},
        device=training.device,
        seconds=asked.seconds,
        limit_bytes=asked.limit_bytes,
        anyway=asked.anyway,
        workload=asked.job.title,
        tell=tell,
    )
    return msgspec.structs.replace(found, config=asked.config)


def _probe(training: Any, asked: Request, tell: Tell) -> Isolated:
    """One size: a search that may look at nothing else."""
    (batch,) = asked.sizes
    seen = _searched(training, asked, tell, start=batch, probes=1)
    return Isolated(seen.probes[0], seen.room, len(training.loader.dataset), seen)
