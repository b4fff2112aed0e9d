"""Whatever the variable, the driver and PyTorch say: a card is named by its UUID or said to be unknown, and it is ours.

A node is drawn, with all that is true of it. From that follow what CUDA would use (a small model of CUDA, written
apart from the kit's), what NVML answers (with gaps), and what PyTorch reports (with gaps, and older versions' habits).
"""

import copy
from dataclasses import dataclass, field

import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from standins import pynvml as fake_nvml

from gpuworkshop.machine import gpus
from gpuworkshop.machine.nvml import Nvml

GIB = 2**30
KINDS = (("NVIDIA A100-SXM4-80GB", 80, (8, 0)), ("NVIDIA T4", 16, (7, 5)), ("NVIDIA RTX PRO 6000", 96, (12, 0)))
JUNK = (
    "",
    " ",
    "-1",
    "NoDevFiles",
    "no",
    "GPU-",
    "MIG-",
    "GPU-none",
    "MIG-none",
    "٣",
    "²",
    "9" * 30,
    "7",
    "0x1",
    "1a",
    ",",
)


@dataclass
class Part:
    """A card or a slice as it truly is."""

    uuid: str
    name: str
    memory: int
    physical: int
    legacy: str = ""


@dataclass
class True_:
    """A card and its slices as they truly are."""

    part: Part
    capability: tuple[int, int]
    bus: str
    split: bool
    slices: list[Part] = field(default_factory=list)
    lost: bool = False


@dataclass
class Node:
    """What is true, what CUDA uses of it, and what NVML and PyTorch say."""

    cards: list[True_]
    env: dict[str, str]
    used: list[Part]
    spec: dict
    seen: list[gpus.Seen]


@st.composite
def nodes(draw) -> Node:
    """A node, its variable, and what is said about it."""
    cards = draw(true_cards())
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if draw(st.booleans()) else {}
    alike = len({(card.part.name, card.part.memory) for card in cards}) < 2
    order = [card for card in cards if not card.lost]
    if not alike and not env:
        order = draw(st.permutations(order))
    raw = draw(variables(cards))
    if raw is not None:
        env["CUDA_VISIBLE_DEVICES"] = raw
    used = cuda(raw, order)
    return Node(cards, env, used, draw(driver(cards)), draw(devices(used, cards)))


@st.composite
def true_cards(draw) -> list[True_]:
    kinds = draw(st.sampled_from((KINDS[:1], KINDS[:2], KINDS)))
    cards = []
    for index in range(draw(st.integers(0, 4))):
        name, memory, capability = draw(st.sampled_from(kinds))
        memory = memory * GIB if draw(st.integers(0, 5)) else 2 * memory * GIB
        whole = Part(f"GPU-{index}ab{index}0000-0000-4000-8000-{index:012d}", name, memory, index)
        card = True_(whole, capability, f"00000000:{16 + index:02X}:00.0", draw(st.integers(0, 3)) == 0)
        for number in range(draw(st.integers(0, 3)) if card.split else 0):
            eighth = draw(st.sampled_from((1, 2)))
            card.slices.append(
                Part(
                    f"MIG-{number}cd{index}0000-0000-5000-8000-{number:012d}",
                    f"{name} MIG {eighth}g",
                    memory * eighth // 8,
                    index,
                    f"MIG-{whole.uuid}/{number}/0",
                )
            )
        card.lost = draw(st.integers(0, 7)) == 0
        cards.append(card)
    return cards


def variables(cards: list[True_]) -> st.SearchStrategy[str | None]:
    """The variable in every odd form, about these cards."""
    uuids = [card.part.uuid for card in cards]
    slices = [part for card in cards for part in card.slices]
    words = [str(number) for number in range(5)] + uuids + [uuid[:9] for uuid in uuids] + [u.upper() for u in uuids]
    words += [part.uuid for part in slices] + [part.legacy for part in slices] + list(JUNK)
    entry = st.sampled_from(words).flatmap(lambda word: st.sampled_from((word, f" {word}", f"{word} ")))
    families = [[str(number) for number in range(5)], uuids, [part.uuid for part in slices]]
    families += [[uuid, uuid[:9], uuid.replace("a", "A")] for uuid in uuids[:1]]
    one_kind = st.sampled_from([family for family in families if family]).flatmap(
        lambda family: st.lists(st.sampled_from(family), max_size=4)
    )
    return st.none() | st.text(max_size=6) | (one_kind | st.lists(entry, max_size=4)).map(",".join)


def cuda(raw: str | None, order: list[True_]) -> list[Part]:
    """What CUDA uses: whole cards, or one slice."""
    slices = [part for card in order for part in card.slices]
    if raw is None:
        return slices[:1] or [card.part for card in order if not card.split]
    entries = [entry.strip() for entry in raw.split(",")]
    found: list[Part] = []
    first = entries[0][:4]
    for entry in entries:
        able: list[Part] = []
        if first in ("GPU-", "MIG-") and entry[:4] == first and len(entry) > 4:
            pool = slices if first == "MIG-" else [card.part for card in order]
            able = [p for p in pool if p.uuid.lower().startswith(entry.lower()) or p.legacy.lower() == entry.lower()]
        elif first not in ("GPU-", "MIG-"):
            digits = entry.removeprefix("+")
            digits = digits[: next((n for n, c in enumerate(digits) if c not in "0123456789"), len(digits))]
            able = [card.part for card in order][int(digits) : int(digits) + 1] if 0 < len(digits) < 10 else []
        if len(able) != 1:
            break
        if able[0] in found:
            return []
        found.append(able[0])
    if first == "MIG-":
        return found[:1]
    split = [number for number, part in enumerate(found) if cards_by_uuid(order)[part.uuid].split]
    return found[: split[0]] if split else found


