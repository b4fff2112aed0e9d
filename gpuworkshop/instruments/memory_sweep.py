"""Throughput over the batch size: all sizes in turn, and the knee, the smallest within 5% of the best.

:func:`sweep` measures them all, for the learner; :func:`knee` only finds the one that the loop proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments.memory_faults import fault_of, forget, is_memory
from gpuworkshop.instruments.memory_result import BatchPoint, BatchSweep, knee_of
from gpuworkshop.instruments.memory_room import Room, room_for
from gpuworkshop.timing import Clock, Plan, Rounds, clock_for, in_turn, plan_for
from gpuworkshop.workloads.config import TrainConfig

FEWEST = 8
"""The smallest size of a usual sweep."""
MOST_SIZES = 9
LARGEST = {"cpu": 4, "card": 16}
"""How many times the present batch the largest one looked at is."""
KNEE_BLOCK = 0.25
"""Seconds of a block where only the knee is looked for."""


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


def shortest(plan: Plan) -> Plan:
    """A plan that only proposes a batch, which a trial will then judge: four rounds of short blocks."""
    block = min(plan.block_seconds, KNEE_BLOCK)
    return msgspec.structs.replace(plan, min_rounds=4, width=1.0, block_seconds=block, max_warm_up_blocks=4)


def largest_for(training: Any, now: int) -> int:
    """The largest batch of a training run to look at, where it is ``now``; never more than its samples."""
    return min(LARGEST["cpu" if training.device == "cpu" else "card"] * now, len(training.loader.dataset))


def doublings(first: int, most: int) -> tuple[int, ...]:
    """``first``, twice that, and so on up to ``most``; of many the largest few."""
    sizes = [first * 2**n for n in range(most.bit_length()) if first * 2**n <= most]
    return tuple(sizes[-MOST_SIZES:]) or (most,)


def sweep(
    step: Callable[[int], Any],
    sizes: Sequence[int],
    *,
    device: str | None = None,
    workload: str = "your step",
    unit: str = "samples/s",
    plan: Plan | None = None,
    tell: Tell | None = None,
) -> BatchSweep:
    """Measure your own ``step(batch_size)`` at each size in turn, up to the first that the memory does not hold.

    The data should lie ready on the device: what a step does to get them counts too. Errors
    of the step that are not about memory pass through. ValueError where not one size fits, or for what are no sizes.
    """
    from gpuworkshop.instruments.arms import callable_step
    from gpuworkshop.machine.conditions import conditions
    from gpuworkshop.machine.gpus import default_device

    callable_step(step, "step(batch_size)")
    device, wanted = str(device or default_device()), _whole(sizes)
    tell, room = tell or Tell(), room_for(device)
    peaks, too_big = _first_steps(step, wanted, room, tell.part(0.0, 0.2))
    rounds, crowded = _timed(step, list(peaks), room, device, plan or plan_for(device), unit, tell.part(0.2, 1.0))
    least = min(peaks)
    points = [
        BatchPoint(
            batch,
            rounds.rate(str(batch)),
            rounds.compare(str(least), str(batch)) if batch != least else None,
            peaks[batch] if room.kind == "card" else None,
        )
        for batch in peaks
        if str(batch) in rounds.blocks
    ]
    here = conditions(device)
    return BatchSweep(workload, (*points, *crowded, *too_big), here, here.origin, wanted[-1])


def _whole(sizes: Any) -> list[int]:
    """Batch sizes in their order, each once. ValueError for what are none."""
    try:
        numbers = sorted({index(size) for size in sizes})
    except TypeError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ValueError(f"sizes are {sizes!r:.80}: batch sizes to try, whole numbers, 1 or more")
    return numbers


def _first_steps(
    step: Callable[[int], Any], sizes: Sequence[int], room: Room, tell: Tell
) -> tuple[dict[int, int | None], list[BatchPoint]]:
    """The peak of each size up to the first that does not fit, and that one. ValueError where none fits."""
    peaks: dict[int, int | None] = {}
    for place, batch in enumerate(sizes):
        tell.progress(place / len(sizes), f"a first step of {batch}")
        peak, why = first_step(step, batch, room)
        if why:
            if not peaks:
                raise ValueError(f"not even a batch of {batch} fits: {why}")
            return peaks, [BatchPoint(batch, None, note=why)]
        peaks[batch] = peak
    return peaks, []


def _timed(
    step: Callable[[int], Any], sizes: list[int], room: Room, device: str, plan: Plan, unit: str, tell: Tell
) -> tuple[Rounds, list[BatchPoint]]:
    """All sizes in turn; the largest gives way where they do not fit one after the other with nothing cleared."""
    crowded: list[BatchPoint] = []
    say = lambda share: tell.progress(share, "all batch sizes in turn")  # noqa: E731
    while True:
        try:
            arms = [Sized(step, batch) for batch in sizes]
            return in_turn(arms, clock_for(device), plan, unit=unit, progress=say), crowded
        except Exception as error:
            fault = fault_of(error)
            if fault.kind == "other" or len(sizes) == 1:
                raise
            forget(error)
        crowded.insert(0, BatchPoint(sizes.pop(), None, note=fault.words))
        room.clear()


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


def knee(build: Callable[[TrainConfig], Any], config: TrainConfig, clock: Clock, plan: Plan) -> int:
    """The smallest batch within 5% of the best throughput, on random resident batches, all sizes in turn.

    Looks at doublings of the present batch; stops growing where the device's memory ends.
    """
    sizes, measured = [], []
    training = build(config)
    size = config.batch_size
    largest = largest_for(training, size)
    while size <= largest:
        arm = _fits(build, config.with_(batch_size=size))
        if arm is None:
            break
        sizes.append(size)
        measured.append(arm)
        size *= 2
    rounds = in_turn(measured, clock, shortest(plan))
    return knee_of({size: rounds.rate(str(size)).value for size in sizes})


def _fits(build: Callable[[TrainConfig], Any], config: TrainConfig) -> Any:
    """An arm of this batch size that has done one step; None when the memory does not suffice."""
    from gpuworkshop.instruments import arms

    try:
        training = build(config)
        arm = arms.resident(str(config.batch_size), training, arms.synthetic(training))
        arm.resume()
        arm.step(Clock())
    except (RuntimeError, MemoryError) as error:
        if not is_memory(error):
            raise
        forget(error)
        return None
    return arm
