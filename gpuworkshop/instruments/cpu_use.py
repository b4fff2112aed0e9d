"""CPU seconds of a process and all that it started, from /proc, at a cost that is bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")

TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""Clock ticks a second, the unit of /proc."""

LEAST_PAUSE = 1.0
"""Seconds between two looks."""

COST = 0.005
"""Share of one CPU that looking for new processes may take: where a node runs thousands, they are sought less often."""


class CpuUse:
    """The CPU time of one process tree. Without /proc (macOS) only what this process and its dead children used."""

    def __init__(self, root: int, proc: Path = PROC):
        self.root, self._proc = root, proc
        self._seek_again = 0.0
        self._last: float | None = None
        self.members: set[int] = {root}

    def since(self, now: float) -> float | None:
        """CPU seconds since the last call; None at the first, and when nothing can be read.

        ``now`` is a clock in seconds. A process that ended without being waited for takes what it used with it.
        """
        if now >= self._seek_again:
            began = time.perf_counter()
            self.members = self.tree()
            self._seek_again = now + max(LEAST_PAUSE, (time.perf_counter() - began) / COST)
        before, self._last = self._last, self._seconds()
        if before is None or self._last is None:
            return None
        return max(0.0, self._last - before)

    def tree(self) -> set[int]:
        """The process and its living descendants."""
        parents = {pid: found[0] for pid in self._pids() if (found := stat(pid, self._proc)) is not None}
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        found, open_ends = {self.root}, [self.root]
        while open_ends:
            fresh = [pid for pid in children.get(open_ends.pop(), ()) if pid not in found]
            found.update(fresh)
            open_ends += fresh
        return found

    def _pids(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        except OSError:
            return []

    def _seconds(self) -> float | None:
        """CPU seconds of all members until now, with those of their children that were waited for."""
        known = [found[1] for pid in self.members if (found := stat(pid, self._proc)) is not None]
        if known:
            return sum(known)
        if self._proc.exists() or self.root != os.getpid():
            return None
        used = os.times()
        return used.user + used.system + used.children_user + used.children_system


def stat(pid: int, proc: Path = PROC) -> tuple[int, float] | None:
    """Parent and CPU seconds of one process, with those of its children that were waited for; None when it is gone."""
    try:
        with open(proc / str(pid) / "stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
        return int(words[1]), sum(map(int, words[11:15])) / TICK
    except (OSError, ValueError, IndexError):
        return None
