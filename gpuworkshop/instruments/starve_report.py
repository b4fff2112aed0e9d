"""Starve as a reader sees it: findings, a table and the recurring picture."""

from __future__ import annotations

from gpuworkshop.figures.strip import step_strip
from gpuworkshop.figures.sweep import workers_sweep
from gpuworkshop.instruments.starve_findings import findings
from gpuworkshop.instruments.starve_result import StarveResult, SweepResult
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.report import Report, Table


def report(result: StarveResult | SweepResult) -> Report:
    """The result with its findings, a table and the recurring picture."""
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
