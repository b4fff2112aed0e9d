"""From samples to the rows of the live strip: thinned to a fixed number of points, whatever the pace of the watch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from gpuworkshop.figures.live import Line, Point, Row
from gpuworkshop.instruments.samples import CardSample, Sample, WatchedCard, last

SECONDS = 60.0
"""How much of the past the strip shows."""
BUCKET = 1.0
"""Seconds that become one point of a line: half the points are half the time taken from a cell that trains."""
GAP = 3.0
"""Seconds without a reading that interrupt a line. The driver's windows are 1/6 to 1 s long."""
MOST_CARDS = 8
GIB = 2**30

Read = tuple[float, float | None]  # time of a sample, what was read then


def newest(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of the last minute, the oldest first."""
    if not samples:
        return []
    begin = samples[-1].at - SECONDS
    return list(takewhile(lambda sample: sample.at >= begin, reversed(samples)))[::-1]


def rows(cards: Sequence[WatchedCard], samples: Sequence[Sample]) -> tuple[Row, ...]:
    """The rows of the newest `samples`: two for each card, one each if there are many; the CPUs where there is none."""
    if not cards:
        return _host(samples)
    drawn = cards[:MOST_CARDS]
    return tuple(row for card in drawn for row in _card(card, _of(card, samples), both=len(cards) <= 2))


def _host(samples: Sequence[Sample]) -> tuple[Row, ...]:
    found = [Row("CPUs of this job in use, %", _lines(("", [(s.at, s.cpu) for s in samples], "")))]
    if any(sample.wait is not None for sample in samples):
        waits = _lines(("", [(s.at, s.wait) for s in samples], "wait"))
        found.append(Row("loader wait, % of the time", waits))
    return tuple(found)


def _of(card: WatchedCard, samples: Sequence[Sample]) -> list[tuple[float, CardSample]]:
    return [(sample.at, one) for sample in samples for one in sample.cards if one.uuid == card.uuid]


def _card(card: WatchedCard, seen: Sequence[tuple[float, CardSample]], both: bool) -> tuple[Row, ...]:
    def read(name: str) -> list[Read]:
        return [(at, getattr(one, name)) for at, one in seen]

    lines = _lines(("busy", read("busy"), "compute"), ("SM activity", read("sm"), ""))
    busy = Row(f"{card.label}: utilization, %", lines, _why(card, seen))
    if not both:
        return (busy,)
    used, total = (last(one.memory_used for _, one in seen), last(one.memory_total for _, one in seen))
    known = used is not None and total is not None
    words = f"{used / GIB:.1f} GiB" if known else "n/a"
    of = f" of {total / GIB:.0f} GiB" if known else ""
    memory = Row(f"{card.label}: memory in use, %{of}", _lines(("", read("memory"), ""), words=words), "not available")
    return busy, memory


def _why(card: WatchedCard, seen: Sequence[tuple[float, CardSample]]) -> str:
    """Why nothing can be drawn."""
    if seen and seen[-1][1].lost:
        return "the card has stopped answering"
    return "the driver has no utilization for a MIG slice" if card.mig else "no utilization was read"


def _lines(*drawn: tuple[str, Sequence[Read], str], words: str = "") -> tuple[Line, ...]:
    """A line for each (name, reads, kind) of which anything was read. `words` is its value if not the last point."""
    found = []
    for name, reads, kind in drawn:
        points = _points(reads)
        if points:
            now = next(share for _, share in reversed(points) if share is not None)
            found.append(Line(name, points, words or f"{now:.0%}", kind))
    return tuple(found)


def _points(reads: Sequence[Read]) -> tuple[Point, ...]:
    """One point a bucket of time that has a reading, the mean of it; a gap where none was for long."""
    if not reads:
        return ()
    now, buckets = reads[-1][0], {}
    for at, value in reads:
        if value is not None:
            total, count, _ = buckets.get(bucket := int(at / BUCKET), (0.0, 0, 0.0))
            buckets[bucket] = total + value, count + 1, at
    points: list[Point] = []
    for total, count, at in buckets.values():
        if points and points[-1][0] - (now - at) > GAP:
            points.append((now - at, None))
        points.append((now - at, total / count))
    return tuple(points)
