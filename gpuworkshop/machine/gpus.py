"""The cards of this job, by UUID: what NVML shows, what CUDA_VISIBLE_DEVICES leaves, what PyTorch numbers.

Numbers of NVML, of Slurm and of PyTorch are three things; a card is the same card only by its UUID.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpuworkshop.machine.nvml import Nvml
from gpuworkshop.machine.visible import Visible, visible


class Card(msgspec.Struct, frozen=True):
    """One GPU, or one MIG slice of one, that this process may use.

    What nobody could say is None, or "" for a text.
    """

    name: str
    uuid: str
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    driver: str = ""
    bus: str = ""
    """PCI address as NVML writes it, such as 00000000:1B:00.0."""
    mig: bool = False
    parent: str = ""
    """UUID of the card that a slice belongs to."""
    physical: int | None = None
    """Its number in NVML and nvidia-smi."""
    cuda: int | None = None
    """Its number in PyTorch."""
    capability: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """How the card is named in a report: ``cuda:0 (physical card 1, bus 00000000:1B:00.0)``."""
        numbers = [
            f"physical card {self.physical}" if self.physical is not None else "",
            self.bus and f"bus {self.bus}",
        ]
        inside = ", ".join(filter(None, numbers))
        return " ".join(
            filter(None, [f"cuda:{self.cuda}" if self.cuda is not None else self.name, inside and f"({inside})"])
        )


class Seen(msgspec.Struct, frozen=True):
    """One device as PyTorch reports it: its number, and what its properties say."""

    cuda: int
    name: str
    uuid: str = ""
    """As PyTorch gives it, without a prefix."""
    bus: str = ""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    capability: tuple[int, int] | None = None
    clock_khz: int | None = None
    memory_clock_khz: int | None = None
    bus_bits: int | None = None


class Lost(msgspec.Struct, frozen=True):
    """A card that the driver counts and that does not answer."""

    physical: int
    words: str


class Cards(msgspec.Struct, frozen=True):
    """What this process may use, and how sure that is.

    ``mine`` is in PyTorch's order. ``unknown`` are entries of the variable, or devices of PyTorch, that could not be
    matched with a card. ``others`` counts cards and slices that NVML shows and that are not this job's: nothing else
    is said of them.
    """

    visible: Visible
    mine: tuple[Card, ...] = ()
    unknown: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    others: int = 0
    split_without_slice: tuple[Card, ...] = ()
    """Cards in MIG mode that were named as a whole: CUDA cannot use them."""


class _Physical(msgspec.Struct, frozen=True):
    """One card as NVML shows it; ``split``: it is in MIG mode, and only its slices can be used."""

    card: Card
    split: bool
    slices: tuple[Card, ...]


def cards(env: Mapping[str, str] = os.environ, seen: Sequence[Seen] | None = None, nvml: Nvml | None = None) -> Cards:
    """The cards of this process. Needs no PyTorch; with ``seen``, what PyTorch reports decides which are ours.

    Without ``seen`` a number is resolved only where the order is certain: CUDA_DEVICE_ORDER=PCI_BUS_ID, or cards of
    one kind. Else it is unknown rather than guessed.
    """
    nvml = nvml or Nvml()
    shown, lost = _shown(nvml)
    says = visible(env)
    split: list[Card] = []
    if seen is not None:
        mine, unknown = _matched(shown, seen, says)
    else:
        mine, unknown, split = _named(shown, says, _order_is_certain(shown, lost, env))
    return Cards(says, tuple(mine), tuple(unknown), tuple(lost), _others(shown, mine), tuple(split))


def seen_by_torch() -> tuple[Seen, ...]:
    """The devices of PyTorch with their properties. Imports torch and wakes CUDA: for a child process."""
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(_seen(torch, index) for index in range(torch.cuda.device_count()))


def card(device: str = "cuda:0") -> Card | None:
    """The card behind a PyTorch device; None when there is none. Imports torch."""
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    nvml = Nvml()
    mine, _ = _matched(_shown(nvml)[0], [_seen(torch, torch.device(device).index or 0)], visible())
    return msgspec.structs.replace(mine[0], driver=driver_version(nvml))


def default_device() -> str:
    """The first card that PyTorch sees, else "cpu". Imports torch."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def there_is_one() -> bool:
    """Whether the driver shows this process a card; asks NVML, which needs no PyTorch."""
    return visible().kind != "hidden" and any(handle is not None for _, handle in Nvml().handles())


def driver_version(nvml: Nvml) -> str:
    """The driver's version; "" when NVML does not answer."""
    return nvml.ask("nvmlSystemGetDriverVersion") or ""


# What NVML shows


def _shown(nvml: Nvml) -> tuple[list[_Physical], list[Lost]]:
    """Every card in NVML's order, and those that do not answer."""
    found, lost = [], []
    for index, handle in nvml.handles():
        if handle is None:
            lost.append(Lost(index, nvml.refused["nvmlDeviceGetHandleByIndex"].words))
        else:
            found.append(_physical(nvml, handle, index))
    return found, lost


def _physical(nvml: Nvml, handle: Any, index: int) -> _Physical:
    pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
    bus = getattr(pci, "busId", "")
    whole = msgspec.structs.replace(
        _card(nvml, handle), physical=index, bus=bus.decode() if isinstance(bus, bytes) else bus
    )
    mode = nvml.ask("nvmlDeviceGetMigMode", handle)
    split = bool(mode and mode[0] == 1)
    slices = [_slice(nvml, part, whole) for part in nvml.slices(handle)] if split else []
    return _Physical(whole, split, tuple(slices))


