"""What a run can be asked to do: the settings that a remedy may change, and the frozen naive starts."""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

DataPath = Literal["cpu-decode", "card-decode", "pre-decoded"]
Precision = Literal["fp32", "tf32", "bf16"]
MemoryFormat = Literal["contiguous", "channels_last"]
CHOICES = {"data_path": DataPath, "precision": Precision, "memory_format": MemoryFormat}


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one training run; only what some remedy changes. The defaults are the naive start.

    Raises ValueError for combinations that PyTorch would refuse, in one clear line.
    """

    data_path: DataPath = "cpu-decode"
    workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int = 32
    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"

    def __post_init__(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} is {getattr(self, name)!r}: one of {', '.join(get_args(choices))}")
        if self.workers < 0:
            raise ValueError(f"workers is {self.workers}: it counts processes, 0 or more")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}: a batch holds at least 1 sample")
        if self.workers == 0 and self.persistent_workers:
            raise ValueError("persistent_workers needs workers: with 0 workers there is no process to keep")
        if self.workers == 0 and self.prefetch_factor is not None:
            raise ValueError("prefetch_factor needs workers: with 0 workers nobody loads ahead")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor is {self.prefetch_factor}: each worker loads at least 1 batch ahead")

    def with_(self, **changes) -> TrainConfig:
        """A copy with some settings changed; checked like a new one."""
        return msgspec.convert({**msgspec.structs.asdict(self), **changes}, TrainConfig)


def changed(before: TrainConfig, after: TrainConfig) -> tuple[str, ...]:
    """The names of the settings that differ between two configs."""
    return tuple(name for name in TrainConfig.__struct_fields__ if getattr(before, name) != getattr(after, name))


class Preset(msgspec.Struct, frozen=True):
    """A workload of fixed size: model, pictures, learning rate, and the naive start of the loop."""

    name: str
    model: str
    picture_px: int
    """Side of the square that the model sees, in pixels."""
    stored_px: int
    """Side of a pre-decoded picture, in pixels."""
    pictures: int
    learning_rate: float
    learning_samples: int
    """Samples that a run trains on before the gate looks at its loss."""
    threads: int | None
    """Threads of the training process; None leaves PyTorch's choice."""
    needs_card: bool = False
    start: TrainConfig = TrainConfig()


TINY = Preset("tiny", "small-cnn", 64, 72, 1024, 3e-3, 1600, threads=1)
CARD = Preset("card", "resnet50", 224, 256, 4096, 1e-3, 4096, threads=None, needs_card=True)
PRESETS = {preset.name: preset for preset in (TINY, CARD)}

CLASSES = 8
UNIT = "images/s"
"""Of every built-in workload."""
HELD_OUT = 512
"""Pictures that are never trained on; the loss on them says whether a run learned."""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which training job is meant: a preset, the learner's own pictures if any, a planted wait, a seed."""

    preset: str = "tiny"
    data: str | None = None
    """A folder of pictures instead of the set that the kit writes; one folder per class, or none."""
    storage_wait_ms: float = 0.0
    """Planted: milliseconds that every file read really waits, to stand for slow storage. 0 plants nothing."""
    seed: int = 0

    def __post_init__(self):
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}: there are {' and '.join(PRESETS)}")
        if not 0 <= self.storage_wait_ms <= 10_000:
            raise ValueError(f"storage_wait_ms is {self.storage_wait_ms:g}: between 0 and 10000")

    @property
    def sizes(self) -> Preset:
        """The preset by value."""
        return PRESETS[self.preset]

    @property
    def wait_seconds(self) -> float:
        """The planted wait of each file read, in seconds."""
        return self.storage_wait_ms / 1000

    @property
    def planted(self) -> str:
        """What is planted, in words; "" when nothing is."""
        return f"every file read really waits {self.storage_wait_ms:g} ms" if self.storage_wait_ms else ""

    @property
    def title(self) -> str:
        """What the learner reads: the workload, its pictures, and whether anything is planted."""
        words = f"{self.sizes.model} at {self.sizes.picture_px} px"
        return words + (", own pictures" if self.data else "") + (", planted wait" if self.planted else "")


def seconds(text: str) -> float:
    """A duration such as ``90s``, ``2m`` or ``45`` in seconds; ValueError for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min)?\s*", text)
    if not found:
        raise ValueError(f"{text!r} is not a duration: write 90s or 2m")
    return float(found[1]) * (60 if found[2] in ("m", "min") else 1)
