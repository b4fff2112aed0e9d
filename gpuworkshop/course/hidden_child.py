"""The measuring process of chapter 7: try one change in turn with the run before it, and look at what stands.

One child a choice: the loop's own trial, and the loop's own look after a change that is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Progress, Tell
from gpuworkshop.loop.look_result import Look
from gpuworkshop.loop.trial_result import Trial
from gpuworkshop.workloads.config import Job, TrainConfig

if TYPE_CHECKING:
    from gpuworkshop.loop.trial import Bench

SECONDS = 1.5
"""So long the CPUs in use are watched."""


class Seen(msgspec.Struct, frozen=True):
    """One config as it was measured: the loop's look, and the share of the session's CPUs in use (0 to 1)."""

    look: Look
    cpu: float | None


class Turn(msgspec.Struct, frozen=True):
    """A change tried in turn with the run before it, if one was asked for, and what was seen afterwards.

    ``seen`` is of the changed run where the change is kept, and None where it is not: then nothing has moved.
    """

    trial: Trial | None
    seen: Seen | None


class Request(msgspec.Struct, frozen=True):
    """What the child is asked for: ``after`` is the config to try, None to look at ``now`` alone."""

    job: Job
    now: TrainConfig
    after: TrainConfig | None = None


def run(
    job: Job,
    now: TrainConfig,
    after: TrainConfig | None = None,
    *,
    launcher: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Turn:
    """Look at ``now``, or try ``after`` against it and look at that if it is kept. ChildFailed as `child.run`."""
    request = Request(job, now, after)
    return child.run(f"{__name__}:in_child", request, type=Turn, launcher=launcher, progress=progress)


def in_child(request: Any, tell: Tell) -> Turn:
    """What the child does."""
    from gpuworkshop.loop.trial import Bench
    from gpuworkshop.machine.gpus import default_device
    from gpuworkshop.workloads.train import need_card

    asked = msgspec.convert(request, Request)
    need_card(asked.now, asked.job, default_device())
    tell.progress(0.0, "loading PyTorch and the data")
    bench = Bench(asked.job, asked.now)
    if asked.after is None:
        return Turn(None, _see(bench, asked.now, tell.part(0.1, 1.0)))
    tell.progress(0.1, "before and after, in turn")
    trial = bench.trial(asked.now, asked.after, tell.part(0.1, 0.8))
    return Turn(trial, _see(bench, asked.after, tell.part(0.8, 1.0)) if trial.kept else None)


def _see(bench: Bench, config: TrainConfig, tell: Tell) -> Seen:
    from gpuworkshop.loop.look import Eye

    tell.progress(0.0, "now and data ceiling in turn, then a short profile")
    look = Eye(bench).look(config, quick=True)
    tell.progress(0.9, "the CPUs in use")
    return Seen(look, _cpu(bench, config))


def _cpu(bench: Bench, config: TrainConfig) -> float | None:
    """The share of this session's CPUs that the job uses."""
    from gpuworkshop.instruments.watch import Watch
    from gpuworkshop.workloads.train import endless

    training = bench.build(config)
    batches = endless(training.loader)
    training.step(*training.prepare(next(batches)))  # warm before the watch begins
    with Watch(what="the job") as seen:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            loss = training.step(*training.prepare(next(batches)))
        loss.item()
    return seen.result.cpu
