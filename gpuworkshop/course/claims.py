"""Claims of the workshop, each beside what was measured: the claims as data, the verdicts, the report.

A verdict is a pure function of a claim's rule and a reading. Nothing here measures; :mod:`.claims_parts` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from gpuworkshop.course.claims_result import ClaimsResult, Part, Reading
from gpuworkshop.numbers import counted, several
from gpuworkshop.report import Finding, Level, Origin, Report, Table

FILE = Path(__file__).parent / "claims.toml"

Verdict = Literal["holds", "partly", "not here", "not measurable here", "not recorded yet"]
LEVELS: dict[Verdict, Level] = {"holds": "ok", "partly": "notice", "not here": "notice"}
"""Of the findings: a claim that does not hold is no fault of the machine."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Between which bounds a claim holds, in its reading's unit. ``above``, ``below``: beyond it the direction does.

    ValueError for a rule without a bound, or with bounds that exclude each other.
    """

    at_least: float | None = None
    at_most: float | None = None
    between: tuple[float, float] | None = None
    above: float | None = None
    below: float | None = None

    def __post_init__(self):
        one_sided = self.at_least is not None or self.at_most is not None
        if one_sided == (self.between is not None) or self.bounds[0] > self.bounds[1]:
            raise ValueError("a rule has at_least, at_most or both, or else between two values, the smaller one first")

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most for which the claim holds; infinite where there is no such end."""
        if self.between is not None:
            return self.between
        least = -math.inf if self.at_least is None else self.at_least
        return least, math.inf if self.at_most is None else self.at_most


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One claim: its words, who says so, what tests it, and the rule for its verdict."""

    id: str
    chapter: int
    words: str
    claimed: str
    """Its size in a few words."""
    source: str
    part: str
    """The part of a recording that has its reading; "" where none can."""
    tests: str
    """The experiment, in words."""
    rule: Rule
    marked: bool = False
    """Whether the syllabus marks it as a claim; the others are rules that stand beside them."""
    only_on: str = ""
    never: str = ""

    def __post_init__(self):
        blank = [name for name in ("id", "words", "claimed", "source", "tests") if not getattr(self, name).strip()]
        if blank:
            raise ValueError(f"the claim {self.id!r} has no {', '.join(blank)}")
        if not self.part and not self.never:
            raise ValueError(f"the claim {self.id!r} has neither a part that measures it nor a reason why none can")

    @property
    def origin(self) -> Origin:
        """The mark of what is claimed."""
        return Origin("claimed by", self.source)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    claim: tuple[Claim, ...]


class Judged(msgspec.Struct, frozen=True):
    """One row: a claim, what was measured for it where, the verdict and why."""

    claim: Claim
    verdict: Verdict
    why: str
    reading: Reading | None = None
    origin: Origin | None = None


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the chapters."""
    read = msgspec.toml.decode(FILE.read_bytes(), type=_File).claim
    twice = [id for id, times in Counter(claim.id for claim in read).items() if times > 1]
    if twice:
        raise ValueError(f"claims.toml has {', '.join(twice)} more than once")
    return tuple(sorted(read, key=lambda claim: claim.chapter))


def judge(claim: Claim, reading: Reading | None, machine: str = "") -> tuple[Verdict, str]:
    """The verdict on one claim and why; ``machine`` is the name of the card, or of the CPUs."""
    if claim.never:
        return "not measurable here", claim.never
    if machine and claim.only_on.lower() not in machine.lower():
        return "not measurable here", f"only a {claim.only_on} can tell"
    if reading is None:
        return "not recorded yet", f"gpuworkshop claims --record {claim.part}"
    if reading.value is None:
        return "not measurable here", reading.why
    return _by_rule(claim.rule, reading)


def _by_rule(rule: Rule, reading: Reading) -> tuple[Verdict, str]:
    (low, high), (least, most) = reading.ends, rule.bounds
    if least <= low and high <= most:
        return "holds", reading.says
    if high >= least and low <= most:
        return "partly", _and("its interval reaches across the bound", reading.says)
    side = "more" if low > most else "less"
    beyond = (rule.above is not None and low > rule.above) or (rule.below is not None and high < rule.below)
    if beyond:
        return "partly", _and(f"the direction holds, the size does not: {side} than claimed", reading.says)
    return "not here", reading.says


def _and(first: str, second: str) -> str:
    return "; ".join(filter(None, (first, second)))


