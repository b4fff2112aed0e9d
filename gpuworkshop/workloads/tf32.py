"""Whether float32 products may round to TF32 on the way in: two switches of the process, set and put back.

PyTorch has an older and a newer way to set them. The older one sets both; after the newer one alone, torch.compile of
PyTorch 2.9 to 2.12 refuses to work on a card (pytorch/pytorch#166387), because it still reads the older.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

CARD = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
"""What multiplies float32 on a card. By default PyTorch allows TF32 in cuDNN and not in cuBLAS."""

CPU = (torch.backends.mkldnn.matmul,)

FAMILIES = (torch.backends, torch.backends.cudnn, torch.backends.mkldnn)
"""What stands for those that have no value of their own. The kit sets none of them; a measured model may."""


def allow(allowed: bool) -> None:
    """Let cuBLAS and cuDNN round to TF32, or not ("highest"). A CPU multiplies in full either way."""
    _set_older("high" if allowed else "highest", allowed)
    for backends, mode in ((CARD, "tf32" if allowed else "ieee"), (CPU, "ieee")):
        for backend in backends:
            backend.fp32_precision = mode


@contextmanager
def kept() -> Iterator[None]:
    """Put the switches back when the block is left, however it is left."""
    older, families = _older(), [_family(one) for one in FAMILIES]
    newer = [backend.fp32_precision for backend in (*CARD, *CPU)]
    try:
        yield
    finally:
        _set_older(*older)
        for family, mode in zip(FAMILIES, families, strict=True):
            if _family(family) != mode:
                family.fp32_precision = mode
        for backend, mode in zip((*CARD, *CPU), newer, strict=True):
            backend.fp32_precision = mode


def _family(backends: Any) -> str | None:
    """What a family of backends says; None where this PyTorch has no such word."""
    return getattr(backends, "fp32_precision", None)


def _older() -> tuple[str, bool]:
    """What the older way says, else PyTorch's default: it raises where the newer one was set beside it."""
    matrices, convolutions = "highest", True
    with suppress(RuntimeError):
        matrices = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        convolutions = torch.backends.cudnn.allow_tf32
    return matrices, convolutions


def _set_older(matrices: str, convolutions: bool) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use the new API", UserWarning)
        torch.set_float32_matmul_precision(matrices)
        torch.backends.cudnn.allow_tf32 = convolutions
