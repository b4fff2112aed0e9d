"""What memory found: facts only, in bytes and samples. What they mean is said by :mod:`.memory_findings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuworkshop.figures.memory_stack import KINDS
from gpuworkshop.instruments.memory_faults import Fault
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig

WITHIN = 0.05
"""How far below the best throughput the knee may lie."""

RULE = (0.70, 0.85)
"""The published rule: run at this share of the batch ceiling."""

Ended = Literal["found", "cap", "fault", "same memory", "nothing fits", "time", "probes"]


class Moment(msgspec.Struct, frozen=True):
    """The memory at the end of one phase, in bytes; None is not known."""

    name: str
    step: int
    """0 before the first step, 1 in it, 2 in a later one."""
    weights: int
    gradients: int
    optimizer: int
    activations: int | None
    """What the forward pass keeps for the backward pass, and the batch; on a card whatever else is in tensors too."""
    reserve: int | None = None
    """Held by PyTorch's allocator and free for its next tensors."""
    context: int | None = None
    """CUDA's own: context, kernels, libraries."""
    others: int | None = None
    """In use on the card by everybody else."""
    peak: int | None = None
    """The most in tensors at any time in the phase."""

    def part(self, kind: str) -> int | None:
        """The bytes of one kind, such as "weights"."""
        return getattr(self, kind)

    @property
    def lasting(self) -> int:
        """Weights, gradients and optimizer: what does not grow with the batch."""
        return self.weights + self.gradients + self.optimizer


class MemoryResult(msgspec.Struct, frozen=True):
    """The life of the memory over two training steps."""

    workload: str
    batch_size: int | None
    parameters: int
    """How many numbers the model learns."""
    optimizer: str
    """Its name."""
    moments: tuple[Moment, ...]
    by: Literal["allocator", "saved tensors"]
    """Who says what the activations take."""
    total: int | None
    """Bytes of the card."""
    conditions: Conditions
    origin: Origin
    config: TrainConfig | None = None
    host: int | None = None
    """Bytes of main memory that the job may use at most; None where nothing said so."""
    host_said_by: str = ""

    @property
    def peak(self) -> Moment | None:
        """The phase with the highest peak; None where the allocator does not say."""
        known = [moment for moment in self.moments if moment.peak is not None]
        return max(known, key=lambda moment: moment.peak, default=None)

    @property
    def kept(self) -> Moment:
        """The end of the last forward pass, where the activations are all there."""
        return next(moment for moment in reversed(self.moments) if moment.name == "forward")

    @property
    def last(self) -> Moment:
        """The end of the last step."""
        return self.moments[-1]

    @property
    def used(self) -> int | None:
        """The most in use on the card, by everybody; None without a card."""
        taken = [[moment.part(kind) for kind in KINDS if moment.part(kind) is not None] for moment in self.moments]
        if self.total is None:
            return None
        return max(sum(parts) for parts in taken)


class BatchPoint(msgspec.Struct, frozen=True):
    """One batch size: its throughput, how it compares with the smallest, its peak in tensors; or why there is none."""

    batch: int
    rate: Rate | None
    against_smallest: Comparison | None = None
    peak: int | None = None
    note: str = ""


class BatchSweep(msgspec.Struct, frozen=True):
    """Throughput over the batch size, all sizes measured in turn on resident data."""

    workload: str
    points: tuple[BatchPoint, ...]
    conditions: Conditions
    origin: Origin
    largest_asked: int | None = None
    """The largest size that was wanted."""

    @property
    def measured(self) -> tuple[BatchPoint, ...]:
        """The sizes that could be measured."""
        return tuple(point for point in self.points if point.rate)

    @property
    def knee(self) -> int:
        """The smallest batch within 5% of the best throughput."""
        return knee_of({point.batch: point.rate.value for point in self.measured})

    @property
    def still_rising(self) -> bool:
        """Whether the largest size is the knee: a larger one might be faster still."""
        return len(self.measured) > 1 and self.knee == self.measured[-1].batch


def knee_of(rates: Mapping[int, float]) -> int:
    """The smallest size within 5% of the best rate."""
    return min(size for size, rate in rates.items() if rate >= (1 - WITHIN) * max(rates.values()))


class Probe(msgspec.Struct, frozen=True):
    """One batch size, tried with three full steps. ``allocated`` and ``reserved`` are peaks in bytes."""

    batch: int
    fits: bool
    seconds: float = 0.0
    allocated: int | None = None
    reserved: int | None = None
    retries: int = 0
    fault: Fault | None = None
    rate: float | None = None
    """Samples/s of the steps after the first: a hint, without an interval."""


class Line(msgspec.Struct, frozen=True):
    """Memory as a straight line over the batch, in bytes: what a step takes without samples, and a sample."""

    base: float
    slope: float

    def at(self, batch: float) -> float:
        """Bytes at a batch size."""
        return self.base + self.slope * batch


class CeilingResult(msgspec.Struct, frozen=True):
    """The largest batch that ran three full steps without an allocator retry, and how it was found."""

    workload: str
    ceiling: int | None
    """None where not one size fitted."""
    above: int | None
    """The smallest size that was seen not to fit; None where none was."""
    ended: Ended
    probes: tuple[Probe, ...]
    seconds: float
    room: int | None
    """Bytes that a step could take when the search began."""
    total: int | None
    """Bytes of the card."""
    others: int | None
    """Bytes in use by somebody else when the search began."""
    most: int
    """The largest size that would have been tried."""
    conditions: Conditions
    origin: Origin
    line: Line | None = None
    """Through the two largest sizes that fitted, as the allocator counts what is in tensors."""
    isolated: bool = False
    """Each size ran in a process of its own."""
    planted: str = ""
    notes: tuple[str, ...] = ()
    knee: BatchSweep | None = None
    config: TrainConfig | None = None

    @property
    def rule(self) -> tuple[int, int] | None:
        """70 to 85% of the ceiling, in samples."""
        return (int(RULE[0] * self.ceiling), int(RULE[1] * self.ceiling)) if self.ceiling else None

    @property
    def steady(self) -> bool:
        """Whether the memory never falls from one size to a larger one."""
        read = sorted((p.batch, p.allocated) for p in self.probes if p.fits and p.allocated is not None)
        return all(later >= 0.98 * before for (_, before), (_, later) in zip(read, read[1:], strict=False))


class Attempt(msgspec.Struct, frozen=True):
    """One try to run the same batch, or a smaller one, with what was changed; ``peak`` in bytes."""

    change: str
    """What was done on top of the attempt before; "" for the first."""
    config: TrainConfig
    fits: bool
    peak: int | None = None
    retries: int = 0
    fault: Fault | None = None
    batch_norm: tuple[str, ...] = ()
    """Layers of BatchNorm whose batches are counted twice because they are computed again."""


class CureResult(msgspec.Struct, frozen=True):
    """A job that ran out of memory, and what was changed one after the other until it ran."""

    workload: str
    limit: int | None
    """Bytes that the job was allowed."""
    needed: int | None
    """Bytes at its peak without a limit."""
    attempts: tuple[Attempt, ...]
    planted: str
    conditions: Conditions
    origin: Origin

    @property
    def cured(self) -> Attempt | None:
        """The first attempt that ran; None if none did."""
        return next((attempt for attempt in self.attempts if attempt.fits), None)
