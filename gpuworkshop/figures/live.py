"""The live strip: the last minute of each card as rows of lines, and the idle meter beside them."""

from collections.abc import Sequence

import msgspec

from gpuworkshop.figures.svg import COLORS, SMALL, WIDTH, Drawing, lines
from gpuworkshop.numbers import finite
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _WORDS, _METER = 40, 400, 408, 560  # the plot's sides, its values, the meter, in pixels
_TOP, _HIGH, _STEP = 22, 52, 88  # from a row's title to its plot, the plot's height, from row to row
_APART = 15  # between the values of two lines that end at the same height

AT_ONCE = 1.0
"""Seconds; a shorter pause is no idling: the driver's windows are up to 1 s long."""

Point = tuple[float, float | None]
"""Seconds before now, and a share from 0 to 1; None: nothing was read, the line has a gap."""


class Line(msgspec.Struct, frozen=True):
    """One line of a row, the oldest point first. `now` is its present value in words, with its unit.

    `kind` is a key of COLORS, "" for the ink of the page. The first line of a row stands on a filled ground.
    """

    name: str
    points: Sequence[Point]
    now: str
    kind: str = ""


class Row(msgspec.Struct, frozen=True):
    """Lines on one scale from 0 to 100%. `note` says why there is nothing to draw."""

    title: str
    lines: tuple[Line, ...] = ()
    note: str = ""


class Meter(msgspec.Struct, frozen=True):
    """How long a card has been idle, and what that leads to.

    `idle` is in seconds, 0 for a busy card, None when the card does not tell; `since_start`: it was never seen busy,
    so it may have been idle for longer. `limit` is in seconds, None when nobody knows it. `held` and `used` are
    GPU-minutes. `policy` is what the site does, in a sentence.
    """

    idle: float | None
    since_start: bool
    limit: float | None
    policy: str
    held: float
    used: float | None
    card: str = ""

    @property
    def says(self) -> str:
        """The headline: "busy", "idle 3 min 12 s"."""
        if self.idle is None:
            return "idle time n/a"
        if self.idle < AT_ONCE:
            return "busy"
        return f"idle {duration(self.idle)}{' or more' if self.since_start else ''}"

    @property
    def countdown(self) -> str:
        """When an idle job would be canceled; "" when that cannot be said."""
        if self.limit is None or self.idle is None or self.idle < AT_ONCE:
            return ""
        left = self.limit - self.idle
        return f"canceled in {duration(left)}{' or less' if self.since_start else ''}" if left > 0 else "canceled now"

    @property
    def minutes(self) -> tuple[str, str]:
        """The GPU-minutes held, and those of them in which a kernel ran."""
        share = f" ({self.used / self.held:.0%})" if self.used is not None and self.held > 0 else ""
        used = "n/a" if self.used is None else f"{self.used:.2f}"
        return f"held {self.held:.2f} GPU-minutes", f"used {used}{share}"


def live_strip(rows: Sequence[Row], meter: Meter | None, origin: Origin, stamp: str, seconds: float = 60) -> Figure:
    """The last `seconds` of each row, now at the right end; `stamp` says when now is.

    Without a `meter` there is no card, and the place of the meter says so.
    """
    drawing, y = Drawing(), 0.0
    for row in rows:
        _row(drawing, row, y, seconds)
        y += _STEP
    _time_axis(drawing, y - _STEP + _TOP + _HIGH, seconds)
    bottom = _meter(drawing, meter)
    height = max(y + 34, bottom + 24)
    drawing.text(0, height - 4, stamp, size=SMALL, quiet=True)
    return drawing.figure(height, origin, _alt(rows, meter, seconds), _text(rows, meter, seconds, stamp))


def duration(seconds: float) -> str:
    """A length of time as a clock would say it: "12 s", "3 min 12 s", "2 h 05 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _row(drawing: Drawing, row: Row, y: float, seconds: float) -> None:
    top, bottom = y + _TOP, y + _TOP + _HIGH
    drawing.text(0, y + 14, row.title, bold=True)
    if not any(finite(share) for line in row.lines for _, share in line.points):
        drawing.text(_LEFT + 8, (top + bottom) / 2 + 4, f"n/a: {row.note or 'nothing was read yet'}", quiet=True)
        drawing.line(_LEFT, bottom, _RIGHT, bottom, opacity=0.4)
        return
    for share in (0, 1):
        height = bottom - share * _HIGH
        drawing.line(_LEFT, height, _RIGHT, height, opacity=0.4 if share == 0 else 0.14)
        drawing.text(_LEFT - 6, height + 4, f"{share:.0%}", "end", SMALL, quiet=True)
    for place, line in enumerate(row.lines):
        _line(drawing, line, bottom, seconds, ground=place == 0)
    _values(drawing, row.lines, bottom)


def _line(drawing: Drawing, line: Line, bottom: float, seconds: float, ground: bool) -> None:
    color = COLORS[line.kind] if line.kind else "currentColor"
    for piece in _pieces(line.points, seconds):
        path = "L".join(f"{_x(before, seconds):.0f} {bottom - share * _HIGH:.0f}" for before, share in piece)
        if ground:
            ends = f"{_x(piece[0][0], seconds):.0f} {bottom}", f"{_x(piece[-1][0], seconds):.0f} {bottom}"
            drawing.shape("path", d=f"M{ends[0]}L{path}L{ends[1]}z", fill=color, fill_opacity=0.25)
        drawing.shape(
            "path",
            d=f"M{path}",
            fill="none",
            stroke=color,
            stroke_width=2 if ground else 1.3,
            stroke_linejoin="round",
            stroke_linecap="round",
            stroke_dasharray=None if ground else "5 3",
        )


def _pieces(points: Sequence[Point], seconds: float) -> list[list[tuple[float, float]]]:
    """The parts of a line between its gaps, each point within the window and the scale."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for before, share in points:
        if not finite(share):
            pieces.append([])
        elif 0 <= before <= seconds:
            pieces[-1].append((before, min(max(share, 0.0), 1.0)))
    return [piece for piece in pieces if piece]


