"""The only clock of the kit: blocks, warm-up, arms in turn, noise bounds, verdicts.

An *arm* is one way of doing the same work (a configuration, a loader, a step on resident data). Arms are
measured in *blocks* of a fixed number of steps, in turn and in mirrored order (A B, B A, ...), so that a
machine that slows down or warms up slows down every arm alike. On a card a block is bracketed by CUDA
events and synchronized once at its end, never per step.

A verdict is "faster" or "slower" only if the 95% t-interval of the mean log ratio excludes 1 and the
effect is above 3%. Otherwise it is "no real difference", with the smallest effect it could have seen.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from gpuworkshop.numbers import in_unit, number

Verdict = Literal["faster", "slower", "no real difference", "unknown"]

SMALLEST_EFFECT = 0.03
"""Effects up to 3% are never called a difference, however narrow the interval."""

AGREEMENT = 0.05
"""Warm-up ends when two neighboring blocks agree within this share."""

GROWTH = 10
"""A warm-up block is at most so many times as long as the last: one of batches that lay ready says little."""

# Two-sided 95% quantile of Student's t for 1..30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Rate(msgspec.Struct, frozen=True):
    """A throughput with its 95% interval over ``n`` blocks, in ``unit`` (samples/s unless said)."""

    value: float
    low: float
    high: float
    n: int
    unit: str = "samples/s"

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "n/a"
        half = (self.high - self.low) / 2 / self.value if self.value else 0.0
        words = "±>999%" if half >= 10 else f"±{half:.0%}".replace("±0%", "±<1%")
        return f"{in_unit(number(self.value), self.unit)} {words}"


class Comparison(msgspec.Struct, frozen=True):
    """Throughput of B over throughput of A, from ``pairs`` measured in turn, with a 95% interval.

    ``smallest`` is the smallest effect this comparison could have seen, as a share (0.03 = 3%).
    """

    ratio: float
    low: float
    high: float
    pairs: int
    smallest: float
    verdict: Verdict

    def __str__(self) -> str:
        if self.verdict == "no real difference":
            return f"{self.verdict} ({self.ratio:.2f}x; would have seen {self.smallest:.0%})"
        return f"{self.verdict}: {self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f}, {self.pairs} pairs)"


class Block(msgspec.Struct, frozen=True):
    """One timed block: its length, what was done in it, and the seconds spent in each named span."""

    seconds: float
    steps: int
    samples: int
    spans: dict[str, float]

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds


class Plan(msgspec.Struct, frozen=True):
    """How long to measure: block length, fewest rounds, interval to reach, and when to stop trying."""

    block_seconds: float = 0.25
    min_steps: int = 2
    min_rounds: int = 8
    width: float = SMALLEST_EFFECT
    budget_seconds: float = 5.0
    """For two arms; more arms get more in proportion."""
    max_warm_up_blocks: int = 6
    min_seconds: float = 0.0
    """Every arm is measured for at least this long in all."""


CPU_PLAN = Plan()
"""Short blocks win on a CPU: 0.1 to 0.25 s blocks give narrower intervals than long ones in equal time."""

CARD_PLAN = Plan(block_seconds=0.6, budget_seconds=14.0)


BASELINE_SECONDS = 10.0
"""A baseline on a card is measured for at least so long, many times the window of the driver's utilization."""


def plan_for(device: str, *, baseline: bool = False) -> Plan:
    """The usual plan for ``"cpu"`` or a card; a ``baseline`` on a card is measured for longer."""
    if device == "cpu":
        return CPU_PLAN
    return msgspec.structs.replace(CARD_PLAN, min_seconds=BASELINE_SECONDS) if baseline else CARD_PLAN


