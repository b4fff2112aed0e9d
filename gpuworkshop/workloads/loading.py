"""What all loaders have in common: the settings that a config gives them, and at least one full batch to read."""

from __future__ import annotations

from typing import Any

from gpuworkshop.numbers import counted
from gpuworkshop.workloads.config import TrainConfig
from gpuworkshop.workloads.ranks import Rank


def loader_settings(config: TrainConfig) -> dict[str, Any]:
    """The arguments of a DataLoader that are settings of a run, but for the batch size."""
    return dict(
        num_workers=config.workers,
        pin_memory=config.pin_memory,
        persistent_workers=config.persistent_workers,
        prefetch_factor=config.prefetch_factor,
    )


def need_full_batch(data: str, samples: int, sample: str, batch_size: int, rank: Rank | None) -> None:
    """ValueError if ``data`` (in words) has fewer ``samples`` than one batch, for one of several ranks its share."""
    share = samples // (rank.size if rank else 1)
    if share < batch_size:
        raise ValueError(
            f"{f'each of {rank.size} ranks' if rank else data} has {counted(share, sample)}, "
            f"fewer than one batch of {batch_size}: no full batch to train on; use batch_size <= {share}"
        )
