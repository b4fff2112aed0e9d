"""How long the parts of a loop measure: with a budget on a card, comparisons that leave room for several changes.

A budget only makes comparisons end sooner, with a wider interval that is shown. When they end before that, the width
decides as everywhere, never the effect. Without a card a comparison is short already, and a budget changes nothing.
"""

from __future__ import annotations

import msgspec

from gpuworkshop.timing import BASELINE_SECONDS, Plan, plan_for

SHARE = 0.04
"""Of a loop's budget, what two arms may take: 6 s of 150 s."""

SHORTEST = 0.2
"""Seconds of the shortest block on a card."""

BLOCKS = 20
"""So many blocks of two arms fit what they may take: the fewest rounds, and a little more."""

FEW_ROUNDS = 4
"""For what only chooses what to do next."""

WATCH_SECONDS = 5.0, 3.0
"""Plain steps that the driver watches: 25 of its windows; with a budget 15."""

PRODUCT_SECONDS = {"cpu": 0.5, "card": 1.0, "card with a budget": 0.3}
PROFILE_SECONDS, QUICK_PROFILE_SECONDS = 2.0, 0.5
"""What profiled steps may take on a CPU, where steps are slow, and in a quick look there."""


class Pace(msgspec.Struct, frozen=True):
    """The plans of one loop; seconds are of measured work, without warming up."""

    trial: Plan
    baseline: Plan
    quick: Plan
    """What limits after a kept change."""
    watch_seconds: float
    product_seconds: float
    """For each format."""
    profile_seconds: float
    """A profile has fewer steps where all of them would take longer."""
    quick_profile_seconds: float


def pace_for(device: str, budget: float | None = None, trial: Plan | None = None) -> Pace:
    """The pace on ``"cpu"`` or a card, for a loop of ``budget`` seconds; ``trial``: another plan of trials."""
    plan, baseline = trial or plan_for(device), plan_for(device, baseline=True)
    if device == "cpu":
        return _pace(plan, baseline, WATCH_SECONDS[0], PRODUCT_SECONDS["cpu"], PROFILE_SECONDS, QUICK_PROFILE_SECONDS)
    if budget is None:
        endless = float("inf")
        return _pace(plan, baseline, WATCH_SECONDS[0], PRODUCT_SECONDS["card"], endless, endless)
    seconds = SHARE * budget
    if trial is None and seconds < plan.budget_seconds:
        block = min(plan.block_seconds, max(SHORTEST, seconds / BLOCKS))
        plan = msgspec.structs.replace(plan, budget_seconds=seconds, block_seconds=block, max_warm_up_blocks=4)
    baseline = msgspec.structs.replace(plan, min_seconds=min(BASELINE_SECONDS, seconds / 2))
    return _pace(plan, baseline, WATCH_SECONDS[1], PRODUCT_SECONDS["card with a budget"], seconds, seconds / 2)


def _pace(plan: Plan, baseline: Plan, watch: float, product: float, profile: float, quick_profile: float) -> Pace:
    quick = msgspec.structs.replace(plan, min_rounds=FEW_ROUNDS, width=1.0)
    return Pace(plan, baseline, quick, watch, product, profile, quick_profile)
