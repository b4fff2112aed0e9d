"""One step of several ranks: their own samples, their own gradients, the mean of them in each, the same update."""

from collections.abc import Sequence

from gpuworkshop.figures.svg import COLORS, SMALL, Drawing
from gpuworkshop.report import Figure, Origin, Table

_TOP, _ROW, _HIGH = 34, 74, 52  # of the first row, from row to row, and of a box, in pixels
_COLUMNS = (  # left and right edge, head
    (70, 195, "own samples"),
    (225, 365, "forward, backward"),
    (395, 545, "all-reduce"),
    (575, 735, "update"),
)


def all_reduce_figure(own: Sequence[Sequence[float]], averaged: Sequence[float], origin: Origin) -> Figure:
    """A step with the numbers of its first weight: ``own`` gradients of each rank, ``averaged`` over all of them."""
    drawing = Drawing()
    for left, right, head in _COLUMNS:
        drawing.text((left + right) / 2, 14, head, "middle", bold=True)
    for rank, gradient in enumerate(own):
        _rank(drawing, rank, gradient[0], averaged[0])
    _together(drawing, len(own), averaged[0])
    return drawing.figure(_TOP + _ROW * len(own) + 22, origin, _alt(own, averaged), _text(own, averaged))


def _rank(drawing: Drawing, rank: int, own: float, mean: float) -> None:
    """One row: what this rank does by itself."""
    y = _TOP + rank * _ROW
    drawing.text(0, y + _HIGH / 2 + 4, f"rank {rank}", bold=True)
    _box(drawing, 0, y, _HIGH, "loader", f"batch {rank}")
    _box(drawing, 1, y, _HIGH, "compute", "gradient", _signed(own))
    _box(drawing, 3, y, _HIGH, "compute", "same gradient", _signed(mean))
    for place in range(3):
        _arrow(drawing, _COLUMNS[place][1], _COLUMNS[place + 1][0], y + _HIGH / 2)


def _together(drawing: Drawing, ranks: int, mean: float) -> None:
    """The box that all rows go through."""
    _box(drawing, 2, _TOP, _ROW * (ranks - 1) + _HIGH, "communication", f"mean of {ranks}", _signed(mean))


def _box(drawing: Drawing, column: int, y: float, height: float, color: str, *words: str) -> None:
    left, right, _ = _COLUMNS[column]
    drawing.shape(
        "rect",
        x=left,
        y=y,
        width=right - left,
        height=height,
        rx=3,
        fill=COLORS[color],
        fill_opacity=0.22,
        stroke="currentColor",
        stroke_width=0.8,
    )
    first = y + height / 2 + 4 - 8 * (len(words) - 1)
    for place, word in enumerate(words):
        drawing.text((left + right) / 2, first + 17 * place, word, "middle", size=None if place else SMALL + 1)


def _arrow(drawing: Drawing, x1: float, x2: float, y: float) -> None:
    drawing.line(x1 + 4, y, x2 - 5, y, width=1.5)
    drawing.line(x2 - 10, y - 4, x2 - 5, y, width=1.5)
    drawing.line(x2 - 10, y + 4, x2 - 5, y, width=1.5)


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "\u2212")


def _alt(own: Sequence[Sequence[float]], averaged: Sequence[float]) -> str:
    each = ", ".join(f"rank {rank} {gradient[0]:+.4f}" for rank, gradient in enumerate(own))
    return (
        f"A step of {len(own)} ranks. Each has samples and a gradient of its own: {each}. All-reduce leaves their mean "
        f"{averaged[0]:+.4f} in every rank, and every rank makes the same update."
    )


def _text(own: Sequence[Sequence[float]], averaged: Sequence[float]) -> str:
    rows = tuple(
        (str(rank), f"batch {rank}", f"{gradient[0]:+.4f}", f"{averaged[0]:+.4f}") for rank, gradient in enumerate(own)
    )
    columns = ("rank", "samples", "own gradient", "after all-reduce")
    return str(Table(columns, rows, "The gradient of one weight in each rank"))
