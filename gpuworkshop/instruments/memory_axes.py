"""Utilization and memory together: the published table of what the pair means, and where a card stands in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuworkshop.figures.map import MIDDLE, quadrant
from gpuworkshop.numbers import finite, percent
from gpuworkshop.report import Finding, Table

PAIRS = (
    (False, False, "doing nothing", "is CUDA used? is there data?"),
    (False, True, "loaded, not running", "fix the data path; a bigger batch waits as long"),
    (True, False, "memory to spare", "a bigger batch, up to the knee"),
    (True, True, "good", "leave both alone"),
)
"""Busy, full, what that is, and what to do first."""
OUT = "BF16, then checkpointing, then a smaller batch"
"""What to do about a job that runs out of memory, in this order."""


def table(busy: float | None = None, memory: float | None = None) -> Table:
    """The published rule, with the row in which a card stands marked; shares from 0 to 1."""
    here = (busy >= MIDDLE, memory >= MIDDLE) if finite(busy) and finite(memory) else None
    rows = [
        ("high" if high else "low", "high" if full else "low", means, first, "here" if (high, full) == here else "")
        for high, full, means, first in PAIRS
    ]
    rows.append(("any", "none left", "out of memory", OUT, ""))
    columns = ("utilization", "memory", "means", "do first", "")
    if here is None:
        columns, rows = columns[:4], [row[:4] for row in rows]
    return Table(
        columns,
        tuple(rows),
        f"What utilization and memory say together, by the published rule (low: below {MIDDLE:.0%})",
    )


def findings(watched: Any) -> Iterator[Finding]:
    """Where each card of a watch result stands, and what the rule says to do first."""
    for card in watched.cards:
        if not (finite(card.busy) and finite(card.memory)):
            missing = "utilization" if not finite(card.busy) else "memory"
            yield Finding("unknown", f"{card.label} has no place in the table: {missing} n/a", card.busy_why)
            continue
        high, full = card.busy >= MIDDLE, card.memory >= MIDDLE
        first = next(first for h, f, _, first in PAIRS if (h, f) == (high, full))
        title = f"{card.label}: {quadrant(card.busy, card.memory)}"
        said = f"utilization {percent(card.busy)}, memory {percent(card.memory)}"
        yield Finding("ok" if high and full else "notice" if high else "warning", title, said, first)
