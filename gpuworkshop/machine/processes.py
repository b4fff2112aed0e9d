"""Who is on a card: what is looked at, the rest of the job, this user's other work, other users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop.machine.device import Card
from gpuworkshop.machine.nvml import Nvml, number
from gpuworkshop.machine.process_stat import PROC
from gpuworkshop.machine.process_table import Table, Whose

__all__ = ["PROC", "OnCard", "Process", "Whose", "processes"]

_LISTS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "MPS": ("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
}
_STRANGERS = ("this job's", "my other work", "another's")


class Process(msgspec.Struct, frozen=True):
    """One process on a card. ``memory`` is in bytes, None where the driver does not say."""

    pid: int
    whose: Whose
    name: str = ""
    memory: int | None = None
    kind: Literal["compute", "graphics", "MPS"] = "compute"
    """"graphics": it draws a screen and computes nothing."""
    user: str = ""
    command: str = ""
    """The whole line of one's own processes; of another user's only the program."""

    @property
    def is_kernel(self) -> bool:
        """Whether it is the kernel of a notebook."""
        return "ipykernel" in self.command or "colab_kernel" in self.command

    @property
    def role(self) -> str:
        """Whose it is, as a table says it; "display" for one that only draws a screen."""
        return "display" if self.kind == "graphics" else self.whose


class OnCard(msgspec.Struct, frozen=True):
    """Everybody on one card. ``processes`` is None where the driver does not list them; ``used``: bytes in all."""

    processes: tuple[Process, ...] | None
    used: int | None = None

    @property
    def visible(self) -> tuple[Process, ...]:
        """Those that can be seen from here."""
        return tuple(process for process in self.processes or () if process.whose != "not visible")

    @property
    def strangers(self) -> tuple[Process, ...]:
        """Those that compute and do not belong to what is looked at, nor to its step. One's own other work is one."""
        return tuple(one for one in self.visible if one.kind != "graphics" and one.whose in _STRANGERS)

    @property
    def shared(self) -> bool | None:
        """Whether there are strangers on the card; None where that cannot be seen."""
        if self.strangers:
            return True
        return None if self.processes is None or any(one.role == "not visible" for one in self.processes) else False

    @property
    def unseen(self) -> int | None:
        """Bytes in use that nobody who can be seen, and no screen, accounts for; None where a figure is missing.

        A few hundred MiB are the driver's own, and the part of a process that its figure leaves out.
        """
        held = [process.memory for process in self.processes or () if process.role != "not visible"]
        return None if self.used is None or None in held else max(0, self.used - sum(held))

    @property
    def without_memory(self) -> int:
        """How many processes have no figure, so that a sum leaves them out."""
        return sum(process.memory is None for process in self.processes or ())


def processes(
    nvml: Nvml,
    card: Card,
    env: Mapping[str, str] = os.environ,
    proc: Path = PROC,
    watched: Set[int] | None = None,
) -> OnCard:
    """Who is on a card. A process that ends while this looks is left out.

    ``watched`` are the processes that are looked at, to tell them and what they started from others; None for this
    process with its relatives.
    """
    handle = nvml.handle(card.uuid)
    if handle is None and not card.mig:
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", card.physical)
    memory = nvml.memory(handle)
    used = memory[0] if memory else None
    listed = _listed(nvml, handle)
    if listed is None:
        return OnCard(None, used)
    table = Table(env, proc, watched)
    found = [_process(table, pid, raw, kind, memory) for pid, (raw, kind) in listed.items()]
    if any(process.whose == "not visible" for process in found):  # hidden from here, or gone by now
        still = _listed(nvml, handle)
        found = [one for one in found if one.whose != "not visible" or still is None or one.pid in still]
    return OnCard(tuple(found), used)


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


def _process(table: Table, pid: int, raw: Any, kind: str, memory: tuple[int, int] | None) -> Process:
    held = number(raw)
    if held is not None and memory and held > memory[1]:  # more than the card has: no figure
        held = None
    whose = table.whose(pid)
    if whose == "not visible":
        return Process(pid, whose, memory=held, kind=kind)
    return Process(pid, whose, table.name(pid), held, kind, table.user(pid), table.command(pid))
