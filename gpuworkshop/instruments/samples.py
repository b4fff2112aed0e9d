"""What one look at the cards of a job sees, and how many looks become few. Nothing here asks a driver.

Shares are from 0 to 1. What could not be read is None: it is written "n/a", left out of every mean, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

Known = TypeVar("Known")

MOST_POINTS = 120
"""Points of a path that a map can show apart."""

MOST_SAMPLES = 4000
"""Samples kept of one watch, 13 minutes at 5 a second; from there on old ones are merged two by two."""

MEANS = ("sm", "occupancy", "tensor", "dram", "power")
"""Readings of a card that are averaged over time."""


class WatchedCard(msgspec.Struct, frozen=True):
    """A card of the job as a watch names it; ``place`` is its label, such as cuda:0 (physical card 1, bus ...)."""

    uuid: str
    name: str
    place: str
    mig: bool = False

    @property
    def label(self) -> str:
        """The short name: cuda:0, or the card's own."""
        return self.place.partition(" (")[0]


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
    """J since the counter was read before; None where it was not read, as it costs the driver milliseconds."""
    energy_seconds: float = 0.0
    """Seconds in which ``energy`` was used."""
    windows: int = 0
    """Distinct windows of the driver that ``busy`` is the mean of."""
    covered: float = 0.0
    """Seconds of these windows; the weight of ``busy``."""
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
    """Share of the job's CPUs in use, about once a second."""
    wait: float | None = None
    """Share of the time that the caller reported as waiting for data."""
    seconds: float = 0.0
    """Time since the sample before; the weight of everything but ``busy``."""

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
    """The path of one card, thinned to at most ``most`` points; each stands for as many samples, its memory the most.

    A point without any reading is left out.
    """
    seen = [(sample, card) for sample in samples for card in sample.cards if card.uuid == uuid]
    size = max(1, -(-len(seen) // most))
    groups = (seen[place : place + size] for place in range(0, len(seen), size))
    points = (_point(group) for group in groups)
    return tuple(p for p in points if p.busy is not None or p.memory is not None)


def _point(group: Sequence[tuple[Sample, CardSample]]) -> Point:
    return Point(
        at=group[-1][0].at,
        busy=mean((card.busy, card.covered) for _, card in group),
        memory=most(card.memory for _, card in group),
        sm=mean((card.sm, sample.seconds) for sample, card in group),
    )


def mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    """The weighted mean of the values that are known; None when none is."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def most(values: Iterable[float | None]) -> float | None:
    """The largest of the values that are known; None when none is."""
    return max((value for value in values if value is not None), default=None)


def last(values: Iterable[Known | None]) -> Known | None:
    """The last of the values that are known; None when none is."""
    return next((value for value in reversed(list(values)) if value is not None), None)


def total(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def thinned(samples: list[Sample]) -> list[Sample]:
    """The samples, their older half merged two by two once there are :data:`MOST_SAMPLES`: sums and means stay."""
    if len(samples) < MOST_SAMPLES:
        return samples
    half = len(samples) // 4 * 2
    pairs = zip(samples[:half:2], samples[1:half:2], strict=True)
    return [merged(first, second) for first, second in pairs] + samples[half:]


def merged(first: Sample, second: Sample) -> Sample:
    """Two neighboring samples as one."""
    pair = (first, second)
    if len(first.cards) == len(second.cards):
        both = zip(first.cards, second.cards, strict=True)
        cards = tuple(_merged_card(a, b, first.seconds, second.seconds) for a, b in both)
    else:  # the cards became known between the two
        cards = max((sample.cards for sample in pair), key=len)
    return Sample(
        at=second.at,
        cards=cards,
        cpu=mean((sample.cpu, sample.seconds) for sample in pair),
        wait=mean((sample.wait, sample.seconds) for sample in pair),
        seconds=first.seconds + second.seconds,
    )


def _merged_card(a: CardSample, b: CardSample, a_seconds: float, b_seconds: float) -> CardSample:
    means = {name: mean([(getattr(a, name), a_seconds), (getattr(b, name), b_seconds)]) for name in MEANS}
    return CardSample(
        uuid=b.uuid,
        busy=mean([(a.busy, a.covered), (b.busy, b.covered)]),
        memory_used=most((a.memory_used, b.memory_used)),
        memory_total=b.memory_total or a.memory_total,
        power_limit=b.power_limit or a.power_limit,
        energy=total((a.energy, b.energy)),
        energy_seconds=a.energy_seconds + b.energy_seconds,
        windows=a.windows + b.windows,
        covered=a.covered + b.covered,
        lost=a.lost or b.lost,
        **means,
    )
