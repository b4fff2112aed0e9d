"""A faster run must still learn: runs are compared at equal samples seen, by the loss on held-out pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:  # judging needs no torch
    from gpuworkshop.workloads.train import Training

Numerics = Literal["same", "close", "training"]
"""What a change does to the arithmetic: nothing, roundings only, or it alters the training itself."""

WORSE = 0.05
"""How much worse a run may end, as a share of the starting loss, when seeds differ by less than that."""

NOTHING = 0.02
"""A loss that falls less than this has not been learning at all."""

MUST_FALL = 0.20
"""How far the loss must fall when a change alters the training itself."""


class Learned(msgspec.Struct, frozen=True):
    """Loss on held-out pictures before and after ``samples`` training samples."""

    samples: int
    start: float
    end: float

    @property
    def fall(self) -> float:
        """The share of the starting loss that is gone, 1 at most; minus infinity where the loss is no number."""
        return 1 - self.end / self.start if self.end < math.inf else -math.inf


class Judgement(msgspec.Struct, frozen=True):
    """Whether a run still learns; None when it cannot be judged. ``says`` has the numbers."""

    ok: bool | None
    says: str


def judge(
    reference: Sequence[Learned], runs: Sequence[Learned], numerics: Numerics, loss: str = "held-out loss"
) -> Judgement:
    """Compare the runs of a config with those of the unchanged one, one a seed, all over the same number of samples.

    ``loss`` says in words which loss it is.

    However far the seeds are apart, a run must learn at least half of what the unchanged one does.
    """
    least = min(run.fall for run in reference)
    if least < MUST_FALL:
        ok, words = (None, "learning not judged") if least > NOTHING else (False, "does not learn")
        return Judgement(ok, f"{words}: already the unchanged run's loss only falls {least:.0%}")
    usual, end = _mean_end(reference), _mean_end(runs)
    start, samples = runs[0].start, runs[0].samples
    words = f"{loss} {start:.2f} -> {end:.2f} after {samples} samples, unchanged run {usual:.2f}"
    if any(run.fall == -math.inf for run in runs):
        return Judgement(False, f"does not learn: {words}")
    if numerics == "training":
        ok = 1 - end / start >= MUST_FALL
        return Judgement(ok, f"{'still learns' if ok else 'learns too little'}: {words}")
    spread = statistics.stdev([run.end for run in reference]) if len(reference) > 1 else 0.0
    learned = statistics.fmean(run.start for run in reference) - usual
    ok = end - usual <= min(max(2 * spread, WORSE * start), learned / 2)
    return Judgement(ok, f"{'learns as before' if ok else 'learns worse'}: {words}")


def learn(training: Training, samples: int, held_out: Sequence[tuple[Any, Any]]) -> Learned:
    """Loss on held-out batches before and after ``samples`` training samples. Imports torch.

    The learning rate falls to zero on the way: at a constant rate the last batches decide where a run ends, and
    two seeds of one config end further apart than a config that learns worse.
    """
    from gpuworkshop.workloads.train import endless

    training.use_precision()
    start, seen = training.held_out_loss(held_out), 0
    for batch in endless(training.loader):
        training.learn_at(1 - seen / samples)
        x, y = training.prepare(batch)
        training.step(x, y)
        seen += len(y)
        if seen >= samples:
            break
    return Learned(seen, start, training.held_out_loss(held_out))


def _mean_end(runs: Sequence[Learned]) -> float:
    return statistics.fmean(run.end for run in runs)
