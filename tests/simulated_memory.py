"""A made-up card's memory for the search of the batch ceiling: a limit, fragmentation, retries, models of all shapes.

It is no measurement of anything: it only answers as PyTorch's allocator does, so that what is right can be known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from gpuworkshop.instruments.memory_ceiling import probe_in
from gpuworkshop.instruments.memory_room import Reading

GIB = 2**30


class Allocator:
    """Memory with a limit. ``broken``: share more than what is in tensors that it must hold, where it has a choice."""

    kind, growth = "card", 64

    def __init__(self, limit: int, broken: float = 0.0, held: int = 0):
        self.limit, self.broken, self.held = limit, broken, held
        self.again = 0
        self.clear()

    def clear(self) -> None:
        self.peak, self.most, self.again = self.held, self.held, 0

    def take(self, size: float) -> None:
        """Let so many bytes be in tensors at once, on top of what stays."""
        size = int(self.held + size)
        if size > self.limit:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self.peak = max(self.peak, size)
        wanted = int(size * (1 + self.broken))
        if wanted > self.limit:
            self.again += 1
        self.most = max(self.most, min(wanted, self.limit))

    def available(self) -> int:
        return self.limit

    def retries(self) -> int:
        return self.again

    def finish(self) -> None:
        """Nothing is on its way."""

    def read(self) -> Reading:
        return Reading(self.peak, self.most, self.again)


@dataclass
class Model:
    """A training step whose memory is ``weights`` (four times, with gradients and Adam) and a curve of the batch."""

    room: Allocator
    weights: int
    curve: Callable[[int], float]
    tried: list[int] = field(default_factory=list)
    known: bool = False

    def step(self, batch: int) -> None:
        """Forward, backward, update; the state of the optimizer is there from the first update on."""
        if not self.tried or self.tried[-1] != batch:
            self.tried.append(batch)
        optimizer = 2 * self.weights
        self.room.take(2 * self.weights + (optimizer if self.known else 0) + self.curve(batch))
        self.room.take(2 * self.weights + optimizer)
        self.known = True

    def true_ceiling(self, most: int = 1_000_000) -> int:
        """By looking at every size that bisection needs, with the same three steps; for curves that only rise."""
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            if probe_in(self.step, middle, self.room).fits:
                low = middle
            else:
                high = middle
        return low
