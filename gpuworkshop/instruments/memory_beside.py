"""What is in use on a card beside PyTorch's allocator: CUDA's own part and everybody else's; and who that is."""

from __future__ import annotations

import os

from gpuworkshop.machine import gpus
from gpuworkshop.machine.nvml import Nvml, in_time
from gpuworkshop.machine.processes import OnCard, Process, processes
from gpuworkshop.machine.processes_findings import CONTEXT
from gpuworkshop.numbers import amount, several


class SharedCard(ValueError):
    """Somebody else is on the card: a ceiling found now would be what they leave."""


def used_before() -> int | None:
    """Bytes in use on this job's only card before this process touches it; None where that is not certain.

    Imports no PyTorch and wakes no CUDA: to be asked first.
    """
    with in_time() as nvml:
        mine = gpus.cards(nvml=nvml).mine
        memory = nvml.memory(nvml.handle(mine[0].uuid)) if len(mine) == 1 else None
    return memory[0] if memory else None


class Beside:
    """Asks the driver what is in use on one card, and tells this process's part from that of others.

    By what was in use ``before`` this process came, else by the driver's list of processes; else they stay together.
    """

    def __init__(self, nvml: Nvml, card: gpus.Card, before: int | None = None):
        self._nvml, self._card, self._before = nvml, card, before

    def ask(self, reserved: int) -> tuple[int | None, int | None]:
        """CUDA's own bytes in this process, and everybody else's; the first is None where the second holds both."""
        memory = self._nvml.memory(self._nvml.handle(self._card.uuid))
        if memory is None:
            return None, None
        rest = max(0, memory[0] - reserved)
        if self._before is not None:
            others = min(rest, self._before)
            return rest - others, others
        mine = self._mine()
        if mine is None:
            return None, rest
        own = min(rest, max(0, mine - reserved))
        return own, rest - own

    def _mine(self) -> int | None:
        """Bytes of this process by the driver's list."""
        listed = processes(self._nvml, self._card).processes or ()
        return next((one.memory for one in listed if one.pid == os.getpid() and one.whose == "mine"), None)


def on_card(device: str) -> OnCard | None:
    """Everybody on the card behind a device of PyTorch; None without one, or where it cannot be told which it is."""
    card = gpus.card(device)
    if card is None or not card.uuid:
        return None
    with in_time() as nvml:
        return processes(nvml, card)


def refuse_company(device: str, seen: OnCard | None) -> None:
    """SharedCard if somebody else computes on the card."""
    if seen is not None and seen.strangers:
        who = several([_named(one) for one in seen.strangers])
        raise SharedCard(
            f"{device} is not yours alone ({who}): a ceiling found now would be what they leave. "
            "End your own, ask for another card, or search anyway with anyway=True (--anyway)"
        )


def _named(one: Process) -> str:
    held = f", {amount(one.memory)}" if one.memory is not None else ""
    return f"{one.name or 'process'} {one.pid}, {one.whose}{held}"


def beside_torch(device: str) -> tuple[int, int]:
    """The bytes of a card, and those in use there beside what PyTorch holds in this process. Wakes CUDA."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total, total - free - torch.cuda.memory_reserved(device)


def somebody(beside: int) -> int:
    """Bytes that somebody else must hold: 0 where one context and the driver account for them."""
    return beside if beside > CONTEXT else 0
