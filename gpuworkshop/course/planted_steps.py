"""The jobs of chapter 3, each with one thing planted that shows as a sign in a profile. The chapter shows these lines.

A job is a function of the device that gives its batches and its step; the batches lie where the step wants them, so
that nothing but the planted line can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import conv2d, cross_entropy
from torch.utils.data import DataLoader, Dataset

Job = tuple[Iterable, Callable[[Any], None]]
"""Batches and a step, as `profile.measure` takes them."""


def network(device: str, channels: int = 32) -> nn.Sequential:
    """A small network for pictures: features, then eight classes."""
    features = nn.Sequential(nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 8))
    return nn.Sequential(features, head).to(device)


def batches(device: str, size: int = 32, px: int = 64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Four batches of random pictures and classes that lie on the device."""
    shape = (size, 3, px, px)
    return [(torch.randn(shape, device=device), torch.randint(8, (size,), device=device)) for _ in range(4)]


def gaps(device: str) -> Job:
    """a call for each sample of the batch"""
    model = network(device)

    def step(batch):
        images, classes = batch
        # planted: one sample a call
        outputs = [model(image[None]) for image in images]
        cross_entropy(torch.cat(outputs), classes).backward()

    return batches(device), step


def copies(device: str) -> Job:
    """features that go to the host and back in every step"""
    features, head = network(device)

    def step(batch):
        images, classes = batch
        seen = features(images)
        seen = seen.cpu().to(device)  # planted: to the host, and back to the card
        cross_entropy(head(seen), classes).backward()

    return batches(device, size=128, px=128), step


def conversions(device: str) -> Job:
    """pictures that are converted and laid out anew in every step"""
    layers = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 8)
    model = nn.Sequential(*layers).to(device)
    kept = torch.randn(4, 256, 64, 64, 3, dtype=torch.float64).to(device)
    stored = [(images, torch.arange(256, device=device) % 8) for images in kept]

    def step(batch):
        images, classes = batch
        images = images.permute(0, 3, 1, 2)
        images = images.float().contiguous()  # planted: could be done once
        cross_entropy(model(images), classes).backward()

    return stored, step


def elsewhere(device: str) -> Job:
    """pictures that are blurred on the CPU, before they go to the card"""
    model = network(device)
    blur = torch.full((3, 1, 9, 9), 1 / 81)

    def step(batch):
        images, classes = batch
        # planted: the batch is still on the CPU
        images = conv2d(images, blur, padding=4, groups=3)
        images, classes = images.to(device), classes.to(device)
        cross_entropy(model(images), classes).backward()

    return batches("cpu"), step


class Pictures(Dataset):
    """JPEG pictures in memory; one is decoded when it is asked for."""

    def __init__(self, count: int = 256):
        noise = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
        kept = BytesIO()
        Image.fromarray(noise).resize((50, 38)).resize((500, 375)).save(kept, "JPEG", quality=90)
        self.jpegs = [kept.getvalue()] * count

    def __len__(self) -> int:
        return len(self.jpegs)

    def __getitem__(self, index):
        picture = Image.open(BytesIO(self.jpegs[index])).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255, index % 8


def loader(device: str) -> Job:
    """pictures that are decoded one by one, by the process that trains"""
    model = network(device)

    def step(batch):
        images, classes = batch
        cross_entropy(model(images), classes).backward()

    jpegs = Pictures()  # planted: decodes a JPEG whenever a picture is asked for
    return DataLoader(jpegs, batch_size=8), step


JOBS: dict[str, Callable[[str], Job]] = {
    "gaps": gaps,
    "copies": copies,
    "conversions": conversions,
    "elsewhere": elsewhere,
    "loader": loader,
}
"""The jobs by name."""
