"""The training script of the course, to be read in one sitting: every setting of a run is a flag.

Run it as it stands::

    python -m gpuworkshop.workloads.train --preset tiny --workers 2 --steps 100

or as several ranks, each with a copy of the model and its own share of the data::

    torchrun --standalone --nproc-per-node=2 -m gpuworkshop.workloads.train --preset tiny --steps 100

The instruments build the same objects with :func:`build` and measure the same lines.
"""

from __future__ import annotations

import argparse
import itertools
import time
import typing
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from gpuworkshop.machine.gpus import default_device
from gpuworkshop.workloads import tf32
from gpuworkshop.workloads.config import PRESETS, Job, TrainConfig
from gpuworkshop.workloads.habits import Reader, loss_by_sample
from gpuworkshop.workloads.images import PictureTask
from gpuworkshop.workloads.language import TextTask
from gpuworkshop.workloads.ranks import Rank, begin_epoch, joined, launched, own_device


class Training:
    """One training run: a loader, what is left to do to its batches, a model and a step.

    ``for batch in t.loader: loss = t.step(*t.prepare(batch))``. With a ``rank`` it is one of several that train
    together: the batch is its own, and the gradients are averaged over all of them.
    """

    def __init__(self, config: TrainConfig, job: Job, device: str, rank: Rank | None = None):
        torch.manual_seed(job.seed + (rank.number if rank else 0))
        if job.sizes.threads:
            torch.set_num_threads(job.sizes.threads)
        self.config, self.job, self.device = config, job, device
        self.task = (PictureTask if job.sizes.pictures else TextTask)(config, job, device, rank)
        self.loader: DataLoader = self.task.loader
        self.prepare = self.task.prepare
        self.model = self.task.network()
        self.read = Reader(config.reads_loss, self.model)
        self.run = DistributedDataParallel(self.model, process_group=rank.group) if rank else self.model
        if config.compiled:
            self.run = torch.compile(self.run)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=job.sizes.learning_rate, fused=config.fused)

    @property
    def can_learn(self) -> bool:
        """Whether there is something to learn."""
        return self.task.can_learn

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of a prepared batch."""
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.task.loss(self.run, x, y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Forward, backward, update; returns the loss, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(x, y) if self.config.calls == "a batch" else loss_by_sample(self.loss, x, y)
        loss.backward()
        self.optimizer.step()
        self.read(loss)
        return loss.detach()

    def learn_at(self, share: float) -> None:
        """Set the learning rate to a share of the preset's."""
        for group in self.optimizer.param_groups:
            group["lr"] = share * self.job.sizes.learning_rate

    def use_precision(self) -> None:
        """Allow TF32 in float32 products or not, as the config says. Process-wide, so call it before a block."""
        tf32.allow(self.config.precision == "tf32")

    @torch.no_grad()
    def held_out_loss(self, held_out: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Mean loss on held-out batches, with the statistics of each (a short run has no running ones)."""
        losses = [self.loss(x, y) * len(y) for x, y in held_out]
        return float(torch.stack(losses).sum()) / sum(len(y) for _, y in held_out)


def need_card(config: TrainConfig, job: Job, device: str) -> None:
    """ValueError if a run needs a card and ``device`` is none."""
    if device == "cpu" and job.sizes.needs_card:
        raise ValueError(f"the preset {job.preset} needs a GPU, and there is none here: use the preset tiny")
    if device == "cpu" and job.memory_gib:
        raise ValueError("memory_gib limits a card's memory, and there is no GPU here")
    if device == "cpu" and config.data_path == "card-decode":
        raise ValueError("the data path card-decode needs a GPU, and there is none here")


def build(config: TrainConfig, job: Job, device: str | None = None, rank: Rank | None = None) -> Training:
    """The training run of a config on ``device`` (default: the card, if there is one), alone or as one ``rank``."""
    device = device or default_device()
    if job.memory_gib and device != "cpu":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, job.memory_gib * 2**30 / whole), device)
    return Training(config, job, device, rank)


def endless(loader: DataLoader) -> Iterator:
    """Batches of one epoch after the other."""
    for epoch in itertools.count():
        begin_epoch(loader, epoch)
        yield from loader


def parse(arguments: list[str] | None, rank: Rank | None = None) -> tuple[Training, int]:
    """The training run and the number of steps that a command line asks for: each field of the config is a flag."""
    parser = argparse.ArgumentParser(prog="train", description="Train on pictures or text and print the loss.")
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--data", help="a folder of JPEG files instead of the written set")
    parser.add_argument("--storage-wait-ms", type=float, default=0.0, help="planted wait of each file read")
    parser.add_argument("--memory-gib", type=float, help="planted limit of the card's memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", help="default: the card, if there is one")
    for field in msgspec.structs.fields(TrainConfig):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", default=None)
        elif typing.get_origin(field.type) is typing.Literal:
            parser.add_argument(flag, choices=typing.get_args(field.type))
        else:
            parser.add_argument(flag, type=int)
    given = parser.parse_args(arguments)
    try:
        job = Job(given.preset, given.data, given.storage_wait_ms, given.seed, given.memory_gib)
        said = {name: getattr(given, name) for name in TrainConfig.__struct_fields__}
        config = job.sizes.start.with_(**{name: value for name, value in said.items() if value is not None})
        return build(config, job, given.device or (own_device() if rank else None), rank), given.steps
    except ValueError as error:
        parser.error(str(error))


def main(arguments: list[str] | None = None) -> None:
    """Train for some steps, alone or as one of torchrun's ranks; print the loss and the throughput as it goes."""
    with joined(own_device()) if launched() else nullcontext() as rank:
        train(*parse(arguments, rank), ranks=rank.size if rank else 1, tells=not rank or rank.number == 0)


def train(training: Training, steps: int, ranks: int = 1, tells: bool = True) -> None:
    """Train for some steps; one of the ``ranks`` tells how it goes."""
    training.use_precision()
    if tells and ranks > 1:
        print(f"{training.job.title}: {ranks} ranks, each with a batch of {training.config.batch_size}")
    began, seen = time.perf_counter(), 0
    for step, batch in zip(range(1, steps + 1), endless(training.loader), strict=False):
        x, y = training.prepare(batch)
        loss = training.step(x, y)
        seen += ranks * len(y)
        if tells and (step % 10 == 0 or step == steps):
            rate = seen / (time.perf_counter() - began)
            print(f"step {step:4d}  loss {loss.item():.3f}  {rate:,.0f} {training.job.sizes.unit}")


if __name__ == "__main__":
    main()
