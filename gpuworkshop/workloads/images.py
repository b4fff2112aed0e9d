"""Training on pictures: three data paths to the same batch, two networks, and the loss on held-out pictures.

The data paths differ in where a JPEG becomes a tensor, never in what the model sees (random resized crop, flip,
normalize):

- ``cpu-decode``: the loader's processes decode, crop and normalize; a batch is float32 (B, 3, px, px).
- ``card-decode``: the loader reads bytes; the card decodes, crops and normalizes.
- ``pre-decoded``: decoded once into one uint8 file; the loader copies rows, the device crops and normalizes.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.models import resnet50
from torchvision.transforms import v2

from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.loading import loader_settings, need_full_batch
from gpuworkshop.workloads.pictures import PictureFault, Pictures, held_out_set, open_rgb, pre_decode, training_set
from gpuworkshop.workloads.ranks import Rank, order

Batches = tuple[tuple[torch.Tensor, torch.Tensor], ...]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.25, 1.0), (3 / 4, 4 / 3)
"""Area and aspect ratio of a random crop, relative to the picture."""


class JpegFiles(Dataset):
    """Decode a JPEG and transform it, one sample at a time: the ordinary way."""

    def __init__(self, pictures: Pictures, px: int, wait_seconds: float = 0.0):
        self.pictures, self.wait_seconds = pictures, wait_seconds
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(px, scale=SCALE, ratio=RATIO),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(open_rgb(self.pictures.files[index], self.wait_seconds)), self.pictures.labels[index]


class JpegBytes(Dataset):
    """Only read the file: decoding is left to the card."""

    def __init__(self, pictures: Pictures, wait_seconds: float = 0.0):
        self.pictures, self.wait_seconds = pictures, wait_seconds

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(self.wait_seconds)
        return np.fromfile(self.pictures.files[index], np.uint8), self.pictures.labels[index]


class Decoded(Dataset):
    """Rows of one uint8 file (N, 3, S, S), a whole batch at a time."""

    def __init__(self, file: Path, labels: tuple[int, ...], wait_seconds: float = 0.0):
        self.pictures = torch.from_numpy(np.load(file, mmap_mode="c"))  # mapped, not read; never written back
        self.labels, self.wait_seconds = torch.tensor(labels), wait_seconds

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.wait_seconds)  # one read for the whole batch
        return self.pictures[indices], self.labels[indices]


def packed(samples: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Collate undecoded pictures: lengths (B,), all their bytes in one row, labels (B,).

    One tensor a batch, because each one that comes from a worker takes a file descriptor.
    """
    lengths = torch.tensor([len(data) for data, _ in samples])
    return lengths, torch.from_numpy(np.concatenate([d for d, _ in samples])), torch.tensor([y for _, y in samples])


def loader(config: TrainConfig, job: Job, pictures: Pictures, rank: Rank | None = None) -> DataLoader:
    """The DataLoader of a config, over a rank's share if one is given. ValueError when that is less than one batch."""
    if not len(pictures):
        raise ValueError(
            "the folder has 1 picture, and every fifth is held out, the first among them: nothing to train on"
        )
    need_full_batch("the data set", len(pictures), "picture", config.batch_size, rank)
    settings = loader_settings(config)
    if config.data_path == "pre-decoded":
        rows = Decoded(pre_decode(pictures, job.sizes.pictures.stored_px), pictures.labels, job.wait_seconds)
        batches = BatchSampler(order(rows, rank, job.seed), config.batch_size, drop_last=True)
        return DataLoader(rows, sampler=batches, batch_size=None, **settings)
    if config.data_path == "card-decode":
        files, settings["collate_fn"] = JpegBytes(pictures, job.wait_seconds), packed
    else:
        files = JpegFiles(pictures, job.sizes.pictures.px, job.wait_seconds)
    return DataLoader(files, config.batch_size, sampler=order(files, rank, job.seed), drop_last=True, **settings)


