"""Start the course: the notebooks in a folder of the learner's own, and a kernel that runs them in this environment."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

import msgspec

from gpuworkshop.course import copies, kernel
from gpuworkshop.course.copies import Copy
from gpuworkshop.course.kernel import Kernel
from gpuworkshop.numbers import counted
from gpuworkshop.report import Finding, Origin, Report, Table, measured_here

FOLDER = Path("~/gpu-workshop")
_WHAT = {
    "new": "new",
    "same": "as the course has it",
    "renewed": "renewed: you had not changed it",
    "kept": "yours, kept",
}


class Started(msgspec.Struct, frozen=True):
    """What was done: the kernel (None, and why), the folder ("" where only the kernel was asked for), each notebook."""

    kernel: Kernel | None
    problem: str
    folder: str
    course: str
    copies: tuple[Copy, ...]
    origin: Origin


def run(folder: Path | None = FOLDER, name: str = kernel.NAME, display_name: str = kernel.DISPLAY_NAME) -> Started:
    """Install the kernel, then copy the notebooks into `folder` (None: do not).

    A kernel that cannot be installed is told in the result. Raises ValueError, in one line, for a name that Jupyter
    refuses and for a folder that cannot be used.
    """
    installed, problem = _kernel(name, display_name)
    origin = measured_here(platform.node() or "this machine")
    if folder is None:
        return Started(installed, problem, "", "", (), origin)
    place = Path(os.path.abspath(folder.expanduser()))
    asks_for = (installed.name, installed.display_name) if installed else None
    try:
        course = copies.source()
        made = copies.make(course, place, asks_for)
    except OSError as error:
        raise ValueError(f"{place}: cannot be used: {error.strerror or error}") from error
    return Started(installed, problem, str(place), str(course), made, origin)


def _kernel(name: str, display_name: str) -> tuple[Kernel | None, str]:
    try:
        return kernel.install(name, display_name), ""
    except kernel.NoIpykernel as error:
        return None, str(error)
    except OSError as error:
        return None, f"{error.filename or 'the kernel'}: cannot be written: {error.strerror or error}"


def findings(result: Started) -> tuple[Finding, ...]:
    """What was done, what was left alone, and what is next."""
    found = [_installed(result.kernel) if result.kernel else _not_installed(result.problem)]
    if result.kernel and result.kernel.replaced not in ("", result.kernel.python):
        title = f'The kernel "{result.kernel.display_name}" was there already and ran another Python'
        found.append(Finding("notice", title, f"until now {result.kernel.replaced}"))
    if result.folder:
        title = f"{counted(len(result.copies), 'notebook')} in {result.folder}"
        found.append(Finding("ok", title, f"{_open(result)} Copied from {result.course}."))
    for one in result.copies:
        if one.beside:
            title = f"{one.name} has your work and was kept; a fresh one is beside it: {one.beside}"
            found.append(Finding("notice", title))
    return tuple(found)


def _installed(installed: Kernel) -> Finding:
    says = f"{installed.folder}; it runs {installed.python}"
    return Finding("ok", f'The kernel "{installed.display_name}" is installed for you, in every Jupyter of yours', says)


def _not_installed(problem: str) -> Finding:
    python = shlex.quote(sys.executable)
    again = f"{python} -m gpuworkshop start --kernel-only"
    fix = f"{python} -m pip install 'ipykernel>=6.29'\n{again}" if "no ipykernel" in problem else again
    return Finding("fail", "The kernel could not be installed", problem, fix)


def _open(result: Started) -> str:
    """How to go on; the page must be opened by hand, for nobody knows which Jupyter is used."""
    kernel_name = f' with the kernel "{result.kernel.display_name}"' if result.kernel else ""
    first = result.copies[0].beside or result.copies[0].name if result.copies else ""
    return f"In Jupyter, open {os.path.join(result.folder, first)}{kernel_name}."


def report(result: Started) -> Report:
    """The face of `gpuworkshop start`."""
    rows = tuple(
        (one.name, _WHAT[one.what] + (f"; fresh: {one.beside}" if one.beside else "")) for one in result.copies
    )
    tables = (Table(("notebook", "what was done"), rows),) if rows else ()
    return Report("The course is ready" if result.kernel else "The course", result.origin, findings(result), tables)
