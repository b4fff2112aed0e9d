"""What starve measured, and which limit that makes: facts only. What they mean is said by `starve_findings`."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuworkshop.instruments.shared_memory import Shared
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Origin
from gpuworkshop.timing import SMALLEST_EFFECT, Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig

REAL, CEILING, LOADER = "now", "data ceiling", "loader alone"
"""The arms that are measured in turn."""

LIMITING = 1.10
"""Headroom above which the data path is called the limit."""

LEAST_DATA = 0.05
"""Share of the time in the data path below which data are not called the limit."""

TOLERANCE = 0.10
"""Share of the run's time that wait and headroom may leave unexplained and still tell the same story."""


class StarveResult(msgspec.Struct, frozen=True):
    """What starve measured. Rates are in samples/s, shares from 0 to 1 of the real run's time."""

    workload: str
    real: Rate
    ceiling: Rate
    loader: Rate | None
    """None when it was not asked for."""
    headroom: Comparison
    """Ceiling over now."""
    wait_name: Literal["stall", "loader wait"]
    wait_share: float
    data_work_share: float
    """Copying, decoding and cropping on the step's own device."""
    slowed_share: float
    """What is left of the difference: the step is slowed by the loader's use of the machine."""
    agrees: bool | None
    """Whether wait and headroom tell the same story; None with workers, where the rest is ``slowed_share``."""
    limit: Literal["data", "compute", "unknown"]
    startup_seconds: float
    workers: int
    batch_size: int
    config: TrainConfig | None
    planted: str
    conditions: Conditions
    origin: Origin
    wait_interval: tuple[float, float] = (0.0, 1.0)
    """95% interval of ``wait_share`` over the blocks."""
    shared: Shared | None = None
    """What the batches that workers have ready take of the shared memory; None without workers."""
    omp_threads: int | None = None
    """OMP_NUM_THREADS: the threads that a library may start in each worker; None where it is not set."""

    @property
    def at_most(self) -> float:
        """The upper bound on what any change to the data path can bring, as a ratio: the interval's upper end."""
        return max(1.0, self.headroom.high)

    @property
    def data_share(self) -> tuple[float, float]:
        """95% interval of the share of the time spent waiting and on data work."""
        return data_share(self.wait_interval, self.data_work_share)

    @property
    def wait_percent(self) -> Rate:
        """``wait_share`` with its interval, in percent of the time."""
        low, high = self.wait_interval
        return Rate(100 * self.wait_share, 100 * low, 100 * high, self.real.n, "%")


class SweepPoint(msgspec.Struct, frozen=True):
    """One number of workers: its rate and its comparison with 0 workers, or a note why there is none."""

    workers: int
    rate: Rate | None
    against_zero: Comparison | None
    note: str = ""


class SweepResult(msgspec.Struct, frozen=True):
    """The rate over the number of workers, all measured in turn, with the data ceiling."""

    workload: str
    points: tuple[SweepPoint, ...]
    ceiling: Rate
    cpus: int
    planted: str
    conditions: Conditions
    origin: Origin

    @property
    def measured(self) -> tuple[SweepPoint, ...]:
        """The points that could be measured."""
        return tuple(point for point in self.points if point.rate)

    @property
    def best(self) -> SweepPoint:
        """The smallest number of workers that does as well as the fastest, within 3% or the noise of both."""
        fastest = max((point.rate for point in self.measured), key=lambda rate: rate.value)
        least = min(fastest.low, fastest.value / (1 + SMALLEST_EFFECT))
        return next(p for p in self.measured if p.rate.value >= least or p.rate.high >= fastest.value)


def tells_same_story(data_share: float, headroom: Comparison) -> bool:
    """Whether 1 - (share of data) equals 1 / headroom: the time left for the step, seen from both sides.

    They may differ by the noise of the headroom and by :data:`TOLERANCE` of the time: a step that runs between
    decodes finds cold caches and is slower than in a tight loop, also without workers.
    """
    left = 1 - data_share
    return 1 / headroom.high - TOLERANCE <= left <= 1 / headroom.low + TOLERANCE


def data_share(wait: tuple[float, float], data_work: float) -> tuple[float, float]:
    """The share of the time spent waiting and on data work, from the interval of the wait."""
    low, high = wait
    return min(1.0, low + data_work), min(1.0, high + data_work)


def which_limit(
    headroom: Comparison,
    agrees: bool | None,
    data: float,
    share: tuple[float, float] = (0.0, 1.0),
    starved: bool | None = None,
) -> Literal["data", "compute", "unknown"]:
    """Which of the two limits the run; "unknown" where the intervals, or the time seen in the data path, do not say.

    ``data`` is the share of the time spent waiting and on data work, ``share`` its interval. Headroom without any of
    it means that the step is slowed by something beside it, by workers or by other work on the same CPUs. Where noise
    lets the headroom lie on both sides, that share decides if its whole interval lies on one: what is not spent on
    data cannot be gained. That data limit is only said if the loader alone is slower than the step (``starved``), too.
    """
    if agrees is False or headroom.verdict == "unknown":
        return "unknown"
    faster = headroom.verdict == "faster"
    if faster and headroom.ratio >= LIMITING and data >= LEAST_DATA:
        return "data"
    if headroom.high < LIMITING:
        return "compute"
    least = 1 - 1 / LIMITING
    if share[1] < least and not faster and starved is not True:
        return "compute"
    return "data" if share[0] >= least and starved else "unknown"


def is_starved(loader: Rate | None, ceiling: Rate) -> bool | None:
    """Whether the loader alone is slower than the step on resident data; None where noise leaves it open, or no arm."""
    if loader is None or (loader.low <= ceiling.high and ceiling.low <= loader.high):
        return None
    return loader.value < ceiling.value
