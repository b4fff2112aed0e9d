"""What starve means: pure functions of its result. Nothing here measures."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.instruments.starve_result import LIMITING, StarveResult, SweepResult
from gpuworkshop.machine import allocation_findings
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.disk_findings import FIXES
from gpuworkshop.numbers import counted, in_unit, number
from gpuworkshop.report import Finding


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
    here = result.conditions
    yield from allocation_findings.fewer_cpus(here.cpus, here.cpus_said_by, here.cpus_asked)
    if result.workers:
        yield from _worker_findings(result)


def _worker_findings(result: StarveResult) -> Iterator[Finding]:
    """What the workers take of the machine: CPUs, threads, shared memory, time to start."""
    cpus, workers, threads = result.conditions.cpus, counted(result.workers, "worker"), result.omp_threads
    if result.workers > cpus:
        said = f"{counted(cpus, 'CPU')} by {result.conditions.cpus_said_by}"
        yield Finding("warning", f"{workers} on {counted(cpus, 'CPU')}", said, f"num_workers={workers_rule(cpus)}")
    if threads and threads > 1 and threads * result.workers > cpus:
        title = f"{workers} x {threads} threads on {counted(cpus, 'CPU')}"
        evidence = f"OMP_NUM_THREADS={threads}: a library may start so many in each worker; PyTorch itself takes one"
        yield Finding("warning", title, evidence, "export OMP_NUM_THREADS=1   # before Python starts")
    if result.shared and not result.shared.fits:
        title = "Shared memory may not hold the batches that the workers have ready: a worker is then killed"
        yield Finding("warning", title, str(result.shared), FIXES["shm"])
    allowed = f"OMP_NUM_THREADS is {threads or 'not set'}"
    title = f"Starting {workers} took {result.startup_seconds:.1f} s, measured apart"
    yield Finding("ok", title, f"{workers} on {counted(cpus, 'CPU')}, {allowed}")


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
        if result.at_most >= LIMITING:  # noise: what was seen of waiting decided
            title = f"The step limits this run: data take at most {result.data_share[1]:.0%} of its time"
            numbers = f"headroom between {result.headroom.low:.2f}x and {result.headroom.high:.2f}x; {numbers}"
        return Finding("ok", title, numbers, "leave the loader alone; look at the step (precision, batch size)")
    between = f"headroom between {result.headroom.low:.2f}x and {result.headroom.high:.2f}x"
    if result.workers and result.headroom.verdict == "faster":
        title = f"The step is slowed by what runs beside it, not by waiting: {between}"
        return Finding("unknown", title, numbers, "fewer workers, or nothing else on these CPUs; then measure again")
    quiet = "measure again on a quiet machine"
    if result.conditions.device == "cpu" and result.conditions.threads > 1:
        quiet += ", after torch.set_num_threads(1)"
    return Finding("unknown", f"Not judged: {between}", f"{result.wait_name} {result.wait_share:.0%}; {numbers}", quiet)


def _data_fix(result: StarveResult) -> str:
    """What to do first about a loader that limits."""
    less = "do that work once (decode, cache), or move it to the card"
    beyond = f"{counted(most, 'worker')} bring at most {most} times: " if (most := _workers_fall_short(result)) else ""
    if result.config:  # a built-in workload
        tries = "gpuworkshop loop   # tries workers and cheaper paths from file to batch, one at a time"
        return f"{tries}\n{beyond}{less}" if beyond else tries
    if beyond:
        return beyond + less
    if result.workers == 0:
        rule = max(2, workers_rule(result.conditions.cpus))
        return f"DataLoader(..., num_workers={rule})   # then measure again"
    return f"{less}: the loader's own work must become less"


def _workers_fall_short(result: StarveResult) -> int:
    """How many workers there can be, where even so many bring less than half of what data cost; else 0."""
    cpus = max(2, result.conditions.cpus)
    return cpus if result.workers == 0 and result.headroom.low > 2 * cpus else 0


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
