"""What a report card says about the GPUs: those that did nothing, the others' utilization, their memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuworkshop.cluster.jobstats_result import Card, JobUse
from gpuworkshop.cluster.jobstats_targets import targets
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.numbers import counted, percent, several
from gpuworkshop.report import Finding

_UNUSED = 0.005
"""Utilization that is written as 0%."""
_UNEVEN = 0.3
"""Difference between two GPUs of one job from which on one of them waits."""
_FULL = 0.9
"""Share of the CPUs' time from which on they are the limit."""


def used(job: JobUse) -> list[Card]:
    """The GPUs that did anything; those whose utilization is not known count among them."""
    return [card for _, card in job.cards if card.utilization is None or card.utilization >= _UNUSED]


def busy(job: JobUse) -> float | None:
    """Mean utilization of the GPUs that were used; of all, where the report has no single ones."""
    known = [card.utilization for card in used(job) if card.utilization is not None]
    return sum(known) / len(known) if known else job.gpu


def waits(job: JobUse) -> bool:
    """Whether the GPUs that were used did too little."""
    share = busy(job)
    return share is not None and share * 100 < targets().gpu_fix_first


def has_idle(job: JobUse) -> bool:
    return len(used(job)) < len(job.cards)


def utilization(job: JobUse) -> Iterator[Finding]:
    """GPU utilization: first the GPUs that did nothing, then the others."""
    known = [(node, card) for node, card in job.cards if card.utilization is not None]
    idle = [(node, card) for node, card in known if card.utilization < _UNUSED]
    if not job.cards and not job.gpus and job.gpu is None:
        yield Finding("notice", "no GPU in this job: its CPUs are judged")
        return
    if idle and len(idle) == len(known):
        fix = "gpuworkshop verify   # at the top of the job: is CUDA reached, is the model on the card?"
        many = "the GPU was not used" if len(idle) == 1 else f"none of the {len(idle)} GPUs was used"
        yield Finding("fail", f"{many}: utilization 0% over the whole job", "", fix)
        return
    if idle:
        yield _idle(job, known, idle)
    used = [card.utilization for _, card in known if card.utilization >= _UNUSED]
    mean = busy(job)
    if mean is None:
        return
    if len(used) > 1 and max(used) - min(used) > _UNEVEN:
        spread = f"from {percent(min(used))} to {percent(max(used))}"
        fix = "give each rank the same work: DistributedSampler, equal batches; find the rank that is late"
        yield Finding("warning", f"the GPUs are used unevenly: {spread}", "an average hides this", fix)
    yield _utilization(job, mean, len(used))
    yield from _fewer(job, mean, len(used) or job.gpus or 1, bool(idle))


def _idle(job: JobUse, known: list, idle: list) -> Finding:
    """Some of several GPUs did nothing."""
    used = [card.utilization for _, card in known if card.utilization >= _UNUSED]
    nodes = list(dict.fromkeys(node for node, _ in idle))
    whole = [node for node in nodes if not any(name == node for name, card in known if (name, card) not in idle)]
    mean = percent(sum(used) / len(used))
    evidence = f"the other {len(used)} at {mean} on average; over all it reads {percent(job.gpu)}"
    if whole == nodes and len({node for node, _ in known}) > len(nodes):
        where = f"node{'s' if len(nodes) > 1 else ''} {several(nodes)}"
        evidence += "; the job is not distributed over its nodes"
        fix = f"#SBATCH --nodes={len({node for node, _ in known}) - len(nodes)}\n# or start it on every node:\n"
        fix += 'srun torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="$SLURM_GPUS_ON_NODE" ...'
    else:
        where = several([f"{node} GPU {card.index}" for node, card in idle])
        fix = f"#SBATCH --gres=gpu:{max(1, len(used))}\n# or one rank for each GPU:\n"
        fix += 'torchrun --standalone --nproc_per_node="$SLURM_GPUS_ON_NODE" ...'
    return Finding("warning", f"{len(idle)} of {len(known)} GPUs were not used: {where}", evidence, fix)


def _utilization(job: JobUse, mean: float, cards: int) -> Finding:
    good = targets()
    of = f" on average of {counted(cards, 'used GPU')}" if cards > 1 else ""
    title = f"GPU utilization {percent(mean)}{of}"
    if mean * 100 > good.gpu or math.isclose(mean * 100, good.gpu):
        return Finding("ok", title, f"target: above {good.gpu:g}%")
    below = f"target: above {good.gpu:g}%"
    if mean * 100 >= good.gpu_fix_first:
        return Finding("notice", f"{title}: a little low", below, "gpuworkshop starve   # does the step wait for data?")
    return Finding("warning", f"{title}: fix this before the next run", below, _feed(job))


def _feed(job: JobUse) -> str:
    """The next step for a GPU that waits."""
    gpus = max(1, job.gpus or len(job.cards))
    if job.cpu is not None and job.cpu >= _FULL and job.cpus:
        each = max(targets().cpus_least, 2 * job.cpus // gpus)
        return (
            f"the CPUs are the limit: {percent(job.cpu)} of {job.cpus} for {counted(gpus, 'GPU')}\n"
            f"#SBATCH --cpus-per-task={each * gpus}   # for one task a node; num_workers={workers_rule(each)} a GPU"
        )
    return (
        "gpuworkshop starve   # does the step wait for data?\n"
        "gpuworkshop watch -- python train.py   # a short run in devel: what does the GPU do meanwhile?"
    )


def _fewer(job: JobUse, mean: float, cards: int, idle: bool) -> Iterator[Finding]:
    """Several GPUs, none of them busy: fewer do as much."""
    enough = max(1, math.ceil(round(mean * cards, 6)))
    if cards < 2 or idle or mean * 100 >= targets().several_gpus or enough >= cards:
        return
    together = f"together {mean * cards:.2f} of one GPU's time; cure it on few, then ask whether more pay"
    title = f"{cards} GPUs at {percent(mean)}: try {counted(enough, 'GPU')}"
    yield Finding("warning", title, together, f"#SBATCH --gres=gpu:{enough}")


def memory(job: JobUse) -> Iterator[Finding]:
    known = [card.memory for card in used(job) if card.memory is not None]
    share, good = (sum(known) / len(known) if known else job.gpu_memory), targets()
    if share is None:
        return
    most, (low, high) = max(known, default=share), good.gpu_memory
    of = f" of {counted(len(known), 'used GPU')}" if has_idle(job) and known else ""
    title, aim = f"GPU memory {percent(share)} at most{of}", f"target: {low:g} to {high:g}%"
    if most * 100 > high:
        fix = "a smaller batch, BF16 or checkpointing; leave a tenth free for peaks"
        yield Finding("warning", f"GPU memory {percent(most)} at most{of}: close to its end", aim, fix)
    elif share * 100 >= low:
        yield Finding("ok", title, aim)
    elif waits(job):
        yield Finding("notice", f"{title}: leave the batch as it is", f"{aim}; first the utilization")
    else:
        level = "warning" if share * 100 < good.gpu_memory_low else "notice"
        fix = "a larger batch, kept if samples/s rise: gpuworkshop memory --sweep"
        yield Finding(level, f"{title}: room for a larger batch", aim, fix)