class Clock:
    """The host's clock. ``now`` can be replaced to simulate one."""

    queues = False
    """Whether a step is only handed over, and done later."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self.host = now
        self._spans: list[tuple[str, object, object]] = []

    def mark(self) -> object:
        """A point in time, to be handed to :meth:`seconds`."""
        return self.host()

    def seconds(self, start, end) -> float:
        """Seconds between two marks; valid after :meth:`finish`."""
        return end - start

    def finish(self) -> None:
        """Wait until everything that was started is done."""

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Book the time of the enclosed lines under ``name``, on this clock."""
        start = self.mark()
        yield
        self._spans.append((name, start, self.mark()))

    def take_spans(self) -> dict[str, float]:
        """Seconds per span name since the last call; valid after :meth:`finish`."""
        totals: dict[str, float] = {}
        for name, start, end in self._spans:
            totals[name] = totals.get(name, 0.0) + self.seconds(start, end)
        self.drop_spans()
        return totals

    def drop_spans(self) -> None:
        """Forget the spans booked so far."""
        self._spans.clear()


class CardClock(Clock):
    """The card's clock: CUDA events, read after one synchronize.

    A span on this clock is the time that passed *on the card* between its two events: a host that waits
    while the card still has work costs nothing, a host that waits longer shows up as an idle card.
    """

    queues = True

    def __init__(self):
        super().__init__()
        import torch

        self._cuda = torch.cuda

    def mark(self) -> object:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start, end) -> float:
        return start.elapsed_time(end) / 1000.0

    def finish(self) -> None:
        self._cuda.synchronize()


def clock_for(device: str) -> Clock:
    """The clock that belongs to ``"cpu"`` or to a card (any name that starts with "cuda")."""
    return CardClock() if device.startswith("cuda") else Clock()


class Arm(Protocol):
    """One way of doing the work. ``period``: steps come in bursts of so many (the number of workers)."""

    name: str
    period: int

    def resume(self) -> None:
        """Called before each of the arm's blocks."""

    def pause(self) -> None:
        """Called after each of the arm's blocks: from here on nothing of the arm may use the machine."""

    def step(self, clock: Clock) -> int:
        """Do one step and return the number of samples in it."""


class Rounds:
    """The blocks of several arms, measured in turn; rates and comparisons are read from it."""

    def __init__(self, names: Sequence[str], unit: str = "samples/s"):
        self.unit = unit
        self.blocks: dict[str, list[Block]] = {name: [] for name in names}

    def __len__(self) -> int:
        return min(len(blocks) for blocks in self.blocks.values())

    def rate(self, name: str) -> Rate:
        """Throughput of one arm with its 95% interval over the blocks."""
        mean, half = _mean_and_half_width([math.log(block.rate) for block in self.blocks[name]])
        value = math.exp(mean)
        return Rate(value, value * math.exp(-half), value * math.exp(half), len(self), self.unit)

    def compare(self, a: str, b: str) -> Comparison:
        """Throughput of ``b`` over ``a``, from the pairs of blocks that stood next to each other."""
        pairs = zip(self.blocks[a], self.blocks[b], strict=True)
        return compare([math.log(second.rate / first.rate) for first, second in pairs])

    def share(self, name: str, span: str) -> float:
        """Share of an arm's time spent in one named span, 0 to 1."""
        blocks = self.blocks[name]
        return sum(b.spans.get(span, 0.0) for b in blocks) / sum(b.seconds for b in blocks)

    def share_interval(self, name: str, span: str) -> tuple[float, float]:
        """The 95% interval of :meth:`share` over the blocks, within 0 to 1."""
        mean, half = _mean_and_half_width([b.spans.get(span, 0.0) / b.seconds for b in self.blocks[name]])
        return max(0.0, mean - half), min(1.0, mean + half)

    def seconds(self, name: str) -> float:
        """Measured seconds of one arm over all its blocks."""
        return sum(block.seconds for block in self.blocks[name])


def compare(log_ratios: Sequence[float]) -> Comparison:
    """The verdict over paired log ratios (B over A)."""
    mean, half = _mean_and_half_width(log_ratios)
    ratio, low, high = math.exp(mean), math.exp(mean - half), math.exp(mean + half)
    smallest = max(math.expm1(half), SMALLEST_EFFECT)
    return Comparison(ratio, low, high, len(log_ratios), smallest, _verdict(ratio, low, high))


def durations(seconds: Sequence[float]) -> Rate:
    """How long one thing takes, in seconds, from several times that it was done, with its 95% interval."""
    mean, half = _mean_and_half_width([math.log(one) for one in seconds])
    value = math.exp(mean)
    return Rate(value, value * math.exp(-half), value * math.exp(half), len(seconds), "s")


