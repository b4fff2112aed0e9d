"""Which processes are on a card, and whose they are: the watched job's, a leftover of ours, somebody else's."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop.machine.nvml import Nvml

PROC = Path("/proc")

LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")

Who = Literal["mine", "mine, left over", "another's", "not visible"]


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

    def look(self, members: Set[int]) -> None:
        """List them now; ``members`` are the process ids of what is watched. One that has just ended is skipped."""
        listed = self._listed()
        if listed is None:
            return
        self._answered = True
        hidden = {pid for pid in listed if not (self._proc / str(pid)).exists()}
        if hidden:
            hidden &= set(self._listed() or ())  # still listed: not ended, but out of our sight
        for pid, memory in listed.items():
            who = "not visible" if pid in hidden else self._whose(pid, members)
            if who is not None:
                before = self._seen.get(pid)
                most = max((m for m in (memory, before and before.memory) if m is not None), default=None)
                self._seen[pid] = OnCard(pid, who, self._name(pid) or (before.name if before else ""), most)

    def _listed(self) -> dict[int, int | None] | None:
        """Memory by process id; None when no list can be had."""
        answers = [self._nvml.ask(function, self._handle) for function in LISTS]
        if answers[0] is None:  # what computes is what counts; a driver without the other list is well enough
            return None
        return {int(p.pid): _bytes(p.usedGpuMemory) for answer in answers for p in answer or ()}

    def _whose(self, pid: int, members: Set[int]) -> Who | None:
        """None for a process that has ended."""
        if pid in members:
            return "mine"
        try:
            owner = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        if owner != os.getuid():
            return "another's"
        return "mine" if self._same_step(pid) else "mine, left over"

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


def _bytes(used: int | None) -> int | None:
    """NVML says "not available" by None or by its largest number."""
    return None if used is None or used >= 2**63 else int(used)
