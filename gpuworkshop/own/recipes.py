"""How each remedy is written into a script: the edits of its file, or why they would not be certain."""

from __future__ import annotations

from collections.abc import Callable

from gpuworkshop.own.edit import Edit
from gpuworkshop.own.recipes_calls import cached, loader, micro_batch, optimizer
from gpuworkshop.own.recipes_lines import after_import, after_model, autocast, taken_out
from gpuworkshop.own.recipes_rarely import rarely, reads
from gpuworkshop.own.task import Task

RECIPES: dict[str, Callable[[Task], list[Edit]]] = {
    "workers": loader,
    "fewer-workers": loader,
    "pin": loader,
    "batch": loader,
    "larger-share": loader,
    "micro-batch": micro_batch,
    "fused": optimizer,
    "tf32": after_import,
    "cudnn-benchmark": after_import,
    "compile": after_model,
    "channels-last": after_model,
    "bf16": autocast,
    "rare-loss": reads,
    "rare-validation": rarely,
    "rare-saving": rarely,
    "empty-cache": taken_out,
    "collect": taken_out,
    "cache-items": cached,
}
"""By the remedy's id; a remedy that is not here is told in words."""
