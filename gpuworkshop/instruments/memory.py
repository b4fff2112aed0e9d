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
from typing import Any, Literal

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Tell
from gpuworkshop.instruments import memory_beside
from gpuworkshop.instruments.memory_beside import SharedCard
from gpuworkshop.instruments.memory_findings import findings
from gpuworkshop.instruments.memory_report import report
from gpuworkshop.instruments.memory_result import (
    BatchSweep,
    CeilingResult,
    CureResult,
    MemoryResult,
    Probe,
    knee_of,
)
from gpuworkshop.numbers import amount
from gpuworkshop.timing import Clock, Plan, in_turn, plan_for
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = [
    "BatchSweep",
    "CeilingResult",
    "CureResult",
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

LARGEST = {"cpu": 4, "card": 16}
"""How many times the present batch the largest one looked at is."""


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
    from gpuworkshop.machine import gpus
    from gpuworkshop.machine.conditions import conditions
    from gpuworkshop.machine.nvml import in_time

    device = str(device or gpus.default_device())
    here, card = conditions(device), gpus.card(device)
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
    )


def sweep(step: Callable[[int], Any], sizes: Sequence[int], *, device: str | None = None, **more: Any) -> BatchSweep:
    """Throughput of your own ``step(batch_size)`` at each size, all in turn; see :func:`.memory_sweep.sweep`.

    The data should lie ready on the device: what a step does to get them counts too.
    """
    from gpuworkshop.instruments import memory_sweep
    from gpuworkshop.machine.gpus import default_device

    return memory_sweep.sweep(step, sizes, device=str(device or default_device()), **more)


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
    from gpuworkshop.instruments.memory_room import room_for
    from gpuworkshop.machine.gpus import default_device

    if not callable(step):
        raise TypeError(f"step is {step!r:.60}: hand over a function, step(batch_size) does one training step")
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


# ---------------------------------------------------------------- what the loop asks


def knee(build: Callable[[TrainConfig], Any], config: TrainConfig, clock: Clock, plan: Plan) -> int:
    """The smallest batch within 5% of the best throughput, on random resident batches, all sizes in turn.

    Looks at doublings of the present batch; stops growing where the device's memory ends.
    """
    from gpuworkshop.instruments.memory_sweep import quick

    sizes, measured = [], []
    training = build(config)
    largest = LARGEST["cpu" if training.device == "cpu" else "card"] * config.batch_size
    size = config.batch_size
    while size <= min(largest, len(training.loader.dataset)):
        arm = _fits(build, config.with_(batch_size=size))
        if arm is None:
            break
        sizes.append(size)
        measured.append(arm)
        size *= 2
    rounds = in_turn(measured, clock, quick(plan))
    return knee_of({size: rounds.rate(str(size)).value for size in sizes})


def _fits(build: Callable[[TrainConfig], Any], config: TrainConfig) -> Any:
    """An arm of this batch size that has done one step; None when the memory does not suffice."""
    from gpuworkshop.instruments import arms
    from gpuworkshop.instruments.memory_faults import forget, is_memory

    try:
        training = build(config)
        arm = arms.resident(str(config.batch_size), training, arms.synthetic(training))
        arm.resume()
        arm.step(Clock())
    except (RuntimeError, MemoryError) as error:
        if not is_memory(error):
            raise
        forget(error)
        return None
    return arm


# ---------------------------------------------------------------- the second door: a built-in workload in a child


class Request(msgspec.Struct, frozen=True):
    """What a memory child is asked for."""

    what: Literal["life", "sweep", "ceiling", "probe", "cure"]
    config: TrainConfig
    job: Job
    device: str | None = None
    sizes: tuple[int, ...] = ()
    limit_bytes: int | None = None
    anyway: bool = False
    knee: bool = False
    share: float = 0.9
    seconds: float = 120.0


class Isolated(msgspec.Struct, frozen=True):
    """A probe that ran in a process of its own, and what that process saw of the card before."""

    probe: Probe
    room: int | None
    most: int
    seen: CeilingResult


