"""One axis: from values to a place between 0 and 1, with round ticks."""

import math
from collections.abc import Iterable

import msgspec

from gpuworkshop.figures.svg import SMALL, Drawing
from gpuworkshop.numbers import finite, tick

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
LOG_FROM = 5  # a largest value this many times the smallest asks for a log axis


class Axis(msgspec.Struct, frozen=True):
    """A linear axis that holds zero, or a log axis between two round values."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """The place of `value`: 0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def note(self) -> str:
        """What the axis title adds: " (log scale)" or nothing."""
        return " (log scale)" if self.log else ""


class Scale(msgspec.Struct, frozen=True):
    """An axis laid between two pixels of a drawing; where it points up, `end` is the smaller one."""

    axis: Axis
    start: float
    end: float
    unit: float = 1
    """How many of what is drawn make one of the axis, such as bytes of a GiB."""

    def at(self, value: float) -> float:
        """The pixel of `value`."""
        return self.start + self.axis.at(value / self.unit) * (self.end - self.start)

    def ticks(self) -> Iterable[tuple[float, str]]:
        """The pixel of each tick, and its number."""
        return [(self.at(value * self.unit), tick(value)) for value in self.axis.ticks]

    def draw_below(self, drawing: Drawing, y: float, title: str, grid_from: float | None = None, gap: int = 36) -> None:
        """A level axis at `y`: line, ticks, numbers, a title `gap` below; thin lines from `grid_from` down to it."""
        drawing.line(self.start, y, self.end, y)
        for x, number in self.ticks():
            if grid_from is not None:
                drawing.line(x, grid_from, x, y, opacity=0.14)
            drawing.line(x, y, x, y + 5)
            drawing.text(x, y + 18, number, "middle", SMALL, quiet=True)
        drawing.text((self.start + self.end) / 2, y + gap, title, "middle", bold=True)


def in_bytes(most: int, start: float, end: float) -> tuple[Scale, str]:
    """Bytes from 0 to `most` between two pixels, and the unit that the axis counts in."""
    unit, size = next(((name, size) for name, size in _UNITS if most >= size), ("bytes", 1))
    return Scale(axis_for([0.0, most / size]), start, end, size), unit


def axis_for(values: Iterable[float | None]) -> Axis:
    """The axis that shows all known `values`; from 0 to 1 if there are none.

    Log when they are all positive and spread by `LOG_FROM` or more, else linear from zero.
    """
    drawn = [value for value in values if finite(value)]
    low, high = min(drawn, default=0), max(drawn, default=0)
    if low > 0 and high / low >= LOG_FROM:
        return _log(low, high)
    return _linear(min(low, 0), max(high, 0) or 1.0)


def _linear(low: float, high: float) -> Axis:
    step = _round_up((high - low) / 7)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, False, tuple(i * step for i in range(first, last + 1)))


def _log(low: float, high: float) -> Axis:
    start, end = _round_down(low), _round_down(high)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    rounds = [m * 10.0**e for e in exponents for m in (1, 2, 5)]
    inside = [value for value in rounds if start * 0.999 <= value <= end * 1.001]
    if high > end * 1.001:
        inside.append(rounds[rounds.index(inside[-1]) + 1])
    decades = [v for v in inside if math.isclose(math.log10(v), round(math.log10(v)), abs_tol=1e-9)]
    ticks = inside if len(inside) <= 8 else decades[:: math.ceil(len(decades) / 8)]
    return Axis(inside[0], inside[-1], True, tuple(ticks))


def _round_up(value: float) -> float:
    """The smallest of 1, 2, 5, 10 times a power of ten that is not below `value`."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return min(m * power for m in (1, 2, 5, 10) if m * power >= value * (1 - 1e-9))


def _round_down(value: float) -> float:
    """The largest of 1, 2, 5 times a power of ten that is not above `value`."""
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(m * power for m in (1, 2, 5) if m * power <= value * (1 + 1e-9))
