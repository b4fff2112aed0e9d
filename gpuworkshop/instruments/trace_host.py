"""What no row of a table shows of the host: the time between operators, and the price of calling many small ones."""

from __future__ import annotations

import msgspec
import numpy as np

from gpuworkshop.instruments.intervals import Intervals, covered_until, without
from gpuworkshop.instruments.trace import CALL, OP, Trace
from gpuworkshop.instruments.trace_calls import Calls

BETWEEN = 100.0
"""Microseconds. A shorter pause after an operator is Python and PyTorch on their way to the next one."""

SMALL = 20.0
"""Microseconds. An operator whose median call takes less of its own does little more than be called."""


class Calling(msgspec.Struct, frozen=True):
    """The calls of small operators, on a host without a card, outside the DataLoader."""

    calls: int
    median: float
    """Microseconds that the median call takes of its own."""
    share: float
    """Of the steps' time, 0 to 1: these calls and the way between them. Each call counts as its operator's median, so
    that a machine on which others work makes no difference."""


class HostTime(msgspec.Struct, frozen=True):
    """The profiled steps on the host, in microseconds over all of them."""

    whole: float
    between: float
    """Pauses shorter than :data:`BETWEEN`, with nothing of PyTorch's at work on any thread."""
    unseen: float
    """Longer ones: NumPy, PIL, plain Python, or a process that waited for a CPU core."""
    calling: Calling | None = None
    """None where there is a card: there the gaps between kernels say it."""


def host_time(trace: Trace, steps: np.ndarray, loader: np.ndarray, nesting: Calls) -> HostTime | None:
    """How the steps' time on the host divides; None where the trace has no step marks.

    ``steps`` and ``loader`` say which host events are step marks and calls of the DataLoader.
    """
    host = trace.host
    whole = host.times(steps)
    if not whole.length:
        return None
    short, long = pauses(trace, whole, steps, loader)
    calling = None
    if not len(trace.device):
        working = whole.length - long.length - host.times(loader).length
        calling = _calling(trace, ~steps & ~loader, host.times(loader), nesting, short.length, working / whole.length)
    return HostTime(whole.length, short.length, long.length, calling)


def pauses(trace: Trace, whole: Intervals, steps: np.ndarray, loader: np.ndarray) -> tuple[Intervals, Intervals]:
    """The times of ``whole`` with nothing of PyTorch's at work on the host: the short pauses, and the long ones."""
    host = trace.host
    empty = without(whole, host.times((np.isin(host.kind, (OP, CALL)) | loader) & ~steps))
    short = empty.end - empty.start < BETWEEN
    return Intervals(empty.start[short], empty.end[short]), Intervals(empty.start[~short], empty.end[~short])


def _calling(
    trace: Trace, mine: np.ndarray, loading: Intervals, nesting: Calls, between: float, working: float
) -> Calling | None:
    """``working``: the share of the steps in which PyTorch is at work, of which these calls take theirs."""
    host = trace.host
    rows = np.flatnonzero(mine & (host.kind == OP))
    middle = (host.start[rows] + host.end[rows]) / 2
    rows = rows[covered_until(loading, middle + 1e-3) - covered_until(loading, middle) <= 0]
    if not len(rows):
        return None
    own, order = nesting.cpu_self[rows], np.argsort(host.name[rows], kind="stable")
    first = np.flatnonzero(np.diff(host.name[rows][order], prepend=-1))
    groups = np.split(own[order], first[1:])
    medians, counts = np.array([np.median(group) for group in groups]), np.array([len(group) for group in groups])
    small = medians < SMALL
    time = float((medians * counts)[small].sum()) + between
    most = float((medians * counts).sum()) + between
    if not small.any() or not most:
        return None
    median = float(np.median(np.concatenate([group for group, one in zip(groups, small, strict=True) if one])))
    return Calling(int(counts[small].sum()), median, max(0.0, working) * time / most)