class Prepare:
    """What is left to do to a loader's batch on the device: copy, decode, crop, normalize, lay out in memory.

    ``prepare(batch)`` gives float32 (B, 3, px, px) and int64 (B,), both on ``device``.
    """

    def __init__(self, config: TrainConfig, px: int, device: str):
        self.config, self.px, self.device = config, px, device
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(STD, device=device).view(1, 3, 1, 1)

    def __call__(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        *pictures, labels = batch
        if self.config.data_path == "card-decode":
            lengths, data = pictures
            decoded = _decoded(list(data.split(lengths.tolist())), self.device)
            pictures = torch.cat([self.crop(picture[None]) for picture in decoded])
        else:
            pictures = pictures[0]
            by_host = self.config.data_path == "pre-decoded" and self.config.transform == "host"
            if by_host:
                pictures = torch.cat([random_crop(picture[None], self.px) for picture in pictures])
            pictures = pictures.to(self.device, non_blocking=True)
            if by_host:
                pictures = self.normalize(pictures.div_(255))
            elif self.config.data_path == "pre-decoded":
                pictures = self.crop(pictures)
        if self.config.memory_format == "channels_last":
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        return pictures, labels.to(self.device, non_blocking=True)

    def crop(self, pictures: torch.Tensor) -> torch.Tensor:
        """Random resized crop, flip and normalize a uint8 batch (B, 3, H, W) in one go on its device."""
        return self.normalize(random_crop(pictures, self.px).div_(255))

    def normalize(self, pictures: torch.Tensor) -> torch.Tensor:
        """Subtract the mean and divide by the spread of each channel."""
        return pictures.sub_(self.mean).div_(self.std)


def _decoded(files: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """The bytes of JPEG files as uint8 RGB (3, H, W) each. PictureFault for a batch with one that is no whole JPEG."""
    try:
        return decode_jpeg(files, ImageReadMode.RGB, device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0][:200]
        raise PictureFault(f"cannot decode a picture of this batch: {first}") from error


def random_crop(pictures: torch.Tensor, px: int) -> torch.Tensor:
    """A different random resized crop and flip for each picture: uint8 (B, 3, H, W) -> float32 (B, 3, px, px)."""
    count, device = len(pictures), pictures.device
    area = torch.empty(count, device=device).uniform_(*SCALE)
    ratio = torch.empty(count, device=device).uniform_(np.log(RATIO[0]), np.log(RATIO[1])).exp_()
    wide, tall = (area * ratio).sqrt_().clamp_(max=1), (area / ratio).sqrt_().clamp_(max=1)
    flip = torch.randint(0, 2, (count,), device=device) * 2 - 1
    box = torch.zeros(count, 2, 3, device=device)
    box[:, 0, 0], box[:, 1, 1] = wide * flip, tall
    box[:, 0, 2] = (torch.rand(count, device=device) * 2 - 1) * (1 - wide)
    box[:, 1, 2] = (torch.rand(count, device=device) * 2 - 1) * (1 - tall)
    grid = nn.functional.affine_grid(box, [count, 3, px, px], align_corners=False)
    return nn.functional.grid_sample(pictures.float(), grid, "bilinear", "border", align_corners=False)


def network(name: str, classes: int) -> nn.Module:
    """The preset's network with random weights: ``small-cnn`` (two convolutions) or ``resnet50``."""
    if name == "resnet50":
        return resnet50(num_classes=classes)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
    )  # fmt: skip


class PictureTask:
    """What a training run on pictures is made of: loader, what is left to do to its batches, network, held-out set."""

    def __init__(self, config: TrainConfig, job: Job, device: str, rank: Rank | None = None):
        if config.checkpointing and job.sizes.model != "resnet50":
            raise ValueError(f"checkpointing is for resnet50 and GPTs: {job.sizes.model} has nothing worth it")
        if config.calls == "a sample":
            raise ValueError("calls a sample is for text: batch normalization needs a batch")
        self.config, self.job, self.device, self.px = config, job, device, job.sizes.pictures.px
        train = training_set(job.sizes.pictures.count, job.data)
        self.classes, self.can_learn = train.classes, train.classes > 1
        self.loader = loader(config, job, train, rank)
        self.prepare = Prepare(config, self.px, device)

    @property
    def layout(self) -> torch.memory_format:
        """The memory format of weights and pictures."""
        return torch.channels_last if self.config.memory_format == "channels_last" else torch.contiguous_format

    def network(self) -> nn.Module:
        """The network with random weights, on the device."""
        made = network(self.job.sizes.model, self.classes)
        if self.config.checkpointing:
            for stage in (made.layer1, made.layer2, made.layer3, made.layer4):
                for block in stage:
                    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return made.to(self.device, memory_format=self.layout)

    @staticmethod
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy: x (B, 3, px, px), y (B,)."""
        return nn.functional.cross_entropy(model(x), y)

    def random_batch(self, size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of noise, shaped like a prepared one, on the device; of the config's size if no other is given."""
        size = size or self.config.batch_size
        x = torch.randn(size, 3, self.px, self.px, device=self.device)
        y = torch.randint(0, self.classes, (size,), device=self.device)
        return x.contiguous(memory_format=self.layout), y

    def held_out(self, size: int = 128) -> Batches:
        """Held-out pictures, cropped to the middle, prepared, in batches on the device."""
        shown = held_out_set(self.job.data)
        rows = torch.from_numpy(np.load(pre_decode(shown, self.px))).to(self.device)
        x = self.prepare.normalize(rows.float().div_(255)).contiguous(memory_format=self.layout)
        return tuple(zip(x.split(size), torch.tensor(shown.labels, device=self.device).split(size), strict=True))
