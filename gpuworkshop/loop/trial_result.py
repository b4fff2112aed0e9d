"""What one trial found; without PyTorch, so that a notebook's kernel can read it."""

from __future__ import annotations

import msgspec

from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig

UNATTRIBUTED = "cannot be attributed to one change"
"""What is said of settings of several remedies that were changed at once: they are measured, and never kept."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What one change did. ``comparison`` is after / before; None when the changed run could not be measured."""

    before: TrainConfig
    after: TrainConfig
    changed: tuple[str, ...]
    comparison: Comparison | None = None
    rate_before: Rate | None = None
    rate_after: Rate | None = None
    learning: Judgement | None = None
    kept: bool
    why: str
    paid_once_seconds: float = 0.0
    origin: Origin
    planted: str
