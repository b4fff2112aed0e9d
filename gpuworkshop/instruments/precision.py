"""The same training step in several number formats: how fast, how much memory, and does it still learn?

All arms run in turn on resident batches, so that no loader has a say; each sets its own switches before its blocks,
and the process has its old ones back afterwards. BF16 is held against FP32 *and* TF32.

Three doors: :func:`measure` makes the arms from a model and a loss of yours, :func:`measure_steps` takes steps that
are ready, both in this process; :func:`run` measures a built-in workload in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments.builtin import Asked, ask
from gpuworkshop.instruments.precision_findings import findings, report
from gpuworkshop.instruments.precision_result import (
    ARMS,
    USUAL,
    Arm,
    PrecisionResult,
    Support,
    arm,
    arms_of,
)
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = ["ARMS", "USUAL", "PrecisionResult", "findings", "measure", "measure_steps", "report", "run"]

VARIED = ("precision", "checkpointing", "compiled")
"""Settings that differ between the arms, and so cannot be asked for."""


def measure(
    model: Any,
    loss: Callable[[Any, Any], Any],
    batches: Iterable[Any],
    *,
    optimizer: Callable[[Iterable], Any] | None = None,
    checkpointed: Callable[[Any], Any] | None = None,
    arms: Sequence[str] | None = None,
    device: str | None = None,
    workload: str = "your model",
    unit: str = "samples/s",
    plan: Plan | None = None,
    tell: Tell | None = None,
) -> PrecisionResult:
    """Measure a model of yours in this process. Each arm trains a copy of it; ``model`` stays as it is.

    ``loss(model, batch)`` is forward and loss, without autocast: the arms bring it. ``batches``: a few batches, or a
    loader whose first ones are taken; they are copied to ``device`` (default: the card, if there is one).
    ``optimizer(parameters)`` makes the optimizer (default: AdamW). ``checkpointed(model)`` makes a copy checkpoint its
    expensive parts, in place or by returning another model; without it that arm is left out. Raises ValueError for no
    batch or an unknown arm, TypeError for what is no model or no batches; errors of ``loss`` itself pass through.
    """
    import torch

    from gpuworkshop.instruments import precision_arms
    from gpuworkshop.instruments.arms import a_model
    from gpuworkshop.instruments.precision_measured import measured

    a_model(model)
    asked = arms_of(arms) if arms is not None else _usual(checkpointed is not None)
    updates = optimizer or torch.optim.AdamW
    make = lambda one, where: precision_arms.of_model(one, model, loss, where, updates, checkpointed)  # noqa: E731
    return measured(asked, make, batches, device, workload, unit, plan, tell)


def measure_steps(
    steps: Mapping[str, Callable[[Any], Any]],
    batches: Iterable[Any],
    *,
    device: str | None = None,
    workload: str = "your steps",
    unit: str = "samples/s",
    plan: Plan | None = None,
    tell: Tell | None = None,
) -> PrecisionResult:
    """Measure steps of yours that are ready, one for each arm by its id: ``{"fp32": step, "bf16": other_step}``.

    ``step(batch)`` does one whole training step and may return its loss. Autocast is yours; whether it did anything
    is looked at. TF32 is switched here. What a step leaves behind, such as gradients, is not counted as activations.
    """
    from gpuworkshop.instruments.arms import callable_step
    from gpuworkshop.instruments.precision_arms import Running
    from gpuworkshop.instruments.precision_measured import measured

    asked = arms_of(steps)
    for step in steps.values():
        callable_step(step)
    make = lambda one, where: Running(one, steps[one.id], lambda: None)  # noqa: E731
    return measured(asked, make, batches, device, workload, unit, plan, tell)


def _usual(checkpointing: bool) -> list[Arm]:
    return [one for one in map(arm, USUAL) if checkpointing or not one.checkpointing]


# ---------------------------------------------------------------- a built-in workload in a child


class Request(Asked, frozen=True, kw_only=True):
    """What a precision child is asked for."""

    arms: tuple[str, ...] | None = None
    learn: bool = False


def run(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    arms: Sequence[str] | None = None,
    learn: bool = False,
    launcher: Sequence[str] = (),
    progress=None,
) -> PrecisionResult:
    """Measure a built-in workload in a child process, here or behind ``launcher``.

    ``arms``: ids of :data:`ARMS`, default :data:`USUAL`, and FP16 where the card multiplies that and no BF16.
    ``learn`` trains every arm for the preset's samples as well, two seeds of FP32 as the measure. ValueError for an
    unknown arm and for settings that the arms bring.
    """
    only_its_own(config or TrainConfig())
    ids = tuple(one.id for one in arms_of(arms)) if arms is not None else None
    more = dict(arms=ids, learn=learn, launcher=launcher, progress=progress)
    return ask(f"{__name__}:in_child", Request, config, job, type=PrecisionResult, **more)


def only_its_own(config: TrainConfig) -> None:
    """ValueError for settings that differ between the arms."""
    plain = TrainConfig()
    set_already = [name for name in VARIED if getattr(config, name) != getattr(plain, name)]
    if set_already:
        raise ValueError(f"{', '.join(set_already)}: this is what the arms compare, so leave it out")


def in_child(request: Any, tell: Tell) -> PrecisionResult:
    """What the child does with a :class:`Request`."""
    from gpuworkshop.instruments import precision_arms
    from gpuworkshop.instruments.precision_measured import measured
    from gpuworkshop.instruments.precision_support import support

    asked = msgspec.convert(request, Request)
    device = asked.where()
    tell.progress(0.0, "loading PyTorch and the workload")
    config = asked.config.with_(reads_loss="rarely")
    batches = precision_arms.random_batches(config, asked.job, device)
    make = lambda one, where: precision_arms.of_training(one, config, asked.job, where)  # noqa: E731
    ids = asked.arms or default_arms(support(device))
    timing = tell.part(0.05, 0.5 if asked.learn else 1.0)
    door = (device, asked.job.title, asked.job.sizes.unit, None, timing)
    result = measured(arms_of(ids), make, batches, *door)
    result = msgspec.structs.replace(result, config=config, planted=asked.job.planted)
    return _with_learning(result, config, asked.job, tell.part(0.5, 1.0)) if asked.learn else result


def default_arms(can: Support) -> tuple[str, ...]:
    """The usual arms; where a card multiplies FP16 and no BF16, that one too."""
    return (*USUAL, "fp16") if can.card and can.fp16 and can.bf16 is False else USUAL


def _with_learning(result: PrecisionResult, config: TrainConfig, job: Job, tell: Tell) -> PrecisionResult:
    """Train every arm that was measured, and FP32 twice, and judge them at equal samples."""
    from gpuworkshop.instruments.precision_learning import judged

    measured = [one.arm for one in result.arms if one.rate]
    verdicts = judged(measured, config, job, result.conditions.device, tell)
    arms = tuple(msgspec.structs.replace(one, learning=verdicts.get(one.arm.id)) for one in result.arms)
    return msgspec.structs.replace(result, arms=arms)
