"""Batch size: the knee, the smallest batch within 5% of the best throughput."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from gpuworkshop.instruments import arms
from gpuworkshop.timing import Clock, Plan, in_turn
from gpuworkshop.workloads.config import TrainConfig
from gpuworkshop.workloads.train import Training

WITHIN = 0.05
LARGEST = {"cpu": 4, "card": 16}
"""How many times the present batch the largest one looked at is."""


def knee(build: Callable[[TrainConfig], Training], config: TrainConfig, clock: Clock, plan: Plan) -> int:
    """The smallest batch within 5% of the best throughput, on random resident batches, all sizes in turn.

    Looks at doublings of the present batch; stops growing where the device's memory ends.
    """
    few = msgspec.structs.replace(plan, min_rounds=4, budget_seconds=plan.budget_seconds / 2)
    sizes, measured = [], []
    training = build(config)
    largest = LARGEST["cpu" if training.device == "cpu" else "card"] * config.batch_size
    size = config.batch_size
    while size <= min(largest, len(training.loader.dataset)):
        arm = _fits(build, config.with_(batch_size=size))
        if arm is None:
            break
        sizes.append(size)
        measured.append(arm)
        size *= 2
    rounds = in_turn(measured, clock, few)
    rates = {size: rounds.rate(str(size)).value for size in sizes}
    return min(size for size, rate in rates.items() if rate >= (1 - WITHIN) * max(rates.values()))


def _fits(build: Callable[[TrainConfig], Training], config: TrainConfig) -> arms.Resident | None:
    """An arm of this batch size that has done one step; None when the memory does not suffice."""
    try:
        training = build(config)
        arm = arms.resident(str(config.batch_size), training, arms.synthetic(training))
        arm.resume()
        arm.step(Clock())
    except torch.OutOfMemoryError:
        return None
    return arm
