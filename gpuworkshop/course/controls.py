"""The widgets of questions and predictions: core ipywidgets that the keyboard can work.

Only push buttons, checkboxes and text fields: JupyterLab takes the arrow keys away from radio
buttons and lists. Every state shows in words or symbols too, never in color alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from gpuworkshop.course import faces
from gpuworkshop.course.faces import Note
from gpuworkshop.report import clean


class Status(msgspec.Struct, frozen=True):
    """One line of feedback, which reads as that line wherever it is shown. `correct` also goes into the page as
    data-correct."""

    says: str
    correct: bool | None = None
    tone: Literal["plain", "right", "wrong"] = "plain"

    def __str__(self) -> str:
        return clean(self.says)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": faces.styled(self.html()), "text/plain": str(self)}

    def html(self) -> str:
        """A live region, so that a screen reader speaks it."""
        correct = "" if self.correct is None else f' data-correct="{str(self.correct).lower()}"'
        return f'<div class="gw-status gw-{self.tone}" role="status"{correct}>{faces.inline(self.says)}</div>'


class Control(msgspec.Struct, frozen=True):
    """A widget and how to read it: `read()` is None while nothing is entered."""

    widget: Any
    read: Callable[[], Any]
    ask: str  # what to say while nothing is entered


def choice(options: tuple[str, ...]) -> Control:
    """One of several; read() gives its letter."""
    shown = [(_plain(text), letter) for letter, text in faces.letters(options).items()]
    buttons = faces.widgets().ToggleButtons(options=shown, value=None)
    buttons.add_class("gw-choice")
    return Control(buttons, lambda: buttons.value, "Choose an answer first.")


def many(options: tuple[str, ...]) -> Control:
    """Any of several; read() gives their letters."""
    widgets = faces.widgets()
    boxes = {
        letter: widgets.Checkbox(description=_plain(text), indent=False, layout={"width": "auto"})
        for letter, text in faces.letters(options).items()
    }

    def read() -> str | None:
        return "".join(letter for letter, box in boxes.items() if box.value) or None

    return Control(widgets.VBox(list(boxes.values())), read, "Choose at least one first.")


def number(label: str, unit: str, value: float | None = None) -> Control:
    """A number; read() gives it. A field shows 0 until something is entered."""
    widgets = faces.widgets()
    field = widgets.FloatText(
        value=value or 0.0,
        description=f"{label}, in {unit}" if unit else label,
        style={"description_width": "initial"},
        layout={"width": "auto", "max_width": "22em"},
    )
    entered = [] if value is None else [value]
    field.observe(lambda change: entered.append(change["new"]), "value")
    return Control(field, lambda: entered[-1] if entered else None, "Enter a number first.")


def panel(name: str, head: Note, control: Control, button: str, act: Callable[[Any], Status], before: Status) -> Any:
    """A box with a note, a control, a button and feedback. `act` gets what was entered."""
    widgets = faces.widgets()
    press = widgets.Button(description=button, layout={"width": "auto"})
    press.add_class("gw-press")
    feedback = widgets.HTML(before.html())

    def pressed(_: Any) -> None:
        entered = control.read()
        feedback.value = (Status(control.ask) if entered is None else act(entered)).html()

    press.on_click(pressed)
    box = widgets.VBox([widgets.HTML(faces.styled(head.html())), control.widget, press, feedback])
    for one in ("gw-report", "gw-panel", name):
        box.add_class(one)
    return box


def _plain(text: str) -> str:
    return text.replace("`", "")
