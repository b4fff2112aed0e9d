"""From the blocks of all ranks to a result: throughputs, comparisons, and who is slower than the others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from gpuworkshop.instruments.scaling_plan import Request, arm_names, strong, weak
from gpuworkshop.instruments.scaling_result import ALONE, FLOOR, REDUCE, Member, Mode, ScalingResult, World
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.timing import Rate, Rounds, compare, durations

WAIT = "wait"


class Measured(msgspec.Struct, frozen=True):
    """What rank 0 has in the end: the blocks of every arm, and for each block the seconds of each rank."""

    rounds: Rounds
    seconds: Mapping[str, Sequence[Sequence[float]]]
    gradient_bytes: int
    cards: Sequence[str]


def read(asked: Request, measured: Measured, here: Conditions) -> ScalingResult:
    """The result of one launch."""
    rounds, most = measured.rounds, asked.ranks
    per_rank = [math.log(a.rate / (most * b.rate)) for a, b in zip(*_pair(rounds, FLOOR, ALONE), strict=True)]
    return ScalingResult(
        workload=asked.job.title,
        ranks=most,
        backend="nccl" if here.device != "cpu" else "gloo",
        batch_size=asked.config.batch_size,
        alone=rounds.rate(ALONE),
        wrapped=rounds.rate(FLOOR),
        taken=compare(per_rank),
        communicating=rounds.compare(FLOOR, weak(most)),
        worlds=worlds(asked, rounds),
        gradient_bytes=measured.gradient_bytes,
        reduce_seconds=_reduce(rounds),
        alone_wait=rounds.share(ALONE, WAIT),
        world_wait=rounds.share(weak(most), WAIT),
        wait_name="loader wait" if here.device == "cpu" else "stall",
        members=members(measured),
        config=asked.config,
        planted=planted(asked),
        notes=tuple(_notes(asked)),
        conditions=here,
        origin=here.origin,
    )


def worlds(asked: Request, rounds: Rounds) -> tuple[World, ...]:
    """The worlds that were measured, by mode and size."""
    found = []
    for name in arm_names(asked):
        if name in (ALONE, FLOOR, REDUCE):
            continue
        mode, _, size = name.partition(" ")
        block = rounds.blocks[name][0]
        batch = round(block.samples / block.steps / int(size))
        found.append(World(int(size), _mode(mode), batch, rounds.rate(name), rounds.compare(ALONE, name)))
    return tuple(sorted(found, key=lambda world: (world.mode != "weak", world.size)))


def members(measured: Measured) -> tuple[Member, ...]:
    """Every rank and its own speed without all-reduce, where it waits for nobody."""
    blocks, seconds = measured.rounds.blocks[FLOOR], measured.seconds[FLOOR]
    found = []
    for number, card in enumerate(measured.cards):
        rates = [b.samples / len(times) / times[number] for b, times in zip(blocks, seconds, strict=True)]
        took = durations([1 / rate for rate in rates])
        rate = Rate(1 / took.value, 1 / took.high, 1 / took.low, took.n, measured.rounds.unit)
        against = None
        if len(measured.cards) > 1:
            against = compare([math.log(_others(times, number) / times[number]) for times in seconds])
        found.append(Member(number, card, rate, against))
    return tuple(found)


def planted(asked: Request) -> str:
    """What is planted, in words; "" when nothing is."""
    late = f"the last rank really waits {asked.straggler_ms:g} ms in each step" if asked.straggler_ms else ""
    return "; ".join(filter(None, [asked.job.planted, late]))


def _others(times: Sequence[float], number: int) -> float:
    """The median time of the other ranks."""
    return statistics.median([*times[:number], *times[number + 1 :]])


def _pair(rounds: Rounds, a: str, b: str):
    return rounds.blocks[a], rounds.blocks[b]


def _reduce(rounds: Rounds) -> Rate | None:
    if REDUCE not in rounds.blocks:
        return None
    return durations([block.seconds / block.steps for block in rounds.blocks[REDUCE]])


def _mode(word: str) -> Mode:
    return "weak" if word == "weak" else "strong"


def _notes(asked: Request):
    """What was left out, and why."""
    if asked.only_weak:
        return
    batch = asked.config.batch_size
    for size in {int(name.split()[1]) for name in arm_names(asked) if name.startswith("weak ")}:
        if size > batch:
            yield f"strong scaling to {size} ranks is n/a: a batch of {batch} cannot be shared by so many"
        elif asked.ranks > 1 and batch % size and strong(size) in arm_names(asked):
            yield f"strong scaling to {size} ranks: {size} x {batch // size} samples a step instead of {batch}"
