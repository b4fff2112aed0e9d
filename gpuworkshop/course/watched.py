"""What a chapter takes from a watch: two runs side by side, and who was on the card."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuworkshop.course.faces import Note
from gpuworkshop.instruments.samples import mean
from gpuworkshop.instruments.watch_report import processes_table
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.numbers import percent
from gpuworkshop.report import Finding, Report, Table


def side_by_side(runs: Mapping[str, WatchResult]) -> Report:
    """What was seen of several runs, one column each; of several cards the mean."""
    rows = tuple((name, *(say(run) for run in runs.values())) for name, say in ROWS.items())
    told = tuple(row for row in rows if any(cell != "n/a" for cell in row[1:]))
    origin = next(iter(runs.values())).origin
    return Report("Side by side", origin, tables=(Table(("", *runs), told),))


def _memory(run: WatchResult) -> float | None:
    return mean((card.memory, 1) for card in run.cards)


ROWS: dict[str, Callable[[WatchResult], str]] = {
    "GPU utilization": lambda run: percent(run.busy),
    "SM activity": lambda run: percent(mean((card.sm, card.seconds) for card in run.cards)),
    "GPU memory, the most": lambda run: percent(_memory(run)),
    "CPUs of this session in use": lambda run: percent(run.cpu),
    "loader wait, as the host saw it": lambda run: percent(run.wait),
}
"""What is set side by side."""


def processes(result: WatchResult | None) -> Report | Note:
    """Who was on the watched cards: pid, name, whose it is, memory. A note where there was no card."""
    if result is None or not result.cards:
        return Note("No card was watched", text=("So there is no process on one. On a card this is a table of them.",))
    table = processes_table(result)
    if table:
        return Report("On the card", result.origin, tables=(table,))
    untold = any(card.processes is None for card in result.cards)
    title = "The driver does not say who is on the card" if untold else "Nobody was seen on the card"
    none = Finding("unknown" if untold else "ok", title)
    return Report("On the card", result.origin, (none,))
