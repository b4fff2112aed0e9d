"""What a run can be asked to do: the settings that a remedy may change, and the frozen naive starts."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec

from gpuworkshop.workloads.choices import Calls, DataPath, MemoryFormat, Precision, ReadsLoss, Transform

CHOICES = {
    "data_path": DataPath,
    "precision": Precision,
    "memory_format": MemoryFormat,
    "reads_loss": ReadsLoss,
    "transform": Transform,
    "calls": Calls,
}
SWITCHES = ("pin_memory", "persistent_workers", "fused", "compiled", "checkpointing")
MOST = {"workers": 512, "prefetch_factor": 4096, "batch_size": 1_000_000}
"""The largest number that a setting may have; what is beyond was not meant, and would stop the machine."""


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one training run; only what some remedy changes. The defaults are the naive start.

    Raises ValueError for values of a wrong kind and combinations that PyTorch would refuse, in one clear line.
    """

    data_path: DataPath = "cpu-decode"
    workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    batch_size: int = 32
    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    fused: bool = False
    """The optimizer updates all weights in a few kernels."""
    compiled: bool = False
    """torch.compile makes one kernel of many."""
    checkpointing: bool = False
    """Activations are computed again in the backward pass instead of kept."""
    reads_loss: ReadsLoss = "rarely"
    """What the host reads in each step, and so waits for: the loss, nothing, or the loss and the largest output of
    each sample, one by one, or the loss and all outputs."""
    transform: Transform = "device"
    """Where pre-decoded pictures are cropped: a batch at once on the device, or one after the other on the host."""
    calls: Calls = "a batch"
    """Whether the model is called once for a batch, or once for each sample."""

    def __post_init__(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} is {getattr(self, name)!r}: one of {', '.join(get_args(choices))}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: True or False")
        for name, most in MOST.items():
            _check_count(name, getattr(self, name), most)
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
        for name in changes:
            if name not in self.__struct_fields__:
                raise ValueError(_no_setting(name))
        return TrainConfig(**{**msgspec.structs.asdict(self), **changes})


def _check_count(name: str, value: Any, most: int) -> None:
    """ValueError for what is no whole number, or far too large; None is allowed where the setting allows it."""
    if value is None and name == "prefetch_factor":
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}: a whole number")
    if value > most:
        raise ValueError(f"{name} is {value}: more than {most} is surely not meant")


def _no_setting(name: str) -> str:
    near = difflib.get_close_matches(name, TrainConfig.__struct_fields__, 1)
    instead = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(TrainConfig.__struct_fields__)}"
    return f"there is no setting {name!r}: {instead}"


def changed(before: TrainConfig, after: TrainConfig) -> tuple[str, ...]:
    """The names of the settings that differ between two configs."""
    return tuple(name for name in TrainConfig.__struct_fields__ if getattr(before, name) != getattr(after, name))


class PictureSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a set of pictures is: side that the model sees and side of a pre-decoded one in pixels, and count."""

    px: int
    stored_px: int
    count: int


class TextSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How large a GPT and its text are: blocks, width, heads, tokens of context, vocabulary; sequences to train on."""

    blocks: int
    width: int
    heads: int
    context: int
    vocabulary: int
    sequences: int


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload of fixed size: model, data, learning rate, and the naive start of the loop.

    Either ``pictures`` or ``text`` is given.
    """

    name: str
    model: str
    learning_rate: float
    learning_samples: int
    """Samples that a run trains on before the gate looks at its loss."""
    threads: int | None = None
    """Threads of the training process; None leaves PyTorch's choice."""
    pictures: PictureSizes | None = None
    text: TextSizes | None = None
    needs_card: bool = False
    start: TrainConfig = TrainConfig()

    @property
    def unit(self) -> str:
        """Of a throughput."""
        return "images/s" if self.pictures else "sequences/s"

    @property
    def title(self) -> str:
        """The model and what it sees, in words."""
        if self.pictures:
            return f"{self.model} at {self.pictures.px} px"
        return f"{self.model}, {self.text.blocks} blocks of width {self.text.width}, {self.text.context} tokens"


PRESETS: dict[str, Preset] = {
    name: msgspec.convert({"name": name, **preset}, Preset)
    for name, preset in tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8")).items()
}

CLASSES = 8
HELD_OUT = 512
"""Samples that are never trained on; the loss on them says whether a run learned."""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which training job is meant: a preset, the learner's own pictures if any, a planted wait, a seed."""

    preset: str = "tiny"
    data: str | None = None
    """A folder of pictures instead of the set that the kit writes; one folder per class, or none."""
    storage_wait_ms: float = 0.0
    """Planted: milliseconds that every file read really waits, to stand for slow storage. 0 plants nothing."""
    seed: int = 0
    memory_gib: float | None = None
    """Planted: GiB of the card's memory that PyTorch may use; None leaves it all."""

    def __post_init__(self):
        if self.preset not in PRESETS:
            raise ValueError(f"no preset {self.preset!r}: there are {', '.join(PRESETS)}")
        if self.data is not None and not isinstance(self.data, str):
            raise ValueError(f"data is {self.data!r}: the name of a folder, as text")
        if self.data is not None and self.sizes.text:
            raise ValueError(f"the preset {self.preset} makes up its own text: data is for presets with pictures")
        if self.data == "":
            raise ValueError("data is empty: name a folder of pictures")
        if not isinstance(self.seed, int):
            raise ValueError(f"seed is {self.seed!r}: a whole number")
        wait = self.storage_wait_ms
        if not isinstance(wait, int | float) or not 0 <= wait <= 10_000:
            raise ValueError(f"storage_wait_ms is {wait!r}: between 0 and 10000")
        if wait and self.sizes.text:
            raise ValueError(f"the preset {self.preset} reads no files: storage_wait_ms is for presets with pictures")
        limit = self.memory_gib
        if limit is not None and (not isinstance(limit, int | float) or not 0 < limit <= 10_000):
            raise ValueError(f"memory_gib is {limit!r}: above 0 and at most 10000, or None")

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
        wait = f"every file read really waits {self.storage_wait_ms:g} ms" if self.storage_wait_ms else ""
        limit = f"PyTorch may use {self.memory_gib:g} GiB of the card's memory" if self.memory_gib else ""
        return "; ".join(filter(None, (wait, limit)))

    @property
    def title(self) -> str:
        """What the learner reads: the workload, its pictures, and whether anything is planted."""
        own = ", own pictures" if self.data else ""
        planted = ", planted wait" if self.storage_wait_ms else ""
        return self.sizes.title + own + planted + (", planted limit of memory" if self.memory_gib else "")
