"""What one look at the cards of a job sees, and the thinned path that is kept of many. Nothing here asks a driver.

Shares are from 0 to 1. What could not be read is None: it is written "n/a", left out of every mean, and never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MOST_POINTS = 120
"""Points of a path that a map can show apart."""


class WatchedCard(msgspec.Struct, frozen=True):
    """A card of the job as a watch names it; ``place`` is its label, such as cuda:0 (physical card 1, bus ...)."""

    uuid: str
    name: str
    place: str
    mig: bool = False


class CardSample(msgspec.Struct, frozen=True):
    """One card at one moment."""

    uuid: str
    busy: float | None = None
    """Share of the driver's new windows in which a kernel was resident; None when there is no new one, and on MIG."""
    sm: float | None = None
    """Share of the SMs at work since the sample before (GPM)."""
    occupancy: float | None = None
    """Resident warps of those that fit (GPM)."""
    tensor: float | None = None
    """Share of the time in which tensor cores worked (GPM)."""
    dram: float | None = None
    """Share of the memory bandwidth in use (GPM)."""
    memory_used: int | None = None
    """Bytes, without what the driver keeps for itself."""
    memory_total: int | None = None
    """Bytes."""
    power: float | None = None
    """W."""
    power_limit: float | None = None
    """W, the limit that holds now."""
    energy: float | None = None
    """J since the sample before, from the card's own counter."""
    windows: int = 0
    """Distinct windows of the driver that ``busy`` is the mean of."""
    lost: bool = False
    """The card has stopped answering."""

    @property
    def memory(self) -> float | None:
        """Share of the memory in use."""
        return self.memory_used / self.memory_total if self.memory_total and self.memory_used is not None else None


class Sample(msgspec.Struct, frozen=True):
    """All cards of the job at one moment, and its CPUs."""

    at: float
    """Seconds since the watch began."""
    cards: tuple[CardSample, ...] = ()
    """In the order of the watched cards; empty where there is no card."""
    cpu: float | None = None
    """Share of the job's CPUs in use since the sample before."""
    wait: float | None = None
    """Share of the time that the caller reported as waiting for data."""

    @property
    def windows(self) -> int:
        """New windows of the driver since the sample before, over all cards."""
        return sum(card.windows for card in self.cards)


class Point(msgspec.Struct, frozen=True):
    """One point of a job's path on the map: utilization across, memory up."""

    at: float
    busy: float | None
    memory: float | None
    sm: float | None = None


def path(samples: Sequence[Sample], uuid: str, most: int = MOST_POINTS) -> tuple[Point, ...]:
    """The path of one card, thinned to at most ``most`` points; each is the mean of as many samples as it stands for.

    Memory is the largest of its samples. A point without any reading is left out.
    """
    seen = [(sample.at, card) for sample in samples for card in sample.cards if card.uuid == uuid]
    size = max(1, -(-len(seen) // most))
    groups = (seen[place : place + size] for place in range(0, len(seen), size))
    points = (_point(group) for group in groups)
    return tuple(p for p in points if p.busy is not None or p.memory is not None)


def _point(group: Sequence[tuple[float, CardSample]]) -> Point:
    cards = [card for _, card in group]
    return Point(
        at=group[-1][0],
        busy=mean([(card.busy, card.windows) for card in cards]),
        memory=max((card.memory for card in cards if card.memory is not None), default=None),
        sm=mean([(card.sm, 1) for card in cards]),
    )


def mean(weighted: Sequence[tuple[float | None, float]]) -> float | None:
    """The weighted mean of the values that are known; None when none is."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
