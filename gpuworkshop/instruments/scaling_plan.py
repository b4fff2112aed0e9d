"""What a scaling measurement is asked for, which worlds it has, and how many ranks a machine allows."""

from __future__ import annotations

import msgspec

from gpuworkshop.instruments.scaling_result import ALONE, FLOOR, REDUCE
from gpuworkshop.machine.device import Cards
from gpuworkshop.numbers import counted
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job, TrainConfig


class Request(msgspec.Struct, frozen=True):
    """What the ranks are asked for."""

    config: TrainConfig
    job: Job
    ranks: int
    straggler_ms: float = 0.0
    """Planted: milliseconds that the last rank really waits in each step."""
    plan: Plan | None = None
    only_weak: bool = False
    """Leave out strong scaling and all-reduce alone."""


def sizes(ranks: int) -> tuple[int, ...]:
    """The worlds to measure: 2, 4, 8, ... up to all ranks. A single rank is a world of one."""
    doubled = [2**power for power in range(1, ranks.bit_length()) if 2**power < ranks]
    return (*doubled, ranks)


def weak(size: int) -> str:
    """The name of the arm in which every rank has the whole batch."""
    return f"weak {size}"


def strong(size: int) -> str:
    """The name of the arm in which the ranks share the batch."""
    return f"strong {size}"


def arm_names(asked: Request) -> list[str]:
    """All arms in the order in which they are measured; the same on every rank."""
    names = [ALONE, FLOOR]
    names += [weak(size) for size in sizes(asked.ranks)]
    if asked.only_weak or asked.ranks == 1:
        return names
    names += [strong(size) for size in sizes(asked.ranks) if size <= asked.config.batch_size]
    return [*names, REDUCE]


def refusal(ranks: int, cards: int, cpus: int) -> str:
    """Why so many ranks cannot be measured where there are so many cards (0: on CPUs); "" if they can."""
    if cards and ranks > cards:
        return (
            f"{counted(ranks, 'rank')} need {counted(ranks, 'card')}, and this job has {cards}: use --ranks {cards}, "
            "or ask for more cards"
        )
    if not cards and ranks > cpus:
        return f"{counted(ranks, 'rank')} on {counted(cpus, 'CPU')} would only take turns: use --ranks {cpus}"
    return ""


def refused_before(ranks: int, cards: Cards, cpus: int) -> str:
    """Why this machine cannot take so many ranks, as far as the driver says; "" if it can or nobody is certain."""
    if any(card.mig for card in cards.mine):
        no = f"{ranks} ranks cannot be: a process gets one MIG slice, and NCCL joins none: use --ranks 1"
        return no if ranks > 1 else ""
    if cards.unknown:
        return ""
    return refusal(ranks, len(cards.mine), cpus)
