"""From what the instruments found to one reading for each claim: pure functions of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuworkshop.course.calls import CallsResult
from gpuworkshop.course.claims_result import Reading, exact, missing, rate, ratio, spread
from gpuworkshop.course.demos import BF16, FP32, ONE_THREAD, DemoResult
from gpuworkshop.instruments.memory import BatchSweep, CeilingResult, MemoryResult
from gpuworkshop.instruments.precision_result import PrecisionResult
from gpuworkshop.instruments.profile_result import ProfileResult
from gpuworkshop.instruments.scaling_result import ScalingResult
from gpuworkshop.instruments.starve import StarveResult, SweepPoint, SweepResult
from gpuworkshop.instruments.watch import WatchResult
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, number, percent, several
from gpuworkshop.timing import Comparison, Rate

Readings = dict[str, Reading]

FEW_BUSY = 0.60
"""Utilization below which the workshop suspects the data pipeline."""
BUSY = 0.80
"""Utilization above which it calls a card used."""
ENOUGH_WORKERS = 4
TOP_ROWS = 5
NO_CARD = "there is no card here"
NO_MEMORY = "there is no card here, and a CPU's memory is the whole machine's"


class Trained(msgspec.Struct, frozen=True):
    """A few training steps in a process of their own: on which device, and what was said or raised on the way."""

    device: str
    error: str = ""
    warnings: tuple[str, ...] = ()
    conditions: Conditions | None = None


class Looked(msgspec.Struct, frozen=True):
    """One job: does it wait for data, and how busy is its card meanwhile (in percent)? None: no driver says."""

    name: str
    starve: StarveResult
    busy: Rate | None
    busy_why: str = ""


class LoaderSeen(msgspec.Struct, frozen=True):
    """What was seen of loaders beside a sweep: jobs that were looked at, and prefetch_factor 2 against 4."""

    zero: Looked
    some: Looked | None
    others: tuple[Looked, ...] = ()
    prefetch: Comparison | None = None
    prefetch_workers: int = 0


# ---------------------------------------------------------------- verify


def verified(
    seconds: Sequence[float], hidden: Trained | None = None, bare: Trained | None = None, card: bool = True
) -> Readings:
    """How long verify took each time; training with the card hidden, and, on a ``card``, without any module's CUDA."""
    found: Readings = {}
    if seconds:
        says = f"from the fastest to the slowest of {len(seconds)}" if len(seconds) > 1 else "one run alone"
        ends = (min(seconds), max(seconds)) if len(seconds) > 1 else (None, None)
        found["verify-5s"] = Reading(statistics.median(seconds), *ends, len(seconds), "s", says)
    if hidden:
        words = hidden.error or f"it trained on the {hidden.device}, with {counted(len(hidden.warnings), 'warning')}"
        found["silent-cpu"] = exact(hidden.device == "cpu" and not hidden.error, "yes", words)
    if not card:
        found["cuda-module"] = missing(NO_CARD)
    elif bare:
        there = bare.device != "cpu"
        words = "PyTorch found the card with the CUDA that it brings" if there else "PyTorch trained on the CPU"
        found["cuda-module"] = exact(not there, "yes", "; ".join(filter(None, (words, bare.error))))
    return found


# ---------------------------------------------------------------- loader


def loader_alone(seen: StarveResult) -> Readings:
    """The measured wait against what the two timings say, in points of percent."""
    if seen.loader is None:
        return {"two-timings": missing("the loader was not timed alone")}
    ends = [_wasted(loader, seen.ceiling) for loader in (seen.loader.low, seen.loader.value, seen.loader.high)]
    low, high = seen.wait_interval
    says = f"{seen.workload}: {percent(seen.wait_share)} {seen.wait_name} measured, the timings say {percent(ends[1])}"
    difference = [100 * part for part in (seen.wait_share - ends[1], low - max(ends), high - min(ends))]
    return {"two-timings": spread(*difference, seen.real.n, "points", says)}


