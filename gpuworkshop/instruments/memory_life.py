"""The life of the memory over two training steps: what weights, gradients, optimizer and activations take, and when.

On a card the allocator counts what is in tensors, and the driver what is in use beside it. On a CPU no allocator says:
weights, gradients and optimizer are counted from their tensors everywhere, activations there by what autograd saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gpuworkshop.instruments.arms import a_model, usable_loss
from gpuworkshop.instruments.memory_beside import Beside
from gpuworkshop.instruments.memory_result import Moment


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """What autograd saves for the backward pass, apart from ``known`` tensors. As a context it looks on."""

    def __init__(self, known: Iterable[torch.Tensor]):
        super().__init__(self._pack, lambda tensor: tensor)
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return tensor

    @property
    def bytes(self) -> int:
        """Of those that are still there."""
        return sum(size for reference, size in self._seen.values() if not reference.expired())


class Life:
    """Runs two training steps, phase by phase, and keeps what the memory held at the end of each."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, device: str, beside: Beside | None):
        a_model(model)
        self.model, self.optimizer, self.device = model, optimizer, torch.device(device)
        self.beside = beside
        self.moments: list[Moment] = []
        self._kept: Kept | None = None

    def run(self, loss: Callable[[], torch.Tensor]) -> list[Moment]:
        """``loss()`` is one forward pass; backward, update and dropping the gradients are done here."""
        self.optimizer.zero_grad(set_to_none=True)
        self._phase("model on the device", 0, lambda: None)
        for step in (1, 2):
            if step == 2:
                self._phase("gradients dropped", step, lambda: self.optimizer.zero_grad(set_to_none=True))
            self._kept = Kept([*self.model.parameters(), *self.model.buffers()])
            with self._kept:
                value = self._phase("forward", step, loss)
            usable_loss(value)
            self._phase("backward", step, value.backward)
            del value
            self._phase("update", step, self.optimizer.step)
        return self.moments

    def _phase(self, name: str, step: int, work: Callable[[], Any]) -> Any:
        card = self.device.type == "cuda"
        if card:
            torch.cuda.reset_peak_memory_stats(self.device)
        done = work()
        weights, gradients, optimizer = self._weights(), self._gradients(), self._optimizer()
        parts = dict(weights=weights, gradients=gradients, optimizer=optimizer)
        if card:
            live, held = torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
            peak = torch.cuda.max_memory_allocated(self.device)
            context, others = self.beside.ask(held) if self.beside else (None, None)
            rest = max(0, live - weights - gradients - optimizer)
            moment = Moment(name, step, **parts, activations=rest, reserve=max(0, held - live), peak=peak,
                            context=context, others=others)  # fmt: skip
        else:
            moment = Moment(name, step, **parts, activations=self._kept.bytes if self._kept else 0)
        self.moments.append(moment)
        return done

    def _weights(self) -> int:
        return self._size([*self.model.parameters(), *self.model.buffers()])

    def _gradients(self) -> int:
        return self._size(p.grad for p in self.model.parameters() if p.grad is not None)

    def _optimizer(self) -> int:
        states = self.optimizer.state.values()
        return self._size(one for state in states for one in state.values() if isinstance(one, torch.Tensor))

    def _size(self, tensors: Iterable[torch.Tensor]) -> int:
        """Bytes of tensors on this device, each piece of memory once."""
        here = (t.untyped_storage() for t in tensors if t.device.type == self.device.type and t.layout is torch.strided)
        return sum({storage.data_ptr(): storage.nbytes() for storage in here}.values())
