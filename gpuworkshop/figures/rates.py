"""Throughput of several ways to do the same work: a bar from zero for each, with its interval."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuworkshop.figures.axis import Scale, axis_for
from gpuworkshop.figures.svg import COLORS, SMALL, Drawing, lines
from gpuworkshop.numbers import ends, known, number, spread
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT = 170, 560
_STEP, _HIGH = 46, 22


class RateBar(msgspec.Struct, frozen=True):
    """One way: its name, its Rate or None, and a note, such as its ratio or why there is no rate."""

    name: str
    rate: Any
    note: str = ""


def rate_bars(bars: Sequence[RateBar], unit: str, origin: Origin, title: str = "Throughput") -> Figure:
    """A bar for each way, its interval as a whisker, its value beside it, its note below the value."""
    scale = Scale(axis_for([0.0, *(value for bar in bars for value in ends(bar.rate))]), _LEFT, _RIGHT)
    drawing, bottom = Drawing(), 8.0 + _STEP * len(bars)
    for x, said in scale.ticks():
        drawing.line(x, 4, x, bottom, opacity=0.4 if x == _LEFT else 0.14)
        drawing.text(x, bottom + 16, said, "middle", SMALL, quiet=True)
    for place, bar in enumerate(bars):
        _draw(drawing, scale, bar, 8.0 + _STEP * place)
    drawing.text((_LEFT + _RIGHT) / 2, bottom + 34, unit, "middle", bold=True)
    return drawing.figure(bottom + 60, origin, _alt(bars, unit, title), _text(bars, unit, title))


def _draw(drawing: Drawing, scale: Scale, bar: RateBar, y: float) -> None:
    middle = y + _HIGH / 2
    drawing.text(_LEFT - 12, middle + 4, bar.name, "end", bold=True)
    if not known(bar.rate):
        drawing.cross(_LEFT + 10, middle)
        drawing.text(_LEFT + 24, middle + 4, "n/a" + (f": {lines(bar.note, 70)[0]}" if bar.note else ""), quiet=True)
        return
    values = ends(bar.rate)
    drawing.shape(
        "rect", x=_LEFT, y=y, width=max(1.0, scale.at(bar.rate.value) - _LEFT), height=_HIGH,
        fill=COLORS["compute"], fill_opacity=0.55,
    )  # fmt: skip
    if len(values) == 3:
        drawing.whisker((scale.at(min(values)), middle), (scale.at(max(values)), middle))
    end = scale.at(max(values)) + 10
    drawing.text(end, middle + 1, number(bar.rate.value), bold=True)
    drawing.text(end, middle + 15, bar.note, size=SMALL, quiet=True)


def _alt(bars: Sequence[RateBar], unit: str, title: str) -> str:
    said = "; ".join(f"{bar.name} {spread(bar.rate)}" for bar in bars)
    return f"{title} in {unit}: {said or 'n/a'}."


def _text(bars: Sequence[RateBar], unit: str, title: str) -> str:
    rows = tuple((bar.name, spread(bar.rate), bar.note) for bar in bars)
    return str(Table(("", unit, "note"), rows, f"{title}, with intervals"))
