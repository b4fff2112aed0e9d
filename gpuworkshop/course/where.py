"""Where the learner is: which machine, which Python, which page; and a button to see whether buttons show.

A kernel is never told whether a page could show its widget. Only a press says so for sure.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from gpuworkshop.course import faces
from gpuworkshop.course.controls import Control, Status, panel
from gpuworkshop.course.faces import Note
from gpuworkshop.machine import allocation, frontend, frontend_findings, interpreter, job
from gpuworkshop.machine.conditions import host
from gpuworkshop.machine.frontend import FrontEnd
from gpuworkshop.numbers import counted
from gpuworkshop.report import Finding, Report, measured_here


def report(env: Mapping[str, str] = os.environ) -> Report:
    """The machine, the Python and the page of this kernel. Needs no PyTorch, and says so if there is none."""
    cores = allocation.cpus(env)
    front = frontend.look(env)
    found = (
        *_machine(front, env),
        Finding("ok", f"For you here: {counted(cores.count, 'CPU')}", f"said by: {cores.said_by}"),
        *interpreter.findings(interpreter.here(env)),
        *frontend_findings.findings(front),
    )
    return Report("Where you are", measured_here(host(cores)), found)


def _machine(front: FrontEnd, env: Mapping[str, str]) -> Iterator[Finding]:
    """In a job or not, and what that means for a card."""
    host = socket.gethostname()
    here = job.job(env)
    if here is None:
        evidence = "no Slurm job around this Python: your own machine, or the login node of a cluster"
        yield Finding("notice", f"{host}, outside a job", evidence)
        return
    where = f"partition {here.partition or 'n/a'}; {front.name}"
    yield Finding("ok", f"{host}, in Slurm job {here.id}", where)
    yield Finding(
        "notice",
        "What this job asked for is yours until it ends, in use or not",
        "while you read, a card is idle; between two chapters it can go back",
        f"scancel {here.id}   # ends this session, the notebook stays saved",
    )


class Button:
    """A button to press. Where it does not show, the static face says what that means."""

    def __init__(self) -> None:
        self.pressed = False
        self._box: Any = None

    def press(self, _: Any = None) -> Status:
        """What a press does: it is the proof that this page and this kernel understand each other."""
        self.pressed = True
        return Status("✓ Buttons work here.", tone="right")

    def __str__(self) -> str:
        return str(self._note())

    def _note(self) -> Note:
        text = (
            "No button here, only this text? Then this page shows no widgets. Nothing is lost: each question has its "
            "answer folded in, or takes it as `.submit(...)`. The report above says what is missing.",
        )
        return Note("A button to press", text=text)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self._box is None and (widgets := faces.widgets()):
            head = Note("A button to press", text=("You see a button? Press it.",))
            nothing = Control(widgets.HTML(), lambda: True, "")
            self._box = panel("gw-button", head, nothing, "I see a button", self.press, Status(""))
        return faces.bundle(self._box, self._note())


def button() -> Button:
    """A button, to see whether buttons show on this page."""
    return Button()
