"""A watch as a reader sees it: findings, one column a card, its processes, and the map of the two axes."""

from __future__ import annotations

from collections.abc import Callable

from gpuworkshop.figures.map import Track, two_axes
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult, findings, gib, memory, percent, watts
from gpuworkshop.numbers import number
from gpuworkshop.report import Report, Table

ROWS: dict[str, Callable[[CardWatch], str]] = {
    "GPU utilization: a kernel was resident": lambda card: "n/a (MIG)" if card.card.mig else percent(card.busy),
    "distinct windows of the driver": lambda card: "n/a" if card.busy is None else str(card.windows),
    "SM activity": lambda card: percent(card.sm),
    "SM occupancy": lambda card: percent(card.occupancy),
    "tensor core activity": lambda card: percent(card.tensor),
    "memory bandwidth in use": lambda card: percent(card.dram),
    "memory, the most": memory,
    "power, mean": lambda card: watts(card),
    "energy": lambda card: "n/a" if card.energy is None else f"{number(card.energy / 1e3)} kJ",
    "GPU-minutes used": lambda card: number(card.used_minutes),
    "GPU-minutes wasted": lambda card: number(card.wasted_minutes),
}
"""The rows of the table: name, and what stands there for one card."""


def report(result: WatchResult) -> Report:
    """The result with its findings, tables and the recurring picture."""
    tables = (_cards(result), *filter(None, [_processes(result)])) if result.cards else ()
    tracks = [Track(card.label, card.busy, card.memory, card.path, _why(card)) for card in result.cards]
    pictures = (two_axes(tracks, result.origin),) if tracks else ()
    return Report(f"Watch: {result.what}", result.origin, tuple(findings(result)), tables, pictures)


def _why(card: CardWatch) -> str:
    return "MIG: the driver has no utilization for a slice" if card.card.mig else card.busy_why


def _cards(result: WatchResult) -> Table:
    columns = ("", *(card.label for card in result.cards))
    rows = [(name, *(say(card) for card in result.cards)) for name, say in ROWS.items()]
    places = "; ".join(card.card.place for card in result.cards)
    looks = (
        f"{result.seconds:.1f} s, {result.samples} looks, one every {result.interval:g} s, "
        f"{1e3 * result.sampler_cpu_seconds:.0f} ms of CPU time for them"
    )
    return Table(columns, tuple(rows), f"{places}; {looks}")


def _processes(result: WatchResult) -> Table | None:
    """Who was on the cards; None when nobody was seen."""
    rows = [
        (str(p.pid), p.name or "-", card.label, p.who, gib(p.memory) if p.memory is not None else "-")
        for card in result.cards
        for p in card.processes or ()
    ]
    if not rows:
        return None
    untold = sum(row[-1] == "-" for row in rows)
    caption = "processes on the cards" + (f"; the driver says no memory for {untold} of them" if untold else "")
    return Table(("process", "name", "card", "whose", "memory, the most"), tuple(rows), caption)
