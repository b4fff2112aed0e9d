"""The workers sweep: throughput over num_workers, with the data ceiling as a line."""

import bisect
from collections.abc import Sequence
from typing import Any

import msgspec

from gpuworkshop.figures.axis import Axis, axis_for
from gpuworkshop.figures.svg import COLORS, COVERED, SMALL, Drawing, lines, wide
from gpuworkshop.numbers import ends, interval, known, number, spread, tick
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 580, 52, 300  # the plot's sides, in pixels
_PAD = (26, 52)  # free space left and right inside the plot; a value stands right of its mark


def workers_sweep(points: Sequence[Any], ceiling: Any, rule: int | None, origin: Origin, unit: str) -> Figure:
    """Rate with its interval at each tried num_workers, under the data ceiling.

    `points` have `.workers`, `.rate` (a Rate in `unit`, or None if it was not possible) and `.note`.
    `ceiling` is a Rate or None. `rule` is the number of workers by the rule "CPUs - 1", marked if given.
    """
    points = sorted(points, key=lambda point: point.workers)
    plot = _plot(points, ceiling, rule)
    drawing = Drawing()
    _axes(drawing, plot, points, unit)
    _ceiling(drawing, plot, ceiling, unit)
    _rule(drawing, plot, rule)
    for point in points:
        _point(drawing, plot, point, ceiling)
    height = _notes(drawing, plot, points) + 18
    alt, text = _alt(points, ceiling, unit), _text(points, ceiling, rule, unit)
    return drawing.figure(height, origin, alt, text)


class _Plot(msgspec.Struct, frozen=True):
    """Where workers and rates lie, in pixels. `stops` are the worker counts that get equal room."""

    y_axis: Axis
    stops: tuple[int, ...]

    def x(self, workers: int) -> float:
        right = min(bisect.bisect_left(self.stops, workers), len(self.stops) - 1)
        left = max(right - 1, 0)
        between = self.stops[right] - self.stops[left]
        place = left + ((workers - self.stops[left]) / between if between else 0)
        room = _RIGHT - _LEFT - sum(_PAD)
        return _LEFT + _PAD[0] + room * place / max(len(self.stops) - 1, 1)

    def y(self, rate: float) -> float:
        return _BOTTOM - self.y_axis.at(rate) * (_BOTTOM - _TOP)


def _plot(points: Sequence[Any], ceiling: Any, rule: int | None) -> _Plot:
    rates = [value for point in points for value in ends(point.rate)] + ends(ceiling)
    tried = {point.workers for point in points}
    outside = {rule} if rule and not (tried and min(tried) <= rule <= max(tried)) else set()
    return _Plot(axis_for(rates), tuple(sorted(tried | outside)) or (0,))


def _axes(drawing: Drawing, plot: _Plot, points: Sequence[Any], unit: str) -> None:
    drawing.text(0, 14, f"throughput, {unit}{plot.y_axis.note}", bold=True)
    measured = any(known(point.rate) for point in points)
    for value in plot.y_axis.ticks if measured else ():
        drawing.line(_LEFT, plot.y(value), _RIGHT, plot.y(value), opacity=0.14)
        drawing.text(_LEFT - 8, plot.y(value) + 4, tick(value), "end", SMALL, quiet=True)
    if not measured:
        drawing.text((_LEFT + _RIGHT) / 2, (_TOP + _BOTTOM) / 2, "n/a: no rate was measured", "middle")
    drawing.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM)
    for point in points:
        drawing.line(plot.x(point.workers), _BOTTOM, plot.x(point.workers), _BOTTOM + 5)
        drawing.text(plot.x(point.workers), _BOTTOM + 19, str(point.workers), "middle")
    spacing = " (evenly spaced)" if plot.stops[-1] >= len(plot.stops) else ""
    drawing.text((_LEFT + _RIGHT) / 2, _BOTTOM + 39, f"num_workers, processes{spacing}", "middle", bold=True)


