"""One of several processes that train together: which one it is, its group, its share of the data, its card.

``torchrun`` starts the processes and tells each by environment variables which one it is. In distributed data parallel
(DDP) training every rank has a whole copy of the model and other data; after backward the gradients are averaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

PATIENCE = timedelta(seconds=90)
"""How long a rank waits for the others before it gives up."""


class Rank(msgspec.Struct, frozen=True):
    """This process among ``size`` that train together; ``group`` is theirs, None stands for all processes there are."""

    number: int
    size: int
    group: Any = None


def launched(env: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun started this process: its variables are set."""
    return "RANK" in env and "WORLD_SIZE" in env


def own_device(env: Mapping[str, str] = os.environ) -> str:
    """The device of this rank: a card of its own, or the CPU.

    Where each rank sees only one card (Slurm's ``--gpus-per-task=1``), that one is number 0 for every rank.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{int(env.get('LOCAL_RANK', '0')) % count}" if count else "cpu"


@contextmanager
def joined(device: str) -> Iterator[Rank]:
    """This process as one of the ranks that torchrun started: NCCL moves what lies on cards, gloo what does not.

    After an error nothing is taken down in order: that would wait for ranks that may wait for this one.
    """
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo", timeout=PATIENCE)
    yield Rank(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


def order(dataset: Dataset, rank: Rank | None, seed: int = 0) -> Sampler:
    """A shuffled order of a data set; with a ``rank`` its share: no sample goes to two ranks.

    All shares are equally long: a rank with more batches than the others would wait for them at its last one.
    """
    if rank is None:
        return RandomSampler(dataset)
    return DistributedSampler(dataset, rank.size, rank.number, shuffle=True, seed=seed, drop_last=True)


def begin_epoch(loader: DataLoader, epoch: int) -> None:
    """Tell a rank's share which epoch begins; it would come in the same order each time."""
    sampler = getattr(loader.sampler, "sampler", loader.sampler)  # whole batches of indices wrap the order
    if isinstance(sampler, DistributedSampler):
        sampler.set_epoch(epoch)
