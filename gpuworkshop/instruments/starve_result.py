"""What starve found and what it means: results, verdicts, findings, and their report. Nothing here measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, in_unit, number
from gpuworkshop.report import Finding, Origin, Report, Table
from gpuworkshop.timing import SMALLEST_EFFECT, Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig

LIMITING = 1.10
"""Headroom above which the data path is called the limit."""

LEAST_DATA = 0.05
"""Share of the time in the data path below which data are not called the limit."""

TOLERANCE = 0.10
"""Share of the run's time that wait and headroom may leave unexplained and still tell the same story."""


class StarveResult(msgspec.Struct, frozen=True):
    """What starve measured. Rates are in samples/s, shares from 0 to 1 of the real run's time."""

    workload: str
    real: Rate
    ceiling: Rate
    loader: Rate | None
    """None when it was not asked for."""
    headroom: Comparison
    """Ceiling over now."""
    wait_name: Literal["stall", "loader wait"]
    wait_share: float
    data_work_share: float
    """Copying, decoding and cropping on the step's own device."""
    slowed_share: float
    """What is left of the difference: the step is slowed by the loader's use of the machine."""
    agrees: bool | None
    """Whether wait and headroom tell the same story; None with workers, where the rest is ``slowed_share``."""
    limit: Literal["data", "compute", "unknown"]
    startup_seconds: float
    workers: int
    batch_size: int
    config: TrainConfig | None
    planted: str
    conditions: Conditions
    origin: Origin
    wait_interval: tuple[float, float] = (0.0, 1.0)
    """95% interval of ``wait_share`` over the blocks."""

    @property
    def at_most(self) -> float:
        """The upper bound on what any change to the data path can bring, as a ratio: the interval's upper end."""
        return max(1.0, self.headroom.high)

    @property
    def wait_percent(self) -> Rate:
        """``wait_share`` with its interval, in percent of the time."""
        low, high = self.wait_interval
        return Rate(100 * self.wait_share, 100 * low, 100 * high, self.real.n, "%")


class SweepPoint(msgspec.Struct, frozen=True):
    """One number of workers: its rate and its comparison with 0 workers, or a note why there is none."""

    workers: int
    rate: Rate | None
    against_zero: Comparison | None
    note: str = ""


class SweepResult(msgspec.Struct, frozen=True):
    """The rate over the number of workers, all measured in turn, with the data ceiling."""

    workload: str
    points: tuple[SweepPoint, ...]
    ceiling: Rate
    cpus: int
    planted: str
    conditions: Conditions
    origin: Origin

    @property
    def measured(self) -> tuple[SweepPoint, ...]:
        """The points that could be measured."""
        return tuple(point for point in self.points if point.rate)

    @property
    def best(self) -> SweepPoint:
        """The smallest number of workers that does as well as the fastest, within 3% or the noise of both."""
        fastest = max((point.rate for point in self.measured), key=lambda rate: rate.value)
        least = min(fastest.low, fastest.value / (1 + SMALLEST_EFFECT))
        return next(p for p in self.measured if p.rate.value >= least or p.rate.high >= fastest.value)


def tells_same_story(data_share: float, headroom: Comparison) -> bool:
    """Whether 1 - (share of data) equals 1 / headroom: the time left for the step, seen from both sides.

    They may differ by the noise of the headroom and by :data:`TOLERANCE` of the time: a step that runs between
    decodes finds cold caches and is slower than in a tight loop, also without workers.
    """
    left = 1 - data_share
    return 1 / headroom.high - TOLERANCE <= left <= 1 / headroom.low + TOLERANCE


def which_limit(headroom: Comparison, agrees: bool | None, data_share: float) -> Literal["data", "compute", "unknown"]:
    """Which of the two limits the run; "unknown" where the interval, or the time seen in the data path, does not say.

    ``data_share`` is the share of the time spent waiting and on data work. Headroom without any of it means that the
    step is slowed by something beside it, by workers or by other work on the same CPUs.
    """
    if agrees is False or headroom.verdict == "unknown":
        return "unknown"
    if headroom.ratio >= LIMITING and headroom.verdict == "faster" and data_share >= LEAST_DATA:
        return "data"
    return "compute" if headroom.high < LIMITING else "unknown"


def findings(result: StarveResult | SweepResult) -> Iterator[Finding]:
    """What a result says, as a pure function of it."""
    if result.planted:
        yield Finding("notice", f"Planted: {result.planted}", "a real wait, put there to stand for slow storage")
    if isinstance(result, SweepResult):
        yield from _sweep_findings(result)
        return
    yield _limit_finding(result)
    if result.agrees is False:
        yield Finding("unknown", f"{result.wait_name} and headroom do not tell the same story", _terms(result))
    elif result.slowed_share > 0.05:
        yield Finding(
            "notice", f"The step itself is slowed by the loader: {result.slowed_share:.0%} of the time", _terms(result)
        )
    if result.workers > result.conditions.cpus:
        yield Finding(
            "warning",
            f"{counted(result.workers, 'worker')} on {counted(result.conditions.cpus, 'CPU')}",
            f"{counted(result.conditions.cpus, 'CPU')} by {result.conditions.cpus_said_by}",
            f"num_workers={workers_rule(result.conditions.cpus)}",
        )
    if result.workers:
        yield Finding("ok", f"Starting {result.workers} workers took {result.startup_seconds:.1f} s, measured apart")


