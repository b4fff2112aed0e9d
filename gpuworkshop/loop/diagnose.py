"""From a measurement to the remedies worth trying next, as pure functions."""

from __future__ import annotations

import math

import msgspec

from gpuworkshop.instruments.starve import StarveResult
from gpuworkshop.loop.remedies import Remedy, remedies
from gpuworkshop.timing import SMALLEST_EFFECT


class Diagnosis(msgspec.Struct, frozen=True):
    """What limits the run now and the measured reason for saying so."""

    limit: str
    reason: str


def diagnose(seen: StarveResult) -> Diagnosis:
    """What limits a run: decided by wait and headroom, never by utilization alone."""
    numbers = f"{seen.wait_name} {seen.wait_share:.0%}, headroom <= {seen.at_most:.2f}x"
    reasons = {
        "data": f"the step waits for data ({numbers})",
        "compute": f"the step itself takes the time ({numbers})",
        "unknown": f"wait and headroom disagree, so everything is tried ({numbers})",
    }
    return Diagnosis(seen.limit, reasons[seen.limit])


def bound(remedy: Remedy, seen: StarveResult, cpus: int) -> float:
    """Upper bound on the gain that a remedy can bring to a run seen like this: new rate over present rate, "<=".

    A change to the data path cannot pass the data ceiling, and workers cannot pass so many loaders side by side; a
    change to the step can at most make the step's share of the time vanish.
    """
    headroom = seen.at_most
    if remedy.limit == "compute":
        least = seen.headroom.low
        return least / (least - 1) if least > 1 else math.inf
    if remedy.id == "workers" and seen.loader and seen.workers == 0:
        return min(headroom, cpus * seen.loader.value / seen.real.value)
    return headroom


def ranked(seen: StarveResult, cpus: int) -> list[tuple[Remedy, float]]:
    """The remedies worth trying with their bounds: those against the present limit first, then the largest bound.

    Bounds within 5% of each other are equal; then the order of the file decides, cheapest first.
    """

    def rank(item: tuple[Remedy, float]) -> tuple[bool, float]:
        remedy, most = item
        matches = seen.limit == "unknown" or remedy.limit in (seen.limit, "any")
        return not matches, -round(math.log(most) / math.log(1.05)) if math.isfinite(most) else -math.inf

    found = [(remedy, bound(remedy, seen, cpus)) for remedy in remedies() if remedy.limit != "memory"]
    return sorted((item for item in found if item[1] > 1 + SMALLEST_EFFECT), key=rank)
