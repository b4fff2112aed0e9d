"""Checkpointing held against the same step without it: are the gradients the same, and what else does it change?

Whether gradients go missing (the re-entrant variant), dropout is drawn again, or BatchNorm counts a batch twice is
measured on one batch, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from gpuworkshop.instruments.memory_findings import twice
from gpuworkshop.numbers import counted, number, several
from gpuworkshop.report import Finding

SAME = 1e-4
"""Largest difference of a gradient, relative to the largest of its tensor, that rounding explains."""


class CheckpointResult(msgspec.Struct, frozen=True):
    """One step with checkpointing against one without, from the same seed, weights and batch."""

    missing: tuple[str, ...]
    """Weights that have a gradient without checkpointing and none with it."""
    different: tuple[str, ...]
    """Weights whose gradients are not the same."""
    largest: float
    """The largest difference, relative to the largest gradient of its tensor."""
    batch_norm: tuple[str, ...]
    """Layers that counted more batches with checkpointing than without."""
    dropout: tuple[str, ...]
    """Layers that drop something."""


def compare(
    model: torch.nn.Module, plain: Callable[[], Any], checkpointed: Callable[[], Any], seed: int = 0
) -> CheckpointResult:
    """Run both: functions that return the loss of the same batch. Gradients and buffers of the model are put back.

    ``checkpointed`` wraps parts of the model in ``checkpoint(..., use_reentrant=False)``.
    """
    before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        usual, usual_counts = _one(model, plain, buffers, seed)
        other, other_counts = _one(model, checkpointed, buffers, seed)
    finally:
        _put_back(model, buffers)
        for parameter, gradient in zip(model.parameters(), before, strict=True):
            parameter.grad = gradient
    shared = {name: _distance(usual[name], other[name]) for name in usual if name in other}
    return CheckpointResult(
        missing=tuple(name for name in usual if name not in other),
        different=tuple(name for name, distance in shared.items() if not distance <= SAME),
        largest=max(shared.values(), default=0.0),
        batch_norm=tuple(name for name, count in other_counts.items() if count > usual_counts[name]),
        dropout=tuple(name for name, part in model.named_modules() if getattr(part, "p", 0) and _drops(part)),
    )


def _one(model, loss: Callable[[], Any], buffers, seed: int) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """The gradients of one step, and how many batches each BatchNorm has counted."""
    _put_back(model, buffers)
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    value = loss()
    if value.requires_grad:
        value.backward()
    gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
    counts = {n: int(b) for n, b in model.named_buffers() if n.endswith("num_batches_tracked")}
    return gradients, {name.removesuffix(".num_batches_tracked"): count for name, count in counts.items()}


def _put_back(model: torch.nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    largest = float(one.abs().max()) if one.numel() else 0.0
    return float((one - other).abs().max()) / (largest or 1.0) if one.numel() else 0.0


def _drops(part: torch.nn.Module) -> bool:
    return isinstance(part, torch.nn.modules.dropout._DropoutNd)


def findings(result: CheckpointResult) -> Iterator[Finding]:
    """What a comparison means, as a pure function of it."""
    if result.missing:
        yield Finding(
            "fail",
            f"With checkpointing {counted(len(result.missing), 'weight tensor')} would not be trained at all",
            f"no gradient for {several(result.missing)}",
            "checkpoint(block, x, use_reentrant=False)",
        )
    if result.different:
        drawn = result.dropout and "dropout was drawn again in the recomputation"
        yield Finding(
            "fail",
            "Checkpointing changes the gradients" + (f": {drawn}" if drawn else ""),
            f"by up to {number(result.largest)} of the largest, in {several(result.different)}",
            "leave preserve_rng_state as it is, True" if drawn else "recompute exactly what was computed before",
        )
    if not (result.missing or result.different):
        yield Finding("ok", "Checkpointing leaves every gradient as it is", f"up to {number(result.largest)} apart")
    if result.batch_norm:
        yield twice(result.batch_norm)
