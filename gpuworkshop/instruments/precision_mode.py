"""The process-wide switches of float32 products: set for a measurement, and put back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

BACKENDS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul)
"""Who multiplies float32: cuBLAS, cuDNN, oneDNN. By default PyTorch allows TF32 in the second only."""


def allow_tf32(allowed: bool) -> None:
    """Let float32 products round to TF32 on the way in, or not ("highest"). A CPU multiplies in full either way."""
    matrices, convolutions, host = BACKENDS
    matrices.fp32_precision = convolutions.fp32_precision = "tf32" if allowed else "ieee"
    host.fp32_precision = "ieee"


@contextmanager
def kept() -> Iterator[None]:
    """Put the switches back when the block is left, however it is left."""
    before = [backend.fp32_precision for backend in BACKENDS]
    try:
        yield
    finally:
        for backend, mode in zip(BACKENDS, before, strict=True):
            backend.fp32_precision = mode