def cards_by_uuid(cards: list[True_]) -> dict[str, True_]:
    return {card.part.uuid: card for card in cards}


@st.composite
def driver(draw, cards: list[True_]) -> dict:
    """What NVML answers: gaps everywhere, cards that are lost, or no NVML at all."""
    gap = {"error": draw(st.sampled_from(("NotSupported", "NoPermission", "Unknown", "UnicodeDecodeError", "OSError")))}
    gappy = draw(st.booleans())

    def maybe(value: object) -> object:
        return gap if gappy and draw(st.integers(0, 4)) == 0 else value

    def facts(part: Part) -> dict:
        memory = {"total": part.memory, "used": 0, "free": part.memory}
        return {"name": maybe(part.name), "uuid": maybe(part.uuid), "memory": maybe(memory)}

    said = []
    same_bus = draw(st.integers(0, 5)) == 0
    for card in cards:
        one = facts(card.part) | {"cc": maybe(list(card.capability))}
        one["bus_id"] = maybe("00000000:10:00.0" if same_bus else card.bus)
        if card.lost:
            one["handle_error"] = "GpuIsLost"
        if card.split:
            slices = [facts(part) | {"gi": n} for n, part in enumerate(card.slices)]
            for part in slices:
                if draw(st.integers(0, 6)) == 0:
                    part["handle_error"] = "Unknown"
            one["mig"] = {"enabled": True, "devices": slices}
        said.append(one)
    node: dict = {"devices": said, "return_bytes": draw(st.booleans())}
    if draw(st.integers(0, 5)) == 0:
        node["init_error"] = draw(st.sampled_from(("LibraryNotFound", "LibRmVersionMismatch", "OSError")))
    return node


@st.composite
def devices(draw, used: list[Part], cards: list[True_]) -> list[gpus.Seen]:
    """What PyTorch reports of what CUDA uses: with or without UUIDs and buses, as its version does."""
    knows_uuid, knows_bus, knows_memory = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    prefix, of_parent = draw(st.booleans()), draw(st.booleans())
    seen = []
    for number, part in enumerate(used):
        card = cards[part.physical]
        uuid = card.part.uuid if part.uuid.startswith("MIG-") and of_parent else part.uuid
        if not knows_uuid:
            uuid = draw(st.sampled_from(("", "00000000-0000-0000-0000-000000000000")))
        seen.append(
            gpus.Seen(
                number,
                part.name,
                uuid if prefix else uuid[4:] if uuid[:4] in ("GPU-", "MIG-") else uuid,
                card.bus if knows_bus else "",
                int(part.memory * 0.98) if knows_memory else None,
                108,
                card.capability,
            )
        )
    return seen


def asked(node: Node, seen: list[gpus.Seen] | None) -> gpus.Cards:
    with pytest.MonkeyPatch.context() as patch:
        fake_nvml.install(copy.deepcopy(node.spec), patch)
        return gpus.cards(node.env, seen, Nvml())


def dropped(node: Node) -> bool:
    """Whether a bus of NVML's could be another card's, so that only PyTorch can tell."""
    buses = [card["bus_id"] for card in node.spec["devices"] if isinstance(card["bus_id"], str)]
    return len(set(buses)) < len(buses)


@fuzz(400)
@given(nodes())
def test_every_device_of_pytorch_is_its_own_card_or_unknown(node: Node) -> None:
    found = asked(node, node.seen)
    assert [card.cuda for card in found.mine] == list(range(len(node.used)))
    for card, truth in zip(found.mine, node.used, strict=True):
        assert card.uuid in ("", truth.uuid)
        assert card.physical in (None, truth.physical)
        assert card.memory_bytes is None or card.memory_bytes <= truth.memory
        assert card.uuid or f"cuda:{card.cuda}" in found.unknown
    named = [card.uuid for card in found.mine if card.uuid]
    assert len(named) == len(set(named))


@fuzz(400)
@given(nodes())
def test_without_pytorch_only_cards_that_cuda_would_use_are_ours(node: Node) -> None:
    found = asked(node, None)
    used = {part.uuid: number for number, part in enumerate(node.used)}
    for card in found.mine:
        if card.uuid:
            assert card.uuid in used
            assert card.cuda in (None, used[card.uuid])
        else:
            assert any(card.physical == part.physical for part in node.used)
            assert set(found.unknown) & {f"cuda:{card.cuda}", f"physical card {card.physical}"}
    entries = found.visible.entries
    if entries:
        nameless = sum(not card.uuid for card in found.mine)
        assert len(found.mine) + len(found.unknown) - nameless + len(found.split_without_slice) == len(entries)


@fuzz(200)
@given(nodes())
def test_all_that_nvml_shows_is_ours_or_another_s(node: Node) -> None:
    found = asked(node, node.seen)
    shown = 0 if "init_error" in node.spec else _shown(node.spec)
    assert found.others + sum(card.physical is not None for card in found.mine) == shown


def _shown(spec: dict) -> int:
    cards = [card for card in spec["devices"] if "handle_error" not in card]
    parts = [p for card in cards for p in card.get("mig", {"devices": []})["devices"] if "handle_error" not in p]
    return sum("mig" not in card for card in cards) + len(parts)
