"""What scaling measured, and the words for it: weak and strong, efficiency, the bands. Nothing here measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig

Mode = Literal["weak", "strong"]
Band = Literal["pays", "acceptable", "does not pay"]

PAYS, ACCEPTABLE = 0.80, 0.70
"""The course's bands: above 80% more ranks pay, 70 to 80% is acceptable, below that communication or I/O limits."""

ALONE, FLOOR, REDUCE = "one alone", "no all-reduce", "all-reduce"
"""Names of arms: one rank without DDP; all ranks without their all-reduce; all-reduce without training."""


class World(msgspec.Struct, frozen=True):
    """Some ranks that train together: their throughput in all, and that throughput over that of one rank alone."""

    size: int
    mode: Mode
    batch: int
    """Samples a step of each rank."""
    rate: Rate
    speedup: Comparison

    @property
    def efficiency(self) -> Rate:
        """Throughput / (ranks x one alone) in percent, with its interval."""
        share = 100 / self.size
        ratio = self.speedup
        return Rate(share * ratio.ratio, share * ratio.low, share * ratio.high, ratio.pairs, "%")

    @property
    def bands(self) -> tuple[Band, ...]:
        """The bands that the interval of the efficiency reaches, best first; one when it is certain."""
        order: tuple[Band, ...] = ("pays", "acceptable", "does not pay")
        first, last = (order.index(band(share)) for share in (self.efficiency.high / 100, self.efficiency.low / 100))
        return order[first : last + 1]


class Member(msgspec.Struct, frozen=True):
    """One rank: where it runs, and how fast its step is when it waits for nobody."""

    number: int
    card: str
    rate: Rate
    """Of this rank, without all-reduce."""
    against: Comparison | None
    """This rank over the median of all, without all-reduce; None where there is only one."""


class ScalingResult(msgspec.Struct, frozen=True):
    """What scaling measured. Rates are samples/s of all ranks of a world together, shares from 0 to 1."""

    workload: str
    ranks: int
    backend: Literal["nccl", "gloo"]
    batch_size: int
    alone: Rate
    """One rank without DDP, the others idle."""
    wrapped: Rate
    """All ranks with DDP's wrapper and without all-reduce: the floor of a step."""
    taken: Comparison
    """That floor, a rank, over one rank alone: what ranks take from each other, and the wrapper's own work."""
    communicating: Comparison
    """All ranks with all-reduce over the floor: what communication costs that nothing hides."""
    worlds: tuple[World, ...]
    gradient_bytes: int
    reduce_seconds: Rate | None
    """One all-reduce of a gradient by itself; None where there is one rank, or where it was not asked for."""
    alone_wait: float
    """Share of its time in which one rank alone waits for data."""
    world_wait: float
    """The same for the largest world, the mean of its ranks."""
    wait_name: Literal["stall", "loader wait"]
    members: tuple[Member, ...]
    config: TrainConfig
    planted: str
    notes: tuple[str, ...]
    conditions: Conditions
    origin: Origin

    def world(self, mode: Mode, size: int | None = None) -> World | None:
        """One world; the largest if no size is given; None if it was not measured."""
        size = size or self.ranks
        return next((world for world in self.worlds if (world.mode, world.size) == (mode, size)), None)

    @property
    def step_seconds(self) -> float:
        """One step of the largest world, every rank with the whole batch."""
        return self.ranks * self.batch_size / self.world("weak").rate.value

    @property
    def exposed_seconds(self) -> float:
        """What communication adds to that step, because nothing hides it."""
        return max(0.0, self.step_seconds * (1 - self.communicating.ratio))

    @property
    def hidden(self) -> float | None:
        """Share of the all-reduce that runs behind the backward pass; None where there is nothing to compare."""
        if self.reduce_seconds is None:
            return None
        return min(1.0, max(0.0, 1 - self.exposed_seconds / self.reduce_seconds.value))

    @property
    def bandwidth(self) -> Rate | None:
        """Bytes of the gradient over the time of its all-reduce, in GB/s."""
        return self._bytes_a_second(1.0)

    @property
    def bus_bandwidth(self) -> Rate | None:
        """What each link carries for it: 2 (n - 1) / n times as much, in GB/s."""
        return self._bytes_a_second(2 * (self.ranks - 1) / self.ranks)

    def _bytes_a_second(self, share: float) -> Rate | None:
        took, size = self.reduce_seconds, share * self.gradient_bytes / 1e9
        return took and Rate(size / took.value, size / took.high, size / took.low, took.n, "GB/s")


def band(efficiency: float) -> Band:
    """The course's band of an efficiency, 0.85 for 85%."""
    if efficiency > PAYS:
        return "pays"
    return "acceptable" if efficiency >= ACCEPTABLE else "does not pay"


class Judged(msgspec.Struct, frozen=True):
    """An efficiency worked out from numbers of a run that somebody else timed."""

    mode: Mode
    samples_a_second: float
    efficiency: float
    remark: str = ""


def efficiency_by_hand(
    worlds: Sequence[int], batch: int, steps_a_second: float, alone_batch: int, alone_steps_a_second: float
) -> Judged:
    """Efficiency from the log of a run: ``worlds`` is the world size that each of its ranks says it is in.

    Steps a second of two runs say nothing by themselves, samples a second do. ValueError where the ranks disagree, and
    for what is no size or rate.
    """
    ranks = len(worlds)
    given = (batch, steps_a_second, alone_batch, alone_steps_a_second)
    if not ranks or not all(isinstance(one, int | float) and math.isfinite(one) and one > 0 for one in given):
        raise ValueError(f"{ranks} ranks, and {', '.join(map(str, given))}: ranks, batches and rates are above 0")
    if set(worlds) != {ranks}:
        said = ", ".join(map(str, sorted(set(worlds))))
        raise ValueError(f"{ranks} ranks ran and say that their world has {said}: they did not train as one")
    rate, alone = ranks * batch * steps_a_second, alone_batch * alone_steps_a_second
    efficiency = rate / (ranks * alone)
    mode: Mode = "strong" if ranks > 1 and batch < alone_batch else "weak"
    remark = ""
    if efficiency > 1.0 + 1e-9:
        remark = "more than 100%: was the one alone disturbed, or is this another batch or another model?"
    return Judged(mode, rate, efficiency, remark)
