"""Records as JSON lines, one file a process, each line written whole: a process that dies leaves only whole ones."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

_folder = ""
_file = -1
_owner = 0
_last = 0.0
_waiting: list[dict] = []
LATER_SECONDS = 1.0
ALIVE_SECONDS = 2.0
"""A record at least so often, while anything of the script is seen."""


def hello(folder: str) -> None:
    """The process is there: who it is, and how it was started. Forked children say it when they write."""
    global _folder
    _folder = folder
    write("hello", pid=os.getpid(), parent=os.getppid(), began=time.time(), python=sys.version.split()[0], **_rank())


def _rank() -> dict:
    """Rank, local rank and node as the launcher put them into the environment."""
    found = {}
    for name, variables in (
        ("rank", ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")),
        ("world", ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
    ):
        text = next((os.environ[one] for one in variables if one in os.environ), "")
        found[name] = int(text) if text.isdigit() else None
    found["torchrun"] = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    found["node"] = os.uname().nodename
    return found


def later(kind: str, **fields: Any) -> None:
    """Append a record with the next one that is written, or after :data:`LATER_SECONDS`."""
    fields["kind"], fields["at"] = kind, time.time()
    _waiting.append(fields)
    if time.monotonic() - _last > LATER_SECONDS:
        _append(_waiting)


def write(kind: str, **fields: Any) -> None:
    """Append one record."""
    fields["kind"], fields["at"] = kind, time.time()
    _append([*_waiting, fields])


def forked() -> None:
    """What waits to be written is the parent's."""
    _waiting.clear()


def _append(several: list[dict]) -> None:
    """One call for all lines; a folder that is gone or full is not the script's problem."""
    global _file, _owner, _last
    lines = "".join(json.dumps(one, default=str) + "\n" for one in several)
    _waiting.clear()
    try:
        if _owner != os.getpid():  # a forked child writes a file of its own
            _owner = os.getpid()
            name = os.path.join(_folder, f"records-{_owner}-{os.uname().nodename}.jsonl")
            _file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(_file, lines.encode("utf-8", "backslashreplace"))
        _last = time.monotonic()
    except OSError:
        pass


def alive(**fields: Any) -> None:
    """Say that the script goes on, if nothing was said for some time."""
    if time.monotonic() - _last > ALIVE_SECONDS:
        write("alive", **fields)


def fault(where: str, error: BaseException, *, fatal: bool = True) -> None:
    """An error of ours, which the script must not notice. ``fatal``: nothing more will be measured."""
    write("fault", where=where, words=repr(error), trace=traceback.format_exc()[-1500:], fatal=fatal)


def note(what: str, **fields: Any) -> None:
    """Something seen that the result tells of in words."""
    write("note", what=what, **fields)
