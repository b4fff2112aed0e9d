"""Utilization and SM activity of several kinds of work: how long the card was busy, and how much of it was at work."""

from collections.abc import Sequence

import msgspec

from gpuworkshop.figures.svg import COLORS, SMALL, Drawing
from gpuworkshop.numbers import finite, percent
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT = 190, 520
_STEP, _WIDE, _NARROW = 58, 28, 10


class Bar(msgspec.Struct, frozen=True):
    """One kind of work: its name, its throughput in words, and two shares from 0 to 1 (None: n/a)."""

    name: str
    does: str
    busy: float | None
    sm: float | None


def at_work(bars: Sequence[Bar], origin: Origin) -> Figure:
    """For each kind of work a wide pale bar, GPU utilization, and in it a narrow full one, SM activity."""
    drawing, bottom = Drawing(), 10.0 + _STEP * len(bars)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.line(_x(tick), 6, _x(tick), bottom, opacity=0.4 if tick == 0 else 0.14)
        drawing.text(_x(tick), bottom + 16, f"{tick:.0%}", "middle", SMALL, quiet=True)
    for place, bar in enumerate(bars):
        _draw(drawing, bar, 10.0 + _STEP * place)
    drawing.text((_x(0) + _x(1)) / 2, bottom + 34, "share of the time, and of the SMs", "middle", bold=True)
    return drawing.figure(bottom + 60, origin, _alt(bars), _text(bars))


def _draw(drawing: Drawing, bar: Bar, y: float) -> None:
    drawing.text(_LEFT - 12, y + 20, bar.name, "end", bold=True)
    drawing.text(_LEFT - 12, y + 36, bar.does, "end", SMALL, quiet=True)
    color, middle = COLORS["compute"], y + 24
    for value, high, opacity in ((bar.busy, _WIDE, 0.25), (bar.sm, _NARROW, None)):
        if finite(value):
            wide = max(1.0, _x(min(value, 1.0)) - _LEFT)
            place = {"x": _LEFT, "y": middle - high / 2, "width": wide, "height": high}
            drawing.shape("rect", **place, fill=color, fill_opacity=opacity)
    drawing.text(_RIGHT + 14, y + 20, f"GPU utilization {percent(bar.busy)}")
    drawing.text(_RIGHT + 14, y + 38, f"SM activity {percent(bar.sm)}", bold=True)


def _x(value: float) -> float:
    return _LEFT + value * (_RIGHT - _LEFT)


def _alt(bars: Sequence[Bar]) -> str:
    said = (f"{bar.name}: GPU utilization {percent(bar.busy)}, SM activity {percent(bar.sm)}" for bar in bars)
    return f"How busy, and how much at work. {'. '.join(said)}."


def _text(bars: Sequence[Bar]) -> str:
    rows = tuple((bar.name, bar.does, percent(bar.busy), percent(bar.sm)) for bar in bars)
    return str(Table(("work", "throughput", "GPU utilization", "SM activity"), rows))