def _wasted(loader: float, compute: Rate) -> float:
    """The share that a step waits where the loader gives so many samples/s and computing takes so many."""
    return max(0.0, 1 - loader / compute.value)


def swept(sweep: SweepResult, zero: StarveResult | None) -> Readings:
    """The rule for the number of workers, and their gain against the most that a change to the step could gain."""
    found = {"workers-rule": _by_rule(sweep)}
    if zero is not None:
        found["workers-win"] = _win(sweep, zero)
    return found


def _by_rule(sweep: SweepResult) -> Reading:
    rule = workers_rule(sweep.cpus)
    mine = next((point for point in sweep.measured if point.workers == rule), None)
    others = [point for point in sweep.measured if point.workers != rule]
    if mine is None or not others:
        return missing(f"{counted(rule, 'worker')}, the rule on {counted(sweep.cpus, 'CPU')}, was not measured")
    best = max(others, key=lambda point: point.rate.value)
    ends = (mine.rate.value / best.rate.value, mine.rate.low / best.rate.high, mine.rate.high / best.rate.low)
    says = f"{sweep.workload}: {rule} of {sweep.cpus} CPUs against {counted(best.workers, 'worker')}"
    return spread(*ends, mine.rate.n, "x", says)


def _win(sweep: SweepResult, zero: StarveResult) -> Reading:
    best = _enough(sweep)
    if best is None:
        return missing(_too_few(sweep))
    data = zero.wait_share + zero.data_work_share
    bound = 1 / data if data > 0 else float("inf")
    gain = best.against_zero
    says = (
        f"{sweep.workload}: {counted(best.workers, 'worker')} bring {gain.ratio:.2f}x; a step that took no time at all "
        f"would bring {number(bound)}x"
    )
    return spread(gain.ratio / bound, gain.low / bound, gain.high / bound, gain.pairs, "x", says)


def _enough(sweep: SweepResult) -> SweepPoint | None:
    """The smallest number of workers, from 4 on, that does as well as the fastest of those; None for fewer CPUs."""
    points = [point for point in sweep.measured if point.workers >= ENOUGH_WORKERS and point.against_zero]
    return next((p for p in points if p.rate.high >= max(q.rate.value for q in points)), None)


def _too_few(sweep: SweepResult) -> str:
    some = [point for point in sweep.measured if point.workers and point.against_zero]
    most = max(some, key=lambda point: point.workers, default=None)
    beside = f"; {counted(most.workers, 'worker')}: {most.against_zero}" if most else ""
    return f"{counted(sweep.cpus, 'CPU')} have no room for {ENOUGH_WORKERS} workers{beside}"


def looked(seen: LoaderSeen) -> Readings:
    """What was watched: utilization with workers, jobs below 60%, and prefetch_factor."""
    found = loader_alone(seen.zero.starve)
    found["workers-utilization"] = _utilization(seen.zero, seen.some)
    found["below-60"] = _below(one for one in (seen.zero, seen.some, *seen.others) if one)
    if seen.prefetch:
        says = f"{seen.zero.starve.workload}, {counted(seen.prefetch_workers, 'worker')}: {seen.prefetch.verdict}"
        found["prefetch"] = ratio(seen.prefetch, says)
    return found


def _utilization(zero: Looked, some: Looked | None) -> Reading:
    if some is None:
        return missing(f"this job's CPUs have no room for {ENOUGH_WORKERS} workers")
    before, after = zero.busy, some.busy
    if before is None or after is None:
        return missing(zero.busy_why or some.busy_why or "the driver does not tell utilization here")
    says = (
        f"{zero.starve.workload}: from {number(before.value)}% to {number(after.value)}% with "
        f"{counted(some.starve.workers, 'worker')}"
    )
    if before.low <= 0:
        return missing("with 0 workers the driver's utilization cannot be told from 0", says)
    ends = (after.value / before.value, after.low / before.high, after.high / before.low)
    return spread(*ends, after.n, "x", says)


