"""Scaling efficiency over the number of ranks, weak and strong, in the course's bands."""

from collections.abc import Sequence
from typing import Any

from gpuworkshop.figures.svg import COLORS, COVERED, SMALL, Drawing
from gpuworkshop.numbers import ends, number, spread
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 560, 40, 300  # the plot's sides, in pixels
_PAD = 60  # free space left and right inside the plot
_BANDS = (  # from, to (percent), its name, what it means in lines, color
    (80, None, "> 80%", ("pays",), COLORS["compute"]),
    (70, 80, "70-80%", ("acceptable",), COLORS["copy"]),
    (0, 70, "< 70%", ("communication", "or I/O limits"), COLORS["wait"]),
)
_WORDS_AT = 54  # pixels from a band's name to what it means
_APART = {"weak": -9, "strong": 9}  # pixels, so that two marks of one size stand side by side


def scaling_figure(worlds: Sequence[Any], origin: Origin) -> Figure:
    """The efficiency of each world with its interval, over the number of its ranks.

    `worlds` have `.size`, `.mode` ("weak" or "strong"), `.batch` and `.efficiency` (a Rate in percent).
    """
    top = _highest(worlds)
    drawing = Drawing()
    _bands(drawing, top)
    sizes = sorted({world.size for world in worlds})
    _axes(drawing, top, sizes)
    for world in worlds:
        _mark(drawing, top, sizes, world)
    _names(drawing, worlds)
    if any(_covered(top, world) for world in worlds):
        words = "no bar at a point: its interval is narrower than its mark"
        drawing.text(_LEFT, _BOTTOM + 60, words, size=SMALL, quiet=True)
    return drawing.figure(_BOTTOM + 78, origin, _alt(worlds), _text(worlds))


def _highest(worlds: Sequence[Any]) -> float:
    """The upper end of the axis in percent: at least 110, in tens."""
    most = max((value for world in worlds for value in ends(world.efficiency)), default=100)
    return max(110, 10 * (int(most // 10) + 1))


def _x(sizes: Sequence[int], size: int) -> float:
    """The place of a number of ranks: evenly spaced, a single one in the middle."""
    share = sizes.index(size) / (len(sizes) - 1) if len(sizes) > 1 else 0.5
    return _LEFT + _PAD + share * (_RIGHT - _LEFT - 2 * _PAD)


def _y(top: float, percent: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * max(0.0, min(percent, top)) / top


def _bands(drawing: Drawing, top: float) -> None:
    for low, high, name, words, color in _BANDS:
        upper, lower = _y(top, high or top), _y(top, low)
        drawing.shape(
            "rect", x=_LEFT, y=upper, width=_RIGHT - _LEFT, height=lower - upper, fill=color, fill_opacity=0.13
        )
        y = (upper + lower) / 2 + 4
        drawing.text(_RIGHT + 8, y, name, bold=True, size=SMALL)
        for place, line in enumerate(words):
            drawing.text(_RIGHT + 8 + _WORDS_AT, y + 14 * place, line, size=SMALL)


def _axes(drawing: Drawing, top: float, sizes: Sequence[int]) -> None:
    drawing.text(0, 14, "efficiency, % of (ranks x one alone)", bold=True)
    for value in range(0, int(top) + 1, 20):
        drawing.line(_LEFT, _y(top, value), _RIGHT, _y(top, value), opacity=0.14)
        drawing.text(_LEFT - 8, _y(top, value) + 4, str(value), "end", SMALL, quiet=True)
    drawing.line(_LEFT, _y(top, 100), _RIGHT, _y(top, 100), dash="4 4", opacity=0.7)
    drawing.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM)
    for size in sizes:
        x = _x(sizes, size)
        drawing.line(x, _BOTTOM, x, _BOTTOM + 5)
        drawing.text(x, _BOTTOM + 19, str(size), "middle")
    if not sizes:
        drawing.text((_LEFT + _RIGHT) / 2, _y(top, 50), "n/a: no world was measured", "middle")
    drawing.text((_LEFT + _RIGHT) / 2, _BOTTOM + 39, "ranks", "middle", bold=True)


def _mark(drawing: Drawing, top: float, sizes: Sequence[int], world: Any) -> None:
    values, x = ends(world.efficiency), _x(sizes, world.size) + _APART.get(world.mode, 0)
    if not values:
        drawing.cross(x, _BOTTOM - 12)
        drawing.text(x + 9, _BOTTOM - 8, "n/a", quiet=True)
        return
    y = _y(top, world.efficiency.value)
    if len(values) == 3:
        drawing.whisker((x, _y(top, min(values))), (x, _y(top, max(values))))
    drawing.dot(x, y, hollow=world.mode == "strong")
    anchor, beside = ("end", -11) if world.mode == "weak" else ("start", 11)
    drawing.text(x + beside, y + 4, number(world.efficiency.value), anchor)


def _covered(top: float, world: Any) -> bool:
    values = ends(world.efficiency)
    return len(values) == 3 and _y(top, min(values)) - _y(top, max(values)) < COVERED


def _names(drawing: Drawing, worlds: Sequence[Any]) -> None:
    """What a full and a hollow mark are, above the plot."""
    x = 280
    for mode, words in (("weak", "weak: the whole batch in each rank"), ("strong", "strong: the batch shared")):
        if any(world.mode == mode for world in worlds):
            drawing.dot(x, 10, hollow=mode == "strong")
            drawing.text(x + 10, 14, words, size=SMALL)
            x += 250


def _alt(worlds: Sequence[Any]) -> str:
    each = "; ".join(f"{world.size} ranks, {world.mode}: {spread(world.efficiency)}%" for world in worlds)
    return f"Scaling efficiency in percent of ranks times one rank alone: {each or 'n/a'}. Above 80 pays, below 70 not."


def _text(worlds: Sequence[Any]) -> str:
    rows = tuple((str(w.size), w.mode, str(w.batch), spread(w.efficiency), _band(w)) for w in worlds)
    columns = ("ranks", "scaling", "batch a rank", "efficiency, %", "band")
    return str(Table(columns, rows, "Scaling efficiency with intervals, and the course's bands"))


def _band(world: Any) -> str:
    return " or ".join(world.bands)
