"""One training step as a strip: loader, copy, compute, wait, to scale in milliseconds."""

from collections.abc import Sequence

from gpuworkshop.figures.axis import Scale, axis_for
from gpuworkshop.figures.svg import COLORS, SMALL, WIDTH, Drawing, lines, wide
from gpuworkshop.numbers import finite, number
from gpuworkshop.report import Figure, Origin, Table

Part = tuple[str, float | None, str]  # name, seconds, kind: a key of COLORS

_LEFT, _RIGHT, _BAR = 100, 610, 34
_LINE = 17  # from one callout to the next


def step_strip(
    parts: Sequence[Part],
    origin: Origin,
    below: Sequence[Part] = (),
    labels: tuple[str, str] = ("now", "data ceiling"),
) -> Figure:
    """One step, its parts side by side and to scale; `below` is a second step on the same scale.

    A part is (name, seconds, kind); kind is loader, copy, compute, wait, slowed or other. A part whose
    seconds are None or zero takes no room in the strip and is named under it ("n/a" for None).
    """
    rows = list(zip(labels, (parts, below), strict=True))[: 2 if below else 1]
    scale = Scale(axis_for([0.0, *(_total(row) * 1e3 for _, row in rows)]), _LEFT, _RIGHT, 1e-3)
    drawing, y = Drawing(), 8.0
    for label, row in rows:
        y = _strip(drawing, scale, label, row, y) + 14
    scale.draw_below(drawing, y, "time in one step, ms")
    return drawing.figure(y + 62, origin, _alt(rows), _text(rows))


def _shown(row: Sequence[Part]) -> list[Part]:
    return [part for part in row if finite(part[1]) and part[1] > 0]


def _total(row: Sequence[Part]) -> float:
    return sum(seconds for _, seconds, _ in _shown(row))


def _ms(seconds: float | None) -> str:
    return f"{number(seconds * 1e3)} ms" if finite(seconds) else "n/a"


def _strip(drawing: Drawing, scale: Scale, label: str, row: Sequence[Part], y: float) -> float:
    """Draw one strip and its words at y; returns the y below them."""
    named = lines(label, 13)
    for place, line in enumerate(named):
        drawing.text(_LEFT - 12, y + 21 + (place - (len(named) - 1) / 2) * 14, line, "end", bold=True)
    shown = _shown(row)
    start, narrow = 0.0, []
    for part in shown:
        left, right = scale.at(start), scale.at(start + part[1])
        _box(drawing, left, right, y, part)
        if not _inside(drawing, left, right, y, part):
            narrow.append(((left + right) / 2, f"{part[0]} {_ms(part[1])}"))
        start += part[1]
    total = _ms(start) if shown else "n/a: no part was measured"
    drawing.text(scale.at(start) + 10, y + 21, total, bold=True)
    return _unseen(drawing, row, _callouts(drawing, narrow, y + _BAR))


def _box(drawing: Drawing, left: float, right: float, y: float, part: Part) -> None:
    color = COLORS[part[2]]
    hatched = part[2] == "slowed"
    drawing.shape(
        "rect",
        x=left,
        y=y,
        width=right - left,
        height=_BAR,
        fill=color,
        fill_opacity=0.25 if hatched else None,
        stroke="currentColor",
        stroke_width=0.8 if right - left > 4 else 0,
    )
    if not hatched:
        return
    for offset in range(6, int(right - left + _BAR), 8):
        x1, x2 = left + max(0, offset - _BAR), left + min(offset, right - left)
        drawing.line(x1, y + min(offset, _BAR), x2, y + max(0, offset - (right - left)), color, 2)


def _inside(drawing: Drawing, left: float, right: float, y: float, part: Part) -> bool:
    """Write name and time into the box if they fit; hatching is never written over."""
    name, seconds, kind = part
    if kind == "slowed" or right - left < max(wide(name), wide(_ms(seconds), SMALL)) + 8:
        return False
    ink = "#fff" if kind == "loader" else "#000"
    drawing.text((left + right) / 2, y + 15, name, "middle", fill=ink)
    drawing.text((left + right) / 2, y + 28, _ms(seconds), "middle", SMALL, fill=ink)
    return True


def _callouts(drawing: Drawing, narrow: Sequence[tuple[float, str]], y: float) -> float:
    """Name narrow parts under the strip, the right one first, so that no leader crosses a word."""
    ends = [(x, y + 12 + place * _LINE, words) for place, (x, words) in enumerate(reversed(narrow))]
    for x, end, _ in ends:
        drawing.line(x, y, x, end, opacity=0.6)
    for x, end, words in ends:
        fits = x + 5 + wide(words, SMALL) < WIDTH
        drawing.text(x + (5 if fits else -5), end + 2, words, "start" if fits else "end", SMALL)
    return y + len(narrow) * _LINE


def _unseen(drawing: Drawing, row: Sequence[Part], y: float) -> float:
    words = [f"{name} {_ms(seconds)}" for name, seconds, _ in row if not (finite(seconds) and seconds > 0)]
    if not words:
        return y
    drawing.text(_LEFT, y + 16, "not in the strip: " + ", ".join(words), size=SMALL, quiet=True)
    return y + _LINE


def _alt(rows: Sequence[tuple[str, Sequence[Part]]]) -> str:
    said = []
    for label, row in rows:
        named = ", ".join(f"{name} {_ms(seconds)}" for name, seconds, _ in row)
        said.append(f"{label}: {named or 'n/a'}")
    return "One training step to scale. " + "; ".join(said) + "."


def _text(rows: Sequence[tuple[str, Sequence[Part]]]) -> str:
    cells = []
    for label, row in rows:
        cells += [(label, name, kind, _ms(seconds)) for name, seconds, kind in row]
        cells.append((label, "whole step", "", _ms(_total(row)) if _shown(row) else "n/a"))
    return str(Table(("step", "part", "kind", "time"), tuple(cells), "One training step"))
