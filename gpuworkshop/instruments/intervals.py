"""Sets of times as merged intervals: two columns, starts and ends, ordered and without overlap. Microseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Intervals(NamedTuple):
    """Ordered, disjoint intervals; touching ones are one."""

    start: np.ndarray
    end: np.ndarray

    @property
    def length(self) -> float:
        """Microseconds in all."""
        return float((self.end - self.start).sum())


NONE = Intervals(np.empty(0), np.empty(0))


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """The times covered by at least one of these intervals, in any order."""
    if not len(start):
        return NONE
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(start[first], reach[last])


def gaps(covered: Intervals) -> Intervals:
    """The times between the intervals."""
    return Intervals(covered.end[:-1], covered.start[1:])


def without(a: Intervals, b: Intervals) -> Intervals:
    """The times of ``a`` that are not in ``b``."""
    if not len(a.start) or not len(b.start):
        return a
    edges = np.unique(np.concatenate([*a, *b]))
    pieces = Intervals(edges[:-1], edges[1:])
    kept = (overlap(pieces, a) > 0) & (overlap(pieces, b) <= 0)
    return union(pieces.start[kept], pieces.end[kept])


def overlap(a: Intervals, b: Intervals) -> np.ndarray:
    """For each interval of ``a``, how many microseconds of it lie in ``b``."""
    return covered_until(b, a.end) - covered_until(b, a.start)


def covered_until(covered: Intervals, at: np.ndarray) -> np.ndarray:
    """Microseconds of ``covered`` before each time of ``at``."""
    if not len(covered.start):
        return np.zeros(len(at))
    before = np.concatenate([[0.0], np.cumsum(covered.end - covered.start)])
    place = np.searchsorted(covered.start, at, side="right")
    inside = np.where(place > 0, np.minimum(at, covered.end[place - 1]) - covered.start[place - 1], 0.0)
    return np.where(place > 0, before[place - 1] + inside, 0.0)
