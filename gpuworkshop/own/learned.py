"""Whether a changed script still learns: the losses of both at equal samples, as far as short runs can tell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from gpuworkshop.instruments.learning import MUST_FALL, Judgement, Learned, Numerics, judge
from gpuworkshop.own.result import Losses

LEAST = 8
"""Losses of a run below which nothing is said."""

EDGE = 0.2
"""Share of the losses that is averaged at either end: the loss of one batch is mostly chance."""


def learned(before: Sequence[Losses | None], after: Sequence[Losses | None], numerics: Numerics) -> Judgement:
    """The judgement over the runs of both arms, each cut at the samples that all of them have seen."""
    runs = [*before, *after]
    if not before or not after or any(one is None or not one.values for one in runs):
        return Judgement(None, "learning not judged: no loss was seen in both")
    samples = min(one.samples[-1] for one in runs)
    least = min(sum(at <= samples for at in one.samples) for one in runs)
    if least < LEAST:
        return Judgement(None, f"learning not judged: only {least} losses at equal samples")
    old, new = ([_cut(one, samples) for one in arm] for arm in (before, after))
    fall = min(one.fall for one in old)
    if fall < MUST_FALL:
        why = f"in {samples} samples the training loss of the run before falls {max(0.0, fall):.0%}"
        return Judgement(None, f"learning not judged: {why}, too little to compare")
    return judge(old, new, numerics, "training loss")


def _cut(losses: Losses, samples: int) -> Learned:
    """The mean loss at the beginning, and at the end of the first ``samples`` samples."""
    values = [value for at, value in zip(losses.samples, losses.values, strict=False) if at <= samples]
    edge = max(2, round(EDGE * len(values)))
    return Learned(samples, statistics.fmean(values[: max(2, edge // 2)]), statistics.fmean(values[-edge:]))
