"""The checks of chapter 3: five profiles to read, and a loop over samples to replace by one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from gpuworkshop.course.checks import STUB, Found, does_nothing, not_whole, right, told, written, wrong
from gpuworkshop.timing import Comparison, Plan, clock_for, in_turn

if TYPE_CHECKING:
    import torch

SIGNS = ("gaps", "copies", "cpu", "loader", "none")
FIXES = ("batch", "keep", "move", "feed", "leave")


class Read(msgspec.Struct, frozen=True):
    """What limits a job of the exercise, and what to do first."""

    sign: str
    fix: str


JOBS = {
    "photos": Read("loader", "feed"),
    "faces": Read("cpu", "move"),
    "masks": Read("copies", "keep"),
    "letters": Read("gaps", "batch"),
    "night": Read("none", "leave"),
}
TAKEN_FOR = {
    ("photos", "gaps"): "gaps-with-a-cause",
    ("faces", "gaps"): "cuda-time-is-none",
    ("letters", "cpu"): "calls-not-seen",
    **{("night", sign): "wait-taken-for-work" for sign in SIGNS},
}
"""Typical wrong bottlenecks, each with its mistake."""


def tables(mine: Any) -> Found:
    """Judge a pair for each job: a bottleneck and a fix, as ``{"photos": ("loader", "feed"), ...}``."""
    if found := not_whole(mine, JOBS, "job"):
        return found
    steps = (_not_a_pair, _wrong_sign, _wrong_fix)  # all bottlenecks first: a fix follows from its bottleneck
    return next((found for step in steps for job in JOBS if (found := step(job, mine[job]))), right())


def _not_a_pair(job: str, answer: Any) -> Found | None:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return wrong("no-pair", job=job, got=written(answer))
    for word, known in zip(answer, (SIGNS, FIXES), strict=True):
        if not isinstance(word, str) or word not in known:
            return wrong("unknown-word", job=job, got=written(word), known=", ".join(known))
    return None


def _wrong_sign(job: str, answer: tuple[str, str]) -> Found | None:
    sign = answer[0]
    return None if sign == JOBS[job].sign else wrong(TAKEN_FOR.get((job, sign), "wrong-sign"), job=job, got=sign)


def _wrong_fix(job: str, answer: tuple[str, str]) -> Found | None:
    fix = answer[1]
    return None if fix == JOBS[job].fix else wrong("wrong-fix", job=job, got=fix)


# ---------------------------------------------------------------- one call for the batch

SAMPLES, PX, CLASSES = 32, 16, 8
CLOSE = {"rtol": 1e-3, "atol": 1e-5}
PLAN = Plan(block_seconds=0.05, min_steps=1, min_rounds=6, budget_seconds=2.0, max_warm_up_blocks=3)
VERDICTS = {"no real difference": "no-difference", "slower": "slower"}


def slow_loss(model: Any, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """The loss of the exercise as it is given: one call for each image, and each loss is read."""
    from torch.nn.functional import cross_entropy

    total, seen = 0, []
    for image, label in zip(images, classes, strict=True):
        loss = cross_entropy(model(image[None]), label[None])
        seen.append(loss.item())
        total = total + loss
    return total / len(images)


class _Trial:
    """A small model with a batch, on the default device; runs a loss on it and looks at what comes out."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        from gpuworkshop.machine.gpus import default_device

        self.device = default_device()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            layers = (nn.Flatten(), nn.Linear(3 * PX * PX, 32), nn.ReLU(), nn.Linear(32, CLASSES))
            self.model = nn.Sequential(*layers).to(self.device)
            self.images = torch.randn(SAMPLES, 3, PX, PX, device=self.device)
            self.classes = torch.arange(SAMPLES, device=self.device) % CLASSES
        self.calls = 0
        self.model.register_forward_pre_hook(self._called)

    def _called(self, *_: Any) -> None:
        self.calls += 1

    def loss(self, function: Callable) -> Any:
        """What a loss function gives for the batch; ``calls`` counts the calls of the model in it."""
        self.calls = 0
        return function(self.model, self.images.clone(), self.classes.clone())

    def state(self) -> list[torch.Tensor | None]:
        """The weights and what is kept as their gradients."""
        return [kept.clone() for one in self.model.parameters() for kept in (one.data, one.grad) if kept is not None]

    def gradients(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """The gradients of a loss; zeros for weights that it does not depend on."""
        import torch

        weights = list(self.model.parameters())
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        pairs = zip(found, weights, strict=True)
        return [torch.zeros_like(weight) if one is None else one for one, weight in pairs]

    def compare(self, function: Callable) -> Comparison:
        """Forward and backward with a loss function against those with `slow_loss`, in turn."""
        import torch

        arms = [_Way("slow", self, slow_loss), _Way("fast", self, function)]
        threads = torch.get_num_threads()
        torch.set_num_threads(
            1 if self.device == "cpu" else threads
        )  # as everywhere: threads that wait measure nothing
        try:
            return in_turn(arms, clock_for(self.device), PLAN).compare("slow", "fast")
        finally:
            torch.set_num_threads(threads)


class _Way:
    """An arm: forward and backward with one of the two losses."""

    period = 1

    def __init__(self, name: str, trial: _Trial, function: Callable):
        self.name, self._trial, self._function = name, trial, function

    def resume(self) -> None:
        """There is nothing to prepare."""

    def pause(self) -> None:
        """Nothing runs between its blocks."""

    def step(self, clock: Any) -> int:
        self._trial.gradients(self._trial.loss(self._function))
        return SAMPLES


def batched(fast_loss: Any) -> Found:
    """Judge `fast_loss(model, images, classes)`: loss and gradients of `slow_loss`, from one call, and faster."""
    if not callable(fast_loss):
        return wrong("no-function", kind=type(fast_loss).__name__)
    trial = _Trial()
    before = trial.state()
    try:
        loss = trial.loss(fast_loss)
    except (Exception, SystemExit) as error:
        return wrong("raised", samples=SAMPLES, error=told(error))
    calls = trial.calls
    if loss is ... or loss is None:
        return STUB if loss is ... or does_nothing(fast_loss) else wrong("returns-nothing")
    if found := _wrong_loss(trial, loss, before):
        return found
    if calls > 1:
        return wrong("still-loops", calls=calls, samples=SAMPLES)
    return _wrong_speed(comparison := trial.compare(fast_loss)) or right(
        calls="one call", samples=SAMPLES, comparison=comparison
    )


def _wrong_loss(trial: _Trial, loss: Any, before: list) -> Found | None:
    """What is wrong with a loss or its gradients; None if both are those of `slow_loss`."""
    import torch

    if not isinstance(loss, torch.Tensor):
        return wrong("no-tensor", kind=type(loss).__name__)
    if loss.numel() != 1:
        return wrong("each-sample", count=loss.numel())
    after = trial.state()
    if len(after) != len(before) or not all(map(torch.equal, before, after)):
        return wrong("trains")
    truth = trial.loss(slow_loss)
    value = loss.detach().real.to(truth)  # of any type, on any device
    if not torch.allclose(value, truth, **CLOSE):
        summed = torch.allclose(value, truth * SAMPLES, **CLOSE)
        return wrong("summed" if summed else "other-loss", got=loss.item(), expected=truth.item(), samples=SAMPLES)
    if not loss.requires_grad:
        return wrong("no-gradient")
    same = zip(trial.gradients(loss.sum()), trial.gradients(truth), strict=True)
    return (
        None if all(torch.allclose(mine, right_one, **CLOSE) for mine, right_one in same) else wrong("other-gradient")
    )


def _wrong_speed(comparison: Comparison) -> Found | None:
    if comparison.verdict == "faster":
        return None
    facts = {"ratio": comparison.ratio, "smallest": comparison.smallest}
    return wrong(VERDICTS.get(comparison.verdict, "no-verdict"), **facts)


CHECKS: dict[str, Callable[..., Found]] = {"tables": tables, "batched": batched}
