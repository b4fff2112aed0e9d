"""What a loop found and what it means: the result, its findings, its table and the waterfall. Nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from gpuworkshop.instruments.flops import speed
from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.loop import guide
from gpuworkshop.loop.diagnose import diagnose
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.look_result import Look
from gpuworkshop.loop.remedies import remedies
from gpuworkshop.loop.trial_result import UNATTRIBUTED
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, percent
from gpuworkshop.report import Finding, Origin, Report, Table
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import Job, TrainConfig

NOTHING_PAYS = "nothing that is left to try pays"
"""Why a loop stopped that measured every change there was."""


class LoopResult(msgspec.Struct, frozen=True):
    """What the loop found: where it began, every trial in order, where it ended, and what is left."""

    run: str
    job: Job
    baseline: StarveResult
    records: tuple[Record, ...]
    """The baseline, each change that was tried, kept or not, in order."""
    final: StarveResult
    of_synthetic: Comparison
    """Final throughput over that of the same step on random batches."""
    synthetic: Rate
    jpegs: Rate | None
    """The best path that still decodes JPEGs each time, all else as in the final run; None if that is the final one."""
    jpegs_config: TrainConfig | None
    gain: float
    """Product of the kept changes' ratios."""
    stopped: str
    seconds: float
    conditions: Conditions
    origin: Origin
    looks: tuple[Look, ...] = ()
    """At the baseline and after each kept change: what limits. Empty in recordings of kit 0.1.0 and before."""
    spent: dict[str, float] = {}
    """Where the time went: seconds by what was done, without starting and building. Empty in older recordings."""
    untried: tuple[str, ...] = ()
    """What would have come next and was not tried, where the loop had to stop before."""

    @property
    def kept(self) -> list[Record]:
        """The changes that were kept, in order."""
        return [record for record in self.records if record.kind == "change" and record.kept]

    @property
    def refused(self) -> list[Record]:
        """The changes that were measured and not kept."""
        return [record for record in self.records if record.kind == "change" and not record.kept]


def findings(result: LoopResult) -> Iterator[Finding]:
    """What a loop says, as a pure function of its result."""
    if result.baseline.planted:
        yield Finding("notice", f"Planted: {result.baseline.planted}", "a real wait, to stand for slow storage")
    first = result.looks[0] if result.looks else result.baseline
    yield Finding("notice", f"It began with: {diagnose(first).reason}", f"{result.baseline.real}")
    if result.looks:
        yield guide.beside(result.looks[0], diagnose(result.looks[0]).limit)
    yield from map(_kept_finding, result.kept)
    for record in result.refused:
        yield Finding("notice", f"{record.remedy}: not kept", f"{_values(record)}: {record.why}")
    if not result.kept:
        yield _nothing_kept(result)
    if result.untried:
        title = f"Not tried: {', '.join(result.untried)}"
        yield Finding("notice", title, f"stopped because {result.stopped}", _to_go_on(result))
    left = f"{result.of_synthetic.ratio:.0%} of the same step on random batches ({result.synthetic})"
    gained = f"In all {_gain(result)}; it now" if result.kept else "As it was, it"
    yield Finding("ok", f"{gained} runs at {left}", f"stopped because {result.stopped}")
    if result.looks:
        yield from _left(result.looks[-1], len(result.looks) > 1)
    if result.jpegs:
        share = result.jpegs.value / result.final.real.value
        yield Finding(
            "notice",
            f"Still decoding JPEGs every time, the best path reaches {result.jpegs} ({share:.0%} of the final run)",
            f"{result.jpegs_config.data_path} with {result.jpegs_config.workers} workers, all else as in the final run",
        )
    if result.spent:
        yield _spent(result)


def _nothing_kept(result: LoopResult) -> Finding:
    """What it means that no change was kept: nothing, where the loop had to stop before all were measured."""
    if result.stopped == NOTHING_PAYS:
        return Finding("ok", "Nothing worth changing", "every remedy that applies was measured")
    tried = len(result.refused)
    title = (
        f"None of {counted(tried, 'change')} was kept; others were not measured" if tried else "No change was measured"
    )
    return Finding("unknown", title, f"stopped because {result.stopped}", _to_go_on(result))


def _to_go_on(result: LoopResult) -> str:
    """How to ask for a loop that does not stop there."""
    return "gpuworkshop loop " + ("--budget none" if "budget" in result.stopped else "without --max-changes")


def _spent(result: LoopResult) -> Finding:
    """Where the loop's time went, the most first."""
    most = sorted(result.spent.items(), key=lambda item: -item[1])
    said = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in most)
    return Finding("notice", f"The loop took {result.seconds:.0f} s", said)


def _kept_finding(record: Record) -> Finding:
    evidence = [f"changed {', '.join(record.changed)}"]
    if record.learning:
        evidence.append(record.learning.says)
    if record.limit_after:
        evidence.append(_moved(record))
    if record.paid_once_seconds >= 1:
        after = record.pays_back_after
        back = f", paid back after {counted(after, 'step')}" if after else ""
        evidence.append(f"paid once: {record.paid_once_seconds:.0f} s{back}")
    if alters_training(record):
        evidence.append("each sample may teach less: compare the losses before you keep it")
    if record.aside:
        evidence.append(record.aside)
    level = "warning" if alters_training(record) else "ok"
    return Finding(level, f"{record.remedy}: {record.comparison}", "; ".join(evidence), record.code)