def _below(jobs: Iterable[Looked]) -> Reading:
    """Of the jobs below 60% utilization whose limit is known, the share that waits for data."""
    jobs = list(jobs)
    if all(job.busy is None for job in jobs):
        return missing(jobs[0].busy_why or NO_CARD)
    low = [job for job in jobs if job.busy and job.busy.value < 100 * FEW_BUSY and job.starve.limit != "unknown"]
    if not low:
        return missing("no job that was looked at is below 60%")
    data = [job for job in low if job.starve.limit == "data"]
    other = [job.name for job in low if job not in data]
    says = f"{len(data)} of {counted(len(low), 'job')} of the kit; how common each is among users is not measured"
    return exact(100 * len(data) / len(low), "%", says + (f"; no slow loader: {several(other)}" if other else ""))


# ---------------------------------------------------------------- batch and memory


def batches(sweep: BatchSweep) -> Readings:
    """The gain of one doubling of the batch, over those that begin below half of the best rate."""
    points = sweep.measured
    if len(points) < 2:
        return {"doubling": missing("only one batch size could be measured")}
    best = max(point.rate.value for point in points)
    started = [point for point in points[:-1] if point.rate.value < best / 2] or [points[0]]
    end = points[points.index(started[-1]) + 1]
    doublings = math.log2(end.batch / points[0].batch)
    gain = end.against_smallest
    steps = f"{points[0].batch} to {end.batch}, {counted(round(doublings), 'doubling')}"
    says = f"{sweep.workload}: {steps}: {gain.ratio:.2f}x"
    if points[0].rate.value >= best / 2:
        says += "; the smallest batch already has more than half of the best rate"
    ends = [part ** (1 / doublings) for part in (gain.ratio, gain.low, gain.high)]
    return {"doubling": spread(*ends, gain.pairs, "x", says)}


def life(seen: MemoryResult) -> Readings:
    """What Adam keeps, and when the memory peaks."""
    found = {"adam-state": missing(f"the optimizer is {seen.optimizer}")}
    if seen.optimizer.startswith("Adam"):
        says = f"{seen.workload}: {seen.optimizer}, {number(seen.parameters / 1e6)} M parameters"
        found["adam-state"] = exact(seen.last.optimizer / seen.last.weights, "x", says)
    peak = seen.peak
    found["peak-in-backward"] = missing(NO_MEMORY)
    if peak is not None:
        step = "the first" if peak.step == 1 else "a later"
        found["peak-in-backward"] = exact(peak.name == "backward", "yes", f"in the {peak.name} of {step} step")
    return found


def ceiling(seen: CeilingResult | None) -> Readings:
    """The room above 15 to 20% of the card's memory, and where the knee lies below the ceiling."""
    if seen is None:
        return {"room": missing(NO_MEMORY), "at-70-85": missing(NO_MEMORY)}
    if not (seen.ceiling and seen.total and seen.line and seen.line.slope > 0):
        return {id: missing("no ceiling was found") for id in ("room", "at-70-85")}
    fill = {share: (share * seen.total - seen.line.base) / seen.line.slope for share in (0.15, 0.175, 0.20)}
    says = (
        f"{seen.workload}: a ceiling of {seen.ceiling}; 15% is a batch of {fill[0.15]:.0f}, 20% one of {fill[0.2]:.0f}"
    )
    found = {"room": missing("the model alone takes 15% of the card", says)}
    if fill[0.15] > 0:
        ends = (seen.ceiling / fill[share] for share in (0.175, 0.20, 0.15))
        found["room"] = spread(*ends, None, "x", says + "; from 20% to 15%, not an interval")
    found["at-70-85"] = _knee(seen)
    return found


def _knee(seen: CeilingResult) -> Reading:
    if seen.knee is None:
        return missing("the knee was not measured")
    if seen.knee.still_rising:
        return missing(f"throughput still rises at {seen.knee.knee}, the largest size that was tried")
    says = f"{seen.workload}: a batch of {seen.knee.knee} is within 5% of the best rate, the ceiling is {seen.ceiling}"
    return exact(100 * seen.knee.knee / seen.ceiling, "%", says)


