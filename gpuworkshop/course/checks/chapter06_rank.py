"""What stands before and after a learner's training function in the script that runs it as one of several ranks.

The script takes every name from here, so the function finds the imports that the notebook has. What it does to its
data, its device and its output is written down beside the script, a file for each rank.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gpuworkshop.course.checks.chapter06 import EPOCHS, SAMPLES, Notes

__all__ = [
    "DataLoader",
    "DistributedDataParallel",
    "DistributedSampler",
    "device_of",
    "dist",
    "nn",
    "os",
    "run",
    "torch",
]

FEATURES = 8
_asked: list[int] = []


def device_of(local_rank: int) -> str:
    """The device of a rank; there are no cards here, so it is the CPU, and what was asked is kept."""
    _asked.append(int(local_rank))
    return "cpu"


class Counted(Dataset):
    """A small set that can be learned; the number of each sample that is read goes to a file, from workers too."""

    def __init__(self, file: Path):
        drawn = torch.Generator().manual_seed(0)
        self.x = torch.randn(SAMPLES, FEATURES, generator=drawn)
        self.y = self.x.sum(1, keepdim=True)
        self._file = file

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with self._file.open("a") as file:
            file.write(f"{int(index)}\n")
        return self.x[index], self.y[index]


class Aloud(io.TextIOBase):
    """Passes on what is printed, and keeps whether anything was."""

    def __init__(self, out: io.TextIOBase):
        self._out, self.lines = out, 0

    def write(self, words: str) -> int:
        """Take what is printed."""
        self.lines += words.count("\n")
        return self._out.write(words)


def run(train: Callable[[Dataset, int], object], folder: str) -> None:
    """Call the learner's function in this rank and leave notes of what it did."""
    rank = os.environ["RANK"]
    read, said = Path(folder, f"read-{rank}"), Aloud(sys.stdout)
    read.touch()
    try:
        with redirect_stdout(said):
            train(Counted(read), EPOCHS)
    finally:
        notes = Notes(tuple(map(int, read.read_text().split())), tuple(_asked), said.lines)
        Path(folder, f"notes-{rank}.json").write_bytes(msgspec.json.encode(notes))
