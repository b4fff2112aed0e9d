"""CPU seconds of a process and all that it started, or of all of a user, from /proc, at a cost that is bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from gpuworkshop.machine.process_stat import PROC, pids, stat

LEAST_PAUSE = 1.0
"""Seconds between two looks."""

COST = 0.005
"""Share of one CPU that looking for new processes may take: where a node runs thousands, they are sought less often."""


class CpuUse:
    """The CPU time of one process tree; with ``root`` None, of everything that this user runs.

    Without /proc (macOS) only what this process and its dead children used.
    """

    def __init__(self, root: int | None, proc: Path = PROC, clock: Callable[[], float] = time.monotonic):
        self.root, self._proc, self._clock = root, proc, clock
        self._seek_again = float("-inf")
        self._last: tuple[float, float] | None = None
        """When it was read, and the CPU seconds until then."""
        self.members: set[int] = set() if root is None else {root}

    def since(self) -> tuple[float, float] | None:
        """CPU seconds since the last call, and how long ago that was; None at the first, and when nothing can be read.

        A process that ended without being waited for takes what it used with it.
        """
        if self._clock() >= self._seek_again:
            began = time.thread_time()
            self.members = self.tree()
            self._seek_again = self._clock() + max(LEAST_PAUSE, (time.thread_time() - began) / COST)
        before, used = self._last, self._seconds()
        self._last = None if used is None else (self._clock(), used)
        if before is None or self._last is None:
            return None
        return max(0.0, self._last[1] - before[1]), self._last[0] - before[0]

    def tree(self) -> set[int]:
        """The process and its living descendants, or this user's processes.

        Each process names its children, where the kernel tells them: a file for each thread. The other way is to read
        every process of the node, and each read can cost a thread 5 ms of waiting for the interpreter.
        """
        if self.root is None:
            return {pid for pid in pids(self._proc) if self._is_ours(pid)}
        named = self._children(self.root)
        if named is None:
            return self._sought()
        found, open_ends = {self.root}, [self.root]
        while open_ends:
            fresh = (self._children(open_ends.pop()) or set()) - found
            found |= fresh
            open_ends += fresh
        return found

    def _children(self, pid: int) -> set[int] | None:
        """The children of a process as the kernel lists them; None where it does not, or the process is gone."""
        tasks = self._proc / str(pid) / "task"
        try:
            lists = [(tasks / task / "children").read_text() for task in os.listdir(tasks)]
        except OSError:
            return None
        return {int(child) for words in lists for child in words.split()}

    def _sought(self) -> set[int]:
        """The same, from the parent of every process that there is."""
        parents = {pid: found.parent for pid in pids(self._proc) if (found := stat(pid, self._proc)) is not None}
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        found, open_ends = {self.root}, [self.root]
        while open_ends:
            fresh = [pid for pid in children.get(open_ends.pop(), ()) if pid not in found]
            found.update(fresh)
            open_ends += fresh
        return found

    def _is_ours(self, pid: int) -> bool:
        try:
            return (self._proc / str(pid)).stat().st_uid == os.getuid()
        except OSError:
            return False

    def _seconds(self) -> float | None:
        """CPU seconds of all members until now, with those of their children that were waited for."""
        known = [found.cpu for pid in self.members if (found := stat(pid, self._proc)) is not None]
        if known:
            return sum(known)
        if self._proc.exists() or self.root != os.getpid():
            return None
        used = os.times()
        return used.user + used.system + used.children_user + used.children_system
