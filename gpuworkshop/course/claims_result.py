"""What was measured for the claims: readings in parts, each part with the machine and the kit that made it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import in_unit, interval, number
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Rate


class Reading(msgspec.Struct, frozen=True):
    """One measured value with the ends of its interval; without a value ``why`` says why nothing can tell.

    Without ends the value is exact: bytes that an allocator counted, operations, a yes or no.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    """Blocks, pairs or runs behind the interval."""
    unit: str = ""
    """``"yes"`` for 1 and 0: is it as claimed?"""
    says: str = ""
    """What was measured, and what else was seen, in words."""
    why: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not self.ends[0] <= self.value <= self.ends[1]:
            raise ValueError(f"{self.value:g} lies outside of its interval, {self.ends[0]:g} to {self.ends[1]:g}")

    @property
    def ends(self) -> tuple[float, float]:
        """What the value may be, at least and at most. ValueError where there is none."""
        if self.value is None:
            raise ValueError("there is no value")
        low, high = self.low, self.high
        return self.value if low is None else low, self.value if high is None else high

    def __str__(self) -> str:
        if self.value is None:
            return "n/a"
        if self.unit == "yes":
            return "yes" if self.value else "no"
        if self.unit == "x":
            ends = f" ({_times(self.low)} to {_times(self.high)})" if self.low is not None else ""
            return f"{_times(self.value)}x{ends}"
        if self.low is None:
            return in_unit(f"{self.value:g}" if self.value == int(self.value) else number(self.value), self.unit)
        return f"{in_unit(number(self.value), self.unit)} {interval(self.low, self.high)}"


def _times(value: float | None) -> str:
    return "n/a" if value is None else number(value) if abs(value) >= 10 else f"{value:.2f}"


def exact(value: float, unit: str = "", says: str = "") -> Reading:
    """A value that was counted and has no interval."""
    return Reading(float(value), unit=unit, says=says)


def spread(value: float, low: float, high: float, n: int | None, unit: str, says: str = "") -> Reading:
    """A value with its interval; no value where the interval has no end, or where any of them is no number."""
    if not all(map(math.isfinite, (value, low, high))):
        return missing("one measurement alone has no interval: too little time, or too slow a step", says)
    return Reading(value, min(low, high), max(low, high), n, unit, says)


def ratio(seen: Comparison, says: str = "") -> Reading:
    """A comparison in turn, as times."""
    return spread(seen.ratio, seen.low, seen.high, seen.pairs, "x", says)


def rate(seen: Rate, says: str = "") -> Reading:
    """A rate with its own unit."""
    return spread(seen.value, seen.low, seen.high, seen.n, seen.unit, says)


def missing(why: str, says: str = "") -> Reading:
    """Nothing to judge, and why."""
    return Reading(None, says=says, why=why)


class Part(msgspec.Struct, frozen=True):
    """One part, recorded in one go: a reading for each claim that it tests, by the claim's id."""

    name: str
    readings: dict[str, Reading]
    seconds: float
    """How long it took."""
    conditions: Conditions
    origin: Origin
    sources: tuple[str, ...] = ()
    """Recordings from which it was read; none where it was measured for the claims."""


class ClaimsResult(msgspec.Struct, frozen=True):
    """The parts that were recorded on one kind of card with one version of the kit, each at most once."""

    parts: tuple[Part, ...]
    origin: Origin

    def part(self, name: str) -> Part | None:
        """One part; None if it was not recorded."""
        return next((part for part in self.parts if part.name == name), None)

    @property
    def readings(self) -> Mapping[str, tuple[Reading, Part]]:
        """Every reading with its part, by the id of its claim."""
        return {id: (reading, part) for part in self.parts for id, reading in part.readings.items()}


def belongs(part: Part, other: Part) -> bool:
    """Whether two parts may stand in one table: the same kind of card, or the same CPUs, and the same kit."""
    return (part.conditions.machine, part.conditions.kit) == (other.conditions.machine, other.conditions.kit)


def merged(parts: Iterable[Part]) -> ClaimsResult:
    """One result of parts that belong together; of two with the same name the later one. ValueError for others."""
    newest: dict[str, Part] = {}
    for part in parts:
        first = next(iter(newest.values()), part)
        if not belongs(first, part):
            there, here = first.conditions, part.conditions
            raise ValueError(
                f"{here.machine} with kit {here.kit} and {there.machine} with kit {there.kit} are two tables: "
                "parts are merged only for the same card and kit"
            )
        newest[part.name] = part
    if not newest:
        raise ValueError("nothing was recorded")
    last = max(newest.values(), key=lambda part: part.origin.date)
    return ClaimsResult(tuple(newest.values()), last.origin)
