"""Settings of PyTorch that hold for the whole process: what a measured model does to them ends with the measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpuworkshop.workloads import tf32

KINDS = ("cpu", "cuda")
"""Kinds of devices, each with an autocast of its own."""


@contextmanager
def kept() -> Iterator[None]:
    """Put the settings back when the block is left, however it is left; those of TF32 too."""
    before = [(put, read()) for read, put in _settings()]
    with tf32.kept():
        try:
            yield
        finally:
            for put, value in before:
                put(value)


def _settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Each setting: how it is read, and how it is put back."""
    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield lambda: torch.backends.cudnn.benchmark, lambda on: setattr(torch.backends.cudnn, "benchmark", on)
    for kind in KINDS:
        yield (
            lambda kind=kind: torch.is_autocast_enabled(kind),
            lambda on, kind=kind: torch.set_autocast_enabled(kind, on),
        )
        yield lambda kind=kind: torch.get_autocast_dtype(kind), lambda to, kind=kind: torch.set_autocast_dtype(kind, to)
