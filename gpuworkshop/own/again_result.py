"""What a comparison of a changed script with the one before it found, and what that means. Nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.loop.climb_result import bars
from gpuworkshop.loop.ledger import Record
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, several
from gpuworkshop.own.changes import Attribution, Changes
from gpuworkshop.report import Finding, Origin, Report, Table
from gpuworkshop.timing import Comparison, Rate

NEXT = "gpuworkshop loop --again"
WORK = {"weights": "another model", "model": "another model", "data set": "another data set"}
"""Settings that say that the work itself is another."""


class AgainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The script as it is now against the script as it was, both launched here in turn."""

    when: str
    measured: str
    """When the run was kept that it is compared with."""
    command: tuple[str, ...]
    script: str
    changes: Changes
    attribution: Attribution
    comparison: Comparison | None
    """Now over then. None where a launch failed, or the two cannot be compared."""
    rate_before: Rate | None
    rate_after: Rate | None
    learning: Judgement | None
    kept: bool
    """Whether the next comparison is with this run: it is faster, by one change, and does not learn worse."""
    why: str
    failed: Literal["", "before", "after"] = ""
    """Which of the two could not be measured."""
    own_words: str = ""
    """The end of what that one printed."""
    output: str = ""
    """The file with all that the script printed in its last launch."""
    elsewhere: str = ""
    """What differs between where the run before was measured and here; "" for nothing."""
    launches: int
    seconds: float
    conditions: Conditions
    origin: Origin
    records: tuple[Record, ...] = ()
    """The ledger's records of this script since its baseline that are comparable with this one, the oldest first."""

    @property
    def name(self) -> str:
        """The script's name without its folder."""
        return Path(self.script).name


def findings(result: AgainResult) -> Iterator[Finding]:
    """What the comparison says, as a pure function of its result."""
    if result.failed:
        yield _failed(result)
    elif result.comparison is None:
        yield Finding("unknown", result.why[:1].upper() + result.why[1:], "no ratio is told")
    else:
        yield _verdict(result)
    yield from _changed(result)
    if result.elsewhere:
        title = "The numbers of the run before are not comparable with these: it was measured elsewhere"
        same = "; both versions were launched here, in turn, and only those are compared"
        yield Finding("notice", title, result.elsewhere + (same if result.comparison else ""))
    if result.learning:
        yield _learning(result.learning)


def _failed(result: AgainResult) -> Finding:
    last = "\n".join(result.own_words.strip().splitlines()[-12:])
    title = result.why[:1].upper() + result.why[1:]
    if result.failed == "before" and last:
        title += "; something that it needs may have moved"
    return Finding("fail", title, "its own last words:" if last else "it printed nothing", last)


def _verdict(result: AgainResult) -> Finding:
    found, what = result.comparison, result.attribution
    rates = f"{result.rate_before} -> {result.rate_after}; {result.launches} launches in turn"
    if not what.one:
        return Finding(
            "warning",
            f"{found}; it cannot be attributed",
            f"{what.why}. {rates}",
            f"Take all but one of them back, then: {NEXT}",
        )
    title = f"{what.title}: {found}"
    if found.verdict == "faster":
        level = "ok" if result.kept else "warning"
        return Finding(level, title, rates if result.kept else f"{rates}; not kept: it learns worse")
    fix = f"Take the change back, make another one, then: {NEXT}"
    if found.verdict == "no real difference" and found.smallest > 0.1:
        minutes = max(5, math.ceil(result.seconds / 30))
        words = f"Too uncertain to tell. On a quieter machine, or longer: {NEXT} --budget {minutes}m"
        return Finding("unknown", title, rates, words)
    return Finding("warning" if found.verdict == "slower" else "notice", title, f"{rates}; not kept", fix)


def _changed(result: AgainResult) -> Iterator[Finding]:
    seen, what = result.changes, result.attribution
    parts = [str(one) for one in (*seen.settings, *seen.arguments)]
    if seen.files:
        parts.append(f"{counted(seen.places, 'place')} in {several([_name(text) for text in seen.files], 4)}")
    if result.comparison:
        said = f"one change, {what.title}" if what.one else "more than one change"
        evidence = "; ".join(filter(None, (said, what.why if what.one else "")))
    else:
        evidence = "" if seen.settings or result.failed != "after" else "its settings were not seen: it did not run"
    yield Finding("notice", f"What changed: {'; '.join(parts)}", evidence)
    if other := {WORK[one.name] for one in seen.settings if one.name in WORK}:
        title = (
            f"It is {' and '.join(sorted(other))}: the ratio says which is faster, not which does the same work faster"
        )
        yield Finding("warning", title)


def _name(diff: str) -> str:
    return diff.partition("\n")[0].removeprefix("--- a/")


def _learning(found: Judgement) -> Finding:
    level = {True: "ok", False: "fail", None: "unknown"}[found.ok]
    title, _, numbers = found.says.partition(":")
    return Finding("warning" if level == "fail" else level, title[:1].upper() + title[1:], numbers.strip())


def report(result: AgainResult) -> Report:
    """Findings, what differs line by line, and all changes of this script until now as a waterfall."""
    from gpuworkshop.figures.waterfall import waterfall

    figures = (waterfall(bars(result.records), result.origin),) if len(result.records) > 1 else ()
    tables = (table(result),) if result.changes.settings or result.changes.arguments else ()
    return Report(f"Again: {result.name}", result.origin, tuple(findings(result)), tables, figures)


def table(result: AgainResult) -> Table:
    """Settings and arguments that differ, before and after."""
    rows = [(one.name, one.before or "not given", one.after or "not given") for one in result.changes.settings]
    rows += [
        (f"{one.name} (argument)", one.before or "not given", one.after or "not given")
        for one in result.changes.arguments
    ]
    return Table(("what", "before", "now"), tuple(rows), "As the running program had them, and as it was started")


def diff(result: AgainResult) -> str:
    """The files' differences as one text; "" for none."""
    return "\n".join(result.changes.files)
