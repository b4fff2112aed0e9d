"""Lines of the script's own code: the innermost frame of a call that is not in an installed package."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from typing import Any

_START = os.getcwd() if os.path.isdir(os.curdir) else "/"
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARIES = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {
        sysconfig.get_paths()["stdlib"],
        sysconfig.get_paths()["platstdlib"],
        os.path.dirname(os.path.abspath(__file__)),
    }
)
_known: dict[str, bool] = {}


def is_own(file: str) -> bool:
    """Whether a file is the script's own code: not Python's library, no installed package, no hook."""
    found = _known.get(file)
    if found is None:
        whole = os.path.realpath(os.path.join(_START, file))
        parts = whole.split(os.sep)
        outside = file.startswith("<") or whole.startswith(_LIBRARIES) or any(one in parts for one in _INSTALLED)
        found = _known[file] = not outside
    return found


def outside_of_torch(torch_file: str) -> None:
    """A torch that was built in place is a library too."""
    global _LIBRARIES
    _LIBRARIES += (os.path.join(os.path.dirname(os.path.realpath(torch_file)), ""),)
    _known.clear()


def here(frame: Any = None) -> dict | None:
    """The place of the innermost own frame, from ``frame`` outwards; None where there is none."""
    frame = frame or sys._getframe(1)
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else at(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def at(file: str, line: int, function: str = "") -> dict:
    """A place as it is recorded, with the text of its line."""
    whole = os.path.join(_START, file)
    code = linecache.getline(whole, line).strip()
    return {"file": whole, "line": line, "code": code, "function": "" if function.startswith("<") else function}


def packages() -> list[str]:
    """The top-level packages of all frames below this call, innermost first."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in names:
            names.append(name)
        frame = frame.f_back
    return names
