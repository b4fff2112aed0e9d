"""A watch as a reader sees it: findings, one column a card, its processes, and the map of the two axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuworkshop.figures.map import Track, two_axes
from gpuworkshop.instruments.samples import CardSample, Sample, WatchedCard, mean
from gpuworkshop.instruments.watch_findings import findings, memory, process_findings, watts
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult
from gpuworkshop.numbers import gib, number, percent
from gpuworkshop.report import Figure, Finding, Report, Table

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
    tables = (_cards(result), *filter(None, [processes_table(result)])) if result.cards else ()
    pictures = (map(result),) if result.cards else ()
    return Report(f"Watch: {result.what}", result.origin, tuple(findings(result)), tables, pictures)


def map(result: WatchResult) -> Figure:
    """The two axes, utilization across and memory up, with each card's place and path."""
    tracks = [Track(card.label, card.busy, card.memory, card.path, _why(card)) for card in result.cards]
    return two_axes(tracks, result.origin, result.problem)


def processes_report(result: WatchResult) -> Report:
    """Only the processes on the cards, and what they mean."""
    table = processes_table(result)
    found = [one for card in result.cards for one in process_findings(card)]
    if not result.cards:
        found.append(Finding("notice", "No card here, so no process on one", result.problem))
    elif table is None:
        found.append(Finding("ok", "No process was seen on this job's cards"))
    return Report("Processes on this job's cards", result.origin, tuple(found), (table,) if table else ())


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


def processes_table(result: WatchResult) -> Table | None:
    """Who was on the cards; None when nobody was seen."""
    rows = [
        (str(p.pid), p.name or "n/a", card.label, p.role, gib(p.memory))
        for card in result.cards
        for p in card.processes or ()
    ]
    if not rows:
        return None
    untold = sum(card.on_card.without_memory for card in result.cards)
    caption = "processes on the cards" + (f"; the driver says no memory for {untold} of them" if untold else "")
    return Table(("process", "name", "card", "whose", "memory, the most"), tuple(rows), caption)


def line(samples: Sequence[Sample], cards: Sequence[WatchedCard]) -> str:
    """Some seconds of a watch in one line: "  12 s  cuda:0: busy 84%, SM 41%, memory 12% full, 310 W".

    Without a card the use of the CPUs; "" where no look at them falls into these seconds.
    """
    if not cards:
        cpu = mean((sample.cpu, sample.seconds) for sample in samples)
        taken = f"no card; your processes take {percent(cpu)} of the CPUs"
        return "" if cpu is None else f"{samples[-1].at:5.0f} s  {taken}"
    said = [_now(card, [(s, own) for s in samples for own in s.cards if own.uuid == card.uuid]) for card in cards]
    return f"{samples[-1].at:5.0f} s  " + "  |  ".join(said)


def _now(card: WatchedCard, seen: Sequence[tuple[Sample, CardSample]]) -> str:
    last = seen[-1][1] if seen else CardSample(card.uuid)
    if last.lost:
        return f"{card.label}: does not answer"
    busy = "n/a (MIG)" if card.mig else percent(mean((own.busy, own.covered) for _, own in seen))
    sm = percent(mean((own.sm, sample.seconds) for sample, own in seen))
    full = f"memory {percent(last.memory)} full"
    power = "power n/a" if last.power is None else f"{last.power:.0f} W"
    return f"{card.label}: busy {busy}, SM {sm}, {full}, {power}"
