"""Memory's results as reports: findings, a table, and the recurring picture of each."""

from __future__ import annotations

from typing import Any

from gpuworkshop.instruments import memory_axes
from gpuworkshop.instruments.memory_findings import Result, findings
from gpuworkshop.instruments.memory_result import BatchSweep, CeilingResult, CureResult, MemoryResult
from gpuworkshop.numbers import amount, percent
from gpuworkshop.report import Figure, Report, Table
from gpuworkshop.workloads.config import TrainConfig


def report(result: Result, watched: Any = None) -> Report:
    """A result with its findings; ``watched``, a watch result of the same job, gives it its place on the two axes."""
    title, tables, figures = _OF[type(result)](result)
    cards = [] if watched is None else watched.cards
    axes = [memory_axes.table(card.busy, card.memory) for card in cards[:1]]
    return Report(title, result.origin, tuple(findings(result, watched)), (*tables, *axes), figures)


def most(result: CeilingResult | CureResult) -> str:
    """What the highest point of a probe counts: the allocator's tensors, or on a CPU what the process added."""
    return "most resident" if result.conditions.device == "cpu" else "most in tensors"


Parts = tuple[str, tuple[Table, ...], tuple[Figure, ...]]


def _life(result: MemoryResult) -> Parts:
    from gpuworkshop.figures.memory_stack import memory_stack

    by = "activations: what autograd saves for backward" if result.by == "saved tensors" else ""
    picture = memory_stack(result.moments, result.origin, result.total, by)
    batch = f", batch of {result.batch_size}" if result.batch_size else ""
    return f"Memory: {result.workload}{batch}{_in_format(result.config)}", (memory_axes.table(),), (picture,)


def _in_format(config: TrainConfig | None) -> str:
    """The number format that it was measured in, where that is known."""
    return f", {config.precision.upper()}" if config else ""


def _sweep(result: BatchSweep) -> Parts:
    from gpuworkshop.figures.batches import batch_sweep

    unit = result.measured[0].rate.unit
    picture = batch_sweep(result.points, result.knee, result.origin, unit)
    return f"Batch sweep: {result.workload}", (_sweep_table(result),), (picture,)


def _sweep_table(result: BatchSweep) -> Table:
    rows = tuple(
        (f"{p.batch:,}", str(p.rate) if p.rate else p.note, str(p.against_smallest or ""), amount(p.peak))
        for p in result.points
    )
    columns = ("batch", "throughput", "against the smallest", "peak in tensors")
    if all(point.peak is None for point in result.points):
        columns, rows = columns[:3], tuple(row[:3] for row in rows)
    return Table(columns, rows, "all measured in turn, on data that lay ready")


def _ceiling(result: CeilingResult) -> Parts:
    from gpuworkshop.figures.batches import batch_sweep
    from gpuworkshop.figures.ceiling import batch_ceiling

    rows = tuple(
        (
            f"{probe.batch:,}",
            "fits" if probe.fits else probe.fault.words if probe.fault else "allocator retries",
            amount(probe.allocated),
            percent(probe.allocated / result.room) if probe.allocated is not None and result.room else "n/a",
            f"{probe.seconds:.1f}",
        )
        for probe in result.probes
    )
    columns = ("batch", "three full steps", most(result), "of the room", "s")
    tables = [Table(columns, rows, "Sizes in the order they were tried")]
    figures = [batch_ceiling(result.probes, result.ceiling, result.room, result.line, result.origin, most(result))]
    if result.knee is not None:
        tables.append(_sweep_table(result.knee))
        rule = result.rule if result.ended == "found" else None
        unit = result.knee.measured[0].rate.unit
        figures.append(batch_sweep(result.knee.points, result.knee.knee, result.origin, unit, rule))
    return f"Batch ceiling: {result.workload}{_in_format(result.config)}", tuple(tables), tuple(figures)


def _cure(result: CureResult) -> Parts:
    from gpuworkshop.figures.cure import cure

    rows = tuple(
        (
            attempt.change or "as it is",
            f"{attempt.config.batch_size:,}",
            "runs" if attempt.fits else "out of memory" if attempt.fault else "allocator retries",
            amount(attempt.peak),
        )
        for attempt in result.attempts
    )
    table = Table(("change, on top of those above", "batch", "three full steps", most(result)), rows)
    picture = cure(result.attempts, result.limit, result.origin, most(result))
    return f"Out of memory, and its cure: {result.workload}", (table,), (picture,)


_OF = {MemoryResult: _life, BatchSweep: _sweep, CeilingResult: _ceiling, CureResult: _cure}
