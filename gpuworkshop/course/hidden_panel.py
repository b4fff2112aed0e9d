"""The panel of chapter 7: the changes as buttons, one of them measured at a press, and the waterfall below."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpuworkshop.child import Progress
from gpuworkshop.course import controls, faces, hidden_faces
from gpuworkshop.course.controls import Status

if TYPE_CHECKING:
    from gpuworkshop.course.hidden import HiddenJob

EVERY = 0.25
"""Seconds between two words of progress."""


class Panel:
    """What a round looks like where there are widgets. A change is measured in the button's own callback."""

    def __init__(self, job: HiddenJob):
        widgets = faces.widgets()
        self.job, self._choices = job, job.choices()
        self._control = controls.choice(tuple(choice.says for choice in self._choices))
        self._press = widgets.Button(description="Measure this change", layout={"width": "auto"})
        self._press.add_class("gw-press")
        self._press.on_click(self._pressed)
        self._status, self._shown = widgets.HTML(Status("").html()), widgets.HTML()
        self._said = 0.0
        head = widgets.HTML(faces.styled(hidden_faces.head().html()))
        self.box = widgets.VBox([head, self._control.widget, self._press, self._status, self._shown])
        for one in ("gw-report", "gw-panel", "gw-hidden"):
            self.box.add_class(one)
        self.redraw()

    def redraw(self) -> None:
        """Show the run as it stands now, and the waterfall."""
        self._shown.value = hidden_faces.standing(self.job)

    def _pressed(self, _: Any) -> None:
        letter = self._control.read()
        if letter is None:
            self._say(Status("Choose a change first."))
            return
        chosen = self._choices[ord(letter) - ord("a")]
        self._press.disabled = self._control.widget.disabled = True
        self._say(Status(f"Measuring {chosen.says}, in turn with the run before it ..."))
        try:
            with self.job.measuring():
                self._say(self.job.choose(*chosen.ids, progress=self._progress))
        finally:
            self._press.disabled = self._control.widget.disabled = False
        self.redraw()

    def _progress(self, progress: Progress) -> None:
        if time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            self._say(Status(f"Measuring, {progress.share:.0%}: {progress.text or 'in turn'}"))

    def _say(self, status: Status) -> None:
        self._status.value = status.html()
