"""Out of memory, provoked safely in a child, and cured in the taught order: BF16, checkpointing, a smaller batch.

What is planted is a limit: the allocator may hold less than the job needs. The failure and the cures are real.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.child import Tell
from gpuworkshop.instruments.memory_ceiling import probe_in
from gpuworkshop.instruments.memory_result import Attempt, CureResult, Probe
from gpuworkshop.instruments.memory_room import give_back_at_once, room_for
from gpuworkshop.numbers import amount
from gpuworkshop.workloads.config import Job, TrainConfig


def cure(config: TrainConfig, job: Job, device: str, limit_bytes: int | None, share: float, tell: Tell) -> CureResult:
    """Run the job, take part of its memory away, and change one thing after the other until it runs again."""
    from gpuworkshop.machine.conditions import conditions

    tell.progress(0.1, "what the job needs")
    if device == "cpu":
        give_back_at_once()
    tried(config.with_(batch_size=min(2, config.batch_size)), job, device, None)  # what is loaded once counts for none
    free, _ = tried(config, job, device, None)
    limit = limit_bytes or (int(share * free.allocated) if free.fits and free.allocated else None)
    attempts: list[Attempt] = []
    for change, now in ladder(config, job):
        tell.progress(0.2 + 0.7 * len(attempts) / (len(attempts) + 3), change or "as it is")
        probe, twice = tried(now, job, device, limit)
        attempts.append(Attempt(change, now, probe.fits, probe.allocated, probe.retries, probe.fault, twice))
        if probe.fits or (probe.fault and probe.fault.kind == "other"):
            break
    here = conditions(device)
    planted = f"the job may hold {amount(limit)}, and nothing more" if limit else ""
    needed = free.allocated if free.fits else None
    return CureResult(job.title, limit, needed, tuple(attempts), planted, here, here.origin)


def ladder(config: TrainConfig, job: Job) -> Iterator[tuple[str, TrainConfig]]:
    """The job as it is, then what is changed in the taught order, each on top of the one before."""
    yield "", config
    if config.precision != "bf16":
        config = config.with_(precision="bf16")
        yield "BF16", config
    if not config.checkpointing and (job.sizes.text or job.sizes.model == "resnet50"):
        config = config.with_(checkpointing=True)
        yield "checkpointing", config
    while config.batch_size > 1:
        config = config.with_(batch_size=config.batch_size // 2)
        yield f"a batch of {config.batch_size}", config


def tried(config: TrainConfig, job: Job, device: str, limit: int | None) -> tuple[Probe, tuple[str, ...]]:
    """Three full steps of a config in a room with this limit; its model goes when this returns.

    And the layers of BatchNorm that checkpointing computes again.
    """
    from gpuworkshop.workloads.train import build

    training = build(config, job, device)
    training.use_precision()
    room = room_for(device, limit)
    with room.limited():
        probe = probe_in(lambda batch: training.step(*training.task.random_batch(batch)), config.batch_size, room)
    parts = training.model.named_modules() if config.checkpointing else ()
    return probe, tuple(name for name, part in parts if hasattr(part, "num_batches_tracked"))
