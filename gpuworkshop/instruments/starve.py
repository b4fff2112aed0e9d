"""Is the step waiting for data? Three arms in turn: the real run, the same step on resident data, the loader alone.

- *data ceiling*: the same step over distinct real batches that already lie on the device, loader stopped.
- *headroom* = ceiling / now: an upper bound on what any change to the data path can bring.
- *stall*: share of the time in which the card is idle while the host is inside ``next()``. Without a card there is
  no idle card to see: then the host's own time inside ``next()`` is measured and called *loader wait*.

Two doors: :func:`measure` takes a loader and a step of yours, in this process; :func:`run` measures a built-in
workload in a child process, here or behind a launcher such as ``srun``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments.builtin import Asked, ask
from gpuworkshop.instruments.starve_findings import findings
from gpuworkshop.instruments.starve_report import report
from gpuworkshop.instruments.starve_result import (
    CEILING,
    LOADER,
    REAL,
    StarveResult,
    SweepPoint,
    SweepResult,
    data_share,
    is_starved,
    tells_same_story,
    which_limit,
)
from gpuworkshop.instruments.starve_sweep import sweep, worker_counts
from gpuworkshop.machine import allocation
from gpuworkshop.machine.conditions import Conditions, conditions
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.timing import Comparison, Plan, Rounds, clock_for, in_turn, plan_for
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = ["CEILING", "REAL", "StarveResult", "SweepPoint", "SweepResult", "compare", "findings", "measure", "report"]
__all__ += ["run", "run_sweep", "sweep"]


def measure(
    loader: Iterable,
    step: Callable[[Any], Any],
    prepare: Callable[[Any], Any] | None = None,
    *,
    device: str | None = None,
    workload: str = "your loader and step",
    unit: str = "samples/s",
    plan: Plan | None = None,
    loader_alone: bool = True,
    tell: Tell | None = None,
) -> StarveResult:
    """Measure your own ``loader`` and ``step`` in this process.

    ``step(batch)`` does one training step. Work on the batch that belongs to the data (copy, decode, augment) goes
    into ``prepare(batch)``; by default the tensors are copied to ``device`` (default: the card, if there is one).
    Raises LoaderFault for what is no loader, yields nothing or cannot start its workers, and ValueError for batches
    without samples and for a ``step`` that takes its batch apart; errors of ``step`` itself pass through.
    """
    from gpuworkshop.instruments import arms
    from gpuworkshop.instruments.feed import Feed

    arms.callable_step(step)
    device, tell = str(device or default_device()), tell or Tell()
    prepare = prepare or (lambda batch: arms.moved(batch, device))
    with ExitStack() as stack:
        tell.progress(0.0, "filling the device")
        now = stack.enter_context(arms.Real(REAL, Feed(loader), prepare, step))
        ceiling = arms.Resident(CEILING, now.take(), step)
        measured = [now, ceiling]
        if loader_alone:
            measured.append(stack.enter_context(arms.LoaderAlone(LOADER, Feed(loader))))
        rounds = in_turn(
            measured,
            clock_for(device),
            plan or plan_for(device, baseline=True),
            pairs=[(REAL, CEILING)],
            unit=unit,
            progress=lambda share: tell.progress(0.1 + 0.9 * share, "now, ceiling and loader in turn"),
        )
        return read(rounds, now, workload, conditions(device))


def read(rounds: Rounds, now, workload: str, here: Conditions) -> StarveResult:
    """The result from rounds that hold the arms :data:`REAL` (``now``), :data:`CEILING`, perhaps :data:`LOADER`."""
    from gpuworkshop.instruments.arms import DATA_WORK, WAIT

    headroom = rounds.compare(REAL, CEILING)
    wait, data_work = rounds.share(REAL, WAIT), rounds.share(REAL, DATA_WORK)
    block = rounds.blocks[REAL][0]
    agrees = None if now.feed.workers else tells_same_story(wait + data_work, headroom)
    loader, ceiling = rounds.rate(LOADER) if LOADER in rounds.blocks else None, rounds.rate(CEILING)
    waits = rounds.share_interval(REAL, WAIT)
    share, starved = data_share(waits, data_work), is_starved(loader, ceiling)
    return StarveResult(
        workload=workload,
        real=rounds.rate(REAL),
        ceiling=ceiling,
        loader=loader,
        headroom=headroom,
        wait_name="loader wait" if here.device == "cpu" else "stall",
        wait_share=wait,
        data_work_share=data_work,
        slowed_share=1 - wait - data_work - 1 / headroom.ratio,
        agrees=agrees,
        limit=which_limit(headroom, agrees, wait + data_work, share, starved),
        startup_seconds=now.feed.startup_seconds,
        workers=now.feed.workers,
        batch_size=round(block.samples / block.steps),
        config=None,
        planted="",
        conditions=here,
        origin=here.origin,
        wait_interval=waits,
        shared=now.feed.shared,
        omp_threads=allocation.whole(os.environ, "OMP_NUM_THREADS"),
    )


def compare(
    before: Iterable,
    after: Iterable,
    step: Callable[[Any], Any],
    prepare: Callable[[Any], Any] | None = None,
    *,
    after_step: Callable[[Any], Any] | None = None,
    device: str | None = None,
    plan: Plan | None = None,
    tell: Tell | None = None,
) -> Comparison:
    """Whether your training is faster with the loader ``after`` than with ``before``, in turn.

    Both take the same ``step``. To compare two steps, give the same loader twice and the new step as ``after_step``.
    Compared are samples/s, also where the two have batches of different sizes. ``step`` and ``prepare`` as in
    :func:`measure`.
    """
    from gpuworkshop.instruments import arms
    from gpuworkshop.instruments.feed import Feed

    after_step = step if after_step is None else after_step
    for one in (step, after_step):
        arms.callable_step(one)
    device, tell = str(device or default_device()), tell or Tell()
    prepare = prepare or (lambda batch: arms.moved(batch, device))
    with ExitStack() as stack:
        runs = (("before", before, step), ("after", after, after_step))
        both = [stack.enter_context(arms.Real(name, Feed(loader), prepare, run)) for name, loader, run in runs]
        rounds = in_turn(both, clock_for(device), plan or plan_for(device), progress=tell.progress)
        return rounds.compare("before", "after")


# ---------------------------------------------------------------- the second door: a built-in workload in a child


class Request(Asked, frozen=True, kw_only=True):
    """What a starve child is asked for."""

    workers: tuple[int, ...] | None = None
    """Numbers of workers to sweep; None measures the config alone."""
    plan: Plan | None = None
    """How long to measure; None: as usual."""


def run(
    config: TrainConfig | None = None, job: Job | None = None, *, launcher: Sequence[str] = (), progress=None
) -> StarveResult:
    """Measure a built-in workload in a child process, here or behind ``launcher``."""
    how = dict(launcher=launcher, progress=progress)
    return ask(f"{__name__}:in_child", Request, config, job, type=StarveResult, **how)


def run_sweep(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    workers: Sequence[int] | None = None,
    plan: Plan | None = None,
    launcher: Sequence[str] = (),
    progress=None,
) -> SweepResult:
    """Sweep the number of workers of a built-in workload in a child; default: up to the allocation's CPUs."""
    how = dict(workers=tuple(workers or ()), plan=plan, launcher=launcher, progress=progress)
    return ask(f"{__name__}:in_child", Request, config, job, type=SweepResult, **how)


def in_child(request: Any, tell: Tell) -> StarveResult | SweepResult:
    """What the child does with a :class:`Request`."""
    asked = msgspec.convert(request, Request)
    training = asked.training(tell)
    door = dict(device=training.device, **asked.names, plan=asked.plan, tell=tell.part(0.1, 1.0))
    if asked.workers is None:
        result = measure(training.loader, lambda ready: training.step(*ready), training.prepare, **door)
        return msgspec.structs.replace(result, config=asked.config, planted=asked.job.planted)
    counts = asked.workers or worker_counts(allocation.cpus().count)
    result = sweep(training.loader, lambda ready: training.step(*ready), training.prepare, counts, **door)
    return msgspec.structs.replace(result, planted=asked.job.planted)
