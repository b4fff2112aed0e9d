"""One step of a trace as a picture's worth of bars: what the host and the card did, side by side."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from gpuworkshop.instruments.intervals import Intervals, overlap, without
from gpuworkshop.instruments.trace import CALL, COPY, KERNEL, LABEL, OP, SET, Trace
from gpuworkshop.instruments.trace_host import pauses
from gpuworkshop.instruments.trace_sums import LOADER, STEP, is_kind, starting, waits_for_card

SLOTS = 300
"""A step is drawn in so many slots; a bar says how much of its slots is covered."""
LEVELS = 4
UNDRAWN = ("between", "unseen")
"""What the picture leaves empty, and only the words tell."""


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """One bar: its lane, what it is (a color of the figures), start and end in milliseconds from the step's begin.

    ``covered``: the share of the bar in which it really was at work, in quarters, rounded up.
    """

    lane: str
    kind: str
    start: float
    end: float
    covered: float


class Total(msgspec.Struct, frozen=True, array_like=True):
    """How many milliseconds of the step a lane was at one kind of work; what overlaps counts once."""

    lane: str
    kind: str
    milliseconds: float


class Timeline(msgspec.Struct, frozen=True):
    """One step: its mark, its length on the host in milliseconds, and its bars. ``step`` is None for a whole trace."""

    step: str | None
    milliseconds: float
    totals: tuple[Total, ...]
    bars: tuple[Bar, ...]


def timeline(trace: Trace) -> Timeline:
    """The step of median length, or the whole trace where it has no step marks."""
    step, begin, end = _window(trace)
    slots = Intervals(*(np.linspace(begin, end, SLOTS + 1)[cut] for cut in (slice(-1), slice(1, None))))
    totals, bars = [], []
    whole = Intervals(np.array([begin]), np.array([end]))
    for lane, kind, work in (*_host(trace), *_pauses(trace, whole), *_card(trace)):
        covered = overlap(slots, work)
        if covered.any():
            totals.append(Total(lane, kind, round(float(covered.sum()) / 1e3, 4)))
            if kind not in UNDRAWN:
                bars += _bars(lane, kind, covered * SLOTS / (end - begin), (end - begin) / 1e3)
    return Timeline(step, (end - begin) / 1e3, tuple(totals), tuple(bars))


def _window(trace: Trace) -> tuple[str | None, float, float]:
    host = trace.host
    steps = host.where(starting(trace, STEP) & np.isin(host.kind, (LABEL, OP)))
    if len(steps):
        middle = int(np.argsort(steps.duration, kind="stable")[len(steps) // 2])
        return trace.names[steps.name[middle]], float(steps.start[middle]), float(steps.end[middle])
    ends = [float(events.end.max()) for events in (host, trace.device) if len(events)]
    return None, 0.0, max(ends)


def _host(trace: Trace) -> Iterator[tuple[str, str, Intervals]]:
    """All threads of the host together: inside the loader, waiting for the card, or running operators."""
    host = trace.host
    loads = starting(trace, LOADER)
    loading, waiting = host.times(loads), host.times(waits_for_card(trace))
    working = host.times(np.isin(host.kind, (OP, CALL)) & ~loads)
    yield "host", "loader", loading
    yield "host", "wait", waiting
    yield "host", "other" if len(trace.device) else "compute", without(without(working, loading), waiting)


def _pauses(trace: Trace, whole: Intervals) -> Iterator[tuple[str, str, Intervals]]:
    """What the host's lane leaves empty: the way from one call to the next, and what is no work of PyTorch's."""
    steps = starting(trace, STEP) & np.isin(trace.host.kind, (LABEL, OP))
    short, long = pauses(trace, whole, steps, starting(trace, LOADER))
    yield "host", "between", short
    yield "host", "unseen", long


def _card(trace: Trace) -> Iterator[tuple[str, str, Intervals]]:
    """The card with most kernels: computing, copying, communicating; each may run beside the others."""
    device = trace.device
    kernels = device.kind == KERNEL
    if not kernels.any():
        return
    cards, count = np.unique(device.device[kernels], return_counts=True)
    ours = device.device == cards[count.argmax()]
    talking = is_kind(trace, "communication")
    yield "card", "compute", device.times(ours & kernels & ~talking)
    yield "copies", "copy", device.times(ours & np.isin(device.kind, (COPY, SET)))
    yield "communication", "communication", device.times(ours & talking)


def _bars(lane: str, kind: str, covered: np.ndarray, milliseconds: float) -> Iterator[Bar]:
    """Slots of equal cover, in quarters, as bars; none for empty ones."""
    level = np.ceil(np.minimum(covered, 1.0) * LEVELS - 1e-9).astype(int)
    edges = np.flatnonzero(np.diff(level, prepend=-1, append=-1))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if level[first]:
            start, end = (round(slot * milliseconds / SLOTS, 4) for slot in (first, last))
            yield Bar(lane, kind, start, end, float(level[first]) / LEVELS)