def judged(result: ClaimsResult | None) -> tuple[Judged, ...]:
    """Every claim with its verdict; None where nothing was recorded."""
    readings = result.readings if result else {}
    machine = result.parts[0].conditions.machine if result else ""
    return tuple(_judged(claim, *readings.get(claim.id, (None, None)), machine) for claim in claims())


def _judged(claim: Claim, reading: Reading | None, part: Part | None, machine: str) -> Judged:
    verdict, why = judge(claim, reading, machine)
    return Judged(claim, verdict, why, reading, part.origin if part else None)


# ---------------------------------------------------------------- what it means


def findings(result: ClaimsResult | None) -> Iterator[Finding]:
    """How many claims hold, each that does not with what was measured, and how far the parts belong together."""
    rows = judged(result)
    counts = Counter(row.verdict for row in rows)
    told = ", ".join(f"{verdict} {counts[verdict]}" for verdict in get_args(Verdict) if counts[verdict])
    known = sum(counts[verdict] for verdict in LEVELS)
    level: Level = "ok" if known else "unknown"
    yield Finding(level, f"{counted(len(rows), 'claim')}: {told}", "by the rule of each, over its whole interval")
    yield from _mixed(result)
    yield from _left(rows)
    for row in rows:
        if row.verdict in ("partly", "not here"):
            title = f"{row.verdict}: {_sentence(row.claim.words)} Measured: {row.reading}"
            yield Finding(LEVELS[row.verdict], title, row.why)


def _mixed(result: ClaimsResult | None) -> Iterator[Finding]:
    """Parts of one kind of card may come from several; nothing is compared across them."""
    if result is None:
        return
    seen = [part.conditions for part in result.parts]
    differ = {
        "cards": len({one.uuid for one in seen}),
        "drivers": len({one.driver for one in seen}),
        "versions of PyTorch": len({one.torch for one in seen}),
        "days": len({one.date for one in seen}),
    }
    apart = [f"{many} {name}" for name, many in differ.items() if many > 1]
    sources = sorted({source for part in result.parts for source in part.sources})
    if apart:
        yield Finding("notice", f"The parts come from {several(apart)}", "no verdict compares numbers of two parts")
    if sources:
        yield Finding("notice", "Some parts were read from other recordings of this card", ", ".join(sources))


def _left(rows: tuple[Judged, ...]) -> Iterator[Finding]:
    """The parts that would answer what was not recorded."""
    parts = list(dict.fromkeys(row.claim.part for row in rows if row.verdict == "not recorded yet"))
    if parts:
        left = sum(row.verdict == "not recorded yet" for row in rows)
        fix = f"gpuworkshop claims --record {' '.join(parts)}"
        yield Finding("unknown", f"{counted(left, 'claim')} not recorded yet", f"parts: {', '.join(parts)}", fix)


def _sentence(words: str) -> str:
    return words if words.endswith(".") else f"{words}."


def report(result: ClaimsResult | None, here: str = "") -> Report:
    """The findings, the table of all claims, why each verdict, and the picture; ``here`` where nothing was recorded."""
    from gpuworkshop.figures.claimed import claimed

    rows = judged(result)
    origin = result.origin if result else Origin("measured here", here or "nothing yet")
    columns = ("claim", "claimed", "measured", "verdict")
    sources = "; ".join(dict.fromkeys(row.claim.source for row in rows))
    table = Table(columns, tuple(cells(row) for row in rows), f"claimed by {sources}")
    told = [row for row in rows if row.verdict != "not recorded yet"]
    why = Table(("claim", "tested by", "why"), tuple((row.claim.id, row.claim.tests, row.why) for row in told))
    strips = [strip for row in rows if (strip := _strip(row))]
    pictures = (claimed(strips, origin),) if strips else ()
    return Report("Claims, measured", origin, tuple(findings(result)), (table, why), pictures)


def cells(row: Judged) -> tuple[str, str, str, str]:
    """A row of the table: claim, claimed, measured, verdict."""
    told = row.verdict in LEVELS or row.claim.never
    measured = str(row.reading) if row.reading and told else ""
    return row.claim.words, row.claim.claimed, measured or "n/a", row.verdict


def _strip(row: Judged):
    from gpuworkshop.figures.claimed import Strip

    reading = row.reading
    if row.verdict not in LEVELS or reading.unit == "yes" or min(reading.ends) <= 0:
        return None
    least, most = row.claim.rule.bounds
    bounds = (least if math.isfinite(least) else None, most if math.isfinite(most) else None)
    if not all(bound is None or bound > 0 for bound in bounds):
        return None
    return Strip(row.claim.id, str(reading), row.verdict, bounds, (reading.value, *reading.ends))
