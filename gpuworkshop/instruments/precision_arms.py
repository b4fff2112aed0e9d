"""The arms of precision, ready to run: the same step in each format, with what it needs around it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gpuworkshop.instruments import arms
from gpuworkshop.instruments.precision_result import Arm
from gpuworkshop.workloads import tf32
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.images import PictureTask
from gpuworkshop.workloads.language import TextTask
from gpuworkshop.workloads.train import Training, build

Step = Callable[[Any], Any]


class NoSuchArm(ValueError):
    """This arm cannot be made here; the message says why."""


@dataclass
class Running:
    """An arm with its step: ``step(batch)`` does one and may return its loss, ``drop()`` lets its gradients go."""

    arm: Arm
    step: Step
    drop: Callable[[], None]
    training: Training | None = None

    def in_turn(self, batches: list[Any]) -> arms.Resident:
        """For timing: its switches are set before each block, its gradients go after it."""
        resident = arms.Resident(self.arm.id, batches, self.step, self.enter)
        resident.pause = self.drop
        return resident

    def enter(self) -> None:
        """The switches of the process that belong to this arm."""
        tf32.allow(self.arm.format == "tf32")


def of_training(arm: Arm, config: TrainConfig, job: Job, device: str) -> Running:
    """An arm of a built-in training run. NoSuchArm where the workload has no such setting."""
    precision = "fp32" if arm.format == "fp16" else arm.format
    wanted = config.with_(precision=precision, checkpointing=arm.checkpointing, compiled=arm.compiled)
    try:
        with torch.device(device):  # the first weights are drawn where they will be: on a card that takes no time
            training = build(wanted, job, device)
    except ValueError as error:
        raise NoSuchArm(str(error)) from error
    if arm.format == "fp16":
        loss = lambda batch: training.task.loss(training.run, *batch)  # noqa: E731
        scaled = step_with(loss, training.optimizer, device, arm)
        training.step = lambda x, y: scaled((x, y))
    drop = lambda: training.optimizer.zero_grad(set_to_none=True)  # noqa: E731
    return Running(arm, lambda batch: training.step(*batch), drop, training)


def random_batches(config: TrainConfig, job: Job, device: str) -> list[Any]:
    """Batches on the device, shaped like those of a built-in run; no model is made for them."""
    task = (PictureTask if job.sizes.pictures else TextTask)(config, job, device)
    return [task.random_batch() for _ in range(arms.RESIDENT_BATCHES)]


def of_model(
    arm: Arm,
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Any], torch.Tensor],
    device: str,
    optimizer: Callable[[Iterable], torch.optim.Optimizer],
    checkpointed: Callable[[torch.nn.Module], torch.nn.Module] | None,
) -> Running:
    """An arm that trains a copy of a model of the learner's. NoSuchArm without a way to checkpoint it."""
    if arm.checkpointing and checkpointed is None:
        raise NoSuchArm(
            "checkpointed=... was not given: a function that makes the model checkpoint its expensive parts"
        )
    mine = copy.deepcopy(model).to(device)
    if arm.checkpointing:
        mine = checkpointed(mine) or mine
        arms.a_model(mine)
    used, updates = torch.compile(mine) if arm.compiled else mine, optimizer(mine.parameters())
    step = step_with(lambda batch: loss(used, batch), updates, device, arm)
    return Running(arm, step, lambda: updates.zero_grad(set_to_none=True))


def step_with(loss: Step, optimizer: torch.optim.Optimizer, device: str, arm: Arm) -> Step:
    """Forward under the arm's autocast, backward, update; with a gradient scaler for FP16 only."""
    kind = torch.device(device).type
    lower = getattr(torch, arm.autocast) if arm.autocast else None
    scaler = torch.amp.GradScaler(kind, enabled=arm.format == "fp16")

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, lower, enabled=lower is not None):
            value = loss(batch)
        arms.usable_loss(value)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        return value.detach()

    return step
