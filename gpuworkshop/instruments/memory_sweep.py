"""Throughput over the batch size: all sizes in turn, and the knee, the smallest within 5% of the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments.memory_faults import fault_of, forget
from gpuworkshop.instruments.memory_result import BatchPoint, BatchSweep
from gpuworkshop.instruments.memory_room import Room, room_for
from gpuworkshop.timing import Clock, Plan, clock_for, in_turn, plan_for

FEWEST = 8
"""The smallest size of a usual sweep."""
MOST_SIZES = 9


class Sized:
    """One batch size of ``step(batch_size)`` as an arm."""

    period = 1

    def __init__(self, step: Callable[[int], Any], batch: int):
        self.name, self._step, self._batch = str(batch), step, batch

    def resume(self) -> None:
        """Nothing of this arm has to be woken."""

    def pause(self) -> None:
        """Nothing of this arm runs between its blocks."""

    def step(self, clock: Clock) -> int:
        self._step(self._batch)
        return self._batch


def quick(plan: Plan) -> Plan:
    """A plan that only finds the knee: four rounds, half the time."""
    return msgspec.structs.replace(plan, min_rounds=4, budget_seconds=plan.budget_seconds / 2)


def doublings(first: int, most: int) -> tuple[int, ...]:
    """``first``, twice that, and so on up to ``most``; of many the largest few."""
    sizes = [first * 2**n for n in range(most.bit_length()) if first * 2**n <= most]
    return tuple(sizes[-MOST_SIZES:]) or (most,)


def sweep(
    step: Callable[[int], Any],
    sizes: Sequence[int],
    *,
    device: str,
    workload: str = "your step",
    unit: str = "samples/s",
    plan: Plan | None = None,
    tell: Tell | None = None,
) -> BatchSweep:
    """Measure ``step(batch_size)`` at each size in turn, up to the first that the memory does not hold.

    Errors of the step that are not about memory pass through. ValueError where not one size fits.
    """
    from gpuworkshop.machine.conditions import conditions

    tell, room, sizes = tell or Tell(), room_for(device), sorted(set(sizes))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"sizes are {sizes}: batch sizes to try, 1 or more")
    peaks: dict[int, int | None] = {}
    too_big: list[BatchPoint] = []
    for place, batch in enumerate(sizes):
        tell.progress(0.2 * place / len(sizes), f"a first step of {batch}")
        peak, why = first_step(step, batch, room)
        if why:
            too_big = [BatchPoint(batch, None, note=why)]
            break
        peaks[batch] = peak
    if not peaks:
        raise ValueError(f"not even a batch of {sizes[0]} fits: {too_big[0].note}")
    rounds = in_turn(
        [Sized(step, batch) for batch in peaks],
        clock_for(device),
        plan or plan_for(device),
        unit=unit,
        progress=lambda share: tell.progress(0.2 + 0.8 * share, "all batch sizes in turn"),
    )
    least = min(peaks)
    points = [
        BatchPoint(
            batch,
            rounds.rate(str(batch)),
            rounds.compare(str(least), str(batch)) if batch != least else None,
            peak if room.kind == "card" else None,
        )
        for batch, peak in peaks.items()
    ]
    here = conditions(device)
    return BatchSweep(workload, tuple(points + too_big), here, here.origin, sizes[-1])


def first_step(step: Callable[[int], Any], batch: int, room: Room) -> tuple[int | None, str]:
    """The peak of one step in bytes, None where nothing says; or the words of the memory that did not suffice."""
    room.clear()
    why = ""
    try:
        step(batch)
        room.finish()
    except Exception as error:
        fault = fault_of(error)
        if fault.kind == "other":
            raise
        forget(error)
        why = fault.words
    if why:
        room.clear()  # out here, where the exception is gone
        return None, why
    return room.read().allocated, ""