def _ask(what: str, config: TrainConfig | None, job: Job | None, type: type, how: dict, **more: Any) -> Any:
    job = job or Job()
    request = Request(what, config or job.sizes.start, job, **more)
    return child.run(f"{__name__}:in_child", request, type=type, **how)


def run(
    config: TrainConfig | None = None, job: Job | None = None, *, launcher: Sequence[str] = (), progress=None
) -> MemoryResult:
    """The life of the memory of a built-in workload, in a child process, here or behind ``launcher``."""
    return _ask("life", config, job, MemoryResult, dict(launcher=launcher, progress=progress))


def run_sweep(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    sizes: Iterable[int] = (),
    launcher: Sequence[str] = (),
    progress=None,
) -> BatchSweep:
    """Sweep the batch size of a built-in workload in a child; default: doublings around the present one."""
    return _ask("sweep", config, job, BatchSweep, dict(launcher=launcher, progress=progress), sizes=tuple(sizes))


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
    how = dict(launcher=launcher, progress=progress)
    if not isolate:
        more = dict(knee=knee, limit_bytes=limit_bytes, anyway=anyway, seconds=seconds)
        return _ask("ceiling", config, job, CeilingResult, how, **more)
    return _isolated(config, job, how, limit_bytes=limit_bytes, anyway=anyway, seconds=seconds)


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
    if not 0 < share < 1:
        raise ValueError(f"share is {share!r}: above 0 and below 1")
    how = dict(launcher=launcher, progress=progress)
    return _ask("cure", config, job, CureResult, how, limit_bytes=limit_bytes, share=share)


def _isolated(config: TrainConfig | None, job: Job | None, how: dict, *, seconds: float, **more: Any) -> CeilingResult:
    """The search here, each probe in a child of its own. One that dies counts as too large, and is reported."""
    from gpuworkshop.instruments.memory_ceiling import START, Limits, Search
    from gpuworkshop.instruments.memory_faults import Fault

    job, tell = job or Job(), how["progress"] or (lambda progress: None)
    config, answers = config or job.sizes.start, []

    def probe(batch: int) -> Probe:
        tell(child.Progress(len(answers) / (len(answers) + 3), f"a batch of {batch}"))
        try:
            alone = dict(launcher=how["launcher"], progress=None)
            answers.append(_ask("probe", config, job, Isolated, alone, sizes=(batch,), seconds=seconds, **more))
        except child.ChildFailed as error:
            if error.bad_input or not answers:
                raise
            return Probe(batch, False, fault=Fault("maybe memory", str(error)))
        return answers[-1].probe

    began = time.perf_counter()
    first = probe(min(START, config.batch_size))
    search = Search(
        lambda batch: first if not search.probes else probe(batch),
        lambda: answers[-1].room,
        Limits(first.batch, answers[0].most, seconds=seconds),
        host=answers[0].seen.conditions.device == "cpu",
    )
    found = search.run()
    tell(child.Progress(1.0))
    return msgspec.structs.replace(
        answers[0].seen,
        ceiling=found,
        above=search.above,
        ended=search.ended,
        probes=tuple(search.probes),
        seconds=time.perf_counter() - began,
        most=search.limits.most,
        line=search.line,
        isolated=True,
        notes=(*answers[0].seen.notes, *search.notes),
        config=config,
    )


def in_child(request: Any, tell: Tell) -> MemoryResult | BatchSweep | CeilingResult | CureResult | Isolated:
    """What the child does with a :class:`Request`."""
    asked = msgspec.convert(request, Request)
    before = memory_beside.used_before()  # before PyTorch wakes the card
    from gpuworkshop.machine.gpus import default_device
    from gpuworkshop.workloads.train import need_card

    device = asked.device or default_device()
    need_card(asked.config, asked.job, device)
    tell.progress(0.0, "loading PyTorch and the data")
    if asked.what in ("ceiling", "probe") and device == "cpu" and asked.limit_bytes is None:
        raise ValueError(
            "a batch ceiling needs a GPU: a CPU's memory is the whole machine's; give a limit to see the search at work"
        )
    if asked.what == "cure":
        from gpuworkshop.instruments.memory_cure import cure

        return cure(asked.config, asked.job, device, asked.limit_bytes, asked.share, tell)
    return {"life": _life, "sweep": _sweep, "ceiling": _search, "probe": _probe}[asked.what](
        asked, device, before, tell
    )


