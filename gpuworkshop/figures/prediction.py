"""The learner's guess beside the measured interval, on one axis."""

from typing import Any

from gpuworkshop.figures.axis import Scale, axis_for
from gpuworkshop.figures.svg import COLORS, HOLLOW, Drawing, lines
from gpuworkshop.numbers import ends, finite, in_unit, known, number, spread, tick
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT = 110, 560


def predicted_and_measured(prediction: float | None, measured: Any, unit: str, question: str, origin: Origin) -> Figure:
    """The guess (hollow diamond) and the measurement with its interval (dot), and how far apart they are.

    `prediction` is in `unit` or None if none was made; `measured` is a Rate in `unit` or None.
    """
    scale = Scale(axis_for([prediction, *ends(measured)]), _LEFT, _RIGHT)
    drawing, y = Drawing(), 2.0
    for line in lines(question, 90):
        y += 16
        drawing.text(0, y, line, bold=True)
    scale.draw_below(drawing, y + 82, f"{unit}{scale.axis.note}", grid_from=y + 12)
    _guess(drawing, scale, prediction, y + 28)
    _measured(drawing, scale, measured, y + 60)
    words = distance(prediction, measured, unit)
    guess = tick(prediction) if finite(prediction) else "n/a"
    text = Table(("", unit), (("your guess", guess), ("measured (interval)", spread(measured))), question)
    alt = f"{question} Your guess {guess}, measured {in_unit(spread(measured), unit)}. {words}"
    return drawing.figure(y + 146, origin, alt, f"{text}\n{words}")


def _guess(drawing: Drawing, scale: Scale, prediction: float | None, y: float) -> None:
    drawing.text(_LEFT - 14, y + 4, "your guess", "end")
    if not finite(prediction):
        drawing.text(_LEFT + 8, y + 4, "n/a: no guess was made", quiet=True)
        return
    x = scale.at(prediction)
    diamond = f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z"
    drawing.shape("path", d=diamond, style=HOLLOW, stroke="currentColor", stroke_width=1.5)
    drawing.text(x + 14, y + 4, tick(prediction))


def _measured(drawing: Drawing, scale: Scale, measured: Any, y: float) -> None:
    drawing.text(_LEFT - 14, y + 4, "measured", "end", bold=True)
    if not known(measured):
        drawing.text(_LEFT + 8, y + 4, "n/a: not measured", quiet=True)
        return
    values = ends(measured)
    if len(values) == 3:
        drawing.whisker((scale.at(min(values)), y), (scale.at(max(values)), y), 5)
    drawing.dot(scale.at(measured.value), y, COLORS["compute"])
    drawing.text(scale.at(max(values)) + 14, y + 4, spread(measured), bold=True)


def distance(prediction: float | None, measured: Any, unit: str) -> str:
    """How far a guess is off, in one sentence; never a mark for it. Percentages differ by points."""
    if not finite(prediction) or not known(measured):
        return "The two cannot be compared: one of them is n/a."
    if min(ends(measured)) <= prediction <= max(ends(measured)):
        return "Your guess lies inside the measured interval."
    off = number(abs(measured.value - prediction))
    side = "above" if measured.value > prediction else "below"
    if unit == "%":
        return f"The measured value is {off} points {side} your guess."
    if prediction <= 0 or measured.value <= 0:
        return f"The measured value is {in_unit(off, unit)} {side} your guess."
    ratio = measured.value / prediction
    if ratio >= 1:
        return f"The measured value is {number(ratio)} times your guess."
    return f"Your guess is {number(1 / ratio)} times the measured value."
