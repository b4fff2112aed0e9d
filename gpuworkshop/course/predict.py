"""Predict, then measure: a guess is kept before the result shows, and stands beside it afterwards."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpuworkshop import state
from gpuworkshop.course import controls, faces
from gpuworkshop.course.controls import Status
from gpuworkshop.course.faces import Note
from gpuworkshop.numbers import in_unit, with_unit
from gpuworkshop.report import Finding, Origin, Report
from gpuworkshop.timing import Rate

FILE = "predictions.jsonl"


class Prediction(msgspec.Struct, frozen=True):
    """One kept guess. `late` means that the result had been shown before."""

    value: float
    when: str
    late: bool = False


class Guess:
    """Asks for one number, in `unit`, between `low` and `high`, and keeps it."""

    def __init__(self, id: str, question: str, unit: str, low: float, high: float):
        self.id = id
        self.question = question
        self.unit = unit
        self.low = low
        self.high = high
        self._box: Any = None

    def save(self, value: float) -> Status:
        """Keep a guess. A number outside the range is refused with the range."""
        if not _is_number(value) or not self.low <= value <= self.high:
            return Status(f"✗ Give a number between {self.low:g} and {self.high:g}.", tone="wrong")
        if not state.append(FILE, {"event": "guess", "id": self.id, "value": value, "when": _now()}):
            return Status("✗ Your guess could not be kept: the state folder cannot be written.", tone="wrong")
        kept = prediction(self.id) or Prediction(value, _now())
        if kept.late:
            return Status(f"Kept: {self._number(value)}, marked as made after a result was shown.")
        if kept.value != value:
            return Status(f"A result was shown already; what counts is your guess before it: {kept.value:g}.")
        return Status(f"✓ Kept: {self._number(value)}. Now measure it.", tone="right")

    def _number(self, value: float) -> str:
        return in_unit(f"{value:g}", self.unit)

    def _said(self) -> str:
        kept = prediction(self.id)
        return f"✓ Your guess: {self._number(kept.value)}, kept {kept.when[:10]}." if kept else ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self._box is None and faces.widgets():
            head = Note("Your guess first", text=(self.question,))
            kept = prediction(self.id)
            field = controls.number("Your guess", self.unit, kept and kept.value)
            before = Status(self._said(), tone="right")
            self._box = controls.panel(f"gw-guess-{self.id}", head, field, "Keep my guess", self.save, before)
        return faces.bundle(self._box, self._note())

    def _note(self) -> Note:
        said = self._said()
        asked = f"Between {self.low:g} and {in_unit(f'{self.high:g}', self.unit)}."
        how = "Keep your guess with `.save(number)` at the end of this cell's last line."
        text = (said, self.question, asked, how)
        return Note("Your guess first", text=tuple(filter(None, text)))


_asked: dict[str, Guess] = {}


def guess(id: str, question: str, unit: str, low: float, high: float) -> Guess:
    """Ask for a guess, in `unit`, between `low` and `high`; the last one kept before the result counts."""
    _asked[id] = Guess(id, question, unit, low, high)
    return _asked[id]


def prediction(id: str) -> Prediction | None:
    """The guess that counts: the last one kept before a result was shown, else the last one."""
    early = late = None
    shown = False
    for line in state.read_lines(FILE)[0]:
        if line.get("id") != id:
            continue
        if line.get("event") == "shown":
            shown = True
        elif _is_number(line.get("value")):
            made = Prediction(line["value"], str(line.get("when", "")), late=shown)
            early, late = (early, made) if shown else (made, late)
    return early or late


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf


def compare(id: str, measured: Rate, origin: Origin) -> Report:
    """The kept guess beside the measured value, as a report; says so if no guess was kept."""
    from gpuworkshop.figures.prediction import predicted_and_measured

    asked = _asked.get(id) or Guess(id, id, getattr(measured, "unit", ""), -math.inf, math.inf)
    made = prediction(id)
    state.append(FILE, {"event": "shown", "id": id, "when": _now()})
    figure = predicted_and_measured(made and made.value, measured, asked.unit, asked.question, origin)
    finding = _found(made, measured, asked.unit)
    return Report("Predicted and measured", origin, (finding,), figures=(figure,))


def _found(made: Prediction | None, measured: Rate, unit: str) -> Finding:
    from gpuworkshop.figures.prediction import distance

    title = f"Measured {with_unit(measured)}"
    if made is None:
        return Finding("notice", title, "No guess was kept before it.")
    late = ", made after a result had been shown" if made.late else ""
    guessed = f"Your guess: {in_unit(f'{made.value:g}', unit)}{late}."
    return Finding("notice", title, f"{guessed} {distance(made.value, measured, unit)}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
