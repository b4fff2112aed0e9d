"""The cards of a machine as NVML shows them: whole ones, cards split into MIG slices, and those that do not answer."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuworkshop.machine.device import Card, Lost
from gpuworkshop.machine.nvml import Nvml

UNNAMED = "unknown card"


class Physical(msgspec.Struct, frozen=True):
    """One card. ``split``: it is in MIG mode, and only its slices can be used."""

    card: Card
    split: bool = False
    slices: tuple[Card, ...] = ()
    instances: tuple[str, ...] = ()
    """For each slice the name that older drivers gave it: ``MIG-GPU-UUID/GI/CI``, "" where it is not known."""
    silent: int = 0
    """Slices that do not answer."""

    @property
    def usable(self) -> tuple[Card, ...]:
        """What CUDA can use of it: the card, or its slices."""
        return self.slices if self.split else (self.card,)


class Shown(msgspec.Struct, frozen=True):
    """Every card, in NVML's order."""

    cards: tuple[Physical, ...] = ()
    lost: tuple[Lost, ...] = ()
    closed: int = 0
    """Cards that NVML counts and that this process may not open: another job's."""

    @property
    def usable(self) -> tuple[Card, ...]:
        """What CUDA can use of all of them."""
        return tuple(part for physical in self.cards for part in physical.usable)

    @property
    def complete(self) -> bool:
        """Whether everything that the driver counts also answers."""
        return not self.lost and not any(physical.silent for physical in self.cards)

    @property
    def of_one_kind(self) -> bool:
        """Whether no card differs from another by what was read of it."""
        kinds = {(p.card.name, p.card.memory_bytes, p.card.capability) for p in self.cards}
        return len(self.cards) < 2 or (len(kinds) == 1 and self.cards[0].card.name != UNNAMED)


def shown(nvml: Nvml) -> Shown:
    """Ask NVML for its cards."""
    found, lost, closed = [], [], 0
    for index, handle in nvml.handles():
        if handle is not None:
            found.append(_physical(nvml, handle, index))
            continue
        why = nvml.problem or nvml.refused.get("nvmlDeviceGetHandleByIndex")
        if why and why.cause == "no permission":
            closed += 1
        else:
            lost.append(Lost(index, why.words if why else "no answer"))
    return Shown(tuple(found), tuple(lost), closed)


def driver_version(nvml: Nvml) -> str:
    """The driver's version; "" when NVML does not answer."""
    return nvml.ask("nvmlSystemGetDriverVersion") or ""


def _physical(nvml: Nvml, handle: Any, index: int) -> Physical:
    pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
    bus = getattr(pci, "busId", "")
    whole = msgspec.structs.replace(
        _card(nvml, handle), physical=index, bus=bus.decode(errors="replace") if isinstance(bus, bytes) else bus
    )
    mode = nvml.ask("nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return Physical(whole)
    handles = list(nvml.slices(handle))
    answering = [part for part in handles if part is not None]
    return Physical(
        whole,
        split=True,
        slices=tuple(_slice(nvml, part, whole) for part in answering),
        instances=tuple(_instance(nvml, part, whole) for part in answering),
        silent=len(handles) - len(answering),
    )


def _card(nvml: Nvml, handle: Any) -> Card:
    memory = nvml.memory(handle)
    level = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return Card(
        name=nvml.ask("nvmlDeviceGetName", handle) or UNNAMED,
        uuid=nvml.ask("nvmlDeviceGetUUID", handle) or "",
        memory_bytes=memory[1] if memory else None,
        driver=driver_version(nvml),
        capability=tuple(level) if level else None,
    )


def _slice(nvml: Nvml, handle: Any, whole: Card) -> Card:
    """One MIG slice: its own name and memory, and the address of the card that it is part of."""
    part = _card(nvml, handle)
    return msgspec.structs.replace(
        part,
        name=part.name if "MIG" in part.name else f"{whole.name} MIG",
        mig=True,
        parent=whole.uuid,
        bus=whole.bus,
        physical=whole.physical,
        capability=part.capability or whole.capability,
    )


def _instance(nvml: Nvml, handle: Any, whole: Card) -> str:
    numbers = nvml.ask("nvmlDeviceGetGpuInstanceId", handle), nvml.ask("nvmlDeviceGetComputeInstanceId", handle)
    return f"MIG-{whole.uuid}/{numbers[0]}/{numbers[1]}" if whole.uuid and None not in numbers else ""
