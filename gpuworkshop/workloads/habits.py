"""Habits of slow scripts that a config can turn on: a call for each sample, and results read on the host in each step.

They cost what they cost in scripts that have them; nothing waits that would not wait there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpuworkshop.workloads.choices import ReadsLoss

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_by_sample(loss: Loss, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean over a batch from one call for each sample: as many times the small operations, for the same result."""
    return torch.stack([loss(x[n : n + 1], y[n : n + 1]) for n in range(len(x))]).mean()


class Reader:
    """Reads on the host, after each step, what a script does that logs in every step: ``reader(loss)``."""

    def __init__(self, reads: ReadsLoss, model: nn.Module):
        self.reads = reads
        self._outputs: torch.Tensor | None = None
        if reads in ("with samples", "with outputs"):
            model.register_forward_hook(self._keep_outputs)

    def _keep_outputs(self, model: nn.Module, inputs: tuple, outputs: torch.Tensor) -> None:
        self._outputs = outputs.detach()

    def __call__(self, loss: torch.Tensor) -> None:
        if self.reads == "rarely":
            return
        loss.item()  # the host waits here until the card has done everything
        if self.reads == "with samples":
            for sample in self._outputs:
                sample.max().item()  # and here again, once for each sample
        elif self.reads == "with outputs":
            self._outputs = self._outputs.cpu()
