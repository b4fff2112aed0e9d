"""Claims as strips: the claimed range and the measured interval of each, on one axis of measured over claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpuworkshop.figures.svg import COLORS, SMALL, Drawing
from gpuworkshop.numbers import number, tick
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _STEP = 180, 520, 26
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LOW, _HIGH = 0.08, 12.5
_INK = {"holds": COLORS["compute"], "partly": COLORS["copy"], "not here": COLORS["wait"]}


class Strip(msgspec.Struct, frozen=True):
    """One claim: its name, the measured words, the verdict, the claimed range (None: no such end), and the measured
    value with the ends of its interval. All above 0."""

    name: str
    measured: str
    verdict: str
    claimed: tuple[float | None, float | None]
    seen: tuple[float, float, float]

    @property
    def middle(self) -> float:
        """What counts as 1 on the axis: the bound, or the middle of both."""
        ends = [end for end in self.claimed if end]
        return math.exp(sum(map(math.log, ends)) / len(ends)) if ends else 1.0


def claimed(strips: Sequence[Strip], origin: Origin) -> Figure:
    """A row for each claim: the range that was claimed as a band, what was measured as a dot with its interval."""
    drawing, bottom = Drawing(), 8.0 + _STEP * len(strips)
    for value in _TICKS:
        x = _x(value)
        drawing.line(x, 4, x, bottom, opacity=0.4 if value == 1 else 0.14)
        drawing.text(x, bottom + 16, tick(value), "middle", SMALL, quiet=True)
    for place, strip in enumerate(strips):
        _draw(drawing, strip, 8.0 + _STEP * (place + 0.5))
    title = "measured over claimed (log scale; band: claimed; a dot at an end lies beyond it)"
    drawing.text((_LEFT + _RIGHT) / 2, bottom + 34, title, "middle", bold=True)
    return drawing.figure(bottom + 60, origin, _alt(strips), _text(strips))


def _x(value: float) -> float:
    """The place of a ratio; what is beyond an end stands at it."""
    inside = min(max(value, _LOW), _HIGH)
    return _LEFT + (_RIGHT - _LEFT) * math.log(inside / _LOW) / math.log(_HIGH / _LOW)


def _draw(drawing: Drawing, strip: Strip, y: float) -> None:
    middle = strip.middle
    least, most = (end / middle if end else None for end in strip.claimed)
    left, right = _x(least) if least else _LEFT, _x(most) if most else _RIGHT
    drawing.text(_LEFT - 12, y + 4, strip.name, "end")
    drawing.shape("rect", x=left, y=y - 8, width=max(3.0, right - left), height=16, fill=COLORS["other"],
                  fill_opacity=0.35)  # fmt: skip
    value, low, high = (part / middle for part in strip.seen)
    drawing.whisker((_x(low), y), (_x(high), y))
    drawing.dot(_x(value), y, _INK.get(strip.verdict, "currentColor"))
    drawing.text(_RIGHT + 12, y + 4, f"{strip.verdict}: {strip.measured}", size=SMALL)


def _range(strip: Strip) -> str:
    least, most = strip.claimed
    if least is None or most is None:
        return f"at most {number(most)}" if least is None else f"at least {number(least)}"
    return f"{number(least)} to {number(most)}"


def _alt(strips: Sequence[Strip]) -> str:
    said = "; ".join(f"{strip.name} {strip.verdict}, {strip.measured}" for strip in strips)
    return f"Measured beside claimed: {said or 'n/a'}."


def _text(strips: Sequence[Strip]) -> str:
    rows = tuple((strip.name, _range(strip), strip.measured, strip.verdict) for strip in strips)
    return str(Table(("claim", "claimed", "measured", "verdict"), rows, "Measured beside claimed"))
