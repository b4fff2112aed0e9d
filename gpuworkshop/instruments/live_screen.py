"""Where a live chart shows: a widget, an output that is replaced, or nothing until the end.

A kernel is never told whether its widget could be drawn. So the output that holds the widget also holds HTML and plain
text, and when the chart ends the last picture takes its place: no saved notebook shows a first or an empty one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from gpuworkshop import report
from gpuworkshop.machine import frontend
from gpuworkshop.report import Figure

Bundle = dict[str, Any]

SLOW = 1.0
"""Seconds between two pictures where a whole output is replaced each time."""
WAITING = "A live chart. It moves where widgets are shown; everywhere its last picture will stand here when it ends."
HINT = "Stops the chart, not the cell. Some servers pass a click on only when the cell has ended."


class Screen:
    """Shows nothing by itself: a script or a terminal prints the chart when it wants to."""

    largest = 0
    """Bytes of the largest picture that went to a page while the chart was live."""
    drawn = 0
    """Pictures that went to a page while the chart was live."""

    def open(self, first: Figure, stop: Callable[[], None]) -> None:
        """Show the first picture. `stop` is what a button calls."""

    def draw(self, figure: Figure) -> None:
        """Show the next picture. Called from a thread."""

    def close(self, last: Figure) -> None:
        """Leave the last picture."""

    def show_again(self, figure: Figure) -> None:
        """The chart is the value of a cell: show it there, unless it was opened by that very cell."""
        print(figure)


class Output(Screen):
    """One output of a notebook, replaced every `pace` seconds, or only at the end."""

    def __init__(self, pace: float | None = None):
        self._pace, self._next = pace, 0.0
        self._id = uuid.uuid4().hex
        self._cell: int | None = None

    def open(self, first: Figure, stop: Callable[[], None]) -> None:
        self._cell = _cell()
        _display(self.face(first, stop), self._id)

    def face(self, first: Figure, stop: Callable[[], None]) -> Bundle:
        """What the output holds first."""
        return _waiting()

    def draw(self, figure: Figure) -> None:
        if self._pace is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._pace
        self._count(_replace(figure, self._id))

    def close(self, last: Figure) -> None:
        _replace(last, self._id)

    def show_again(self, figure: Figure) -> None:
        if _cell() != self._cell:
            _display(figure._repr_mimebundle_(), uuid.uuid4().hex)

    def _count(self, size: int) -> None:
        self.drawn += 1
        self.largest = max(self.largest, size)


class Page(Output):
    """A widget: a picture that changes in place, and a button. The kernel keeps both for a page that comes back."""

    def face(self, first: Figure, stop: Callable[[], None]) -> Bundle:
        import ipywidgets

        self._picture = ipywidgets.HTML(_picture(first))
        self._press = ipywidgets.Button(description="Stop the chart", layout={"width": "auto"})
        self._press.on_click(lambda _: stop())
        _answer_at_once(self._press)
        self._below = ipywidgets.HBox([self._press, ipywidgets.HTML(f'<p class="gw-origin">{HINT}</p>')])
        style = ipywidgets.HTML(f"<style>{report.css()}</style>")
        box = ipywidgets.VBox([style, self._picture, self._below])
        for name in ("gw-report", "gw-live"):
            box.add_class(name)
        own = box._repr_mimebundle_()
        return {**(own[0] if isinstance(own, tuple) else own), **_waiting()}

    def draw(self, figure: Figure) -> None:
        value = _picture(figure)
        self._picture.value = value
        self._count(len(value.encode()))

    def close(self, last: Figure) -> None:
        """The widget stays as it is last, for a page that was loaded again has nothing but the widget."""
        self._picture.value = _picture(last)
        self._below.layout.display = "none"
        super().close(last)


def screen_for(front: frontend.FrontEnd | None = None) -> Screen:
    """The screen that fits the front end of this process."""
    front = front or frontend.look()
    if front.kind in ("terminal", "none", "ipython"):
        return Screen()
    if front.kind == "headless":
        return Output()
    return Page() if front.widgets != "no" and _importable() else Output(SLOW)


def _importable() -> bool:
    """Whether ipywidgets is not only installed but works."""
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


def _answer_at_once(widget: Any) -> None:
    """Let a click be handled while a cell runs, where page and kernel can.

    JupyterLab sends it on a subshell of its own. ipykernel 7.4 passes it on to where the widget last sent something
    from instead: to the busy main thread. A widget without that mark is answered where the page asked.
    """
    vars(widget.comm).pop("_reply_subshell_id", None)


def _picture(figure: Figure) -> str:
    return f'<div class="gw-figure">{figure.svg}</div>'


def _waiting() -> Bundle:
    html = report.section("Live chart", f'<p class="gw-origin">{WAITING}</p>')
    return {"text/html": html, "text/plain": WAITING}


def _replace(figure: Figure, id: str) -> int:
    """Put a picture in the place of an output; returns its bytes."""
    bundle = figure._repr_mimebundle_()
    _display(bundle, id, update=True)
    return sum(len(face.encode()) for face in bundle.values())


def _display(bundle: Bundle, id: str, update: bool = False) -> None:
    from IPython.display import display

    display(bundle, raw=True, display_id=id, update=update)


def _cell() -> int | None:
    """The number of the cell that runs."""
    return getattr(frontend.shell(), "execution_count", None)


def on_cell_end(heard: Callable[[Any], None]) -> None:
    """Have `heard` called with IPython's result after each cell, the present one too; nothing outside IPython."""
    if shell := frontend.shell():
        shell.events.register("post_run_cell", heard)


def forget_cell_end(heard: Callable[[Any], None]) -> None:
    """Undo :func:`on_cell_end`."""
    shell = frontend.shell()
    if shell and heard in shell.events.callbacks["post_run_cell"]:
        shell.events.unregister("post_run_cell", heard)
