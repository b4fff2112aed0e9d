"""The loop: measure, diagnose, change one thing, measure in turn, keep it or not, record, until nothing pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpuworkshop import child
from gpuworkshop.loop import ledger
from gpuworkshop.loop.climb_result import LoopResult, alters_training, bars, change_words, findings, report, table
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.trial_result import Trial
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = [
    "LoopResult",
    "alters_training",
    "bars",
    "change_words",
    "findings",
    "report",
    "run",
    "table",
    "try_one",
]

MAX_CHANGES = 6

USUAL = "usual"
"""The budget where none is given: :data:`USUAL_ON_CPU` without a card, none with one."""

USUAL_ON_CPU = 50.0
"""Seconds."""


class Request(msgspec.Struct, frozen=True):
    """What a loop child is asked for."""

    job: Job
    start: TrainConfig
    max_changes: int = MAX_CHANGES
    budget_seconds: float | Literal["usual"] | None = USUAL
    only: TrainConfig | None = None
    """Try just this config against ``start``."""
    device: str | None = None


def run(
    job: Job | None = None,
    *,
    start: TrainConfig | None = None,
    max_changes: int = MAX_CHANGES,
    budget_seconds: float | Literal["usual"] | None = USUAL,
    launcher: Sequence[str] = (),
    progress=None,
) -> LoopResult:
    """Run the whole loop on a built-in workload in one child; each record is in the ledger as soon as it is made.

    No change is begun that would probably end after ``budget_seconds``; None sets no such limit.
    """
    job = job or Job()
    request = Request(job, start or job.sizes.start, max_changes, budget_seconds)
    return child.run(
        "gpuworkshop.loop.climber:in_child",
        request,
        type=LoopResult,
        launcher=launcher,
        progress=progress,
        record=_append,
    )


def try_one(
    before: TrainConfig, after: TrainConfig, job: Job | None = None, *, launcher: Sequence[str] = (), progress=None
):
    """Measure one change in a child: a :class:`gpuworkshop.loop.trial_result.Trial`.

    Settings of two remedies changed at once are measured and not kept: nobody could say which one it was.
    """
    for name, config in (("before", before), ("after", after)):
        if not isinstance(config, TrainConfig):
            raise TypeError(f"try_one needs two TrainConfig, and {name} is {config!r:.80}")
    request = Request(job or Job(), before, only=after)
    return child.run("gpuworkshop.loop.climber:try_in_child", request, type=Trial, launcher=launcher, progress=progress)


def _append(line: msgspec.Raw) -> None:
    try:
        record = msgspec.json.decode(line, type=Record)
    except msgspec.DecodeError:
        return  # of another version of the kit; its result will say so
    ledger.add(record)