def _moved(record: Record) -> str:
    """Whether the bottleneck moved."""
    if record.limit_before == record.limit_after:
        return f"the bottleneck stayed: {record.limit_after}"
    return f"the bottleneck moved: {record.limit_before or 'n/a'} -> {record.limit_after}"


def _left(last: Look, changed: bool) -> Iterator[Finding]:
    """What limits at the end, and how far the run is from what its device can do."""
    found = diagnose(last)
    if changed:
        yield Finding("notice", f"It ends with: {found.reason}", f"{last.starve.real}")
        yield guide.beside(last, found.limit)
    done, on_cpu = last.achieved, last.starve.conditions.device == "cpu"
    if done and done.rate:
        title = f"It computes {speed(done.rate)}: {percent(done.of_product)} of a large matrix product measured here"
        peak = f"{percent(done.of_peak)} of the published peak" if done.of_peak else f"peak n/a: {done.why}"
        product = f"the product reaches {speed(last.product)} in {last.precision.upper()}"
        threads = f" on {counted(last.starve.conditions.threads or 1, 'thread')}" if on_cpu else ""
        yield Finding("notice", title, f"{product}{threads}; {peak}")
    elif done:
        yield Finding("unknown", "How far it is from what the device can do is not known", done.why)
    if found.limit == "compute" and not on_cpu:
        why = "what they bring must be measured: they multiply what one card does, and its waste too"
        yield Finding("notice", "More cards are not tried here", why, "gpuworkshop scale")


def alters_training(record: Record) -> bool:
    """Whether a change alters the training itself, not only its speed."""
    return any(remedy.title == record.remedy and remedy.numerics == "training" for remedy in remedies())


def _gain(result: LoopResult) -> str:
    """The product of the kept ratios; apart from it, what it is without changes to the training itself."""
    same = math.prod(r.comparison.ratio for r in result.kept if r.comparison and not alters_training(r))
    words = f"{result.gain:.1f}x"
    return words if math.isclose(same, result.gain) else f"{words} ({same:.1f}x without what alters the training)"


def change_words(record: Record) -> str:
    """A change in a few words: the remedy and the new values."""
    return f"{record.remedy}: {', '.join(f'{name} {getattr(record.config, name)}' for name in record.changed)}"


def _values(record: Record) -> str:
    """The changed settings with their values, before and after."""
    return ", ".join(
        f"{name} {getattr(record.before, name)} -> {getattr(record.config, name)}" for name in record.changed
    )


def report(result: LoopResult) -> Report:
    """The loop's findings, its table, and the waterfall."""
    from gpuworkshop.figures.waterfall import waterfall

    picture = waterfall(bars(result.records), result.origin, result.final.ceiling)
    title = f"Loop: {result.job.title}"
    return Report(title, result.origin, tuple(findings(result)), (table(result),), (picture,))


def bars(records: Sequence[Record]) -> list:
    """The records as bars of the waterfall."""
    return [_bar(record) for record in records]


def _bar(record: Record):
    from gpuworkshop.figures.waterfall import Bar

    seen, learned = record.comparison, record.learning
    interval = (seen.ratio, seen.low, seen.high) if seen else (None, None, None)
    one = record.changed and record.config and UNATTRIBUTED not in record.why
    value = getattr(record.config, record.changed[0]) if one else None
    label = record.remedy or ("as it was" if record.own else "naive start")
    return Bar(
        f"{label}: {value}" if isinstance(value, int) else label,
        record.rate,
        *interval,
        record.kept,
        _why_not(record),
        learned.says.partition(":")[0] if learned else "",
    )


def _why_not(record: Record) -> str:
    """In few words why a change was not kept."""
    if record.kept or record.comparison is None:
        return "" if record.kept else record.why
    return UNATTRIBUTED if UNATTRIBUTED in record.why else record.comparison.verdict


def table(result: LoopResult) -> Table:
    """One row for each measured config, in order, with the run before it as it was measured in turn with it."""
    rows = [("naive start", "", "", str(result.baseline.real), "", "kept")]
    for record in result.records[1:]:
        ratio = f"{record.comparison.ratio:.2f}x" if record.comparison else "n/a"
        rates = str(record.rate_before or "n/a"), str(record.rate or "n/a")
        rows.append((record.remedy, _values(record), *rates, ratio, "kept" if record.kept else "not kept"))
    for name, rate in (
        ("final run, measured again", result.final.real),
        ("data ceiling: real batches, resident", result.final.ceiling),
        ("random batches, resident", result.synthetic),
    ):
        rows.append((name, "", "", str(rate), "", ""))
    columns = ("change", "settings", "run before", "throughput", "ratio", "")
    return Table(
        columns, tuple(rows), "each change measured in turn with the run before it; the machine may drift between rows"
    )
