"""Do the batches that workers have ready fit the shared memory? They wait there, as many as each worker may prefetch.

In a container it is often 64 MiB, however much main memory there is; a worker that finds it full is killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from gpuworkshop.numbers import counted, gib

PLACE = "/dev/shm"
PREFETCH = 2
"""Batches that PyTorch lets a worker have ready, where the loader does not say."""


class Shared(msgspec.Struct, frozen=True):
    """What the batches of a loader's workers take of the shared memory, in bytes, when all are ready that may be."""

    workers: int
    ahead: int
    """Batches that each worker may have ready."""
    batch: int
    """Bytes of the tensors in one batch; its other parts travel another way."""
    free: int | None
    """Bytes of shared memory before these workers started; None where a system has no place for it."""

    @property
    def needed(self) -> int:
        """Bytes, at most."""
        return self.workers * self.ahead * self.batch

    @property
    def fits(self) -> bool:
        """Whether they fit, or nobody can say."""
        return self.free is None or self.needed <= self.free

    def __str__(self) -> str:
        need = f"{counted(self.workers, 'worker')} x {self.ahead} ready x {gib(self.batch)} a batch"
        return f"{need} = {gib(self.needed)} of shared memory; {PLACE} has {gib(self.free)} free"


def asked(loader: Any, workers: int, batch: Any, room: int | None) -> Shared:
    """What so many ``workers`` of a ``loader`` take with batches like this one, of ``room`` bytes that are free."""
    ahead = getattr(loader, "prefetch_factor", None) or PREFETCH
    return Shared(workers, ahead, tensor_bytes(batch), room)


def free() -> int | None:
    """Bytes of shared memory that are free; None where there is no place for it, as on macOS."""
    try:
        room = os.statvfs(PLACE)
    except (OSError, AttributeError):
        return None
    return room.f_bavail * room.f_frsize


def tensor_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch, in tuples, lists and dicts too. Imports torch."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    return sum(map(tensor_bytes, batch)) if isinstance(batch, list | tuple) else 0