def _life(asked: Request, device: str, before: int | None, tell: Tell) -> MemoryResult:
    training = _built(asked, device)
    batch = training.task.random_batch()
    tell.progress(0.5, "two steps, phase by phase")
    result = measure(
        training.model,
        training.optimizer,
        lambda: training.loss(*batch),
        device=device,
        batch_size=asked.config.batch_size,
        workload=asked.job.title,
        before=before,
    )
    return msgspec.structs.replace(result, config=asked.config)


def _sweep(asked: Request, device: str, before: int | None, tell: Tell) -> BatchSweep:
    return _swept(_built(asked, device), asked, device, asked.sizes, None, tell)


def _swept(training: Any, asked: Request, device: str, sizes: Sequence[int], plan: Plan | None, tell: Tell):
    """The sweep of a training run over random batches that lie ready on the device."""
    from gpuworkshop.instruments.memory_sweep import FEWEST, doublings

    now = asked.config.batch_size
    largest = min(LARGEST["cpu" if device == "cpu" else "card"] * now, len(training.loader.dataset))
    ready: dict[int, list] = {}

    def step(batch: int) -> None:
        if batch not in ready:
            ready[batch] = [training.task.random_batch(batch) for _ in range(2)]
        ready[batch].reverse()
        training.step(*ready[batch][0])

    door = dict(device=device, workload=asked.job.title, unit=asked.job.sizes.unit, plan=plan, tell=tell.part(0.1, 1.0))
    return sweep(step, sizes or doublings(min(FEWEST, now), largest), **door)


def _search(asked: Request, device: str, before: int | None, tell: Tell) -> CeilingResult:
    from gpuworkshop.instruments.memory_sweep import doublings, quick

    training = _built(asked, device)
    found = _searched(training, asked, device, Tell() if asked.knee else tell)
    if not asked.knee or not found.ceiling:
        return found
    tell.progress(0.3, "the knee: all batch sizes in turn")
    sizes = [size for size in doublings(8, asked.config.batch_size * LARGEST["card"]) if size <= found.ceiling]
    swept = _swept(training, asked, device, sizes or (found.ceiling,), quick(plan_for(device)), tell.part(0.3, 1.0))
    return msgspec.structs.replace(found, knee=swept)


def _searched(training: Any, asked: Request, device: str, tell: Tell, **only: int) -> CeilingResult:
    """The ceiling of a training run; each step makes its batch on the device."""
    found = ceiling(
        lambda batch: training.step(*training.task.random_batch(batch)),
        **{"most": len(training.loader.dataset), **only},
        device=device,
        seconds=asked.seconds,
        limit_bytes=asked.limit_bytes,
        anyway=asked.anyway,
        workload=asked.job.title,
        tell=tell,
    )
    return msgspec.structs.replace(found, config=asked.config)


def _probe(asked: Request, device: str, before: int | None, tell: Tell) -> Isolated:
    """One size: a search that may look at nothing else."""
    training = _built(asked, device)
    (batch,) = asked.sizes
    seen = _searched(training, asked, device, tell, start=batch, probes=1)
    return Isolated(seen.probes[0], seen.room, len(training.loader.dataset), seen)


def _built(asked: Request, device: str) -> Any:
    """The training run of a request; its own batch size must be one that the data can fill."""
    from gpuworkshop.workloads.train import build

    training = build(asked.config, asked.job, device)
    training.use_precision()
    return training
