"""Training on text: a small GPT on a language that was made up, so that there is something to learn without a download.

The language has an alphabet of tokens and one rule: the next token follows from the two before it, most of the time.
What a model can learn is therefore known: the loss of one that has learned the rule is :func:`floor`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from gpuworkshop.workloads.config import HELD_OUT, Job, TextSizes, TrainConfig
from gpuworkshop.workloads.loading import loader_settings, need_full_batch
from gpuworkshop.workloads.ranks import Rank, order

ALPHABET = 16
FAITHFUL = 0.9
"""Share of tokens that follow the rule; the others are drawn evenly from the alphabet."""


class MadeUpText(Dataset):
    """Sequences of the made-up language: int64 (context + 1,) each, from a seed, the same on every machine."""

    def __init__(self, sequences: int, context: int, seed: int = 0):
        self.tokens = torch.from_numpy(write(sequences, context + 1, seed))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokens[index]


def write(sequences: int, length: int, seed: int) -> np.ndarray:
    """Text of the made-up language: int64 (sequences, length)."""
    draw, rule = np.random.default_rng(seed), _rule()
    text = draw.integers(ALPHABET, size=(sequences, length))
    follows = draw.random((sequences, length)) < FAITHFUL
    for place in range(2, length):
        ruled = rule[text[:, place - 2], text[:, place - 1]]
        text[:, place] = np.where(follows[:, place], ruled, text[:, place])
    return text


def _rule() -> np.ndarray:
    """The token that follows each pair of tokens."""
    return np.random.default_rng(20).integers(ALPHABET, size=(ALPHABET, ALPHABET))


def floor() -> float:
    """The loss of a model that knows the rule, in nats a token; nothing can end below it for long."""
    by_rule = FAITHFUL + (1 - FAITHFUL) / ALPHABET
    other = (1 - FAITHFUL) / ALPHABET
    return -by_rule * math.log(by_rule) - (ALPHABET - 1) * other * math.log(other)


class Attention(nn.Module):
    """Causal self-attention: (B, T, width) -> (B, T, width)."""

    def __init__(self, shape: TextSizes):
        super().__init__()
        self.heads = shape.heads
        self.project = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.back = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.project(x).split(width, dim=2)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.back(seen.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """Attention, then a small network at every place; each adds to what came in."""

    def __init__(self, shape: TextSizes):
        super().__init__()
        self.before_attention, self.attention = nn.LayerNorm(shape.width), Attention(shape)
        self.before_network = nn.LayerNorm(shape.width)
        self.network = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.network(self.before_network(x))


class GPT(nn.Module):
    """Tokens int64 (B, T) -> logits (B, T, vocabulary)."""

    def __init__(self, shape: TextSizes, *, checkpointing: bool = False):
        super().__init__()
        self.checkpointing = checkpointing
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.place = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.last = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing and self.training else block(x)
        return self.head(self.last(x))


class TextTask:
    """What a training run on text is made of: loader, what is left to do to its batches, network, held-out set."""

    can_learn = True

    def __init__(self, config: TrainConfig, job: Job, device: str, rank: Rank | None = None):
        for name, only in (("data_path", "cpu-decode"), ("memory_format", "contiguous"), ("transform", "device")):
            if getattr(config, name) != only:
                raise ValueError(f"{name} {getattr(config, name)} is for pictures, and {job.preset} trains on text")
        self.config, self.job, self.device, self.sizes = config, job, device, job.sizes.text
        need_full_batch("the text", self.sizes.sequences, "sequence", config.batch_size, rank)
        text = MadeUpText(self.sizes.sequences, self.sizes.context)
        self.loader = DataLoader(
            text,
            config.batch_size,
            sampler=order(text, rank, job.seed),
            drop_last=True,
            **loader_settings(config),
        )

    def prepare(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 (B, T + 1) -> what is read and what follows, both (B, T), on the device."""
        tokens = batch.to(self.device, non_blocking=True)
        return tokens[:, :-1], tokens[:, 1:]

    def network(self) -> nn.Module:
        """The GPT with random weights, on the device."""
        return GPT(self.sizes, checkpointing=self.config.checkpointing).to(self.device)

    @staticmethod
    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy a token: x and y (B, T)."""
        return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def random_batch(self, size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of evenly drawn tokens, shaped like a prepared one, on the device; usually of the config's size."""
        shape = (size or self.config.batch_size, self.sizes.context + 1)
        return self.prepare(torch.randint(0, ALPHABET, shape, device=self.device))

    def held_out(self, size: int = 32) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Sequences of the same language that are never trained on, in batches on the device."""
        return tuple(map(self.prepare, MadeUpText(HELD_OUT, self.sizes.context, seed=1_000_000).tokens.split(size)))
