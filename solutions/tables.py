"""Tables in Markdown, made from the recordings, between marks in a text such as README.

``python solutions/tables.py README.md`` (``make tables``) writes them anew.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from gpuworkshop.course import claims, replay
from gpuworkshop.course.claims_result import ClaimsResult
from gpuworkshop.instruments.starve import SweepResult
from gpuworkshop.loop import climb
from gpuworkshop.loop.climb import LoopResult
from gpuworkshop.machine.conditions import Conditions


def loop_table(result: LoopResult) -> str:
    """What each kept change brought, and how far that is from both ceilings."""
    rows = [("naive start", f"{result.baseline.real.value:,.0f}", "")]
    for record in result.kept:
        ratio = record.comparison
        rows.append(
            (
                climb.change_words(record),
                f"{record.rate.value:,.0f}",
                f"{ratio.ratio:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})",
            )
        )
    share = result.of_synthetic
    rows.append(("final run, measured again", f"{result.final.real.value:,.0f}", f"{result.gain:.0f}x in all"))
    rows.append(("data ceiling: real batches, resident", f"{result.final.ceiling.value:,.0f}", ""))
    reached = f"the final run reaches {share.ratio:.2f} ({share.low:.2f} to {share.high:.2f}) of it"
    rows.append(("random batches, resident", f"{result.synthetic.value:,.0f}", reached))
    if result.jpegs:
        rows.append(
            (f"best run that still decodes JPEGs ({result.jpegs_config.data_path})", f"{result.jpegs.value:,.0f}", "")
        )
    lines = ["| change | images/s | against the run before, in turn |", "|---|--:|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    refused = ", ".join(dict.fromkeys(record.remedy for record in result.refused)) or "nothing"
    return "\n".join(
        [
            *lines,
            "",
            f"Tried and not kept: {refused}. {result.job.title}, {result.conditions.cpus} CPUs; {result.origin}.",
        ]
    )


def sweep_table(result: SweepResult) -> str:
    """The rate for each number of workers, and how far that is from the data ceiling."""
    head = "| `num_workers` | images/s | ratio to 0 workers (95% interval) | of the data ceiling |"
    lines = [head, "|--:|--:|---|--:|"]
    for point in result.points:
        if point.rate is not None:
            seen, share = point.against_zero, point.rate.value / result.ceiling.value
            lines.append(f"| {point.workers} | {point.rate.value:,.0f} | {seen or ''} | {share:.0%} |")
    return "\n".join([*lines, "", f"{result.workload}, {result.conditions.cpus} CPUs; {result.origin}."])


def claims_table(result: ClaimsResult) -> str:
    """Every claim: what is claimed, what was measured, the verdict."""
    lines = ["| chapter | claim | claimed | measured | verdict |", "|--:|---|---|---|---|"]
    rows = claims.judged(result)
    lines += [f"| {row.claim.chapter} | {' | '.join(claims.cells(row))} |" for row in rows]
    sources = "; ".join(dict.fromkeys(row.claim.source for row in rows))
    return "\n".join([*lines, "", f"Claimed by {sources}. Measured: {result.origin}."])


def verdicts_table(result: ClaimsResult) -> str:
    """How many claims came to which verdict, and those that do not hold."""
    rows = claims.judged(result)
    found = Counter(row.verdict for row in rows)
    counts = [f"*{verdict}* {found[verdict]}" for verdict in get_args(claims.Verdict) if found[verdict]]
    lines = [f"Of {len(rows)} claims: {', '.join(counts)}. Measured: {result.origin}.", ""]
    lines += ["| not here | claimed | measured |", "|---|---|---|"]
    failed = (claims.cells(row) for row in rows if row.verdict == "not here")
    return "\n".join([*lines, *(f"| {' | '.join(cells[:3])} |" for cells in failed)])


def verified_table() -> str:
    """On which card, with which driver and PyTorch, the recordings were made, and when the last one was."""
    made: dict[tuple[str, ...], dict[str, str]] = {}
    for one in replay.available():
        for seen in _conditions(replay.load(one.what, one.card)):
            if seen.torch:
                made.setdefault((seen.machine, seen.driver, seen.torch, seen.python), {})[one.what] = seen.date
    lines = ["| card | driver | PyTorch | Python | last verified | recordings |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(what)} | {max(on.values())} | {', '.join(on)} |" for what, on in sorted(made.items())]
    return "\n".join(lines)


def _conditions(value: Any) -> Iterator[Conditions]:
    """Every set of conditions in a result."""
    if isinstance(value, Conditions):
        yield value
        return
    inside: Any = ()
    if isinstance(value, msgspec.Struct):
        inside = (getattr(value, name) for name in value.__struct_fields__)
    elif isinstance(value, tuple):
        inside = value
    for one in inside:
        yield from _conditions(one)


TABLES: dict[str, Callable[[], str]] = {
    "loop": lambda: loop_table(replay.load("loop")),
    "sweep": lambda: sweep_table(replay.load("sweep")),
    "claims": lambda: claims_table(replay.load("claims")),
    "verdicts": lambda: verdicts_table(replay.load("claims")),
    "verified": verified_table,
}
"""By the name that stands between ``<!-- table: NAME -->`` and ``<!-- end -->``."""


def filled(text: str) -> str:
    """A text with every table between its marks made anew. KeyError for a table that is not known."""

    def fill(mark: re.Match) -> str:
        return f"<!-- table: {mark[1]} -->\n\n{TABLES[mark[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(filled(file.read_text()))
