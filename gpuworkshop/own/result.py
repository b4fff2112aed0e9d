"""What was seen of a run of somebody's own script: a frozen result, read from what the hooks wrote."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuworkshop.instruments.flops import Achieved
from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.loop.look_result import Traced, Watched
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Origin
from gpuworkshop.timing import Rate

Ended = Literal["stopped by us", "by itself", "error", "signal", "timed out"]
"""How the script ended. "stopped by us": everything was measured, and the rest of its run was not needed."""


class Place(msgspec.Struct, frozen=True):
    """A line of the script's own code, the innermost frame outside of installed packages."""

    file: str
    line: int
    """Counted from 1."""
    code: str = ""
    """The line's text without its indentation."""
    function: str = ""


class Loader(msgspec.Struct, frozen=True):
    """A DataLoader that fed steps, as the running program has it."""

    place: Place | None
    """Where it was made."""
    workers: int
    batch_size: int | None
    """None with a batch sampler of its own, and without automatic batching."""
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    dataset: str
    """Class of the data set."""
    iterable: bool
    """Whether it is an IterableDataset, which has no length to shuffle."""
    batches: int
    """How many it gave while the run was watched."""
    epochs: int
    """How often an iterator of it was made."""
    collate: str = ""
    """Name of a collate function of the script's own; "" for the usual one."""


class Optimizer(msgspec.Struct, frozen=True):
    """An optimizer that stepped."""

    place: Place | None
    kind: str
    """Class, such as AdamW."""
    steps: int
    fused: bool | None
    foreach: bool | None
    weights: int
    """Numbers that it updates."""


class Wait(msgspec.Struct, frozen=True):
    """A line of the script at which the host waits for the device or copies from it in each step, such as .item()."""

    place: Place
    call: str
    """item, cpu, tolist, numpy, synchronize, print, empty_cache ..."""
    a_step: float
    """Calls a step."""


class Hot(msgspec.Struct, frozen=True):
    """A line of the script's own code at which the training thread was found when its stack was looked at."""

    places: tuple[Place, ...]
    """The frames of the script's own code, the innermost first."""
    share: float
    """Of all looks during the steps, 0 to 1, with exactly these lines."""
    in_loader: bool
    """Whether a loader was inside next() then: the data set's own lines are only seen with 0 workers."""
    steps: int = 0
    """In how many of the steps it was found: once in an epoch tells nothing of how much time it takes in all."""


class Settings(msgspec.Struct, frozen=True):
    """What the running program was seen to use. None: could not be seen."""

    device: str
    """Where its weights are: "cuda:0", "cpu", "mps"."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "mixed"] | None
    """Of the matrix products: autocast's type where it is on, else that of the weights; TF32 by PyTorch's switches."""
    autocast: bool
    scaler: bool
    channels_last: bool | None
    """None for a model without convolutions."""
    checkpointing: bool
    compiled: bool
    ddp: str
    """"DDP", "FSDP", "DataParallel" or ""."""
    world: int
    accumulation: float
    """Backward passes for each optimizer step."""
    loaders: tuple[Loader, ...]
    optimizers: tuple[Optimizer, ...]
    waits: tuple[Wait, ...] = ()
    """The most frequent first."""
    autocast_place: Place | None = None
    model: str = ""
    """Class of the outermost module that was called."""
    model_place: Place | None = None
    """The first call of the outermost module in the script's own code."""
    backward_place: Place | None = None
    step_place: Place | None = None
    """The call of the optimizer's step."""
    framework: str = ""
    """Who drives the steps: "Trainer", "Lightning", "accelerate" or "" for a loop of the script's own."""
    devices_set: bool = False
    """Whether the script chooses cards itself, by CUDA_VISIBLE_DEVICES or set_device."""
    forks: bool = False
    """Whether it started processes that train too."""


class Losses(msgspec.Struct, frozen=True):
    """The loss at which backward was called, at equal samples: so that a faster run can be held to still learn."""

    samples: tuple[int, ...]
    values: tuple[float, ...]


class OwnResult(msgspec.Struct, frozen=True):
    """A run of a script of one's own."""

    command: tuple[str, ...]
    script: str
    """The file that was run; "" where it is not known."""
    ended: Ended
    exit_code: int | None
    own_words: str
    """The end of what the script printed, for when it failed."""
    output: str
    """The file with all that it printed."""
    steps: int
    """Optimizer steps that were seen."""
    settings: Settings | None
    """None where PyTorch was never imported, or no step was seen."""
    starve: StarveResult | None
    """Wait and headroom; None without a DataLoader, or with too few steps."""
    rate: Rate | None
    """Samples/s where batches have a size, else steps/s; over the baseline's blocks."""
    step_seconds: float | None
    traced: Traced | None
    achieved: Achieved | None
    watched: Watched | None
    memory: float | None
    """The most memory of a step as a share of the card; None without one."""
    memory_bytes: int | None
    not_seen: tuple[str, ...]
    """What could not be seen, each in one sentence with what to do about it."""
    losses: Losses | None
    seconds: float
    conditions: Conditions | None
    """Of the script's own process: its Python and its PyTorch; None where it never imported that."""
    origin: Origin
    communication: float | None = None
    """Share of the time in all-reduce with nothing beside it; None with one process."""
    world_rates: tuple[Rate, ...] = ()
    """Of each rank, where there are several."""
    beside: float = 0.0
    """Share of the baseline's time in which no step was made: a new epoch, a validation, a file that was written.
    ``rate`` is of the steps alone. 0 where it happened less than three times, whose share nobody can tell, and where
    it is done in most steps, because then it is part of a step."""
    planted: str = ""
    hot: tuple[Hot, ...] = ()
    """Where the training thread is, the most frequent first, by looks every few ms from another thread, in steps of
    their own beside the baseline; shares add up to at most 1. Empty: not looked at."""

    @property
    def whole_rate(self) -> Rate | None:
        """The rate with everything that the script does between its steps: what it gets done in a second."""
        if self.rate is None:
            return None
        part = 1 - self.beside
        return msgspec.structs.replace(
            self.rate, value=part * self.rate.value, low=part * self.rate.low, high=part * self.rate.high
        )
