"""A job that ran out of memory, and what was changed until it ran: one bar for each attempt, against the limit."""

from collections.abc import Sequence
from typing import Any

from gpuworkshop.figures.axis import Scale, in_bytes
from gpuworkshop.figures.svg import COLORS, SMALL, Drawing
from gpuworkshop.numbers import amount
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _BAR, _ROW, _TOP = 150, 560, 20, 32, 24
_LETTER = 6.5
"""Pixels of a letter in a small text, at the most on average."""


def cure(attempts: Sequence[Any], limit: int | None, origin: Origin, counts: str = "most in tensors") -> Figure:
    """The most that each attempt held until it ended or failed, with the limit as a line.

    `attempts` have `.change` ("" for the first), `.fits` and `.peak` in bytes, None for what is not known.
    """
    most = max([limit or 0, *(attempt.peak or 0 for attempt in attempts)])
    scale, unit = in_bytes(most, _LEFT, _RIGHT)
    drawing, y = Drawing(), float(_TOP)
    for attempt in attempts:
        _bar(drawing, scale, attempt, y, limit)
        y += _ROW
    if limit is not None:
        x = scale.at(limit)
        drawing.line(x, _TOP - 8, x, y, COLORS["wait"], 2)
        drawing.text(x, _TOP - 12, f"limit: {amount(limit)}", "middle", SMALL, bold=True)
    scale.draw_below(drawing, y, f"{counts}, {unit}")
    rows = tuple((_named(one), _outcome(one), amount(one.peak)) for one in attempts)
    table = Table(("change, on top of those above", "three full steps", counts), rows)
    said = "; ".join(f"{name}: {outcome}, {peak}" for name, outcome, peak in rows)
    return drawing.figure(y + 58, origin, f"{said}. Limit {amount(limit)}.", f"{table}\nLimit: {amount(limit)}.")


def _named(attempt: Any) -> str:
    return attempt.change or "as it is"


def _outcome(attempt: Any) -> str:
    return "runs" if attempt.fits else "out of memory"


def _bar(drawing: Drawing, scale: Scale, attempt: Any, y: float, limit: int | None) -> None:
    drawing.text(_LEFT - 10, y + 14, _named(attempt), "end")
    right = scale.at(attempt.peak or 0)
    color = COLORS["compute"] if attempt.fits else COLORS["wait"]
    size = dict(width=right - _LEFT, height=_BAR)
    drawing.shape("rect", x=_LEFT, y=y, **size, fill=color, fill_opacity=None if attempt.fits else 0.35,
                  stroke="currentColor", stroke_width=0.8)  # fmt: skip
    said, at = f"{_outcome(attempt)}, {amount(attempt.peak)}", max(right, scale.at(0)) + 10
    if limit is not None and at - 10 <= scale.at(limit) < at + _LETTER * len(said):
        at = scale.at(limit) + 10  # not across the line of the limit
    drawing.text(at, y + 14, said, size=SMALL)