def level(readings: Sequence[float], unit: str) -> Rate:
    """The mean of a quantity that was read several times, in ``unit``, with its 95% interval."""
    mean, half = _mean_and_half_width(readings)
    return Rate(mean, mean - half, mean + half, len(readings), unit)


def _verdict(ratio: float, low: float, high: float) -> Verdict:
    if not math.isfinite(low) or not math.isfinite(high):
        return "unknown"
    if low > 1 and ratio > 1 + SMALLEST_EFFECT:
        return "faster"
    if high < 1 and ratio < 1 / (1 + SMALLEST_EFFECT):
        return "slower"
    return "no real difference"


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95% t-interval; infinite with fewer than two values."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.inf
    freedom = len(values) - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def run_block(arm: Arm, clock: Clock, steps: int) -> Block:
    """Run ``steps`` steps of an arm as one timed block.

    Where work is queued, one untimed step goes before: a block starts and ends with a step on its way, as within a
    long run. Otherwise its first load would have no step to hide behind.
    """
    arm.resume()
    try:
        clock.finish()
        if clock.queues:
            arm.step(clock)
        clock.drop_spans()
        start = clock.mark()
        samples = sum(arm.step(clock) for _ in range(steps))
        end = clock.mark()
        clock.finish()
        if not samples:
            raise ValueError(f"{arm.name}: its batches hold no samples, so there is nothing to count")
        return Block(clock.seconds(start, end), steps, samples, clock.take_spans())
    finally:
        arm.pause()


def warm_up(arm: Arm, clock: Clock, plan: Plan, run: Callable[[Arm, Clock, int], Block] = run_block) -> int:
    """Run blocks until two in a row agree; returns the number of steps that fill a block."""
    steps = _whole_periods(arm, plan.min_steps)
    previous = None
    for _ in range(plan.max_warm_up_blocks):
        block = run(arm, clock, steps)
        wanted = _whole_periods(arm, max(plan.min_steps, plan.block_seconds / (block.seconds / block.steps)))
        if previous and steps >= wanted and abs(block.rate / previous.rate - 1) < AGREEMENT:
            break
        steps, previous = min(wanted, GROWTH * steps), block
    return steps


def _whole_periods(arm: Arm, steps: float) -> int:
    """The smallest multiple of the arm's period that is not below ``steps``."""
    return arm.period * math.ceil(steps / arm.period - 1e-9)


def in_turn(
    arms: Sequence[Arm],
    clock: Clock,
    plan: Plan,
    *,
    pairs: Iterable[tuple[str, str]] = (),
    unit: str = "samples/s",
    progress: Callable[[float], None] = lambda share: None,
    run: Callable[[Arm, Clock, int], Block] = run_block,
) -> Rounds:
    """Measure arms in turn, in mirrored order, until the compared pairs are narrow enough or time is up.

    ``pairs`` names the comparisons whose interval decides when to stop (default: all arms against the
    first). The width reached decides, never the effect, and rounds end even so that a drift cancels.
    ``run`` runs one block; several processes that measure together have one of their own.
    """
    watched = list(pairs) or [(arms[0].name, arm.name) for arm in arms[1:]]
    budget = plan.budget_seconds * max(1.0, len(arms) / 2)
    steps = {arm.name: warm_up(arm, clock, plan, run) for arm in arms}
    rounds, began = Rounds([arm.name for arm in arms], unit), clock.host()
    while not _enough(rounds, watched, plan, clock.host() - began >= budget):
        for arm in arms if len(rounds) % 2 == 0 else reversed(arms):
            rounds.blocks[arm.name].append(run(arm, clock, steps[arm.name]))
        progress(min(1.0, max(len(rounds) / plan.min_rounds / 2, (clock.host() - began) / budget)))
    return rounds


def _enough(rounds: Rounds, watched: list[tuple[str, str]], plan: Plan, late: bool) -> bool:
    if len(rounds) < plan.min_rounds or len(rounds) % 2:
        return False
    if min(rounds.seconds(name) for name in rounds.blocks) < plan.min_seconds:
        return False
    narrow = all(math.log(c.high / c.ratio) <= plan.width for c in (rounds.compare(a, b) for a, b in watched))
    return narrow or late
