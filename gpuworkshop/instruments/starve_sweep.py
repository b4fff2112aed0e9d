"""How many workers? The same run with several numbers of them, all measured in turn, and the data ceiling with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from gpuworkshop.child import Tell
from gpuworkshop.instruments import shared_memory
from gpuworkshop.instruments.starve_result import CEILING, SweepPoint, SweepResult
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import Plan, clock_for, in_turn, plan_for


def sweep(
    loader: Iterable,
    step: Callable[[Any], Any],
    prepare: Callable[[Any], Any],
    workers: Sequence[int],
    *,
    device: str,
    workload: str = "your loader and step",
    unit: str = "samples/s",
    plan: Plan | None = None,
    tell: Tell | None = None,
) -> SweepResult:
    """Measure a DataLoader with 0 and with each number of ``workers``, in turn, and the data ceiling with them."""
    from gpuworkshop.instruments import arms

    tell, here = tell or Tell(), conditions(device)
    with ExitStack() as stack:
        feeds, notes = _start_each(loader, sorted({0, *workers}), stack, tell)
        measured = [arms.Real(str(count), feed, prepare, step) for count, feed in feeds.items()]
        measured.append(arms.Resident(CEILING, measured[0].take(), step))
        rounds = in_turn(
            measured,
            clock_for(device),
            plan or plan_for(device),
            unit=unit,
            progress=lambda share: tell.progress(0.2 + 0.8 * share, "all worker counts in turn"),
        )
    points = [
        SweepPoint(n, rounds.rate(str(n)), rounds.compare("0", str(n)) if n and 0 in feeds else None) for n in feeds
    ] + [SweepPoint(n, None, None, note) for n, note in notes.items()]
    points.sort(key=lambda point: point.workers)
    return SweepResult(workload, tuple(points), rounds.rate(CEILING), here.cpus, "", here, here.origin)


def _start_each(loader, workers: Sequence[int], stack: ExitStack, tell: Tell) -> tuple[dict, dict[int, str]]:
    """A started feed for each number of workers, paused; and a note for each that could not start.

    Workers whose batches cannot fit the shared memory are not started: they would be killed on the way.
    """
    from gpuworkshop.instruments.feed import Feed, LoaderFault

    feeds, notes, batch = {}, {}, None
    for position, count in enumerate(workers):
        tell.progress(0.2 * position / len(workers), f"starting {count} workers")
        need = shared_memory.asked(loader, count, batch, shared_memory.free())
        if not need.fits:
            notes[count] = str(need)
            continue
        try:
            feed = stack.enter_context(Feed(loader, workers=count))
            for _ in range(2 * feed.period):
                batch = feed.next()
            feed.pause()
            feeds[count] = feed
        except LoaderFault as fault:
            notes[count] = str(fault)
    if not feeds:
        raise LoaderFault(next(iter(notes.values())))
    return feeds, notes


def worker_counts(cpus: int) -> tuple[int, ...]:
    """The numbers of workers worth a look: powers of two up to the CPUs, the rule (CPUs - 1), and the CPUs."""
    powers = [2**n for n in range(cpus.bit_length()) if 2**n <= cpus]
    return tuple(sorted({0, *powers, workers_rule(cpus), cpus}))
