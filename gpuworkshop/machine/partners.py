"""Which of NVML's cards each device of PyTorch is. A number says nothing here; a card is the same only by its UUID.

PyTorch may know no UUID (older versions), the UUID of the slice or that of its parent (MIG), and see fewer cards than
NVML does, in another order. So evidence is taken in turn: UUID, bus, the variable, and being the only one of its kind.
Nothing that PyTorch says may contradict the card; no card is given twice; the rest stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from gpuworkshop.machine.device import Card, Seen
from gpuworkshop.machine.named import Named
from gpuworkshop.machine.shown import UNNAMED, Physical, Shown

MEMORY_TOLERANCE = 0.1
"""How far CUDA's total and NVML's may lie apart: CUDA leaves out what the driver keeps."""


def partners(node: Shown, seen: Sequence[Seen], left: Named) -> list[Card | None]:
    """For each device of PyTorch NVML's card or slice, None where that is not certain."""
    found: list[Card | None] = [None] * len(seen)
    for evidence in (_by_uuid, _by_bus, partial(_by_variable, len(seen)), _alone):
        _claim(found, seen, evidence, node, left)
    return found


def joined(node: Shown, found: Card | None, device: Seen) -> Card:
    """NVML's card with PyTorch's number and facts; what PyTorch says alone when there is none."""
    card = found or _by_itself(node, device)
    return msgspec.structs.replace(
        card,
        name=device.name if card.name == UNNAMED else card.name,
        uuid=card.uuid or _uuid_by_torch(card, device, certain=found is not None),
        cuda=device.cuda,
        memory_bytes=device.memory_bytes or card.memory_bytes,
        multiprocessors=device.multiprocessors,
        capability=device.capability or card.capability,
        integrated=device.integrated,
    )


def _by_itself(node: Shown, device: Seen) -> Card:
    """What PyTorch alone says of a device. Of a slice it may give the UUID of the card, which is not the slice's."""
    split = [p.card.uuid for p in node.cards if p.split and _plain(p.card.uuid) == _plain(device.uuid) != ""]
    return Card(device.name, "", bus=device.bus, mig=bool(split) or "MIG" in device.name, parent="".join(split[:1]))


def _uuid_by_torch(card: Card, device: Seen, certain: bool) -> str:
    """PyTorch's UUID with its prefix; "" for a slice, unless it is known not to be the UUID of the card."""
    uuid = _plain(device.uuid)
    if not card.mig:
        return uuid and f"GPU-{uuid}"
    return f"MIG-{uuid}" if uuid and certain and _plain(card.parent) not in ("", uuid) else ""


def _claim(
    found: list[Card | None],
    seen: Sequence[Seen],
    evidence: Callable[[Shown, Seen, Named], Card | None],
    node: Shown,
    left: Named,
) -> None:
    """Give each device that has no card yet the one that ``evidence`` names, unless it is another's too."""
    claims = [None if card else evidence(node, device, left) for card, device in zip(found, seen, strict=True)]
    for place, card in enumerate(claims):
        if card and sum(card is other for other in [*found, *claims]) == 1:
            found[place] = card


def _by_uuid(node: Shown, device: Seen, left: Named) -> Card | None:
    wanted = _plain(device.uuid)
    if not wanted:
        return None
    slices = [part for physical in node.cards for part in physical.slices if _plain(part.uuid) == wanted]
    whole = [physical for physical in node.cards if _plain(physical.card.uuid) == wanted]
    if len(whole) + len(slices) != 1:
        return None
    if slices:
        return slices[0]
    return _slice_of(whole[0], device, left) if whole[0].split else whole[0].card


def _by_bus(node: Shown, device: Seen, left: Named) -> Card | None:
    wanted, buses = _address(device.bus), [_address(physical.card.bus) for physical in node.cards]
    whole = [physical for physical, bus in zip(node.cards, buses, strict=True) if wanted and bus == wanted]
    if len(whole) != 1 or None in buses:  # a card without an address may have the same one, where all do
        return None
    if whole[0].split:
        return _slice_of(whole[0], device, left)
    return whole[0].card if _fits(whole[0].card, device) else None


def _by_variable(count: int, node: Shown, device: Seen, left: Named) -> Card | None:
    """By the place in the variable, if PyTorch sees exactly as many devices as it leaves."""
    cards = left.in_order
    if len(cards) != count or not 0 <= device.cuda < count:
        return None
    card = next((one for one in node.usable if _same(one, cards[device.cuda])), None)
    return card if card and _fits(card, device) else None


def _alone(node: Shown, device: Seen, left: Named) -> Card | None:
    """The only card or slice that it can be, where everything that the driver counts answers and has a name."""
    if not node.complete or any(card.name == UNNAMED for card in node.usable):
        return None
    return _only([card for card in node.usable if _fits(card, device)])


def _slice_of(physical: Physical, device: Seen, left: Named) -> Card | None:
    """Of a split card the slice that the variable names, or the only one that it can be."""
    able = [part for part in physical.slices if _fits(part, device)]
    chosen = [part for part in able if any(_same(part, card) for card in left.cards)]
    return _only(chosen) or (_only(able) if not physical.silent else None)


def _fits(card: Card, device: Seen) -> bool:
    """Whether nothing that both know contradicts that they are the same."""
    return (
        _same_uuid(card, _plain(device.uuid))
        and _agree(_address(card.bus), _address(device.bus))
        and _agree(card.capability, device.capability)
        and _same_name(card, device)
        and _near(card.memory_bytes, device.memory_bytes)
    )


def _same_uuid(card: Card, uuid: str) -> bool:
    """Whether a UUID of PyTorch can be this card's; for a slice it may be the one of the card that it is part of."""
    known = {_plain(card.uuid), _plain(card.parent)} if card.mig else {_plain(card.uuid)}
    return not uuid or "" in known or uuid in known


def _agree(one: object, other: object) -> bool:
    return not one or not other or one == other


def _same_name(card: Card, device: Seen) -> bool:
    """Whether the names agree; where only one of them tells the slice, as far as the name of the card."""
    if UNNAMED in (card.name, device.name):
        return True
    here, _, profile = card.name.removeprefix("NVIDIA ").partition(" MIG")
    there, _, other = device.name.removeprefix("NVIDIA ").partition(" MIG")
    unnamed = here == UNNAMED and card.mig  # a slice that has no name, of a card that has none
    return (here == there or unnamed) and _agree(profile, other) and (card.mig or " MIG" not in device.name)


def _near(one: int | None, other: int | None) -> bool:
    return not one or not other or abs(one - other) <= MEMORY_TOLERANCE * max(one, other)


def _same(one: Card, other: Card) -> bool:
    """Whether both are the same card of one node, whatever number CUDA gives it."""
    return msgspec.structs.replace(one, cuda=None) == msgspec.structs.replace(other, cuda=None)


def _only(found: Sequence[Card]) -> Card | None:
    return found[0] if len(found) == 1 else None


def _plain(uuid: str) -> str:
    """A UUID without prefix, as everybody writes it; "" for none, and for one of zeros."""
    plain = uuid.lower().removeprefix("gpu-").removeprefix("mig-")
    return plain if plain.strip("0-") else ""


def _address(bus: str) -> tuple[int, ...] | None:
    """Domain, bus and device of a PCI address, however it is written."""
    try:
        domain, number, device = bus.split(":")
        return int(domain, 16), int(number, 16), int(device.partition(".")[0], 16)
    except ValueError:
        return None