def _x(before: float, seconds: float) -> float:
    return _RIGHT - before / seconds * (_RIGHT - _LEFT)


def _values(drawing: Drawing, drawn: Sequence[Line], bottom: float) -> None:
    """The present value of each line at the height of its end, pushed apart where they would touch."""
    known = [(next((share for _, share in reversed(line.points) if finite(share)), 0.0), line) for line in drawn]
    under = bottom + _APART + 4
    for share, line in sorted(known, key=lambda one: one[0]):
        under = min(bottom - share * _HIGH + 4, under - _APART)
        drawing.text(_WORDS, under, f"{line.name} {line.now}".strip(), bold=line is drawn[0])


def _time_axis(drawing: Drawing, y: float, seconds: float) -> None:
    for part in range(5):
        before = seconds * (4 - part) / 4
        x = _x(before, seconds)
        drawing.line(x, y, x, y + 5, opacity=0.6)
        words = "now" if before == 0 else f"{before:.0f} s ago" if part == 0 else f"{before:.0f}"
        drawing.text(x, y + 18, words, "middle", SMALL, quiet=True)


def _meter(drawing: Drawing, meter: Meter | None) -> float:
    """Draw the meter in its column; returns the y below it."""
    drawing.text(_METER, 14, "idle meter", bold=True)
    if meter is None:
        drawing.text(_METER, 36, "n/a: no card is held", quiet=True)
        return 44
    if meter.card:
        drawing.text(_METER, 30, meter.card, size=SMALL, quiet=True)
    y = 54 if meter.card else 42
    for place, line in enumerate(lines(meter.says, 17)):
        drawing.text(_METER, y + place * 20, line, size=17, bold=True)
        y += 20 if place else 0
    y = _bar(drawing, meter, y + 12)
    for line in lines(meter.policy, 28):
        drawing.text(_METER, y + 12, line, size=SMALL, quiet=True)
        y += 14
    for line in meter.minutes:
        drawing.text(_METER, y + 22, line)
        y += 16
    return y + 12


def _bar(drawing: Drawing, meter: Meter, y: float) -> float:
    """How much of the site's limit is used up; nothing where there is no limit to show."""
    if meter.limit is None or meter.idle is None:
        return y
    wide = WIDTH - _METER - 1
    used = min(1.0, meter.idle / meter.limit)
    drawing.shape("rect", x=_METER, y=y, width=wide, height=10, fill="none", stroke="currentColor", stroke_width=1)
    drawing.shape("rect", x=_METER, y=y, width=wide * used, height=10, fill=COLORS["wait"])
    if meter.countdown:
        drawing.text(_METER, y + 26, meter.countdown)
    return y + (32 if meter.countdown else 14)


def _alt(rows: Sequence[Row], meter: Meter | None, seconds: float) -> str:
    said = [f"{row.title}: {_said(row)}" for row in rows]
    return f"The last {seconds:.0f} s. {'. '.join(said) or 'n/a'}. {_meter_text(meter)}"


def _said(row: Row) -> str:
    now = ", ".join(f"{line.name} {line.now}".strip() for line in row.lines)
    return now or f"n/a, {row.note or 'nothing was read yet'}"


def _meter_text(meter: Meter | None) -> str:
    if meter is None:
        return "Idle meter: n/a, no card is held."
    of = f" of {meter.card}" if meter.card else ""
    parts = (f"Idle meter{of}: {meter.says}", meter.countdown, *meter.minutes)
    return f"{', '.join(part for part in parts if part)}. {meter.policy}".strip()


def _text(rows: Sequence[Row], meter: Meter | None, seconds: float, stamp: str) -> str:
    cells = []
    for row in rows:
        cells += [(row.title, line.name, line.now, *_range(line)) for line in row.lines]
        if not row.lines:
            cells.append((row.title, "", "n/a", "n/a", row.note))
    table = Table(("row", "line", "now", "mean", "from, to"), tuple(cells), f"The last {seconds:.0f} s, {stamp}")
    return f"{table}\n{_meter_text(meter)}"


def _range(line: Line) -> tuple[str, str]:
    shares = [share for _, share in line.points if finite(share)]
    if not shares:
        return "n/a", "n/a"
    return f"{sum(shares) / len(shares):.0%}", f"{min(shares):.0%}, {max(shares):.0%}"
