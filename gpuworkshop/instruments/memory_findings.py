"""What memory's results mean: pure functions of them. Nothing here measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuworkshop.instruments import memory_axes
from gpuworkshop.instruments.memory_result import (
    RULE,
    BatchSweep,
    CeilingResult,
    CureResult,
    MemoryResult,
)
from gpuworkshop.machine.processes_findings import CONTEXT
from gpuworkshop.numbers import amount, counted, number, percent, several
from gpuworkshop.report import Finding

CHANGES = "a larger batch also changes the training: fewer updates an epoch, another learning rate"
"""What must be said wherever a larger batch is named."""
RETRY = (
    "the allocator found no room, gave back everything that it kept, and asked again; that costs time and soon fails"
)
RESIDENT = "the system limits what is asked for, used or not; resident is what was used, loaded code included"

Result = MemoryResult | BatchSweep | CeilingResult | CureResult


def findings(result: Result, watched: Any = None) -> Iterator[Finding]:
    """What a result says; ``watched``, a watch result of the same job, adds its place on the two axes."""
    yield from _OF[type(result)](result)
    if watched is not None:
        yield from memory_axes.findings(watched)


# The life of the memory


def _life(result: MemoryResult) -> Iterator[Finding]:
    yield _largest(result)
    yield from _by_batch(result)
    yield from _optimizer(result)
    yield from _first_step(result)
    last = result.last
    if last.reserve and last.reserve > max(CONTEXT, last.lasting):
        told = f"{amount(last.reserve)} at the end of a step"
        yield Finding("notice", "Memory is held by PyTorch, not lost", f"{told}: its next tensors go there")
    if last.others and last.others > CONTEXT and last.context is not None:
        yield Finding("warning", f"Others hold {amount(last.others)} on this card", "", "nvidia-smi   # who is it?")
    if result.host:
        why = (
            "workers and data live there; where it is used up, the system ends the process or the kernel without a word"
        )
        yield Finding("ok", f"Host memory: {amount(result.host)} at most, said by {result.host_said_by}", why)
    if result.by == "saved tensors":
        yield Finding(
            "notice",
            "On a CPU no allocator counts: peak, reserve and context are n/a",
            "weights, gradients and optimizer are counted from their tensors, activations by what autograd saves",
        )


def _largest(result: MemoryResult) -> Finding:
    kept, peak = result.kept, result.peak
    parts = {"weights": kept.weights, "optimizer": kept.optimizer, "activations": kept.activations or 0}
    most = max(parts, key=parts.__getitem__)
    told = ", ".join(f"{name} {amount(size)}" for name, size in parts.items())
    where = f"at the end of forward: {told}; gradients at the end of backward {amount(result.last.gradients)}"
    if peak is None:
        return Finding("ok", f"The largest part is {most}: {amount(parts[most])}", where)
    share = f", {percent(peak.peak / result.total)} of the card" if result.total else ""
    step = "the first step" if peak.step == 1 else "a later step"
    title = f"The peak in tensors is {amount(peak.peak)}, in the {peak.name} of {step}{share}"
    return Finding("ok", title, where)


def _by_batch(result: MemoryResult) -> Iterator[Finding]:
    kept = result.kept
    if result.batch_size and kept.activations:
        each = kept.activations / result.batch_size
        yield Finding(
            "ok",
            f"Only the activations grow with the batch: {amount(round(each))} a sample",
            f"{amount(kept.activations)} for {counted(result.batch_size, 'sample')}; "
            f"the rest, {amount(result.last.lasting)} at the end of a step, stays",
        )


def _optimizer(result: MemoryResult) -> Iterator[Finding]:
    last = result.last
    if last.weights and last.optimizer:
        ratio = number(last.optimizer / last.weights)
        title = f"{result.optimizer} keeps {ratio} times the weights: {amount(last.optimizer)}"
        why = "they come with the first update: a batch is only tried by whole steps"
        if last.gradients and last.gradients < last.weights:
            held = amount(last.weights - last.gradients)
            why += f"; {held} of the weights are not trained, such as BatchNorm's statistics, and have no gradients"
        yield Finding("ok", title, why)


def _first_step(result: MemoryResult) -> Iterator[Finding]:
    tops = [max((m.peak for m in result.moments if m.step == step and m.peak), default=0) for step in (1, 2)]
    if tops[0] and tops[1] > 1.02 * tops[0]:
        yield Finding(
            "notice",
            f"The first step peaks lower than the later ones: {amount(tops[0])} against {amount(tops[1])}",
            "a batch that survives one step may still be too large",
        )


# The sweep


def _sweep(result: BatchSweep) -> Iterator[Finding]:
    best = max(result.measured, key=lambda point: point.rate.value)
    knee = next(point for point in result.measured if point.batch == result.knee)
    smallest = result.measured[0]
    if result.still_rising:
        yield Finding(
            "notice",
            f"Throughput still rises at the largest size tried, {knee.batch:,}: {knee.rate}",
            f"{smallest.batch:,}: {smallest.rate}; {CHANGES}",
            "try larger ones, up to the batch ceiling: gpuworkshop memory --ceiling",
        )
    else:
        rates = f"best {best.rate} at {best.batch:,}; smallest size {smallest.batch:,}: {smallest.rate}"
        title = f"The knee is a batch of {knee.batch:,}: {knee.rate}, within 5% of the best"
        yield Finding("ok", title, f"{rates}; {CHANGES}", f"batch_size={knee.batch}")
    for point in result.points:
        if not point.rate:
            yield Finding("notice", f"A batch of {point.batch:,} does not fit", point.note)


# The ceiling


def _ceiling(result: CeilingResult) -> Iterator[Finding]:
    if result.planted:
        yield Finding("notice", f"Planted: {result.planted}", "a real limit, put there to be found")
    if result.others:
        told = f"{amount(result.room)} were free of {amount(result.total)}"
        yield Finding("warning", f"{amount(result.others)} used by others: this ceiling is for now only", told)
    yield _ended(result)
    yield from _recommended(result)
    yield from _oddities(result)
    for note in result.notes:
        yield Finding("notice", note[:1].upper() + note[1:])


def _ended(result: CeilingResult) -> Finding:
    """The answer, or why there is none."""
    told = _how(result)
    fits = f"{result.ceiling:,} fits" if result.ceiling else "no size fitted yet"
    if result.ended == "found":
        title = f"The batch ceiling is {result.ceiling:,}: three full steps without an allocator retry"
        failed = [probe for probe in result.probes if probe.batch == result.above and probe.retries]
        why = ", though it ran: " + RETRY if failed else ""
        return Finding("ok", title, f"{result.above:,} does not fit{why}; {told}")
    if result.ended == "cap":
        return Finding(
            "notice", f"Not limited by memory up to {result.ceiling:,}", f"the largest size asked for; {told}"
        )
    if result.ended == "same memory":
        sizes = f"{result.probes[0].batch:,} and {result.probes[-1].batch:,}"
        title = f"No ceiling: batches of {sizes} take the same memory"
        fix = "step(batch_size) must make, or take, a batch of that size"
        return Finding("unknown", title, f"does the step use its batch size? {told}", fix)
    if result.ended == "nothing fits":
        smallest = min(probe.batch for probe in result.probes)
        return Finding("fail", f"Not even a batch of {smallest} fits", told, memory_axes.OUT.replace(", a", ", not a"))
    if result.ended == "fault":
        return _fault(result, fits)
    limit = "time" if result.ended == "time" else "number of tries"
    return Finding("unknown", f"No ceiling within the {limit} allowed: {fits}", told)


def _fault(result: CeilingResult, fits: str) -> Finding:
    probe = result.probes[-1]
    fault = probe.fault
    why = "host memory" if fault.kind == "host memory" else "another reason than memory"
    title = f"A batch of {probe.batch:,} fails for {why}: {fault.words}"
    return Finding(
        "fail", title, "; ".join(filter(None, (fits, fault.where and f"raised at {fault.where}"))), fault.advice
    )


def _how(result: CeilingResult) -> str:
    """How it was found, in numbers."""
    parts = [f"{len(result.probes)} sizes tried in {result.seconds:.1f} s, {amount(result.room)} free at the start"]
    if result.line and result.line.slope > 0:
        parts.append(f"{amount(round(result.line.slope))} a sample and {amount(round(result.line.base))} beside")
    return ", ".join(parts)


def _recommended(result: CeilingResult) -> Iterator[Finding]:
    """The knee, with the published rule beside it; the rule alone where no knee was measured."""
    if result.ended not in ("found", "cap") or not result.rule or result.ceiling < 2:
        return
    low, high = result.rule
    ruled = f"the published rule, {RULE[0]:.0%} to {RULE[1]:.0%} of the ceiling, says {low:,} to {high:,}"
    if result.ended == "cap":
        ruled = "the published rule needs a ceiling"
    if result.knee is None:
        if result.ended == "found":
            fix = "gpuworkshop memory --sweep   # in Python: memory.sweep(step, sizes)"
            title = f"Published rule: a batch of {low:,} to {high:,}, or at the knee if that comes first"
            yield Finding("notice", title, CHANGES, fix)
        return
    knee = result.knee.knee
    if result.knee.still_rising and knee < low:
        yield Finding("notice", f"Throughput still rises at {knee:,}: try up to {high:,}", f"{ruled}; {CHANGES}")
        return
    rate = next(point.rate for point in result.knee.measured if point.batch == knee)
    title = f"Take the knee: a batch of {knee:,} is within 5% of the best throughput ({rate})"
    yield Finding("ok", title, f"{ruled}: more memory, no more speed; {CHANGES}", f"batch_size={knee}")


def _oddities(result: CeilingResult) -> Iterator[Finding]:
    perhaps = [probe for probe in result.probes if probe.fault and probe.fault.kind == "maybe memory"]
    if perhaps:
        title = f"A batch of {perhaps[0].batch:,} failed with words that may not mean memory; it counts as too large"
        yield Finding("notice", title, perhaps[0].fault.words)
    if not result.steady:
        title = "The memory does not grow steadily with the batch: another kernel may be chosen at another size"
        read = [f"{p.batch:,}: {amount(p.allocated)}" for p in sorted(result.probes, key=lambda p: p.batch) if p.fits]
        yield Finding("notice", title, ", ".join(read))
    advice = next(
        (p.fault.advice for p in result.probes if p.fault and p.fault.kind == "memory" and p.fault.advice), ""
    )
    if advice:
        yield Finding("notice", "Much of the memory lay unused in pieces when it ran out", "", advice)


# The cure


def _cure(result: CureResult) -> Iterator[Finding]:
    if result.planted:
        needs = f"it needs {amount(result.needed)}" if result.needed else ""
        if result.conditions.device == "cpu":
            needs = "; ".join(filter(None, (needs, RESIDENT)))
        yield Finding("notice", f"Planted: {result.planted}", needs)
    first, cured = result.attempts[0], result.cured
    if first.fits:
        yield Finding("unknown", "The job did not run out of memory", f"peak {amount(first.peak)}")
        return
    why = first.fault.words if first.fault else f"{counted(first.retries, 'allocator retry').replace('rys', 'ries')}"
    yield Finding("notice", f"Out of memory at a batch of {first.config.batch_size:,}", why)
    for attempt in result.attempts[1:]:
        if attempt is not cured:
            words = attempt.fault.words if attempt.fault else f"peak {amount(attempt.peak)}, with allocator retries"
            yield Finding("notice", f"{attempt.change}: not enough", words)
    last = result.attempts[-1].fault
    if cured is None and last and last.kind == "other":
        fix = "gpuworkshop memory --oom --preset gpt-small" if result.conditions.device == "cpu" else ""
        at = result.attempts[-1].change or "the job as it is"
        title = f"Stopped at {at}: it failed in words that may not mean memory"
        yield Finding("unknown", title, last.words, fix)
        return
    if cured is None:
        yield Finding("fail", "Nothing of the taught order made it run", "", "a larger card, or a smaller model")
        return
    changes = " + ".join(attempt.change for attempt in result.attempts[1:] if not attempt.change.startswith("a batch"))
    smaller = cured.config.batch_size < first.config.batch_size
    title = f"Cured: {' + '.join(filter(None, (changes, cured.change if smaller else '')))}"
    said = f"peak {amount(cured.peak)}" + (f" of {amount(result.limit)} allowed" if result.limit else "")
    yield Finding("ok", title, said + ("; a smaller batch changes the training" if smaller else ""))
    if cured.batch_norm:
        yield twice(cured.batch_norm)


def twice(layers: tuple[str, ...]) -> Finding:
    """BatchNorm sees each batch twice: what that means."""
    return Finding(
        "warning",
        "Checkpointing updates BatchNorm's running statistics twice a step",
        f"gradients and loss are the same; what is evaluated later is not: {several(layers)}",
        "checkpoint blocks without BatchNorm, or halve its momentum",
    )


_OF = {MemoryResult: _life, BatchSweep: _sweep, CeilingResult: _ceiling, CureResult: _cure}
