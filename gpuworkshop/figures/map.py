"""The two-axes map: GPU utilization across, GPU memory up, and where the job stands on it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuworkshop.figures.svg import COLORS, HOLLOW, SMALL, Drawing, lines, wide
from gpuworkshop.numbers import counted, finite
from gpuworkshop.report import Figure, Origin, Table

MIDDLE = 0.5
"""Where the quadrants meet, on both axes."""
TARGET = ((0.8, 1.0), (0.7, 0.9))
"""The target zone: 80 to 100% utilization and 70 to 90% memory."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 496, 32, 348
_LIST = 520  # the words' column, in pixels
_NEAR = 16  # closer dots share one label
_QUADRANTS = {  # (right half, upper half): its name, and what it asks for
    (False, True): ("loaded, not running", "look at the data pipeline"),
    (False, False): ("doing nothing", "is CUDA used, is there data?"),
    (True, False): ("good throughput, memory to spare", "room for a bigger batch"),
    (True, True): ("the target zone", ""),
}


class Track(msgspec.Struct, frozen=True):
    """One card on the map: its label, where it stood on average, and its path, the oldest point first.

    `busy` and `memory` are shares from 0 to 1 or None; the points of `path` have both too. `why` says why a share is
    None, such as "MIG: the driver has no utilization for a slice".
    """

    name: str
    busy: float | None
    memory: float | None
    path: Sequence[Any] = ()
    why: str = ""


def quadrant(busy: float | None, memory: float | None) -> str:
    """The name of the quadrant in which a job stands; "n/a" when a share is not known."""
    if not (finite(busy) and finite(memory)):
        return "n/a"
    name = _QUADRANTS[busy >= MIDDLE, memory >= MIDDLE][0]
    return name if name != "the target zone" or _on_target(busy, memory) else "near the target zone"


def two_axes(tracks: Sequence[Track], origin: Origin, why: str = "") -> Figure:
    """Where each card stands, with its path if it has one. Without a card: no map, but `why` there is none."""
    if not tracks:
        return _no_map(origin, f"There is no map of the two axes: {why or 'no card was watched'}.")
    drawing = Drawing()
    _frame(drawing)
    _fields(drawing, _marks(tracks))
    for track in tracks:
        _path(drawing, track)
    for track in tracks:
        _level(drawing, track)
    _dots(drawing, tracks)
    height = max(_list(drawing, tracks), _BOTTOM + 44)
    return drawing.figure(height + 18, origin, _alt(tracks), _text(tracks))


def _no_map(origin: Origin, sentence: str) -> Figure:
    drawing, y = Drawing(), 0.0
    for line in lines(sentence, 100):
        y += 16
        drawing.text(0, y, line)
    return drawing.figure(y + 22, origin, sentence, sentence)


def _on_target(busy: float, memory: float) -> bool:
    return all(low <= value <= high for value, (low, high) in zip((busy, memory), TARGET, strict=True))


def _x(busy: float) -> float:
    return _LEFT + min(max(busy, 0.0), 1.0) * (_RIGHT - _LEFT)


def _y(memory: float) -> float:
    return _BOTTOM - min(max(memory, 0.0), 1.0) * (_BOTTOM - _TOP)


def _frame(drawing: Drawing) -> None:
    drawing.text(0, 14, "GPU memory in use, %", bold=True)
    for tenth in range(0, 11, 2):
        share = tenth / 10
        drawing.line(_x(share), _BOTTOM, _x(share), _BOTTOM + 5)
        drawing.text(_x(share), _BOTTOM + 18, f"{100 * share:.0f}", "middle", SMALL, quiet=True)
        drawing.line(_LEFT - 5, _y(share), _LEFT, _y(share))
        drawing.text(_LEFT - 9, _y(share) + 4, f"{100 * share:.0f}", "end", SMALL, quiet=True)
    drawing.text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, "GPU utilization, %", "middle", bold=True)
    drawing.shape(
        "rect",
        x=_LEFT,
        y=_TOP,
        width=_RIGHT - _LEFT,
        height=_BOTTOM - _TOP,
        fill="none",
        stroke="currentColor",
        stroke_opacity=0.6,
    )
    drawing.line(_x(MIDDLE), _TOP, _x(MIDDLE), _BOTTOM, opacity=0.35)
    drawing.line(_LEFT, _y(MIDDLE), _RIGHT, _y(MIDDLE), opacity=0.35)


