"""One line of the table of processes that Linux keeps: name, state, parent, group and CPU time of a process."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Clock ticks a second, the unit of /proc."""


class Stat(msgspec.Struct, frozen=True):
    """One process; ``cpu`` is in seconds, with those of its children that were waited for."""

    pid: int
    name: str
    state: str
    """One letter, as in ps: Z and X have ended."""
    parent: int
    group: int
    cpu: float


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    """What the system says of a process; None when it is gone, or cannot be seen."""
    try:
        with open(proc / str(pid) / "stat", "rb") as file:
            before, _, after = file.read().rpartition(b")")  # the name before it may hold anything
        words = after.split()
        name = before.partition(b"(")[2].decode(errors="replace")
        return Stat(pid, name, words[0].decode(), int(words[1]), int(words[2]), sum(map(int, words[11:15])) / TICK)
    except (OSError, ValueError, IndexError):
        return None


def pids(proc: Path = PROC) -> list[int]:
    """The numbers of all processes that can be seen; none where there is no such table, as on macOS."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return []
