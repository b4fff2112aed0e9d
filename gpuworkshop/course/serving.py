"""What serving a language model takes of a card: its weights, and the keys and values of every token that is kept.

Both are exact sums over the model's shape. What a server needs beside them (activations, its own buffers) is in the
share of the card that is left alone.
"""

from __future__ import annotations

import msgspec

from gpuworkshop.cluster.site import Site
from gpuworkshop.course import place
from gpuworkshop.machine import specs
from gpuworkshop.numbers import number
from gpuworkshop.report import Finding, Origin, Report, Table

GIB = 2**30
USABLE = 0.90
"""Share of what a card reports that weights and cache may take."""


class Model(msgspec.Struct, frozen=True):
    """The shape of a decoder: its numbers, blocks, heads that keep keys and values, and numbers a head."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_dim: int


MADE_UP = Model("70 billion parameters, 80 blocks, 8 heads of 128 for keys and values", 70e9, 80, 8, 128)
"""A model made up for the chapter, of the size that the workshop names."""

FORMATS = {"BF16": 2.0, "FP8": 1.0}
"""Bytes of a weight."""


class Fit(msgspec.Struct, frozen=True):
    """One card and one format of the weights, in GiB. ``room`` is left for the cache, below 0 where they do not fit."""

    card: str
    format: str
    usable: float
    weights: float
    room: float
    sequences: int
    """Of so many tokens each, that can be kept at a time."""


def weights(model: Model, bytes_each: float) -> float:
    """Bytes of the weights."""
    return model.parameters * bytes_each


def kv_cache(model: Model, tokens: int, sequences: int = 1, bytes_each: float = 2.0) -> float:
    """Bytes of the keys and values of ``sequences`` of ``tokens`` tokens: two for each block, head and number."""
    return 2 * model.layers * model.kv_heads * model.head_dim * tokens * sequences * bytes_each


def card_gib(site: Site) -> dict[str, float]:
    """GiB that the site's cards report at the least; what is not in the table of cards counts as it is advertised."""
    found = {}
    for family in site.families:
        known = [spec.memory[0] for spec in specs.known() if family.card and family.card in spec.names]
        if known or family.memory_gb:
            found[family.card or family.name] = min(known) if known else family.memory_gb * 1e9 / GIB
    return found


def fits(site: Site, model: Model = MADE_UP, tokens: int = 4096) -> tuple[Fit, ...]:
    """How many sequences each card of the site keeps beside the weights, for each format of them."""
    made = []
    for card, gib in card_gib(site).items():
        for name, size in FORMATS.items():
            usable, taken = USABLE * gib, weights(model, size) / GIB
            room = usable - taken
            made.append(Fit(card, name, usable, taken, room, max(0, int(room * GIB // kv_cache(model, tokens)))))
    return tuple(made)


def page(site: Site | None = None, model: Model = MADE_UP, tokens: int = 4096) -> Report:
    """The cards of a site (default: the site of the lessons) with a model on them, as a report."""
    site = site or place.site()
    rows = tuple(
        (
            one.card,
            one.format,
            number(one.usable),
            number(one.weights),
            number(one.room) if one.room > 0 else "does not fit",
            str(one.sequences),
        )
        for one in fits(site, model, tokens)
    )
    columns = (
        "card",
        "weights in",
        "GiB to use",
        "GiB of weights",
        "GiB for the cache",
        f"sequences of {tokens} tokens",
    )
    found = [Finding("notice", f"{family.card or family.name}: {family.use}") for family in site.families if family.use]
    each = kv_cache(model, tokens) / GIB
    found.append(
        Finding(
            "notice",
            f"One sequence of {tokens} tokens takes {number(each)} GiB",
            f"keys and values: 2 x {model.layers} x {model.kv_heads} x {model.head_dim} numbers a token, of 2 bytes",
        )
    )
    words = (
        f"A made-up model: {model.name}. Calculated, not measured: {USABLE:.0%} of what a card of this kind reports, "
        "by the kit's table of cards; the cache in 16 bits"
    )
    origin = Origin("claimed by", f"the site file of {site.name}")
    return Report(f"What fits: {site.name}", origin, tuple(found), (Table(columns, rows, words),))
