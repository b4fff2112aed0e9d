"""Memory: what a training step keeps in it and when, which batch is worth taking, and which is the largest.

- :func:`measure`: the life of the memory over two steps, by phase and by kind.
- :func:`sweep`: throughput over the batch size, and the knee; :func:`ceiling`: the largest batch that fits.
- :func:`cured`: a job that runs out of memory, in a child, and what makes it run again.

Two doors: these take live objects, any ``step(batch_size)``, in this process; the ones called ``run...`` measure a
built-in workload in a child process, here or behind a launcher such as ``srun``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from gpuworkshop.child import ChildFailed, Tell
from gpuworkshop.instruments import memory_beside, memory_isolated
from gpuworkshop.instruments.builtin import ask
from gpuworkshop.instruments.memory_beside import SharedCard
from gpuworkshop.instruments.memory_child import Isolated, Request
from gpuworkshop.instruments.memory_findings import findings
from gpuworkshop.instruments.memory_report import report
from gpuworkshop.instruments.memory_result import BatchSweep, CeilingResult, CureResult, MemoryResult
from gpuworkshop.instruments.memory_sweep import LARGEST, knee, sweep
from gpuworkshop.numbers import amount
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = [
    "BatchSweep",
    "CeilingResult",
    "CureResult",
    "LARGEST",
    "Isolated",
    "MemoryResult",
    "SharedCard",
    "ceiling",
    "cured",
    "findings",
    "knee",
    "measure",
    "report",
    "run",
    "run_ceiling",
    "run_sweep",
    "sweep",
]


def measure(
    model: Any,
    optimizer: Any,
    loss: Callable[[], Any],
    *,
    device: str | None = None,
    batch_size: int | None = None,
    workload: str = "your model",
    before: int | None = None,
) -> MemoryResult:
    """The life of the memory over two training steps of your own ``model``, in this process.

    ``loss()`` does one forward pass over one batch and returns the loss; backward, update and dropping the gradients
    are done here. ``before``: bytes that were in use on the card before this process came to it, where that is known.
    """
    from gpuworkshop.instruments.memory_life import Life
    from gpuworkshop.machine import allocation, gpus
    from gpuworkshop.machine.conditions import conditions
    from gpuworkshop.machine.nvml import in_time

    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(f"batch_size is {batch_size!r:.40}: how many samples loss() takes, or None")
    device = str(device or gpus.default_device())
    here, card, host = conditions(device), gpus.card(device), allocation.memory()
    with ExitStack() as stack:
        beside = memory_beside.Beside(stack.enter_context(in_time()), card, before) if card else None
        moments = Life(model, optimizer, device, beside).run(loss)
    return MemoryResult(
        workload=workload,
        batch_size=batch_size,
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        optimizer=type(optimizer).__name__,
        moments=tuple(moments),
        by="saved tensors" if device == "cpu" else "allocator",
        total=card.memory_bytes if card else None,
        conditions=here,
        origin=here.origin,
        host=host.bytes,
        host_said_by=host.said_by,
    )


def ceiling(
    step: Callable[[int], Any],
    *,
    device: str | None = None,
    start: int = 8,
    most: int | None = None,
    probes: int = 25,
    seconds: float = 120.0,
    limit_bytes: int | None = None,
    anyway: bool = False,
    workload: str = "your step",
    tell: Tell | None = None,
) -> CeilingResult:
    """The largest batch that your own ``step(batch_size)`` runs three times without an allocator retry.

    ``step`` is one whole training step, optimizer included, over a batch that it makes itself. ``most``: the largest
    size that makes sense, such as the number of samples. ``limit_bytes`` is a planted limit; on a CPU it holds for the
    whole process, so give it only in one of its own. Nothing that the step raises comes out: the result says it.
    Raises SharedCard while somebody else is on the card, unless ``anyway``; ValueError for numbers that make no sense.
    """
    from gpuworkshop.instruments import memory_ceiling
    from gpuworkshop.instruments.arms import callable_step
    from gpuworkshop.instruments.memory_room import room_for
    from gpuworkshop.machine.gpus import default_device

    callable_step(step, "step(batch_size)")
    device = str(device or default_device())
    limits = memory_ceiling.Limits(start, memory_ceiling.LARGEST if most is None else most, probes, seconds)
    return _ceiling(
        lambda batch, room: memory_ceiling.probe_in(step, batch, room),
        room_for(device, limit_bytes),
        device,
        limits,
        anyway,
        workload,
        tell or Tell(),
    )


def _ceiling(probe, room, device: str, limits, anyway: bool, workload: str, tell: Tell) -> CeilingResult:
    """Search in a room; ``probe(batch, room)`` tries one size."""
    from gpuworkshop.instruments.memory_ceiling import Search
    from gpuworkshop.instruments.memory_faults import forget_last
    from gpuworkshop.machine.conditions import conditions

    here, total, others = conditions(device), None, None
    if device != "cpu":
        seen = memory_beside.on_card(device)
        if not anyway:
            memory_beside.refuse_company(device, seen)
    notes = ["the last error of this session held on to memory, and was emptied"] if forget_last() else []
    room.clear()
    if device != "cpu":
        total, beside = memory_beside.beside_torch(device)
        others = memory_beside.somebody(beside)
    began = time.perf_counter()
    with room.limited():
        search = Search(
            lambda batch: probe(batch, room),
            room.available,
            limits,
            growth=room.growth,
            host=room.kind == "host" and room.limit is not None,
            progress=lambda batch: tell.progress(len(search.probes) / (len(search.probes) + 3), f"a batch of {batch}"),
        )
        start_room = search.room
        found = search.run()
    if device != "cpu" and (came := memory_beside.somebody(memory_beside.beside_torch(device)[1] - beside)):
        notes.append(f"somebody else took {amount(came)} of the card during the search: search again")
    return CeilingResult(
        workload=workload,
        ceiling=found,
        above=search.above,
        ended=search.ended,
        probes=tuple(search.probes),
        seconds=time.perf_counter() - began,
        room=start_room,
        total=total,
        others=others,
        most=limits.most,
        conditions=here,
        origin=here.origin,
        line=search.line,
        planted=planted(room.limit),
        notes=(*notes, *search.notes),
    )


def planted(limit: int | None) -> str:
    """A planted limit in words; "" for none."""
    return f"a step may take {amount(limit)}, and nothing more" if limit is not None else ""


# ---------------------------------------------------------------- the second door: a built-in workload in a child


def _ask(what: str, config: TrainConfig | None, job: Job | None, type: type, **more: Any) -> Any:
    target = "gpuworkshop.instruments.memory_child:in_child"
    return ask(target, Request, config, job, type=type, what=what, **more)


def run(
    config: TrainConfig | None = None, job: Job | None = None, *, launcher: Sequence[str] = (), progress=None
) -> MemoryResult:
    """The life of the memory of a built-in workload, in a child process, here or behind ``launcher``."""
    return _ask("life", config, job, MemoryResult, launcher=launcher, progress=progress)


def run_sweep(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    sizes: Iterable[int] = (),
    launcher: Sequence[str] = (),
    progress=None,
) -> BatchSweep:
    """Sweep the batch size of a built-in workload in a child; default: doublings around the present one."""
    return _ask("sweep", config, job, BatchSweep, sizes=tuple(sizes), launcher=launcher, progress=progress)


def run_ceiling(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    knee: bool = True,
    isolate: bool = False,
    limit_bytes: int | None = None,
    anyway: bool = False,
    seconds: float = 120.0,
    launcher: Sequence[str] = (),
    progress=None,
) -> CeilingResult:
    """The batch ceiling of a built-in workload in a child, and with ``knee`` the batch that is worth taking.

    ``isolate``: each size in a child of its own, for models whose memory falls to pieces; it takes seconds a size.
    On a CPU it needs ``limit_bytes``: a CPU's memory is the whole machine's, and has no ceiling to find.
    """
    more = dict(limit_bytes=limit_bytes, anyway=anyway, seconds=seconds, launcher=launcher)
    if not isolate:
        return _ask("ceiling", config, job, CeilingResult, knee=knee, progress=progress, **more)
    probe = lambda batch: _ask("probe", config, job, Isolated, sizes=(batch,), **more)  # noqa: E731
    return memory_isolated.ceiling(probe, config or (job or Job()).sizes.start, seconds, progress)


def cured(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    limit_bytes: int | None = None,
    share: float = 0.9,
    launcher: Sequence[str] = (),
    progress=None,
) -> CureResult:
    """Let a built-in workload run out of memory in a child, and change one thing after the other until it runs.

    The order is the taught one: BF16, checkpointing, a smaller batch. What is planted is the limit: ``limit_bytes``,
    else ``share`` of what the job was measured to need, or the card itself if that does not suffice.
    """
    more = dict(limit_bytes=limit_bytes, share=share, launcher=launcher, progress=progress)
    try:
        return _ask("cure", config, job, CureResult, **more)
    except ChildFailed as failed:
        if failed.bad_input or "ended by SIG" not in str(failed):
            raise
        why = "a library that gets no memory on a CPU may end it; --preset gpt-small shows the cure"
        raise ChildFailed(f"{failed}: {why}", failed.log) from failed
