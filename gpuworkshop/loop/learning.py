"""A faster run must still learn: runs are compared at equal samples seen, by the loss on held-out pictures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from gpuworkshop.loop.remedies import Numerics

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
        """The share of the starting loss that is gone, 1 at most."""
        return 1 - self.end / self.start


class Judgement(msgspec.Struct, frozen=True):
    """Whether a run still learns; None when it cannot be judged. ``says`` has the numbers."""

    ok: bool | None
    says: str


def judge(reference: Sequence[Learned], candidate: Learned, numerics: Numerics) -> Judgement:
    """Compare a run with runs of the unchanged config (one a seed), all over the same number of samples."""
    least = min(run.fall for run in reference)
    if least < MUST_FALL:
        ok, words = (None, "learning not judged") if least > NOTHING else (False, "does not learn")
        return Judgement(ok, f"{words}: already the unchanged run's loss only falls {least:.0%}")
    usual = statistics.fmean(run.end for run in reference)
    loss = f"held-out loss {candidate.start:.2f} -> {candidate.end:.2f} after {candidate.samples} samples"
    words = f"{loss}, unchanged run {usual:.2f}"
    if not candidate.end < float("inf"):
        return Judgement(False, f"does not learn: {words}")
    if numerics == "training":
        ok = candidate.fall >= MUST_FALL
        return Judgement(ok, f"{'still learns' if ok else 'learns too little'}: {words}")
    spread = statistics.stdev([run.end for run in reference]) if len(reference) > 1 else 0.0
    ok = candidate.end - usual <= max(2 * spread, WORSE * candidate.start)
    return Judgement(ok, f"{'learns as before' if ok else 'learns worse'}: {words}")
