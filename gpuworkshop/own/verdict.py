"""From what was seen of a script to what limits it and the one change to try first: pure functions."""

from __future__ import annotations

from gpuworkshop.loop.diagnose import diagnose, ranked
from gpuworkshop.loop.look_result import Look
from gpuworkshop.own.pick import Change, Pick, Verdict
from gpuworkshop.own.result import OwnResult

__all__ = ["Change", "Pick", "Verdict", "look", "verdict"]


def look(result: OwnResult) -> Look | None:
    """A run of one's own as the loop looks at its own runs; None where wait and headroom are not known."""
    if result.starve is None:
        return None
    precision = result.settings.precision if result.settings else None
    return Look(
        result.starve,
        result.traced,
        result.achieved,
        result.watched,
        result.memory,
        precision=precision or "fp32",
    )


def verdict(result: OwnResult) -> Verdict:
    """What limits the run, why, and the first change."""
    seen = look(result)
    if seen is None or result.settings is None:
        return Verdict("unknown", "; ".join(result.not_seen) or "too little was seen", None)
    found = diagnose(seen)
    cpus = result.conditions.cpus if result.conditions else 1
    return Verdict(found.limit, found.reason, None, tuple(remedy.title for remedy, _ in ranked(seen, cpus)[:4]))
