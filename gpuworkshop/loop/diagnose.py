"""From what was seen of a run to what limits it, and to the remedies worth trying next, as pure functions."""

from __future__ import annotations

import math

import msgspec

from gpuworkshop.instruments.starve_result import LIMITING, StarveResult
from gpuworkshop.loop.look_result import Look
from gpuworkshop.loop.remedies import Remedy, remedies
from gpuworkshop.numbers import number
from gpuworkshop.timing import SMALLEST_EFFECT
from gpuworkshop.workloads.planted import Limit

FIRST = 0.10
"""Share of the time from which what keeps the device from computing is called the limit, before computing itself."""

FULL = 0.85
"""Share of the memory from which a batch has no room left to grow."""

NEAR = 0.50
"""Share of a measured matrix product above which more room in memory would bring nothing."""

ON_DATA_PATH = frozenset({"data", "copies", "any"})
IN_STEP = frozenset({"launches", "synchronizing", "compute", "memory"})


class Diagnosis(msgspec.Struct, frozen=True):
    """What limits the run now and the measured reason for saying so."""

    limit: Limit
    reason: str


def diagnose(seen: Look | StarveResult) -> Diagnosis:
    """What limits a run: decided by wait, headroom and where the time of a step goes, never by utilization alone."""
    look = seen if isinstance(seen, Look) else Look(seen)
    limit = which_limit(look)
    return Diagnosis(limit, f"{_REASONS[limit]} ({_numbers(look, limit)})")


_REASONS: dict[Limit, str] = {
    "data": "the step waits for data",
    "launches": "many small pieces of work: calling them takes longer than doing them",
    "synchronizing": "the host waits for the card, and then the card for the host",
    "copies": "copies take the time, with nothing beside them",
    "compute": "the step itself takes the time",
    "memory": "the memory is full, so the batch cannot grow to fill the card",
    "unknown": "wait and headroom disagree, so everything is tried",
}


def which_limit(look: Look) -> Limit:
    """The limit by the shares of a plain step; by wait and headroom alone where there is no profile."""
    seen, shares = look.starve, look.shares
    if look.traced is None:
        return seen.limit
    hindering: dict[Limit, float] = {"data": shares.data}
    if look.traced.busy is None:
        found = _on_cpu(look)
    else:
        hindering |= {name: shares.of(name) for name in ("copies", "launches", "synchronizing")}
        worst = max(hindering, key=hindering.__getitem__)
        found = worst if hindering[worst] >= FIRST else "compute"
    if found == "data" and seen.headroom.high < LIMITING:
        return "unknown"  # waits are seen, and nothing is gained without them
    return "memory" if _no_room(look, found) else found


def _on_cpu(look: Look) -> Limit:
    seen, shares = look.starve, look.shares
    if seen.limit == "data" or (shares.data >= 2 * FIRST and seen.headroom.ratio >= LIMITING):
        return "data"
    if seen.agrees is False:
        return "unknown"
    return "launches" if shares.of("launches") > shares.of("compute") else "compute"


def _no_room(look: Look, limit: Limit) -> bool:
    """Whether a larger batch would help and has no room: a full memory alone limits nothing."""
    if look.memory is None or look.memory < FULL:
        return False
    reached = look.achieved.of_product if look.achieved else None
    return limit == "launches" or (limit == "compute" and reached is not None and reached < NEAR)


def _numbers(look: Look, limit: Limit) -> str:
    seen, shares, profile = look.starve, look.shares, look.traced
    said = [f"{seen.wait_name} {seen.wait_share:.0%}"]
    if seen.data_work_share >= 0.05:
        said.append(f"work on the batch {seen.data_work_share:.0%}")
    said.append(f"headroom <= {seen.at_most:.2f}x")
    if profile:
        said += [f"{name} {shares.of(name):.0%}" for name in _SHOWN if getattr(shares, name) is not None]
        thing = "operators" if profile.busy is None else "kernels"
        said.append(f"{profile.calls:,.0f} {thing} a step, median {number(profile.median)} us")
    if look.memory is not None and limit in ("memory", "compute"):
        said.append(f"memory {look.memory:.0%}")
    return ", ".join(said)


_SHOWN = ("copies", "launches", "synchronizing", "compute")


def bound(remedy: Remedy, seen: Look | StarveResult, cpus: int) -> float:
    """Upper bound on the gain that a remedy can bring to a run seen like this: new rate over present rate, "<=".

    A change to the data path cannot pass the data ceiling, and workers cannot pass so many loaders side by side; a
    change to the step can at most make the share of what it helps against vanish.
    """
    look = seen if isinstance(seen, Look) else Look(seen)
    starve, against = look.starve, set(remedy.limits)
    if remedy.id == "workers" and starve.loader and starve.workers == 0:
        return min(starve.at_most, cpus * starve.loader.value / starve.real.value)
    if against <= ON_DATA_PATH:
        return starve.at_most
    if look.traced is None or "memory" in against:
        least = starve.headroom.low
        return least / (least - 1) if least > 1 else math.inf
    share = sum(look.shares.of(limit) for limit in against)
    return 1 / (1 - share) if share < 1 else math.inf


def ranked(seen: Look | StarveResult, cpus: int) -> list[tuple[Remedy, float]]:
    """The remedies worth trying with their bounds: those against the present limit first, then the largest bound.

    Bounds within 5% of each other are equal; then the order of the file decides, cheapest first.
    """
    look = seen if isinstance(seen, Look) else Look(seen)
    limit = which_limit(look)
    alike = IN_STEP - {"memory"} if look.traced is None and limit == "compute" else {limit}

    def rank(item: tuple[Remedy, float]) -> tuple[bool, float]:
        remedy, most = item
        matches = limit == "unknown" or alike & {*remedy.limits} or "any" in remedy.limits
        return not matches, -round(math.log(most) / math.log(1.05)) if math.isfinite(most) else -math.inf

    offered = (remedy for remedy in remedies() if limit == "memory" or set(remedy.limits) != {"memory"})
    found = [(remedy, bound(remedy, look, cpus)) for remedy in offered]
    return sorted((item for item in found if item[1] > 1 + SMALLEST_EFFECT), key=rank)
