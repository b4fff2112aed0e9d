"""What a job's report card means, by the course's targets: pure functions of the result.

Utilization is an average over the whole job, start-up included, and memory a maximum: both are said so. Of a job that
still runs, or ran for less than ten samples, nothing is judged harder than a notice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from gpuworkshop.cluster import jobstats_gpus as gpus
from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.jobstats_result import LEAST, SAMPLING, JobUse
from gpuworkshop.cluster.jobstats_targets import targets
from gpuworkshop.cluster.jobstats_text import size
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.numbers import percent
from gpuworkshop.report import Finding

_GIB = 2**30
_NAMES = {"cpu": "CPU utilization", "memory": "host memory", "gpu": "GPU utilization", "gpu_memory": "GPU memory"}
_FULL = 0.9


def findings(job: JobUse) -> Iterator[Finding]:
    """What a job's figures mean, the worst of the cards first."""
    yield from _state(job)
    if not job.started:
        waits = job.state == "PENDING"
        fix = f"squeue -j {job.job} --start   # when it may start" if waits else ""
        yield Finding(
            "unknown", "it has not started yet" if waits else "never started: nothing to learn from it", "", fix
        )
        return
    if job.form == "seff" or not job.has_figures:
        yield _no_figures(job)
        return
    told = [*gpus.utilization(job), *gpus.memory(job), *_cpus(job), *_memory(job), *_time(job)]
    soft = job.running or (job.seconds is not None and job.seconds < LEAST)
    for one in told:
        yield msgspec.structs.replace(one, level="notice") if soft and one.level in ("warning", "fail") else one
    yield from _missing(job)
    means = "utilization is an average over the whole job, start-up included; memory is its maximum"
    yield Finding("notice", f"How to read this: {means}", f"jobstats takes a sample every {SAMPLING} s")


def _state(job: JobUse) -> Iterator[Finding]:
    """How the job ended, or that it has not."""
    if job.running:
        ran = f"after {_clock(job.seconds)}" if job.seconds is not None else ""
        yield Finding("notice", "still running: these figures are preliminary", ran)
    elif job.state == "OUT_OF_MEMORY":
        yield _out_of_memory(job)
    elif job.state == "TIMEOUT":
        ran = f"it ran {_clock(job.seconds)}, the limit was {_clock(job.limit)}"
        fix = "save checkpoints, and ask for more: #SBATCH --time=...   # measured time of a step x steps + 20%"
        yield Finding("fail", "ended by its time limit", ran, fix)
    elif job.state in ("FAILED", "NODE_FAIL", "BOOT_FAIL"):
        why = '"CUDA out of memory" there would be the card\'s memory, not the one that --mem asks for'
        yield Finding("warning", f"the job ended as {job.state}: read the end of its log", why)
    short = job.seconds is not None and job.seconds < LEAST
    if not job.running and short and job.has_figures and job.form != "seff":
        ran = f"{job.seconds:.0f} s: {math.floor(job.seconds / SAMPLING)} samples, start-up among them"
        yield Finding("notice", "too short to be judged", ran)


def _out_of_memory(job: JobUse) -> Finding:
    asked = f" ({job.memory_asked} asked)" if job.memory_asked else ""
    seen = f"GPU memory was at {percent(job.gpu_memory)} and is not to blame" if job.gpu_memory is not None else ""
    held = max((node.memory_total for node in job.nodes if node.memory_total), default=_asked(job))
    more = f"#SBATCH --mem={math.ceil(1.5 * held / _GIB)}G" if held else "#SBATCH --mem=..."
    fix = f"{more}   # more host memory, or fewer loader workers: each holds a copy of what the data set holds"
    return Finding("fail", f"ran out of host memory{asked}", seen, fix)


def _no_figures(job: JobUse) -> Finding:
    ran = f" (ran {job.seconds:.0f} s)" if job.seconds is not None else ""
    seen = f"; seff says CPU {percent(job.cpu)}" if job.form == "seff" and job.cpu is not None else ""
    why = job.why("all") or job.why("gpu") or "the report has none"
    what = "GPU figures" if job.form == "seff" or job.gpus else "figures"
    return Finding("unknown", f"no {what} for this job{ran}{seen}", why, "gpuworkshop watch -- python train.py")


