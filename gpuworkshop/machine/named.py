"""Which cards CUDA_VISIBLE_DEVICES leaves, of those that NVML shows. What is not certain is unknown, never guessed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuworkshop.machine.device import Card
from gpuworkshop.machine.shown import Physical, Shown
from gpuworkshop.machine.visible import Visible


class Named(msgspec.Struct, frozen=True):
    """What the variable leaves.

    ``cards``: those that it leaves for certain, numbered as CUDA numbers them where that is certain too. ``unknown``:
    entries that name no card or could be several, and what CUDA would choose by itself. ``split``: cards in MIG mode
    that were named as a whole, or that have no slice.
    """

    cards: tuple[Card, ...] = ()
    unknown: tuple[str, ...] = ()
    split: tuple[Card, ...] = ()

    @property
    def in_order(self) -> tuple[Card, ...]:
        """The cards by CUDA's number; none where a number is not certain."""
        certain = not self.unknown and not self.split and all(card.cuda is not None for card in self.cards)
        return self.cards if certain else ()


def named(node: Shown, says: Visible, env: Mapping[str, str]) -> Named:
    """What ``says`` leaves of the cards of a node."""
    if says.kind == "hidden":
        return Named()
    if says.kind == "unset":
        return _everything(node, order_is_certain(node, env))
    return _entries(node, says, order_is_certain(node, env))


def order_is_certain(node: Shown, env: Mapping[str, str]) -> bool:
    """Whether number n of CUDA is number n of NVML. By default CUDA puts the fastest card first."""
    return not node.lost and (env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or node.of_one_kind)


def _everything(node: Shown, certain: bool) -> Named:
    """What CUDA uses of its own accord: every card; one slice and no whole card, where a card is split in slices."""
    slices = [part for physical in node.cards for part in physical.slices]
    silent = sum(physical.silent for physical in node.cards)
    split = tuple(physical.card for physical in node.cards if physical.split and not physical.slices)
    if silent or len(slices) > 1:
        return Named(unknown=(f"one of {len(slices) + silent} MIG slices",))
    if slices:
        return Named(_in_order(slices), split=split)
    whole = [physical.card for physical in node.cards if not physical.split]
    return Named(_in_order(whole) if certain else tuple(whole), split=split)


def _entries(node: Shown, says: Visible, certain: bool) -> Named:
    """The cards of the entries, up to the first that names none or a split one: CUDA takes nothing from there on."""
    taken: list[Card] = []
    unknown: list[str] = []
    for place, entry in enumerate(says.entries):
        found = _cards_of(node, says.kind, entry)
        if says.kind == "numbers" and not certain and found:
            unknown.append(entry)
            continue
        if len(found) != 1:
            unknown += says.entries[place:]
            break
        if any(found[0] is card for card in taken) or _again(node, says, found[0]):  # CUDA then takes none
            return Named(unknown=says.entries)
        if any(physical.split and physical.card is found[0] for physical in node.cards):
            return Named(_in_order(taken), (*unknown, *says.entries[place + 1 :]), (found[0],))
        taken.append(found[0])
    return Named(_in_order(taken), tuple(unknown))


def _again(node: Shown, says: Visible, first: Card) -> bool:
    """Whether a later word of the list names the first slice too, or may: by the other of the two kinds of names."""
    for word in says.ignored if says.kind == "slices" else ():
        others = _cards_of(node, says.kind, word)
        if any(other is first for other in others) or (not others and _is_older(word) != _is_older(says.entries[0])):
            return True
    return False


def _is_older(word: str) -> bool:
    return word.lower().startswith("mig-gpu-")


def _in_order(cards: list[Card]) -> tuple[Card, ...]:
    """The cards with the numbers that CUDA gives them."""
    return tuple(msgspec.structs.replace(card, cuda=number) for number, card in enumerate(cards))


def _cards_of(node: Shown, kind: str, entry: str) -> list[Card]:
    """Every card or slice that an entry could mean. CUDA takes the beginning of a UUID too."""
    if kind == "numbers":
        return [physical.card for physical in node.cards[int(entry) : int(entry) + 1]]
    wanted = entry.lower()
    if kind == "uuids":
        return [p.card for p in node.cards if len(wanted) > len("gpu-") and p.card.uuid.lower().startswith(wanted)]
    return [part for physical in node.cards for part in _slices_of(physical, wanted)]


def _slices_of(physical: Physical, wanted: str) -> list[Card]:
    """Slices by the beginning of their UUID, or by the whole name that older drivers gave them."""
    pairs = zip(physical.slices, physical.instances, strict=True)
    begins = len(wanted) > len("mig-")
    return [part for part, name in pairs if begins and (part.uuid.lower().startswith(wanted) or name.lower() == wanted)]
