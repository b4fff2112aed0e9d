"""Runs scripts one after the other as one of two gloo ranks, each watched: what a launch of torchrun does for one.

``python ranks_in_a_row.py RANK SCRIPT PORT [SCRIPT PORT ...]`` prints a JSON list of what this rank did in each. Both
ranks import PyTorch once for all scripts, so twenty of them take seconds.
"""

import os
import sys
from contextlib import redirect_stdout

import msgspec
import torch
import torch.distributed as dist

from gpuworkshop.course.checks import chapter06_rank
from gpuworkshop.instruments.scaling_witness import Seen, Watched
from gpuworkshop.instruments.scaling_witness_rank import watch


def one(script: str, port: str, rank: int) -> Seen:
    """One script in a world of its own."""
    os.environ["MASTER_PORT"] = port
    chapter06_rank._asked.clear()
    try:
        return watch(Watched(script, seconds=60), rank)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main(rank: str, *words: str) -> None:
    """All scripts in turn."""
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    with redirect_stdout(sys.stderr):
        seen = [one(script, port, int(rank)) for script, port in zip(words[::2], words[1::2], strict=True)]
    print(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
