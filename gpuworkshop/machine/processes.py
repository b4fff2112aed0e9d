"""Who is on a card: this process and its relatives, the rest of the job, this user's other work, other users.

NVML gives the numbers of processes as the host counts them. In a container those mean something else, or nothing; a
process is only ever named when it is certain which one it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop.machine.device import Card
from gpuworkshop.machine.nvml import Nvml, number

PROC = Path("/proc")
FIRST_NAMESPACE = "pid:[4026531836]"
"""What Linux calls the namespace of process numbers that the host itself has."""
Whose = Literal["this", "job", "user", "other", "not visible"]

_LISTS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "MPS": ("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
}


class Process(msgspec.Struct, frozen=True):
    """One process on a card.

    ``whose``: "this" is this process, what it started and what it was started by; "job" the rest of the same Slurm
    job; "user" the same user's other work, such as a forgotten kernel; "other" another user's; "not visible" one that
    cannot be seen from here, which may be any of these. ``memory`` is in bytes, None where the driver does not say.
    """

    pid: int
    whose: Whose
    user: str = ""
    command: str = ""
    """The whole line of one's own processes; of another user's only the program."""
    memory: int | None = None
    kind: str = "compute"


class OnCard(msgspec.Struct, frozen=True):
    """Everybody on one card. ``processes`` is None where the driver does not list them; ``used``: bytes in all."""

    processes: tuple[Process, ...] | None
    used: int | None = None

    @property
    def visible(self) -> tuple[Process, ...]:
        """Those that can be seen from here."""
        return tuple(process for process in self.processes or () if process.whose != "not visible")

    @property
    def unseen(self) -> int | None:
        """Bytes in use that no visible process accounts for; None where a figure is missing.

        A few hundred MiB are the driver's own, and the part of a process that its figure leaves out.
        """
        held = [process.memory for process in self.visible]
        return None if self.used is None or None in held else max(0, self.used - sum(held))

    @property
    def without_memory(self) -> int:
        """How many processes have no figure, so that a sum leaves them out."""
        return sum(process.memory is None for process in self.processes or ())


def processes(nvml: Nvml, card: Card, env: Mapping[str, str] = os.environ, proc: Path = PROC) -> OnCard:
    """Who is on a card. A process that ends while this looks is left out."""
    handle = nvml.handle(card.uuid)
    if handle is None and not card.mig:
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", card.physical)
    memory = nvml.memory(handle)
    used = memory[0] if memory else None
    listed = _listed(nvml, handle)
    if listed is None:
        return OnCard(None, used)
    table = _Table(env, proc)
    found = [_process(table, pid, raw, kind, memory) for pid, (raw, kind) in listed.items()]
    if any(process.whose == "not visible" for process in found):  # hidden from here, or gone by now
        still = _listed(nvml, handle)
        found = [one for one in found if one.whose != "not visible" or still is None or one.pid in still]
    return OnCard(tuple(found), used)


def shared(found: OnCard) -> bool | None:
    """Whether somebody else than this process and its relatives is on the card; None where that cannot be seen."""
    if any(process.whose != "this" for process in found.visible):
        return True
    return False if found.processes is not None and len(found.visible) == len(found.processes) else None


def _listed(nvml: Nvml, handle: Any) -> dict[int, tuple[Any, str]] | None:
    """NVML's entries by process number, with their kind; None when no list is answered."""
    found: dict[int, tuple[Any, str]] = {}
    answered = False
    for kind, functions in _LISTS.items():
        answers = (nvml.ask(function, handle) for function in functions)
        entries = next((answer for answer in answers if answer is not None), None)
        answered |= entries is not None and kind == "compute"
        for entry in entries or ():
            found.setdefault(entry.pid, (entry.usedGpuMemory, kind))
    return found if answered else None


def _process(table: _Table, pid: int, raw: Any, kind: str, memory: tuple[int, int] | None) -> Process:
    held = number(raw)
    if held is not None and memory and held > memory[1]:  # more than the card has: no figure
        held = None
    whose = table.whose(pid)
    if whose == "not visible":
        return Process(pid, whose, memory=held, kind=kind)
    return Process(pid, whose, table.user(pid), table.command(pid), held, kind)


class _Table:
    """The table of processes, as Linux shows it in a folder."""

    def __init__(self, env: Mapping[str, str], proc: Path) -> None:
        self._proc = proc
        self._me = os.getpid()
        self._job = env.get("SLURM_JOB_ID", "")
        self._host = _link(proc / "self" / "ns" / "pid") == FIRST_NAMESPACE

    def whose(self, pid: int) -> Whose:
        """Whose process this is, as far as can be seen."""
        if not (self._proc / str(pid)).is_dir() or not (self._host or self._holds_a_card(pid)):
            return "not visible"
        if self._me in self._line(pid) or pid in self._line(self._me):
            return "this"
        if self._job and re.search(rf"(?<!\d){re.escape(self._job)}(?!\d)", self._read(pid, "cgroup")):
            return "job"
        uid = self._uid(pid)
        if uid is None:
            return "not visible"
        return "user" if uid == os.getuid() else "other"

    def user(self, pid: int) -> str:
        """The user's name, or number where the name is not known."""
        import pwd

        uid = self._uid(pid)
        if uid is None:
            return ""
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return str(uid)

    def command(self, pid: int) -> str:
        """The command line of one's own process, the program of another's."""
        words = self._read(pid, "cmdline").replace("\0", " ").strip()
        name = self._read(pid, "comm").strip()
        text = (words or name) if self._uid(pid) == os.getuid() else name
        return "".join(letter if letter.isprintable() else " " for letter in text)[:1000]

    def _line(self, pid: int) -> list[int]:
        """A process, its parent, and so on up to the first."""
        line: list[int] = []
        while pid > 1 and pid not in line:
            line.append(pid)
            fields = self._read(pid, "stat").rpartition(")")[2].split()  # the name before may hold anything
            pid = int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() else 0
        return line

    def _holds_a_card(self, pid: int) -> bool:
        """Whether it has a device file of the driver open. In a container, a number alone may mean another process."""
        try:
            return any(_link(file).startswith("/dev/nvidia") for file in (self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False

    def _uid(self, pid: int) -> int | None:
        for line in self._read(pid, "status").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
        return None

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