def _asked(job: JobUse) -> float | None:
    """Bytes of host memory that were asked for on each node, from the head of a report."""
    asked = size(job.memory_asked)
    return asked / max(1, job.node_count or 1) if asked else None


def _cpus(job: JobUse) -> Iterator[Finding]:
    share, good = job.cpu, targets()
    if share is None:
        return
    title, aim = f"CPU utilization {percent(share)}", f"target: above {good.cpu:g}%"
    if share * 100 >= good.cpu or not job.cpus:
        level = "ok" if share * 100 >= good.cpu else "notice"
        yield Finding(level, title, aim)
        return
    nodes, cards = max(1, job.node_count or len(job.nodes)), max(job.gpus or 0, len(job.cards))
    least = good.cpus_least * cards if cards else 1
    needed = max(math.ceil(share * job.cpus * (1 + good.reserve / 100) / nodes - 1e-9), math.ceil(least / nodes), 1)
    if not cards and share * job.cpus <= 1.02:
        needed = 1
    used = f"{share * job.cpus:.1f} of {job.cpus} CPUs used on average"
    if gpus.has_idle(job):
        fix = ""  # first what the idle GPUs need
    elif gpus.waits(job) and cards:
        each = workers_rule(job.cpus // cards)
        fix = f"the GPU waits and CPUs are free: num_workers={each}   # CPUs of a GPU - 1"
    elif needed * nodes < job.cpus:
        fix = f"#SBATCH --cpus-per-task={needed}   # for one task a node, instead of {job.cpus // nodes}"
    else:
        fix = ""
    yield Finding("notice", f"{title}: {used}", aim, fix)


def _memory(job: JobUse) -> Iterator[Finding]:
    share, good = job.memory, targets()
    if share is None or job.state == "OUT_OF_MEMORY":
        return
    title, aim = f"host memory {percent(share)} at most", f"target: above {good.memory:g}%"
    if share > _FULL:
        fix = "#SBATCH --mem=...   # a fifth more: a job that reaches its limit is killed"
        yield Finding("warning", f"{title}: close to its limit", aim, fix)
        return
    each = [(node.memory_used, node.memory_total) for node in job.nodes if node.memory_used and node.memory_total]
    asked = _asked(job)
    used, asked = max(each, default=(asked * share if asked else None, asked))
    little = asked is not None and asked <= good.memory_little * _GIB
    if share * 100 >= good.memory or little:
        yield Finding("ok", title, aim)
        return
    fix = ""
    if used and not gpus.has_idle(job):
        enough = max(1, math.ceil(used * (1 + good.reserve / 100) / _GIB))
        fix = f"#SBATCH --mem={enough}G   # what was used + {good.reserve:g}%"
    yield Finding("notice", f"{title}: more was asked for than was used", aim, fix)


def _time(job: JobUse) -> Iterator[Finding]:
    """Time that was asked for and not needed: only of a job that came to its own end."""
    ended = job.state == "COMPLETED" and not job.running
    if not ended or not job.seconds or job.limit is None or not math.isfinite(job.limit) or not job.limit:
        return
    enough = 60 * math.ceil(job.seconds * (1 + targets().reserve / 100) / 60)
    title = f"needed {percent(job.seconds / job.limit)} of the time asked for"
    evidence = f"{_clock(job.seconds)} of {_clock(job.limit)}"
    if 2 * enough > job.limit:
        yield Finding("ok", title, evidence)
        return
    fix = f"#SBATCH --time={slurm_time.text(enough)}   # what it took + {targets().reserve:g}%: it starts sooner"
    yield Finding("notice", title, evidence, fix)


def _missing(job: JobUse) -> Iterator[Finding]:
    """Figures that the report has in words, once each."""
    told = set()
    for one in job.missing:
        if one.what not in told and (one.what == "all" or getattr(job, one.what) is None):
            told.add(one.what)
            name = _NAMES.get(one.what, "some figures")
            yield Finding("unknown", f"{name}: n/a ({one.why})")


def _clock(seconds: float | None) -> str:
    return "n/a" if seconds is None else slurm_time.text(seconds)
