"""The published decision guide, by utilization and memory alone, and where a measurement says otherwise.

The guide is the workshop's, in words of our own. It reads two numbers that anybody can see; the diagnosis reads where
the time goes. Where the two disagree, the reason is the lesson: low utilization has more causes than data, and 100%
utilization says nothing about how fast the card computes.
"""

from __future__ import annotations

import msgspec

from gpuworkshop.instruments.flops import speed
from gpuworkshop.loop.look_result import Look
from gpuworkshop.numbers import percent
from gpuworkshop.report import Finding
from gpuworkshop.workloads.planted import Limit

LOW, HIGH = 0.50, 0.80
"""Utilization: below LOW the data pipeline, above HIGH the card is in use."""

ROOM, ENOUGH, EDGE = 0.40, 0.85, 0.90
"""Memory in use: below ROOM a larger batch, up to ENOUGH another precision, above EDGE less."""


class Advice(msgspec.Struct, frozen=True):
    """What the guide says: the rule that applies, what to do, and the limits against which that helps.

    ``against`` is empty where it names nothing to mend; ``anything`` where it only says to look closer.
    """

    rule: str
    do: str
    against: tuple[Limit, ...] = ()
    anything: bool = False


def guide(utilization: float | None, memory: float | None = None, *, out_of_memory: bool = False, workers: int = 0):
    """The :class:`Advice` for shares from 0 to 1; None where there is no utilization, as without a card."""
    if out_of_memory:
        return Advice("out of memory", "BF16, then checkpointing, then a smaller batch", ("memory",))
    if utilization is None:
        return None
    if utilization < LOW:
        first = "workers, for there are none" if workers == 0 else "the loader's settings"
        return Advice(f"utilization below {LOW:.0%}", f"the data pipeline: {first}", ("data",))
    if utilization > HIGH:
        return _in_use(memory)
    between = f"utilization {LOW:.0%} to {HIGH:.0%}"
    if memory is None:
        return Advice(f"{between}, memory n/a", "profile", anything=True)
    if memory < ROOM:
        return Advice(f"{between}, memory below {ROOM:.0%}", "a larger batch", ("launches",))
    if memory <= ENOUGH:
        return Advice(f"{between}, memory {ROOM:.0%} to {ENOUGH:.0%}", "try BF16", ("compute",))
    if memory > EDGE:
        return Advice(f"{between}, memory above {EDGE:.0%}", "a smaller batch, or checkpointing", ("memory",))
    return Advice(f"{between}, memory {ENOUGH:.0%} to {EDGE:.0%}", "profile", anything=True)


def _in_use(memory: float | None) -> Advice:
    if memory is not None and memory > EDGE:
        return Advice(f"utilization above {HIGH:.0%}, memory above {EDGE:.0%}", "profile", anything=True)
    do = "nothing on this card; more cards only if it is truly saturated, and measured: gpuworkshop scale"
    return Advice(f"utilization above {HIGH:.0%}", do)


def beside(look: Look, limit: Limit) -> Finding:
    """The guide beside the diagnosis of the same run, and why they disagree where they do."""
    seen = look.watched
    advice = guide(seen.busy, look.memory, workers=look.starve.workers) if seen else None
    if advice is None:
        why = seen.why if seen else "a CPU has no utilization that the guide could read"
        return Finding("notice", "The published guide says nothing here: utilization n/a", why)
    numbers = f"utilization {percent(seen.busy)}, memory {percent(look.memory)}: {advice.rule}"
    if advice.anything or limit in advice.against or (limit == "compute" and not advice.against and not _faster(look)):
        return Finding("ok", f"The published guide agrees: {advice.do}", numbers)
    title = f"The published guide would say: {advice.do}. Measured, the limit is {limit}"
    return Finding("notice", title, f"{numbers}. {explained(look, limit, advice)}")


def explained(look: Look, limit: Limit, advice: Advice) -> str:
    """Why the guide and the diagnosis disagree, with the numbers that decide."""
    seen, shares = look.starve, look.shares
    if advice.against == ("data",):
        fed = f"not for want of data: {seen.wait_name} {seen.wait_share:.0%}"
        return {
            "launches": f"Low utilization, {fed}; the card waits for launches {shares.of('launches'):.0%} of the time",
            "synchronizing": f"Low utilization, {fed}; host and card wait for each other in turn",
            "copies": f"Low utilization, {fed}; copies take {shares.of('copies'):.0%} of the time",
            "memory": f"Low utilization, {fed}; a larger batch would fill the card and has no room",
        }.get(limit, f"Low utilization, {fed}")
    if not advice.against:
        if limit == "compute":
            return f"Utilization says that something ran, not how fast: {_how_fast(look)}"
        if limit == "data":
            return f"The card is busy with work on the batch: {seen.data_work_share:.0%} of the time is no training"
        return f"Utilization counts a window in which anything ran: {limit} still take {shares.of(limit):.0%} of it"
    if limit == "data":
        return f"{seen.wait_name} {seen.wait_share:.0%}: no batch and no precision helps a run that waits for data"
    return f"Where the time goes decides: {limit} {shares.of(limit):.0%}"


def _how_fast(look: Look) -> str:
    done = look.achieved
    if done is None or done.rate is None:
        return f"this run computes in {look.precision.upper()}"
    words = f"{speed(done.rate)} in {look.precision.upper()}"
    return words + (f", and this card's products reach {speed(look.most)} in a shorter format" if look.most else "")


def _faster(look: Look) -> bool:
    """Whether the card has a faster format than the one that this run computes in."""
    return look.most is not None
