"""The waterfall: one bar a kept change, from the baseline to now; the refused ones below."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuworkshop.figures.axis import Scale, axis_for
from gpuworkshop.figures.svg import COLORS, SMALL, Drawing, lines
from gpuworkshop.numbers import ends, known, number, spread, times
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _WORDS = 180, 500, 520  # the plot's sides and the words' column, in pixels
_TOP, _LINE, _GAP, _HEAD = 34, 15, 14, 34
_WIDE = (24, 36)  # characters a line: left column, right column


class Bar(msgspec.Struct, frozen=True):
    """One run of the ledger, as the picture needs it.

    `rate` is a Rate or None; `ratio` (after / before) with its interval `low` to `high` is None for the
    baseline. `why` says in words why it was kept or refused, `learning` whether it still learns.
    """

    label: str
    rate: Any
    ratio: float | None
    low: float | None
    high: float | None
    kept: bool
    why: str
    learning: str = ""


def waterfall(records: Sequence[Bar], origin: Origin, ceiling: Any = None) -> Figure:
    """The kept changes in their order, each bar from the rate before it to its own; refused ones apart.

    `ceiling` is a Rate or None. The axis is logarithmic when the rates spread by five or more: equal
    lengths are then equal ratios, and the baseline is a mark, not a bar.
    """
    kept, refused = [r for r in records if r.kept], [r for r in records if not r.kept]
    values = [value for record in records for value in ends(record.rate)] + ends(ceiling)
    scale = Scale(axis_for(values), _LEFT, _RIGHT)
    unit = next((r.rate.unit for r in records if known(r.rate)), "samples/s")
    middle = _TOP + sum(map(_height, kept)) + (0 if kept else _LINE + _GAP)
    bottom = middle + (_HEAD + sum(map(_height, refused)) if refused else 0)
    drawing = Drawing()
    _frame(drawing, scale, unit, bottom)
    _ceiling(drawing, scale, ceiling, bottom)
    _kept(drawing, scale, kept)
    if refused:
        _refused(drawing, scale, refused, middle)
    alt, text = _alt(kept, refused, unit), _text(kept, refused, unit)
    if ceiling is not None:
        alt += f" Data ceiling {spread(ceiling)}."
        text += f"\nData ceiling: {spread(ceiling)}{f' {unit}' if known(ceiling) else ''}."
    return drawing.figure(bottom + (78 if scale.axis.log else 62), origin, alt, text)


def _label(record: Bar) -> list[str]:
    return lines(record.label, _WIDE[0]) or [""]


def _said(record: Bar) -> list[str]:
    """The quiet lines of the right column: ratio with interval, reason, learning."""
    ratio = [] if record.ratio is None else [times(record.ratio, record.low, record.high)]
    return ratio + lines(_reason(record), _WIDE[1])


def _reason(record: Bar) -> str:
    return "; ".join(part for part in (record.why, record.learning) if part)


def _height(record: Bar) -> int:
    return max(len(_label(record)), 1 + len(_said(record))) * _LINE + _GAP


def _kept(drawing: Drawing, scale: Scale, records: Sequence[Bar]) -> None:
    """Bars from top to bottom, each from where the one above it ended."""
    if not records:
        drawing.text(_LEFT + 8, _TOP + 13, "n/a: no run was kept")
    y, before = _TOP, None if scale.axis.log else 0.0
    link = y
    for record in records:
        _words(drawing, record, y)
        if known(record.rate):
            if before is not None:
                _bar(drawing, scale, before, record.rate.value, y + 9, link)
            _mark(drawing, scale, record, y + 9)
            before, link = record.rate.value, y + 17
        y += _height(record)


def _bar(drawing: Drawing, scale: Scale, before: float, now: float, y: float, link: float) -> None:
    """A bar between two rates, hung by a thin line on the end of the bar above; a loss is paler."""
    start, end = scale.at(before), scale.at(now)
    if link < y - 9:
        drawing.line(start, link, start, y - 8, opacity=0.45)
    drawing.shape(
        "rect",
        x=min(start, end),
        y=y - 8,
        width=abs(end - start),
        height=16,
        fill=COLORS["compute"],
        fill_opacity=None if now >= before else 0.4,
    )


def _refused(drawing: Drawing, scale: Scale, records: Sequence[Bar], y: float) -> None:
    drawing.text(0, y + 19, "Tried and not kept", bold=True)
    y += _HEAD
    for record in records:
        _words(drawing, record, y)
        if known(record.rate):
            _mark(drawing, scale, record, y + 9)
        y += _height(record)


def _mark(drawing: Drawing, scale: Scale, record: Bar, y: float) -> None:
    values = ends(record.rate)
    if len(values) == 3:
        drawing.whisker((scale.at(min(values)), y), (scale.at(max(values)), y), 5)
    drawing.dot(scale.at(record.rate.value), y, hollow=not record.kept)


def _words(drawing: Drawing, record: Bar, y: float) -> None:
    for place, line in enumerate(_label(record)):
        drawing.text(0, y + 13 + place * _LINE, line)
    if not known(record.rate):
        drawing.cross(_LEFT + 10, y + 9)
        drawing.text(_LEFT + 21, y + 13, "n/a", quiet=True)
    rate = f"{number(record.rate.value)} {record.rate.unit}" if known(record.rate) else "rate n/a"
    drawing.text(_WORDS, y + 13, rate, bold=record.kept)
    for place, line in enumerate(_said(record), 1):
        drawing.text(_WORDS, y + 13 + place * _LINE, line, size=SMALL, quiet=True)


def _ceiling(drawing: Drawing, scale: Scale, ceiling: Any, bottom: float) -> None:
    if not known(ceiling):
        return
    x = scale.at(ceiling.value)
    drawing.line(x, 20, x, bottom, COLORS["compute"], 2)
    anchor = "end" if x > (_LEFT + _RIGHT) / 2 else "start"
    drawing.text(x, 13, f"data ceiling {spread(ceiling)}", anchor, SMALL)


def _frame(drawing: Drawing, scale: Scale, unit: str, bottom: float) -> None:
    title = f"throughput, {unit}{scale.axis.note}"
    scale.draw_below(drawing, bottom, title, grid_from=20, gap=38)
    if scale.axis.log:
        center = (_LEFT + _RIGHT) / 2
        drawing.text(center, bottom + 54, "equal lengths are equal ratios", "middle", SMALL, quiet=True)


def _alt(kept: Sequence[Bar], refused: Sequence[Bar], unit: str) -> str:
    said = ", then ".join(f"{r.label} {number(r.rate.value if r.rate else None)}" for r in kept) or "n/a"
    apart = "; ".join(f"{r.label}, {times(r.ratio, r.low, r.high)}" for r in refused)
    tail = f" Tried and not kept: {apart}." if apart else ""
    return f"Throughput in {unit} after each kept change: {said}.{tail}"


def _text(kept: Sequence[Bar], refused: Sequence[Bar], unit: str) -> str:
    tables = [_table(kept, unit, "From the baseline to now, with intervals")]
    if refused:
        tables.append(_table(refused, unit, "Tried and not kept"))
    return "\n\n".join(map(str, tables))


def _table(records: Sequence[Bar], unit: str, caption: str) -> Table:
    rows = tuple(
        (
            record.label,
            spread(record.rate),
            "" if record.ratio is None else times(record.ratio, record.low, record.high),
            _reason(record),
        )
        for record in records
    )
    none = (("n/a", "n/a", "", "no run was kept"),)
    return Table(("change", unit, "ratio", "in words"), rows or none, caption)
