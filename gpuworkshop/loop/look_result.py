"""What the loop saw of the run it stands on: stall and headroom, where 20 steps spent their time, achieved FLOP/s."""

from __future__ import annotations

import bisect
import itertools

import msgspec

from gpuworkshop.instruments.flops import Achieved
from gpuworkshop.instruments.profile_result import HEAVY
from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.instruments.trace_sums import Row, TraceSums
from gpuworkshop.timing import Rate

LARGE = (*HEAVY, "aten::native_batch_norm_backward", "aten::_scaled_dot_product_flash_attention_for_cpu_backward")
"""Operators that do the work of a network on a CPU; the others are many and mostly small."""

UNEVEN = 30.0
"""How many times the median call the mean one is where a few large calls take the time, whatever their names."""


class Traced(msgspec.Struct, frozen=True):
    """What a profile adds up to, a step; microseconds. What belongs to a card is None where there is none."""

    steps: int
    step: float
    """A profiled step, longer than a plain one."""
    calls: float
    """Kernels a step; on a CPU operators."""
    median: float | None
    """Median kernel; on a CPU the median call, each taken at the mean of its operator, without what it calls."""
    heavy: float | None = None
    """On a CPU: in :data:`LARGE` operators."""
    mean: float | None = None
    """On a CPU: the mean operator, without what it calls."""
    busy: float | None = None
    """The card's, with anything."""
    copying: float | None = None
    """The card's, with copies alone."""
    to_card: float = 0.0
    """Share of the copies' time that goes to the card, 0 to 1."""
    pageable: bool = False
    """Whether copies go through memory that is not pinned."""
    idle_launching: float = 0.0
    """Shares of the profiled time. Profiling itself makes launches late: only what they are of each other counts."""
    idle_synchronizing: float = 0.0
    synchronizations: float = 0.0
    """Calls a step that wait for the card."""


def traced(sums: TraceSums) -> Traced | None:
    """The digest of a profile; None where it holds no steps, or no times of the card that was used."""
    card = sums.main
    if not sums.steps or (card is None and sums.launches):
        return None
    if card is None:
        return _on_cpu(sums)
    copies = sum(copy.microseconds for copy in sums.copies)
    up = [copy for copy in sums.copies if copy.direction == "HtoD"]
    return Traced(
        steps=sums.steps,
        step=sums.host_span / sums.steps,
        calls=sums.kernels / sums.steps,
        median=sums.median_kernel,
        busy=card.busy * card.span / sums.steps,
        copying=card.only_copying * card.span / sums.steps,
        to_card=sum(copy.microseconds for copy in up) / copies if copies else 0.0,
        pageable=any(copy.pageable for copy in sums.copies),
        idle_launching=card.idle_launching,
        idle_synchronizing=card.idle_synchronizing,
        synchronizations=sums.synchronizations / sums.steps,
    )


def _on_cpu(sums: TraceSums) -> Traced | None:
    rows = [row for row in sums.operators if row.calls]
    calls = sum(row.calls for row in rows)
    if not calls:
        return None
    return Traced(
        steps=sums.steps,
        step=sums.host_span / sums.steps,
        calls=calls / sums.steps,
        median=_median(rows),
        heavy=sum(row.cpu_self for row in rows if row.name in LARGE) / sums.steps,
        mean=sum(row.cpu_self for row in rows) / calls,
    )


def _median(rows: list[Row]) -> float:
    """The median call, each taken at its operator's mean."""
    ordered = sorted((row.cpu_self / row.calls, row.calls) for row in rows)
    until = list(itertools.accumulate(calls for _, calls in ordered))
    return ordered[bisect.bisect_left(until, until[-1] / 2)][0]


class Shares(msgspec.Struct, frozen=True):
    """Where a plain step's time goes, as shares that add up to 1; None is not measured here."""

    data: float
    """Waiting for the loader, and work on the batch before the step."""
    step: float
    """The rest; the four below are its parts, and the copies to the card."""
    copies: float | None = None
    launches: float | None = None
    synchronizing: float | None = None
    compute: float | None = None

    def of(self, limit: str) -> float:
        """The share that a limit stands for; the whole step where its parts are not known."""
        share = self.data if limit == "data" else getattr(self, limit, None)
        return (self.step if self.compute is None else 0.0) if share is None else share


class Watched(msgspec.Struct, frozen=True):
    """What the driver says of the card during plain steps; None with ``why`` where it says nothing."""

    busy: float | None
    """Utilization, 0 to 1, the mean over ``windows`` of the driver."""
    windows: int = 0
    why: str = ""


class Look(msgspec.Struct, frozen=True):
    """What was seen of a run before the next change is chosen."""

    starve: StarveResult
    traced: Traced | None = None
    achieved: Achieved | None = None
    watched: Watched | None = None
    """None where there is no card."""
    memory: float | None = None
    """The most memory of a step, as a share of what this job may use; None without a card."""
    product: Rate | None = None
    """FLOP/s of a large matrix product, measured on this device in this run's format."""
    precision: str = "fp32"
    most: Rate | None = None
    """The same in the fastest format that this device has; None where that is this run's, or was not measured."""

    @property
    def shares(self) -> Shares:
        """Where the time of a plain step goes."""
        return shares(self.starve, self.traced)


def shares(seen: StarveResult, profile: Traced | None) -> Shares:
    """Plain step, cut up: the wait and the data work as starve timed them, the rest by what the profile says.

    Only times of work come from the profile, and how the reasons for an idle card divide. How long the card idles
    does not: profiled steps are longer, most of all where launches are late.
    """
    data = min(1.0, seen.wait_share + seen.data_work_share)
    if profile is None:
        return Shares(data, 1 - data)
    if profile.busy is None:
        return _on_host(data, profile)
    whole = 1e6 * seen.batch_size / seen.real.value
    copies = min(1.0, profile.copying / whole)
    data = max(0.0, data - min(seen.data_work_share, profile.to_card * copies))
    step = max(0.0, 1 - data - copies)
    idle = min(step, max(0.0, 1 - profile.busy / whole - seen.wait_share))
    causes = profile.idle_launching + profile.idle_synchronizing
    waiting = idle * profile.idle_synchronizing / causes if causes else 0.0
    late = idle * profile.idle_launching / causes if causes else 0.0
    return Shares(data, 1 - data, copies, late, waiting, step - late - waiting)


def _on_host(data: float, profile: Traced) -> Shares:
    """On a CPU: large operators compute; what many small ones and their calls take is the price of launching them."""
    step = 1 - data
    compute = min(step, profile.heavy / profile.step) if profile.mean < UNEVEN * profile.median else step
    return Shares(data, step, None, step - compute, None, compute)