# ---------------------------------------------------------------- precision


def precision(seen: PrecisionResult) -> Readings:
    """BF16 and checkpointing: memory, products, steps."""
    none = "not measured: " + (seen.arms[-1].note or "an arm is missing")
    by = next((f"by {one.memory.by}" for one in seen.arms if one.memory), "")
    product, step = seen.product_ratio("bf16", "fp32"), seen.bf16_over_fp32
    units = "" if seen.support.bf16 is not False else "; this device has no BF16 units"
    return {
        "bf16-activations": _saved(seen.bf16_saves, f"{seen.workload}; {by}", none),
        "bf16-products": ratio(product, f"a large product{units}") if product else missing(none),
        "bf16-products-tf32": _over_tf32(seen),
        "bf16-step": _step(step, product) if step and product else missing(none),
        "checkpointing-memory": _saved(seen.checkpointing_saves, f"{seen.workload}, each block; {by}", none),
        "checkpointing-compute": _saved(seen.checkpointing_computes, f"{seen.workload}: operations, counted", none),
        "checkpointing-time": _taken(seen, none),
    }


def _saved(share: float | None, says: str, none: str) -> Reading:
    return missing(none) if share is None else exact(100 * share, "%", says)


def _over_tf32(seen: PrecisionResult) -> Reading:
    if seen.support.has("tf32") is False:
        return missing("this device has no TF32")
    found = seen.product_ratio("bf16", "tf32")
    return ratio(found, "a large product") if found else missing("TF32 was not measured")


def _step(step: Comparison, product: Comparison) -> Reading:
    ends = (product.ratio / step.ratio, product.low / step.high, product.high / step.low)
    says = f"the product gains {product.ratio:.1f}x, the step {step.ratio:.1f}x"
    return spread(*ends, min(step.pairs, product.pairs), "x", says)


def _taken(seen: PrecisionResult, none: str) -> Reading:
    found = seen.checkpointing_takes
    if found is None:
        return missing(none)
    pairs = seen.ratio("bf16-checkpointing", "bf16").pairs
    return spread(*(100 * (part - 1) for part in found), pairs, "%", f"{seen.workload}: time of a step")


def types(seen: Mapping[str, str]) -> Readings:
    """How many things a step under autocast kept in float32."""
    kept = [name for name, kind in seen.items() if kind == "float32"]
    other = [f"{name} {kind}" for name, kind in seen.items() if kind != "float32"]
    says = ", ".join(other) if other else ", ".join(kept)
    return {"stays-fp32": exact(len(kept), f"of {len(seen)}", says)}


# ---------------------------------------------------------------- utilization, profile, calls


def busy(seen: DemoResult | None) -> Readings:
    """SM activity of one thread that keeps a card busy, and what BF16 gains where the card is busy in FP32 already."""
    if seen is None:
        return {id: missing(NO_CARD) for id in ("busy-is-bound", "busy-is-done")}
    return {"busy-is-bound": _one_thread(seen), "busy-is-done": _faster(seen)}


def _one_thread(seen: DemoResult) -> Reading:
    thread = seen.of(ONE_THREAD)
    if thread.busy is None or thread.sm is None:
        return missing("this driver does not tell both utilization and SM activity")
    if thread.busy < BUSY:
        return missing(f"one thread gave {percent(thread.busy)} utilization, not above 80%")
    return exact(100 * thread.sm, "% SM activity", f"one thread at {percent(thread.busy)} utilization")


def _faster(seen: DemoResult) -> Reading:
    both = [seen.of(FP32).busy, seen.of(BF16).busy]
    if None in both:
        return missing("the driver does not tell utilization here")
    if both[0] < BUSY:
        return missing(f"the card was {percent(both[0])} busy in FP32, not above 80%")
    says = f"{seen.workload}: {percent(both[0])} utilization in FP32, {percent(both[1])} in BF16"
    return ratio(seen.faster, says)


