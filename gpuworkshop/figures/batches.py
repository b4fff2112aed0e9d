"""The batch sweep: throughput over the batch size, with the knee and the published range marked."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from gpuworkshop.figures.axis import Axis, axis_for
from gpuworkshop.figures.svg import COLORS, SMALL, Drawing, lines
from gpuworkshop.numbers import ends, known, number, spread, tick
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 640, 56, 300
_PAD = 30
_RULE = "70 to 85% of the ceiling"


class _Plot(msgspec.Struct, frozen=True):
    """Where sizes and rates lie, in pixels; each doubling of the batch has equal room."""

    y_axis: Axis
    low: float
    high: float

    def x(self, batch: float) -> float:
        share = (math.log2(batch) - self.low) / ((self.high - self.low) or 1)
        return _LEFT + _PAD + share * (_RIGHT - _LEFT - 2 * _PAD)

    def y(self, rate: float) -> float:
        return _BOTTOM - self.y_axis.at(rate) * (_BOTTOM - _TOP)


def batch_sweep(
    points: Sequence[Any], knee: int | None, origin: Origin, unit: str, rule: tuple[int, int] | None = None
) -> Figure:
    """Throughput with its interval at each batch size; `rule` is the published range of sizes, if there is one.

    `points` have `.batch`, `.rate` (a Rate in `unit`, or None if it was not possible) and `.note`. Where the knee is
    the largest size measured, a larger batch may be faster still, and the picture says so.
    """
    points = sorted(points, key=lambda point: point.batch)
    sizes = [point.batch for point in points] + list(rule or ()) or [1]
    axis = axis_for([value for point in points for value in ends(point.rate)])
    plot = _Plot(axis, math.log2(max(1, min(sizes))), math.log2(max(1, *sizes)))
    drawing = Drawing()
    _axes(drawing, plot, points, unit)
    _rule(drawing, plot, rule)
    named = _named(points, knee)
    _knee(drawing, plot, knee, named)
    for point in points:
        _point(drawing, plot, point)
    height = _notes(drawing, points) + 18
    return drawing.figure(height, origin, _alt(points, named, unit), _text(points, knee, named, unit, rule))


def _named(points: Sequence[Any], knee: int | None) -> str:
    """The knee in words; "" for none."""
    sizes = [point.batch for point in points if known(point.rate)]
    rises = len(sizes) > 1 and knee == max(sizes)
    return "" if knee is None else f"knee: {knee:,} or more" if rises else f"knee: {knee:,}"


def _axes(drawing: Drawing, plot: _Plot, points: Sequence[Any], unit: str) -> None:
    drawing.text(0, 14, f"throughput, {unit}{plot.y_axis.note}", bold=True)
    for value in plot.y_axis.ticks:
        drawing.line(_LEFT, plot.y(value), _RIGHT, plot.y(value), opacity=0.14)
        drawing.text(_LEFT - 8, plot.y(value) + 4, tick(value), "end", SMALL, quiet=True)
    drawing.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM)
    for point in points:
        drawing.line(plot.x(point.batch), _BOTTOM, plot.x(point.batch), _BOTTOM + 5)
        drawing.text(plot.x(point.batch), _BOTTOM + 19, f"{point.batch:,}", "middle", SMALL)
    drawing.text((_LEFT + _RIGHT) / 2, _BOTTOM + 39, "batch size, samples (log scale)", "middle", bold=True)


def _rule(drawing: Drawing, plot: _Plot, rule: tuple[int, int] | None) -> None:
    if not rule or rule[0] < 1:
        return
    left, right = plot.x(rule[0]), plot.x(rule[1])
    size = dict(width=max(2.0, right - left), height=_BOTTOM - _TOP)
    drawing.shape("rect", x=left, y=_TOP, **size, fill=COLORS["other"], fill_opacity=0.3)
    drawing.text(right + 2, _TOP - 6, _RULE, "end", SMALL, quiet=True)


def _knee(drawing: Drawing, plot: _Plot, knee: int | None, named: str) -> None:
    if knee is not None:
        drawing.line(plot.x(knee), _TOP - 18, plot.x(knee), _BOTTOM, dash="4 4", opacity=0.7)
        drawing.text(plot.x(knee), _TOP - 24, named, "middle", SMALL, bold=True)


def _point(drawing: Drawing, plot: _Plot, point: Any) -> None:
    x = plot.x(point.batch)
    if not known(point.rate):
        drawing.cross(x, _BOTTOM - 12)
        return
    y, values = plot.y(point.rate.value), ends(point.rate)
    if len(values) == 3:
        drawing.whisker((x, plot.y(min(values))), (x, plot.y(max(values))))
    drawing.dot(x, y, COLORS["compute"])
    drawing.text(x + 8, y + 15, number(point.rate.value), size=SMALL)


def _notes(drawing: Drawing, points: Sequence[Any]) -> float:
    """Why a size has no rate, one a line; returns the y of the next line."""
    y = _BOTTOM + 58
    for point in points:
        for line in [] if known(point.rate) else lines(f"{point.batch:,}: n/a, {point.note}", 100):
            drawing.text(_LEFT, y, line, size=SMALL, quiet=True)
            y += 16
    return y


def _alt(points: Sequence[Any], named: str, unit: str) -> str:
    said = "; ".join(f"{point.batch} {spread(point.rate)}" for point in points)
    return f"Throughput over the batch size in {unit}: {said or 'n/a'}. {(named or 'knee: n/a').capitalize()}."


def _text(points: Sequence[Any], knee: int | None, named: str, unit: str, rule: tuple[int, int] | None) -> str:
    mark = "knee, or beyond" if named.endswith("or more") else "knee"
    rows = tuple((f"{p.batch:,}", spread(p.rate), mark if p.batch == knee else p.note) for p in points)
    table = Table(("batch", unit, ""), rows, "Throughput over the batch size, with intervals")
    return f"{table}\nPublished rule, {_RULE}: {rule[0]:,} to {rule[1]:,}." if rule else str(table)