def _fields(drawing: Drawing, marks: Sequence[tuple[float, float]]) -> None:
    """The target zone as a field, and each quadrant's name in an outer corner that no mark covers."""
    (left, right), (low, high) = TARGET
    size = {"width": _x(right) - _x(left), "height": _y(low) - _y(high)}
    drawing.shape("rect", x=_x(left), y=_y(high), **size, fill=COLORS["compute"], fill_opacity=0.25)
    for (is_right, is_upper), (name, asks) in _QUADRANTS.items():
        x, anchor = (_RIGHT - 8, "end") if is_right else (_LEFT + 8, "start")
        y = _free(_x(MIDDLE if is_right else 0), is_upper, marks) - (0 if asks else -8)
        drawing.text(x, y, name, anchor, bold=True)
        if asks:
            drawing.text(x, y + 15, asks, anchor, SMALL, quiet=True)


def _free(left: float, is_upper: bool, marks: Sequence[tuple[float, float]]) -> float:
    """Where a quadrant's name begins: at its outer edge, or at its inner one if a mark stands there."""
    edges = (_TOP + 17, _y(MIDDLE) - 24) if is_upper else (_BOTTOM - 24, _y(MIDDLE) + 17)
    right = left + _x(MIDDLE) - _LEFT
    inside = [y for x, y in marks if left - 20 <= x <= right + 20]
    return next((edge for edge in edges if not any(edge - 22 < y < edge + 26 for y in inside)), edges[0])


def _path(drawing: Drawing, track: Track) -> None:
    """The way from start to end as a thin line; the ends are marked, and named if the card is the only one."""
    points = [(_x(p.busy), _y(p.memory)) for p in track.path if finite(p.busy) and finite(p.memory)]
    if len(points) < 2:
        return
    way = "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
    drawing.shape("path", d=f"M{way}", fill="none", stroke="currentColor", stroke_opacity=0.45, stroke_linejoin="round")
    (x1, y1), (x2, y2) = points[0], points[-1]
    drawing.shape("circle", cx=x1, cy=y1, r=4, style=HOLLOW, stroke="currentColor", stroke_width=1.5)
    drawing.shape("rect", x=x2 - 3.5, y=y2 - 3.5, width=7, height=7, fill="currentColor")


def _level(drawing: Drawing, track: Track) -> None:
    """A card of which one share is n/a stands somewhere on a line."""
    if finite(track.memory) and not finite(track.busy):
        drawing.line(_LEFT, _y(track.memory), _RIGHT, _y(track.memory), COLORS["compute"], 2, dash="6 4")
        words = f"{track.name}: utilization n/a, somewhere on this line"
        drawing.text(_LEFT + 8, _y(track.memory) - 6, words, size=SMALL)
    elif finite(track.busy) and not finite(track.memory):
        drawing.line(_x(track.busy), _TOP, _x(track.busy), _BOTTOM, COLORS["compute"], 2, dash="6 4")
        words = f"{track.name}: memory n/a, somewhere on this line"
        _beside(drawing, _x(track.busy), (_TOP + _BOTTOM) / 2 - 20, words)


def _dots(drawing: Drawing, tracks: Sequence[Track]) -> None:
    for x, y, names in _groups(tracks):
        drawing.shape("circle", cx=x, cy=y, r=7, fill=COLORS["compute"], stroke="currentColor", stroke_width=1.5)
        _beside(drawing, x, y + 4, names[0] if len(names) == 1 else f"{counted(len(names), 'card')}")


