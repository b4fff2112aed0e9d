"""The memory of one step: by the allocator on a card, by what autograd keeps on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from gpuworkshop.instruments.precision_result import StepMemory


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """As a context: the most bytes that autograd holds for backward passes at any time, each piece of memory once.

    Weights and the batch count as nothing: they are there anyway. Inside a checkpointed part nothing is held, and
    what is computed again there for its own backward pass is not seen.
    """

    def __init__(self, batch: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(self._pack, lambda held: held.tensor)
        self.peak, self._now = 0, 0
        self.there = {tensor.untyped_storage().data_ptr() for tensor in batch}
        self._holders: dict[int, int] = {}

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(self, tensor)
        if held.key is not None:
            self._holders[held.key] = self._holders.get(held.key, 0) + 1
            if self._holders[held.key] == 1:
                self._now += held.size
                self.peak = max(self.peak, self._now)
        return held

    def let_go(self, key: int, size: int) -> None:
        """A holder of a piece of memory is gone."""
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._now -= size


class _Held:
    """One tensor that autograd keeps; when it is let go, so is its share of the count."""

    def __init__(self, saved: Saved, tensor: torch.Tensor):
        self._saved, self.tensor, self.key, self.size = saved, tensor, None, 0
        owner = tensor if tensor._base is None else tensor._base
        if tensor.layout is torch.strided and not (owner.is_leaf and owner.requires_grad):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in saved.there:
                self.key, self.size = storage.data_ptr(), storage.nbytes()

    def __del__(self) -> None:
        if self.key is not None:
            self._saved.let_go(self.key, self.size)


def of_step(step: Callable[[Any], Any], batch: Any, device: str, below: int = 0) -> StepMemory:
    """One step, which is done; its gradients were dropped before, and its optimizer has its state.

    ``below``: bytes in tensors on the card that are none of this arm's.
    """
    if not device.startswith("cuda"):
        saved = Saved(tensors_in(batch))
        with saved:
            step(batch)
        return StepMemory(saved.peak, None, "saved tensors")
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step(batch)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return StepMemory(peak - before, peak - below, "allocator")


def in_tensors(device: str) -> int:
    """Bytes in tensors on a card now; 0 on a CPU, where nobody counts."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a batch of tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)