def _rule(drawing: Drawing, plot: _Plot, rule: int | None) -> None:
    if not rule:
        return
    words, x = f"rule: CPUs - 1 = {rule}", plot.x(rule)
    drawing.line(x, _TOP - 6, x, _BOTTOM, dash="4 4", opacity=0.7)
    drawing.text(max(x, _LEFT + wide(words, SMALL) / 2), _TOP - 12, words, "middle", SMALL)


def _ceiling(drawing: Drawing, plot: _Plot, ceiling: Any, unit: str) -> None:
    if not known(ceiling):
        drawing.text(_RIGHT + 10, _TOP + 4, "data ceiling: n/a", quiet=True)
        return
    y, values = plot.y(ceiling.value), ends(ceiling)
    top, bottom = plot.y(max(values)), plot.y(min(values))
    drawing.shape(
        "rect", x=_LEFT, y=top, width=_RIGHT - _LEFT, height=bottom - top, fill=COLORS["compute"], fill_opacity=0.2
    )
    drawing.line(_LEFT, y, _RIGHT, y, COLORS["compute"], 2)
    drawing.text(_RIGHT + 10, y + 4, "data ceiling", bold=True)
    drawing.text(_RIGHT + 10, y + 19, f"{number(ceiling.value)} {unit}")
    drawing.text(_RIGHT + 10, y + 34, interval(ceiling.low, ceiling.high), size=SMALL, quiet=True)


def _point(drawing: Drawing, plot: _Plot, point: Any, ceiling: Any) -> None:
    x = plot.x(point.workers)
    if not known(point.rate):
        drawing.cross(x, _BOTTOM - 12)
        drawing.text(x + 11, _BOTTOM - 8, "n/a", quiet=True)
        return
    y, values = plot.y(point.rate.value), ends(point.rate)
    if len(values) == 3:
        drawing.whisker((x, plot.y(min(values))), (x, plot.y(max(values))))
    drawing.dot(x, y, COLORS["loader"])
    under_the_line = known(ceiling) and abs(plot.y(ceiling.value) - y) < 10
    size = SMALL if len(plot.stops) > 7 else None
    drawing.text(x + 11, y + (18 if under_the_line else 4), number(point.rate.value), size=size)


def _notes(drawing: Drawing, plot: _Plot, points: Sequence[Any]) -> float:
    """The notes below the axis, one a line; returns the y of the next line."""
    notes = [_note(point) for point in points if _note(point)]
    if any(_covered(plot, point) for point in points):
        notes.append("no bar at a point: its interval is narrower than its mark")
    y = _BOTTOM + (60 if notes else 44)
    for note in notes:
        for place, line in enumerate(lines(note, 100)):
            drawing.text(_LEFT + (12 if place else 0), y, line, size=SMALL, quiet=True)
            y += 16
    return y


def _covered(plot: _Plot, point: Any) -> bool:
    values = ends(point.rate)
    return len(values) == 3 and plot.y(min(values)) - plot.y(max(values)) < COVERED


def _note(point: Any) -> str:
    """What must be said of one point; "" if nothing."""
    if known(point.rate):
        return f"{point.workers} workers: {point.note}" if point.note else ""
    return f"{point.workers} workers: n/a, {point.note or 'no reason given'}"


def _alt(points: Sequence[Any], ceiling: Any, unit: str) -> str:
    rates = "; ".join(f"{point.workers} workers {spread(point.rate)}" for point in points)
    return f"Throughput over num_workers in {unit}: {rates or 'n/a'}. Data ceiling {spread(ceiling)}."


def _text(points: Sequence[Any], ceiling: Any, rule: int | None, unit: str) -> str:
    rows = tuple((str(point.workers), spread(point.rate), point.note) for point in points)
    table = Table(("num_workers", unit, "note"), rows, "Throughput over num_workers, with intervals")
    marked = f"Rule: CPUs - 1 = {rule}. " if rule else ""
    return f"{table}\n{marked}Data ceiling: {spread(ceiling)}{f' {unit}' if known(ceiling) else ''}."
