"""The course's targets for a job's report card, from jobstats_targets.toml."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec


class Targets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The course's targets in percent, with their source."""

    source: str
    gpu: float
    gpu_fix_first: float
    gpu_memory: tuple[float, float]
    gpu_memory_low: float
    cpu: float
    memory: float
    memory_little: float
    cpus_least: int
    several_gpus: float
    reserve: float


@cache
def targets() -> Targets:
    """The targets, from their file."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=Targets)