def _limit_finding(result: StarveResult) -> Finding:
    numbers = f"now {result.real}, data ceiling {result.ceiling}"
    if result.loader:
        numbers += f", loader alone {result.loader}"
    if result.limit == "data":
        waits = f"{result.wait_share:.0%} {result.wait_name}"
        title = f"Data limits this run: {waits}, headroom <= {result.at_most:.1f}x"
        return Finding("warning", title, numbers, _data_fix(result))
    if result.limit == "compute":
        title = f"The step limits this run: a perfect loader would bring <= {result.at_most:.2f}x"
        return Finding("ok", title, numbers, "leave the loader alone; look at the step (precision, batch size)")
    between = f"headroom between {result.headroom.low:.2f}x and {result.headroom.high:.2f}x"
    if result.workers and result.headroom.verdict == "faster":
        title = f"The step is slowed by what runs beside it, not by waiting: {between}"
        return Finding("unknown", title, numbers, "fewer workers, or nothing else on these CPUs; then measure again")
    quiet = "measure again on a quiet machine"
    if result.conditions.device == "cpu" and result.conditions.threads > 1:
        quiet += ", after torch.set_num_threads(1)"
    return Finding("unknown", f"Not judged: {between}", numbers, quiet)


def _data_fix(result: StarveResult) -> str:
    """What to do first about a loader that limits."""
    if result.config:  # a built-in workload
        return "gpuworkshop loop   # tries workers and cheaper paths from file to batch, one at a time"
    if result.workers == 0:
        rule = max(2, workers_rule(result.conditions.cpus))
        return f"DataLoader(..., num_workers={rule})   # then measure again"
    return "decode once, or on the card: the loader's own work must become less"


def _terms(result: StarveResult) -> str:
    return (
        f"{result.wait_name} {result.wait_share:.0%}, data work on the device {result.data_work_share:.0%}, "
        f"step slowed by the loader {result.slowed_share:.0%}, headroom {result.headroom.ratio:.2f}x"
    )


def _sweep_findings(result: SweepResult) -> Iterator[Finding]:
    best, rule = result.best, workers_rule(result.cpus)
    if best.against_zero is None or best.against_zero.verdict != "faster":
        yield Finding("notice", "No number of workers made a real difference here", _rates(result))
    else:
        words = f"{counted(best.workers, 'worker')} do as well as the best: {best.against_zero}"
        yield Finding("ok", words, _rates(result), f"num_workers={best.workers}")
    at_rule = next((p for p in result.measured if p.workers == rule and p.against_zero), None)
    if at_rule and at_rule is not best:
        why = "; one worker decodes alone, as the main process did" if rule == 1 else ""
        evidence = f"on {counted(result.cpus, 'CPU')}, {at_rule.rate}{why}"
        yield Finding("notice", f"The rule CPUs - 1 says {rule}: {at_rule.against_zero}", evidence)
    for point in result.points:
        if point.note:
            yield Finding("warning", f"{counted(point.workers, 'worker')}: not possible", point.note)


def _rates(result: SweepResult) -> str:
    """All measured rates in one line."""
    rates = [f"{point.workers}: {number(point.rate.value)}" for point in result.measured]
    ceiling = in_unit(number(result.ceiling.value), result.ceiling.unit)
    return f"workers {', '.join(rates)}; data ceiling {ceiling}"


def report(result: StarveResult | SweepResult) -> Report:
    """The result with its findings, a table and the recurring picture."""
    from gpuworkshop.figures.strip import step_strip
    from gpuworkshop.figures.sweep import workers_sweep

    found = tuple(findings(result))
    if isinstance(result, SweepResult):
        picture = workers_sweep(
            result.points, result.ceiling, workers_rule(result.cpus), result.origin, result.ceiling.unit
        )
        return Report(f"Workers sweep: {result.workload}", result.origin, found, (_sweep_table(result),), (picture,))
    now, ceiling = strip(result)
    picture = step_strip(now, result.origin, ceiling)
    return Report(f"Starve: {result.workload}", result.origin, found, (_table(result),), (picture,))


def strip(result: StarveResult) -> tuple[list[tuple[str, float, str]], list[tuple[str, float, str]]]:
    """One step now and one at the ceiling as parts (name, seconds, kind) for the step strip."""
    step = result.batch_size / result.real.value
    shares = [
        (result.wait_name, result.wait_share, "wait"),
        ("data work", result.data_work_share, "copy"),
        ("slowed", max(0.0, result.slowed_share), "slowed"),
    ]
    parts = [(name, share * step, kind) for name, share, kind in shares]
    parts.append(("step", step - sum(seconds for _, seconds, _ in parts), "compute"))
    return parts, [("step", result.batch_size / result.ceiling.value, "compute")]


def _table(result: StarveResult) -> Table:
    measured = [
        ("now", result.real),
        ("data ceiling (resident batches)", result.ceiling),
        ("loader alone", result.loader),
    ]
    rows = [(name, str(rate), f"{1000 * result.batch_size / rate.value:.1f}") for name, rate in measured if rate]
    caption = f"{result.headroom.pairs} rounds in turn; batch of {result.batch_size}"
    return Table(("arm", "throughput", "ms a batch"), tuple(rows), caption)


def _sweep_table(result: SweepResult) -> Table:
    rows = [(str(p.workers), str(p.rate) if p.rate else p.note, str(p.against_zero or "")) for p in result.points]
    rows.append(("data ceiling", str(result.ceiling), ""))
    return Table(("workers", "throughput", "against 0 workers"), tuple(rows), "all measured in turn")
