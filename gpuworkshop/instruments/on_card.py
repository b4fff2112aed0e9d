"""Which processes are on a card, and whose they are: the watched job's, a leftover of ours, somebody else's."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop.instruments.cpu_use import PROC, stat
from gpuworkshop.machine.nvml import Nvml, number
from gpuworkshop.machine.processes import FIRST_NAMESPACE

DEEPEST = 50
"""Generations between a process and the one that it descends from."""

COMPUTE, GRAPHICS = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"

Who = Literal["mine", "mine, left over", "another's", "display", "not visible"]
"""Whose a process is; "display": it draws a screen and computes nothing."""


class OnCard(msgspec.Struct, frozen=True):
    """A process on a card; ``memory`` in bytes, None where the driver does not say."""

    pid: int
    who: Who
    name: str = ""
    memory: int | None = None


class Processes:
    """The processes of one card over a watch, each with the most memory that it was seen with."""

    def __init__(self, nvml: Nvml, handle: Any, proc: Path = PROC):
        self._nvml, self._handle, self._proc = nvml, handle, proc
        self._seen: dict[int, OnCard] = {}
        self._answered = False

    @property
    def seen(self) -> tuple[OnCard, ...] | None:
        """All processes seen until now; None when the driver never listed any, not even an empty list."""
        return tuple(dict(self._seen).values()) if self._answered else None

    def look(self, members: Set[int] | None) -> None:
        """List them now. One that has just ended is skipped.

        ``members`` are the process ids of what is watched; None: all that are this user's.
        """
        listed = self._listed(COMPUTE)
        if listed is None:
            return
        self._answered = True
        screens = self._listed(GRAPHICS) or {}
        self._keep(listed, members)
        for pid, memory in screens.items():
            if pid not in listed:
                self._seen[pid] = OnCard(pid, "display", self._name(pid), memory)

    def _keep(self, listed: dict[int, int | None], members: Set[int] | None) -> None:
        hidden = {pid for pid in listed if not (self._proc / str(pid)).exists()}
        if hidden:
            hidden &= set(self._listed(COMPUTE) or ())  # still listed: not ended, but out of our sight
        for pid, memory in listed.items():
            who = "not visible" if pid in hidden else self._whose(pid, members)
            if who is not None:
                before = self._seen.get(pid)
                most = max((m for m in (memory, before and before.memory) if m is not None), default=None)
                name = "" if who == "not visible" else self._name(pid) or (before.name if before else "")
                self._seen[pid] = OnCard(pid, who, name, most)

    def _listed(self, function: str) -> dict[int, int | None] | None:
        """Memory by process id; None when no list can be had."""
        answer = self._nvml.ask(function, self._handle)
        return None if answer is None else {int(p.pid): number(p.usedGpuMemory) for p in answer}

    def _whose(self, pid: int, members: Set[int] | None) -> Who | None:
        """None for a process that has ended."""
        if members is not None and self._descends(pid, members):
            return "mine"
        try:
            owner = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        if not self._certain(pid):
            return "not visible"
        if owner != os.getuid():
            return "another's"
        return "mine" if members is None or self._same_step(pid) else "mine, left over"

    def _descends(self, pid: int, members: Set[int]) -> bool:
        """Whether it is one of them, or was started by one since they were listed."""
        for _ in range(DEEPEST):
            if pid in members:
                return True
            found = stat(pid, self._proc)
            if found is None:
                return False
            pid = found[0]
        return False

    def _certain(self, pid: int) -> bool:
        """Whether the driver means this process: in a container its numbers are the host's, and may be another's here.

        There only a process that has a card open is taken for the one that is meant.
        """
        if _link(self._proc / "self" / "ns" / "pid") == FIRST_NAMESPACE:
            return True
        try:
            return any("/dev/nvidia" in _link(file) for file in (self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False

    def _same_step(self, pid: int) -> bool:
        """Whether it is a task of the very Slurm step that this process is a task of."""
        step = [f"{name}={os.environ[name]}" for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in os.environ]
        try:
            variables = (self._proc / str(pid) / "environ").read_text(errors="replace").split("\0")
        except OSError:
            return False
        return len(step) == 2 and all(entry in variables for entry in step)

    def _name(self, pid: int) -> str:
        try:
            return (self._proc / str(pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
