"""The checks of chapter 5: a training step in BF16, and a batch size for each of three jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any
from unittest import mock

from gpuworkshop.course.checks import STUB, Found, does_nothing, not_whole, right, told, written, wrong
from gpuworkshop.instruments.memory_result import RULE, knee_of

if TYPE_CHECKING:
    import torch

SAMPLES, WIDTH, CLASSES = 32, 24, 4
STEPS = 40
FALLS = 0.8
"""The loss after :data:`STEPS` steps over the first one, at most: below it the step learns."""
CLOSE = {"rtol": 0.05, "atol": 2e-3}
"""How far gradients may be apart that were computed in BF16 in two orders."""


class Trial:
    """A small model with a batch, on the default device; runs a step on it and looks on from outside."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        from gpuworkshop.machine.gpus import default_device

        self.device = default_device()
        self.kind = torch.device(self.device).type
        with torch.random.fork_rng():
            torch.manual_seed(5)
            layers = (nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, CLASSES))
            self.model = nn.Sequential(*layers).to(self.device)
            self.batch = torch.randn(SAMPLES, WIDTH, device=self.device)
            self.targets = (self.batch @ torch.randn(WIDTH, CLASSES, device=self.device)).argmax(1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.forward: list[Any] = []
        """For each call of the model the type that autocast was on for, None where it was off."""
        self.losses: list[bool] = []
        """For each call of the loss whether autocast was on."""
        self.backward: list[bool] = []
        """For each backward pass whether autocast was on."""
        self.updates: list[list[torch.Tensor | None]] = []
        """The gradients at each update."""
        self.scaled = False
        self.model.register_forward_pre_hook(lambda *_: self.forward.append(self._format()))
        self.optimizer.register_step_pre_hook(lambda *_: self.updates.append(self._gradients()))

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss that the step gets; notes whether autocast is on."""
        from torch.nn.functional import cross_entropy

        self.losses.append(self._format() is not None)
        return cross_entropy(outputs, targets)

    def step(self, function: Callable) -> Any:
        """One step by the learner's function, watched; what it returns."""
        with self._watched():
            return function(self.model, self.loss, self.batch, self.targets, self.optimizer)

    def expected(self) -> list[torch.Tensor]:
        """The gradients of one batch in BF16 at the weights as they are."""
        import torch
        from torch.nn.functional import cross_entropy

        with torch.autocast(self.kind, torch.bfloat16):
            loss = cross_entropy(self.model(self.batch), self.targets)
        return list(torch.autograd.grad(loss, list(self.model.parameters())))

    def value(self) -> float:
        """The loss in FP32 as it is now."""
        import torch
        from torch.nn.functional import cross_entropy

        with torch.no_grad():
            return float(cross_entropy(self.model(self.batch), self.targets))

    def _format(self) -> Any:
        import torch

        return torch.get_autocast_dtype(self.kind) if torch.is_autocast_enabled(self.kind) else None

    def _gradients(self) -> list[torch.Tensor | None]:
        return [None if one.grad is None else one.grad.detach().clone() for one in self.model.parameters()]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note backward passes and scalers of the block; restores everything."""
        import torch

        from gpuworkshop.instruments import torch_settings

        backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale

        def noted(*args: Any, **more: Any) -> None:
            self.backward.append(self._format() is not None)
            backward(*args, **more)

        def seen(scaler: Any, value: Any) -> Any:
            self.scaled = True
            return scale(scaler, value)

        with (
            torch_settings.kept(),
            mock.patch.object(torch.autograd, "backward", noted),
            mock.patch.object(torch.amp.GradScaler, "scale", seen),
        ):
            yield


def autocast(bf16_step: Any) -> Found:
    """Judge `bf16_step(model, loss_function, batch, targets, optimizer)`: what stands in autocast, types, learning."""
    if not callable(bf16_step):
        return wrong("no-function", kind=type(bf16_step).__name__)
    trial = Trial()
    try:
        loss = trial.step(bf16_step)
        if loss is ... or (loss is None and does_nothing(bf16_step)):
            return STUB
        if found := _wrong_shape(trial) or _wrong_types(trial):
            return found
        return _wrong_gradients(trial, bf16_step) or _wrong_loss(loss) or _learns(trial, bf16_step)
    except (Exception, SystemExit) as error:
        return wrong("raised", error=told(error))


def _wrong_shape(trial: Trial) -> Found | None:
    """What is wrong with what stands inside autocast, and what outside."""
    import torch

    if not trial.forward:
        return wrong("no-forward")
    if any(str(one.dtype) != "torch.float32" for one in trial.model.parameters()):
        return wrong("casts-the-model", got=str(next(trial.model.parameters()).dtype).removeprefix("torch."))
    if trial.forward[0] is None:
        return wrong("forward-outside" if any(trial.losses) else "no-autocast", kind=trial.kind)
    if trial.forward[0] is not torch.bfloat16:
        return wrong("other-format", got=str(trial.forward[0]).removeprefix("torch."))
    if trial.scaled:
        return wrong("scaler")
    if not trial.losses:
        return wrong("own-loss")
    if not trial.losses[0]:
        return wrong("loss-outside")
    if not trial.backward:
        return wrong("no-backward")
    return wrong("backward-inside") if trial.backward[0] else None


def _wrong_types(trial: Trial) -> Found | None:
    """What is wrong with the update: none, or one without gradients."""
    if not trial.updates:
        return wrong("no-update")
    return wrong("no-gradients") if any(one is None for one in trial.updates[0]) else None


def _wrong_gradients(trial: Trial, step: Callable) -> Found | None:
    """Whether the gradients of a second step are those of one batch."""
    import torch

    first, expected = trial.updates[0], trial.expected()
    trial.step(step)
    pairs = list(zip(trial.updates[-1], expected, strict=True))
    if all(torch.allclose(got, one, **CLOSE) for got, one in pairs):
        return None
    sums = zip(trial.updates[-1], first, expected, strict=True)
    kept = all(torch.allclose(got, before + one, **CLOSE) for got, before, one in sums)
    return wrong("gradients-kept" if kept else "other-gradients")


def _wrong_loss(loss: Any) -> Found | None:
    """Whether the loss came back."""
    import torch

    is_number = isinstance(loss, int | float) or (isinstance(loss, torch.Tensor) and loss.numel() == 1)
    return None if is_number else wrong("returns-nothing", kind=type(loss).__name__)


def _learns(trial: Trial, step: Callable) -> Found:
    """The words for a right answer, or for one that does not learn."""
    before = trial.value()
    for _ in range(STEPS):
        trial.step(step)
    after = trial.value()
    facts = {"before": before, "after": after, "steps": STEPS}
    return right(**facts) if after <= FALLS * before else wrong("learns-nothing", **facts)


# ---------------------------------------------------------------- a batch for each job

SWEEPS: dict[str, dict[int, float]] = {
    "pictures": {16: 410, 32: 800, 64: 1530, 128: 1580, 256: 1600},
    "letters": {16: 95, 32: 188, 64: 365, 128: 700},
    "scans": {16: 212, 32: 214, 64: 213, 128: 215, 256: 214},
}
"""Samples a second by batch size, as the exercise gives them; what is missing does not fit."""
CEILING = {"pictures": 350, "letters": 170, "scans": 400}
FEED = "feed"
"""The answer for a job whose batch is not what limits it."""
BATCHES: dict[str, int | str] = {"pictures": 64, "letters": 128, "scans": FEED}


def sizes(mine: Any) -> Found:
    """Judge a batch size, or "feed", for each job, as ``{"pictures": 64, ...}``."""
    if found := not_whole(mine, BATCHES, "job"):
        return found
    return next((found for job in BATCHES if (found := _wrong_batch(job, _batch(mine[job])))), right())


def _batch(answer: Any) -> Any:
    """A whole number of any library as Python's own; every other answer as it is."""
    try:
        return answer if isinstance(answer, bool) else index(answer)
    except Exception:  # no number, or an array of several
        return answer


def _wrong_batch(job: str, got: Any) -> Found | None:
    sweep, ceiling = SWEEPS[job], CEILING[job]
    facts = {"job": job, "got": written(got), "ceiling": ceiling}
    is_number = isinstance(got, int) and not isinstance(got, bool)
    if (is_number or isinstance(got, str)) and got == BATCHES[job]:
        return None
    if isinstance(got, str) and got == FEED:
        return wrong("fed-already", **facts)
    if not is_number or got < 1:
        return wrong("no-batch", **facts)
    if got > ceiling:
        return wrong("does-not-fit", **facts)
    if BATCHES[job] == FEED:
        return wrong("grown-while-waiting", **facts)
    if got > RULE[1] * ceiling:
        return wrong("at-the-edge", **facts, share=got / ceiling)
    if got not in sweep:
        return wrong("not-measured", **facts)
    knee = knee_of(sweep)
    if got < knee:
        return wrong("below-the-knee", **facts, rate=sweep[got], best=max(sweep.values()))
    return wrong("past-the-knee", **facts, knee=knee, gain=sweep[got] / sweep[knee] - 1)


CHECKS: dict[str, Callable[..., Found]] = {"autocast": autocast, "sizes": sizes}
