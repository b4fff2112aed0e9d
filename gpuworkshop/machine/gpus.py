"""The cards of this job, by UUID: what NVML shows, what CUDA_VISIBLE_DEVICES leaves, what PyTorch numbers.

Numbers of NVML, of Slurm and of PyTorch are three things; a card is the same card only by its UUID. ``shown`` asks
NVML, ``named`` reads the variable, ``partners`` matches the devices of PyTorch; here they come together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpuworkshop.machine.device import Card, Cards, Lost, Seen
from gpuworkshop.machine.named import Named, named
from gpuworkshop.machine.nvml import Nvml, in_time
from gpuworkshop.machine.partners import joined, partners
from gpuworkshop.machine.shown import UNNAMED, Shown, driver_version, shown
from gpuworkshop.machine.visible import visible

__all__ = [
    "Card",
    "Cards",
    "Lost",
    "Seen",
    "card",
    "cards",
    "default_device",
    "driver_version",
    "seen_by_torch",
    "there_is_one",
]


def cards(env: Mapping[str, str] = os.environ, seen: Sequence[Seen] | None = None, nvml: Nvml | None = None) -> Cards:
    """The cards of this process. Needs no PyTorch; with ``seen``, what PyTorch reports decides which are ours.

    Without ``seen`` a number is resolved only where the order is certain: CUDA_DEVICE_ORDER=PCI_BUS_ID, or cards of
    one kind. Else it is unknown rather than guessed. Without ``nvml`` it opens a session with a time limit of its own.
    """
    if nvml is None:
        with in_time() as session:
            return cards(env, seen, session)
    node, says = shown(nvml), visible(env)
    left = named(node, says, env)
    if seen is None:
        mine, unknown = left.cards, [*left.unknown, *(_no_uuid(card) for card in left.cards if not card.uuid)]
        matched: Sequence[Card | None] = mine
    else:
        matched = partners(node, seen, left)
        mine = tuple(joined(node, found, device) for found, device in zip(matched, seen, strict=True))
        unknown = [_no_uuid(card) for card, found in zip(mine, matched, strict=True) if _unsure(node, card, found)]
    return Cards(says, mine, tuple(unknown), node.lost, _others(node, matched), _split(left, mine))


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
    number = torch.device(device).index or 0
    with in_time() as nvml:
        driver = driver_version(nvml)
        found = next((one for one in cards(seen=seen_by_torch(), nvml=nvml).mine if one.cuda == number), None)
    return found and msgspec.structs.replace(found, driver=driver)


def default_device() -> str:
    """The first card that PyTorch sees, else "cpu". Imports torch."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def there_is_one() -> bool:
    """Whether the driver shows this process a card; asks NVML, which needs no PyTorch, and waits a limited time."""
    if visible().kind == "hidden":
        return False
    with in_time() as nvml:
        return any(handle is not None for _, handle in nvml.handles())


def _seen(torch: Any, index: int) -> Seen:
    """One device; only its number where its properties cannot be read."""
    try:
        says = torch.cuda.get_device_properties(index)
    except Exception:  # a lost card, an assertion of PyTorch: the device is there, and unknown
        return Seen(index, UNNAMED)

    def fact(name: str) -> Any:
        return getattr(says, name, None)

    bus = ""
    if None not in (fact("pci_bus_id"), fact("pci_device_id")):
        bus = f"{fact('pci_domain_id') or 0:08X}:{fact('pci_bus_id'):02X}:{fact('pci_device_id'):02X}.0"
    integrated = fact("is_integrated")
    return Seen(
        cuda=index,
        name=fact("name") or UNNAMED,
        uuid=str(fact("uuid") or ""),
        bus=bus,
        memory_bytes=fact("total_memory") or None,
        multiprocessors=fact("multi_processor_count"),
        capability=(says.major, says.minor) if fact("major") is not None and fact("minor") is not None else None,
        clock_khz=fact("clock_rate"),
        memory_clock_khz=fact("memory_clock_rate"),
        bus_bits=fact("memory_bus_width"),
        integrated=None if integrated is None else bool(integrated),
    )


def _unsure(node: Shown, card: Card, found: Card | None) -> bool:
    """Whether a device of PyTorch must be said to be unknown: no UUID, or none that NVML shows."""
    return not card.uuid or (found is None and bool(node.cards))


def _no_uuid(card: Card) -> str:
    """How a card without a UUID, or a device that no card was found for, is named among the unknown."""
    return f"cuda:{card.cuda}" if card.cuda is not None else f"physical card {card.physical}"


def _others(node: Shown, mine: Sequence[Card | None]) -> int:
    """Cards, and slices of split cards, that are not known to be this job's."""
    plain = [msgspec.structs.replace(card, cuda=None) for card in mine if card]
    return node.closed + sum(card not in plain for card in node.usable)


def _split(left: Named, mine: Sequence[Card]) -> tuple[Card, ...]:
    """Cards in MIG mode that were named as a whole and of which this process has no slice."""
    parents = {card.parent for card in mine if card.mig}
    return tuple(card for card in left.split if card.uuid not in parents)