def _card(nvml: Nvml, handle: Any) -> Card:
    memory = nvml.memory(handle)
    level = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return Card(
        name=nvml.ask("nvmlDeviceGetName", handle) or "unknown card",
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


def _others(shown: Sequence[_Physical], mine: Sequence[Card]) -> int:
    """Cards, and slices of split cards, that are not among mine."""
    ours = {card.uuid for card in mine}
    return sum(card.uuid not in ours for physical in shown for card in _usable(physical))


def _usable(physical: _Physical) -> tuple[Card, ...]:
    """What CUDA can use of one card: the card, or its slices."""
    return physical.slices if physical.split else (physical.card,)


# What the variable names


def _order_is_certain(shown: Sequence[_Physical], lost: Sequence[Lost], env: Mapping[str, str]) -> bool:
    """Whether number n of CUDA is number n of NVML. By default CUDA puts the fastest card first."""
    if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return not lost
    return not lost and len({physical.card.name for physical in shown}) < 2


def _named(shown: Sequence[_Physical], says: Visible, certain: bool) -> tuple[list[Card], list[str], list[Card]]:
    """Cards that the variable leaves, entries that name none or could be several, and whole cards that are split."""
    if says.kind == "hidden":
        return [], [], []
    if says.kind == "unset":
        if any(physical.split for physical in shown):  # CUDA then takes one slice and no whole card
            return [part for physical in shown for part in physical.slices][:1], [], []
        return [msgspec.structs.replace(p.card, cuda=n if certain else None) for n, p in enumerate(shown)], [], []
    mine, unknown, split = [], [], []
    for entry in says.entries:
        found = _entry(shown, says.kind, entry, certain)
        if found is None:
            unknown.append(entry)
        elif found.mig or not _is_split(shown, found):
            mine.append(msgspec.structs.replace(found, cuda=len(mine)))
        else:
            split.append(found)
    return mine, unknown, split


def _entry(shown: Sequence[_Physical], kind: str, entry: str, certain: bool) -> Card | None:
    """The one card or slice that an entry of the variable names; None for none, and for several."""
    if kind == "numbers":
        place = int(entry)
        only = len(shown) == 1 and place == 0
        return shown[place].card if (certain or only) and place < len(shown) else None
    if kind == "uuids":  # CUDA takes a beginning too, where it fits one card only
        found = [p.card for p in shown if p.card.uuid.lower().startswith(entry.lower())]
    else:
        found = [part for p in shown for part in p.slices if part.uuid.lower().startswith(entry.lower())]
    return found[0] if len(found) == 1 else None


def _is_split(shown: Sequence[_Physical], card: Card) -> bool:
    return any(physical.split for physical in shown if physical.card is card)


# What PyTorch sees


def _seen(torch: Any, index: int) -> Seen:
    says = torch.cuda.get_device_properties(index)

    def fact(name: str) -> Any:
        return getattr(says, name, None)

    bus = ""
    if None not in (fact("pci_bus_id"), fact("pci_device_id")):
        bus = f"{fact('pci_domain_id') or 0:08X}:{fact('pci_bus_id'):02X}:{fact('pci_device_id'):02X}.0"
    return Seen(
        cuda=index,
        name=says.name,
        uuid=str(fact("uuid") or ""),
        bus=bus,
        memory_bytes=fact("total_memory"),
        multiprocessors=fact("multi_processor_count"),
        capability=(says.major, says.minor) if fact("major") is not None and fact("minor") is not None else None,
        clock_khz=fact("clock_rate"),
        memory_clock_khz=fact("memory_clock_rate"),
        bus_bits=fact("memory_bus_width"),
    )


def _matched(shown: Sequence[_Physical], seen: Sequence[Seen], says: Visible) -> tuple[list[Card], list[str]]:
    """Every device of PyTorch as a card, joined with NVML's where that is certain; and those for which it is not."""
    mine, unknown = [], []
    for device in seen:
        found = _partner(shown, device, says)
        mine.append(_joined(found, device))
        if found is None and shown:
            unknown.append(f"cuda:{device.cuda}")
    return mine, unknown


def _partner(shown: Sequence[_Physical], device: Seen, says: Visible) -> Card | None:
    """NVML's card or slice for a device of PyTorch: by UUID, else by bus, else by what the variable says."""
    whole = next((p for p in shown if device.uuid and p.card.uuid == f"GPU-{device.uuid}"), None)
    whole = whole or next(
        (p for p in shown if device.bus and p.card.bus[-12:].lower() == device.bus[-12:].lower()), None
    )
    if whole and not whole.split:
        return whole.card
    slices = list(whole.slices) if whole else [part for physical in shown for part in physical.slices]
    for part in slices:
        if device.uuid and part.uuid == f"MIG-{device.uuid}":
            return part
    if whole or "MIG" in device.name:
        first = says.entries[0] if says.kind == "slices" else None
        return _only([part for part in slices if first and part.uuid.startswith(first)]) or _only(slices)
    named = [_entry(shown, says.kind, entry, certain=False) for entry in says.entries if says.kind == "uuids"]
    if device.cuda < len(named):
        return named[device.cuda]
    return _only([p.card for p in shown if not p.split and p.card.name == device.name])


def _only(found: Sequence[Card]) -> Card | None:
    return found[0] if len(found) == 1 else None


def _joined(found: Card | None, device: Seen) -> Card:
    """NVML's card with PyTorch's number and facts; what PyTorch says alone when NVML has no such card."""
    memory = device.memory_bytes
    if found is None:
        uuid = device.uuid and f"{'MIG' if 'MIG' in device.name else 'GPU'}-{device.uuid}"
        found = Card(device.name, uuid, bus=device.bus, mig="MIG" in device.name)
    return msgspec.structs.replace(
        found,
        cuda=device.cuda,
        memory_bytes=memory if memory else found.memory_bytes,
        multiprocessors=device.multiprocessors,
        capability=device.capability or found.capability,
    )
