"""Two runs of which only one fits the card: each waits in the host's memory while the other has its block."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpuworkshop.instruments.arms import Real
from gpuworkshop.instruments.feed import Feed
from gpuworkshop.workloads.train import Training


class Parked(Real):
    """A training run as an arm whose weights and optimizer state are on the card only during its own blocks."""

    def __init__(self, name: str, training: Training):
        step = lambda ready: training.step(*ready)  # noqa: E731
        super().__init__(name, Feed(training.loader), training.prepare, step, training.use_precision)
        self._training = training
        self._move("cpu")

    def resume(self) -> None:
        self._move(self._training.device)
        super().resume()

    def pause(self) -> None:
        super().pause()
        self._move("cpu")

    def _move(self, device: str) -> None:
        self._training.optimizer.zero_grad(set_to_none=True)
        for tensor in tensors(self._training):
            tensor.data = tensor.data.to(device)
        if self._training.device != "cpu":
            torch.cuda.empty_cache()


def tensors(training: Training) -> Iterator[torch.Tensor]:
    """Weights, buffers, and what the optimizer keeps for each weight; counts that it keeps on the host stay there."""
    yield from training.model.parameters()
    yield from training.model.buffers()
    for kept in training.optimizer.state.values():
        yield from (value for value in kept.values() if isinstance(value, torch.Tensor) and value.dim())