def watched(seen: WatchResult | None, idle: bool = True) -> Readings:
    """The length of the driver's window; on an idle card its power and the limit of it."""
    ids = ("one-second", "idle-watts", "b200-watts") if idle else ("one-second",)
    if seen is None or not seen.cards:
        return {id: missing(NO_CARD) for id in ids}
    card = seen.cards[0]
    found = {"one-second": missing(card.busy_why or "this driver has no buffer of samples to count")}
    if card.source == "sample buffer" and card.windows:
        found["one-second"] = exact(card.seconds / card.windows, "s", f"{card.windows} windows in {card.seconds:.1f} s")
    if idle:
        found["idle-watts"] = _watts(card.power, "this card, while nothing of this job runs")
        found["b200-watts"] = _watts(card.power_limit, "the limit")
    return found


def _watts(power: float | None, says: str) -> Reading:
    return missing("the driver does not tell the power") if power is None else exact(power, "W", says)


def calls(seen: CallsResult) -> Readings:
    """One call over many samples against one for each."""
    return {"one-call": ratio(seen.faster, f"{seen.samples:,} samples of 64 numbers through one layer")}


def profiles(short: ProfileResult, long: ProfileResult) -> Readings:
    """The largest difference between the shares of a short and a long profile, in points of percent."""
    few, many = _shares(short), _shares(long)
    if not few or not many:
        return {"profile-20": missing("the profiler recorded nothing to divide")}
    top = list(many)[:TOP_ROWS]
    apart = {name: 100 * abs(few.get(name, 0.0) - many[name]) for name in top}
    worst = max(apart, key=apart.get)
    steps = f"{short.sums.steps} against {counted(long.sums.steps, 'step')}"
    says = f"{long.workload}: {steps}; {worst} {percent(few.get(worst, 0.0))} against {percent(many[worst])}"
    return {"profile-20": exact(apart[worst], "points", says)}


def _shares(seen: ProfileResult) -> dict[str, float]:
    """What took the time, the largest first: kinds of kernels on a card, operators on a CPU."""
    if seen.sums.cards:
        return dict(seen.sums.kinds)
    whole = sum(row.cpu_self for row in seen.sums.operators)
    ranked = sorted(seen.sums.operators, key=lambda row: -row.cpu_self)
    return {row.name: row.cpu_self / whole for row in ranked} if whole else {}


# ---------------------------------------------------------------- several cards


def scaled(full: ScalingResult | None, starved: ScalingResult | None, why: str = "") -> Readings:
    """Weak scaling of a job without a slow loader and of one with it, and all-reduce of both gradients."""
    if full is None or starved is None:
        return {id: missing(why) for id in ("cards-divide", "starved-cards", "all-reduce-grows")}
    found = {"cards-divide": _efficiency(full), "starved-cards": _efficiency(starved)}
    found["all-reduce-grows"] = _reduced(*sorted((full, starved), key=lambda one: one.gradient_bytes))
    return found


def _efficiency(seen: ScalingResult) -> Reading:
    world = seen.world("weak")
    waits = f"{percent(seen.alone_wait)} {seen.wait_name} alone"
    return rate(world.efficiency, f"{seen.workload}, {counted(seen.ranks, 'rank')} by {seen.backend}; {waits}")


def _reduced(small: ScalingResult, large: ScalingResult) -> Reading:
    a, b = small.reduce_seconds, large.reduce_seconds
    if a is None or b is None:
        return missing("all-reduce alone was not measured")
    times = large.gradient_bytes / small.gradient_bytes
    says = f"a gradient {number(times)} times as large: {number(1e3 * a.value)} and {number(1e3 * b.value)} ms"
    return spread(b.value / a.value, b.low / a.high, b.high / a.low, min(a.n, b.n), "x", says)
