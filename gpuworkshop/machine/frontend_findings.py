"""What a front end means for the learner: do the course's buttons show here, and the exact fix where they do not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from gpuworkshop.machine.frontend import NEEDED_LAB, FrontEnd, fits
from gpuworkshop.machine.server import MANAGER, data_home, major
from gpuworkshop.report import Finding

TEXT = "Questions and progress are shown as text; nothing of the course is in a widget alone."
_RELOAD = "then reload the page"
_NEWER = "Start the session anew and choose the newest Jupyter version that the form offers: JupyterLab 4 or later."
_UNSEEN = "If a box shows as a line that begins with VBox(, the page has no widget manager: the text below it says all."


def findings(front: FrontEnd) -> tuple[Finding, ...]:
    """What is to be said about this front end: widgets first, then environments that differ."""
    return (*_widgets(front), *_environments(front))


def _widgets(front: FrontEnd) -> Iterator[Finding]:
    evidence = _evidence(front)
    if front.kind in ("ipython", "terminal", "none", "headless"):
        yield Finding("ok", f"Output goes to {front.name}: text", TEXT)
    elif not front.ipywidgets:
        title = "The kernel has no ipywidgets: buttons cannot show"
        yield Finding("warning", title, f"{evidence}. {TEXT}", _pip(front, "ipywidgets>=8.1"))
    elif front.widgets == "yes":
        yield Finding("ok", f"{front.name}: buttons can show here", evidence)
    elif front.widgets == "unknown":
        title = f"{front.name}: whether buttons show here cannot be seen from the kernel"
        yield Finding("unknown", title, f"{evidence}. {TEXT}", _UNSEEN)
    else:
        yield _missing(front, evidence)


def _missing(front: FrontEnd, evidence: str) -> Finding:
    """The page's side lacks what widgets need."""
    server = front.server
    if server.is_notebook_6 or 0 < major(server.lab) < NEEDED_LAB:
        return Finding("warning", f"{front.name} is too old for the course's buttons", f"{evidence}. {TEXT}", _NEWER)
    if server.manager and server.disabled:
        title = f"{front.name} has its widget manager switched off"
        return Finding("warning", title, f"{evidence}. {TEXT}", f"jupyter labextension enable {MANAGER}  # {_RELOAD}")
    if server.manager and not fits(front):
        title = f"The page's widget manager {server.manager} is too old for ipywidgets {front.ipywidgets}"
    else:
        title = f"{front.name} has no widget manager: buttons show as a line that begins with VBox("
    return Finding("warning", title, f"{evidence}. {TEXT}", _bring_manager(front))


def _bring_manager(front: FrontEnd) -> str:
    """How the server gets the widget manager: installed where the server is ours, else linked for this user."""
    if front.same_environment:
        return _pip(front, "jupyterlab_widgets>=3") + f"  # {_RELOAD}"
    source = Path(front.prefix, "share", "jupyter", "labextensions", "@jupyter-widgets")
    target = data_home() / "labextensions"
    return (
        f"mkdir -p {shlex.quote(str(target))}\n"
        f"ln -sfn {shlex.quote(str(source))} {shlex.quote(str(target))}/\n"
        "# then end the Jupyter session and start a new one"
    )


def _environments(front: FrontEnd) -> Iterator[Finding]:
    if front.same_environment is False:
        yield Finding(
            "notice",
            "The Jupyter server runs in another environment than this kernel",
            f"server {front.server.prefix}, kernel {front.prefix}: "
            "packages for code go into the kernel's, extensions of the page into the server's",
        )


def _evidence(front: FrontEnd) -> str:
    parts = [f"kernel: ipywidgets {front.ipywidgets or 'not there'}"]
    if server := front.server:
        manager = "widget manager " + (server.manager or ("of Notebook 6" if server.classic else "not there"))
        parts.append(f"server: {manager}" if server.prefix else "server: its environment cannot be seen")
    elif front.kind == "jupyter":
        parts.append("server: cannot be seen")
    return "; ".join(parts)


def _pip(front: FrontEnd, wanted: str) -> str:
    return f"{shlex.quote(front.python)} -m pip install {shlex.quote(wanted)}"
