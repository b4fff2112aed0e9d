"""Who called what: the nesting of a trace's host events, and the operator behind everything that ran on the card."""

from __future__ import annotations

import msgspec
import numpy as np

from gpuworkshop.instruments.trace import CALL, LABEL, ON_DEVICE, Trace


class Calls(msgspec.Struct, frozen=True):
    """One row for each host event of a trace, in its order. Times in microseconds.

    ``parent``: the host event around it on the same thread, -1 for none. ``outermost``: no event of the same name and
    kind is around it. ``cpu_self``: its duration without its children. ``device_self``: what it launched itself;
    ``device_total``: with all that its children launched.
    """

    parent: np.ndarray
    outermost: np.ndarray
    cpu_self: np.ndarray
    device_self: np.ndarray
    device_total: np.ndarray


def calls(trace: Trace, launch: np.ndarray) -> Calls:
    """The nesting of the host events, and the device time that each of them caused; ``launch`` as of `launched_by`."""
    host = trace.host
    parent, depth, outermost = _nested(trace)
    inside = parent >= 0
    cpu_self = host.duration.copy()
    np.subtract.at(cpu_self, parent[inside], host.duration[inside])
    device_self = np.zeros(len(host))
    ours = (launch >= 0) & np.isin(trace.device.kind, ON_DEVICE)
    at = launch[ours]
    around = np.where(parent[at] >= 0, parent[at], at)  # a launch belongs to the operator that made it
    np.add.at(device_self, around, trace.device.duration[ours])
    return Calls(parent, outermost, np.maximum(cpu_self, 0), device_self, _totals(device_self, parent, depth))


def launched_by(trace: Trace) -> np.ndarray:
    """For each device event the row of the host's call that launched it; -1 where the trace does not say."""
    host = trace.host
    rows = np.flatnonzero((host.kind == CALL) & (host.correlation >= 0))
    if not len(rows):
        return np.full(len(trace.device), -1)
    rows = rows[np.argsort(host.correlation[rows], kind="stable")]
    known = host.correlation[rows]
    place = np.minimum(np.searchsorted(known, trace.device.correlation), len(rows) - 1)
    return np.where(known[place] == trace.device.correlation, rows[place], -1)


def _nested(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parent of each host event, how many are around it, and whether it is the outermost of its name."""
    host = trace.host
    count = len(host)
    depth = [0] * count
    parent, outermost = np.full(count, -1), np.ones(count, dtype=bool)
    order = np.lexsort((host.kind != LABEL, -host.duration, host.start, host.lane))
    start, end = host.start.tolist(), host.end.tolist()
    lane, kind, name = host.lane.tolist(), host.kind.tolist(), host.name.tolist()
    stack: list[int] = []
    latest: dict[tuple[int, int, int], float] = {}
    for row in order.tolist():
        while stack and (lane[stack[-1]] != lane[row] or end[stack[-1]] <= start[row]):
            stack.pop()
        if stack and end[stack[-1]] >= end[row]:
            parent[row] = stack[-1]
            depth[row] = depth[stack[-1]] + 1
        called = lane[row], kind[row], name[row]
        before = latest.get(called, -np.inf)  # what began before and ends later is around it
        outermost[row] = before < end[row]
        latest[called] = max(before, end[row])
        stack.append(row)
    return parent, np.array(depth, dtype=np.int32), outermost


def _totals(own: np.ndarray, parent: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """What each event and everything below it add up to, the deepest level first."""
    total = own.copy()
    order = np.argsort(-depth, kind="stable")
    levels = np.flatnonzero(np.diff(depth[order])) + 1
    for rows in np.split(order, levels)[:-1]:  # the last level has nothing around it
        np.add.at(total, parent[rows], total[rows])
    return total