def _groups(tracks: Sequence[Track]) -> list[tuple[float, float, list[str]]]:
    """The dots as (x, y, names): cards that stand together are one dot."""
    groups: list[tuple[float, float, list[str]]] = []
    for track in tracks:
        if not (finite(track.busy) and finite(track.memory)):
            continue
        x, y = _x(track.busy), _y(track.memory)
        near = next((names for gx, gy, names in groups if abs(gx - x) < _NEAR and abs(gy - y) < _NEAR), None)
        if near is None:
            groups.append((x, y, [track.name]))
        else:
            near.append(track.name)
    return groups


def _marks(tracks: Sequence[Track]) -> list[tuple[float, float]]:
    """The places that words should leave free: dots, and lines on which a card may stand."""
    marks = [(x, y) for x, y, _ in _groups(tracks)]
    for track in tracks:
        if finite(track.memory) and not finite(track.busy):
            marks += [(_x(busy), _y(track.memory) - 6) for busy in (0.25, 0.75)]
    return marks


def _beside(drawing: Drawing, x: float, y: float, words: str) -> None:
    fits = x + 12 + wide(words) < _RIGHT
    drawing.text(x + (12 if fits else -12), y, words, "start" if fits else "end", bold=True)


def _list(drawing: Drawing, tracks: Sequence[Track]) -> float:
    """Every card with its two numbers, right of the map; returns the y below."""
    y = _TOP + 4.0
    for track in tracks:
        drawing.text(_LIST, y + 8, track.name, bold=True)
        y += 24
        said = (f"utilization {_share(track.busy)}, memory {_share(track.memory)}", _place(track))
        for line in [piece for words in said for piece in lines(words, 34)]:
            drawing.text(_LIST, y, line, size=SMALL)
            y += 15
        y += 6
    if any(len(track.path) > 1 for track in tracks):
        y = _key(drawing, y)
    return y


def _key(drawing: Drawing, y: float) -> float:
    """What the marks of a path mean, each beside its mark."""
    x = _LIST + 6
    drawing.shape("circle", cx=x, cy=y, r=5.5, fill=COLORS["compute"], stroke="currentColor", stroke_width=1.5)
    drawing.shape("circle", cx=x, cy=y + 17, r=4, style=HOLLOW, stroke="currentColor", stroke_width=1.5)
    drawing.shape("rect", x=x - 3.5, y=y + 30.5, width=7, height=7, fill="currentColor")
    for place, words in enumerate(("mean of the watch", "start of the path", "end of the path")):
        drawing.text(_LIST + 20, y + 4 + 17 * place, words, size=SMALL, quiet=True)
    return y + 50


def _share(share: float | None) -> str:
    return f"{share:.0%}" if finite(share) else "n/a"


def _place(track: Track) -> str:
    """The quadrant, or why there is none."""
    name = quadrant(track.busy, track.memory)
    return name if name != "n/a" else track.why or "the card does not say"


def _alt(tracks: Sequence[Track]) -> str:
    said = "; ".join(
        f"{track.name}: utilization {_share(track.busy)}, memory {_share(track.memory)}, {_place(track)}"
        for track in tracks
    )
    return f"Two axes, GPU utilization across and GPU memory up. {said}."


def _text(tracks: Sequence[Track]) -> str:
    rows = []
    for track in tracks:
        rows.append((track.name, "mean", _share(track.busy), _share(track.memory), _place(track)))
        known = [p for p in track.path if finite(p.busy) and finite(p.memory)]
        for word, point in (("start", known[0]), ("end", known[-1])) if len(known) > 1 else ():
            at = quadrant(point.busy, point.memory)
            rows.append((track.name, word, _share(point.busy), _share(point.memory), at))
    columns = ("card", "", "utilization", "memory", "where on the map")
    return str(Table(columns, tuple(rows), "Utilization and memory of each card"))
