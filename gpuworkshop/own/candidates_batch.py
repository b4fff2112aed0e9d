"""A larger batch: what of a step does not grow with it, how many times it can grow, and what that should bring."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuworkshop.numbers import percent
from gpuworkshop.own.facts import LOOPS, Candidate, Facts, without

LARGEST_TIMES, LARGEST_BATCH = 64, 1024
"""A batch is made at most so many times larger in one change, and beyond so many samples no more than eight times."""

CALL_MICROSECONDS, MOST_CALL_MICROSECONDS = 12.0, 40.0
"""On a CPU an operator that takes less, on the mean, is mostly called and hardly works; up to the second on a busy one,
where the median operator says so."""


def overhead(facts: Facts) -> float:
    """Share of a step that does not grow with the batch: what calls cost, whatever they work on, and the optimizer.

    Without what other changes take away.
    """
    profile, shares = facts.look.traced, facts.shares
    if profile is None:
        return 0.0
    loops = sum(facts.with_backward(role) for role in facts.roles if role.kind in LOOPS)
    if facts.card:
        return max(0.0, (shares.launches or 0.0) - loops)
    typical = max(CALL_MICROSECONDS, min(2 * profile.median, MOST_CALL_MICROSECONDS))
    calling = min(1.0, typical / max(profile.mean, 1e-3))
    reached = facts.look.achieved.of_product if facts.look.achieved else None
    large, small = shares.compute or 0.0, (shares.launches or 0.0) * (1 - calling)
    large = large if reached is None else max(2 * reached, large * (1 - calling))
    fixed = facts.share("optimizer")
    works = min(1.0, (large + small) / max(1 - shares.data, 0.01))
    return fixed + max(0.0, 1 - shares.data - loops - fixed) * (1 - works)


def batch_candidates(facts: Facts) -> Iterator[Candidate]:
    loader, cost = facts.loader, overhead(facts)
    if loader is None or not loader.batch_size or cost <= 0:
        return
    times = _times(facts, cost)
    if times < 2:
        return
    why = f"calls and the optimizer take {percent(cost)} of a step of {loader.batch_size} samples"
    passes = round(facts.settings.accumulation)
    if passes > 1:
        fewer = math.gcd(passes, times) if passes % times else times
        values = {
            "batch_size": str(loader.batch_size * fewer), "accumulation": str(passes // fewer),
            "accumulation_now": str(passes),
        }  # fmt: skip
        yield Candidate("micro-batch", _with_batch(cost, fewer), float(fewer), why, loader.place, values)
        return
    values = {"batch_size": str(loader.batch_size * times)}
    yield Candidate("batch", _with_batch(cost, times), float(times), why, loader.place, values)


def _with_batch(cost: float, times: int) -> float:
    """The gain of so many times the batch, never that many times itself: part of the rest grows too."""
    return without(0.9 * cost * (1 - 1 / times))


def _times(facts: Facts, cost: float) -> int:
    """How many times larger: until calls take a twentieth of a step, within memory and data; a power of two."""
    loader, rest = facts.loader, max(0.02, 1 - cost)
    times = min(LARGEST_TIMES, cost / (0.05 * rest), max(LARGEST_BATCH / loader.batch_size, 8))
    if facts.look.memory:
        times = min(times, 0.7 / facts.look.memory)
    if loader.epochs > 1:
        times = min(times, loader.batches / loader.epochs / 4)
    return 2 ** int(math.log2(times)) if times >= 2 else 1
