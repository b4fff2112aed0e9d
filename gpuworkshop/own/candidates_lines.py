"""Changes to lines at which the training thread was found, each with what it should bring of all the script's time."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.numbers import percent
from gpuworkshop.own.facts import Candidate, Facts, most, without
from gpuworkshop.own.frame import Kind
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.roles import IN_LOADER, Role
from gpuworkshop.own.task import RARELY

BESIDE: dict[Kind, str] = {
    "validation": "rare-validation",
    "saving": "rare-saving",
    "collect": "collect",
    "empty_cache": "empty-cache",
    "one call": "one-call",
    "batch loop": "batch-loop",
    "read loop": "one-read",
    "weights loop": "weights-at-once",
    "read": "rare-loss",
    "beside": "beside",
}
"""What is done about a line that takes the training thread's time."""

BETWEEN_STEPS = frozenset({"validation", "saving", "collect"})
"""What takes its time whether or not the card is idle meanwhile."""

IN_GRAPH: tuple[Kind, ...] = ("one call", "batch loop", "beside")
"""What the backward pass goes through again."""

EVERY = (RARELY, 200, 500, 1000)

OFTEN = 3
"""What is done between steps must be seen between so many: once in an epoch tells nothing of its part of the time."""

FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})


def line_candidates(facts: Facts) -> Iterator[Candidate]:
    """What could pay by the lines at which the script was found, of all its time."""
    for role in facts.roles:
        yield from _beside(facts, role)
    yield from _optimizer(facts)


def _beside(facts: Facts, role: Role) -> Iterator[Candidate]:
    remedy = BESIDE.get(role.kind)
    if remedy is None or (role.kind == "read" and not facts.card):
        return
    if role.kind in BETWEEN_STEPS and 0 < role.steps < OFTEN:
        return
    whole = facts.with_backward(role) if role.kind in IN_GRAPH else role.share
    share = whole if role.kind in BETWEEN_STEPS else min(whole, facts.idle)
    why = f"{percent(role.share)} of the time is spent there"
    why += f", {percent(whole)} with its part of the backward pass" if whole > role.share else ""
    expected = without(share * remedies()[remedy].effect)
    at_most = without(most(_reached_by(facts, role, whole)))
    yield Candidate(remedy, expected, at_most, why, role.place, {"every": str(_every(whole))})


def _reached_by(facts: Facts, role: Role, whole: float) -> float:
    """The largest share that a change to a line can take away.

    A loop ahead of backward() fills the graph that is gone through, and thrown away on other lines: all of the step.
    """
    if not role.ahead or role.kind not in IN_GRAPH:
        return whole
    outside = facts.share("optimizer", "step", "validation", "saving", "collect", "empty_cache", *IN_LOADER)
    return max(whole, min(1.0, sum(one.share for one in facts.roles)) - outside)


def _every(share: float) -> int:
    """Every how many steps, so that what is done then takes a twentieth of the time: 100, 200, 500 ..."""
    wanted = min(share, 0.99) / (1 - min(share, 0.99)) / 0.05
    return next(n for n in EVERY if n >= wanted or n == EVERY[-1])


def _optimizer(facts: Facts) -> Iterator[Candidate]:
    share = min(facts.share("optimizer"), facts.idle)
    for one in facts.settings.optimizers[:1]:
        if one.kind in FUSED and not one.fused and share > 0:
            why = f"the optimizer takes {percent(share)} of the time"
            expected = without(share * remedies()["fused"].effect)
            yield Candidate("fused", expected, without(most(share)), why, one.place, {"optimizer": one.kind})
