"""The batch ceiling: a straight line through small probes, a prediction, then sizes next to it until two enclose it.

The largest batch counts that ran three full steps without an allocator retry: the state of the optimizer only exists
after the first, and an allocator that has to give everything back is slow and close to its end. What is answered has
always run, and the size above it has always failed. A memory that is no line takes more probes, and no other rule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from gpuworkshop.instruments.memory_faults import Fault, fault_of, forget, needs_more_samples
from gpuworkshop.instruments.memory_result import Ended, Line, Probe
from gpuworkshop.instruments.memory_room import Reading, Room

STEPS = 3
START = 8
SECOND = 4
"""The second probe is so many times the first."""
CLOSE = 0.975
"""The search ends where the largest size that fits is this share of the largest that might."""
BELOW = 0.99
"""A predicted size is tried this far below the prediction."""
WAY = 0.5
"""The third probe stands at this share of the prediction: far enough to see the slope, and sure to fit on a line."""
WRONG = 1.2
"""A prediction so many times above a size that failed is not believed; then the middle is tried."""
BENDS = 1.3
"""Slopes that differ by more are no line; then a parabola predicts."""
GRID = 8
"""Large sizes are multiples of this: kernels like them, and it is finer than what is looked for."""
LARGEST = 1_000_000
"""The largest batch that is ever tried."""
UNLIKE = 64
"""Sizes so many times apart that take the same memory show that the step does not use its batch size."""


class Limits(msgspec.Struct, frozen=True):
    """Where a search begins and what ends it: the first and the largest size, probes, seconds."""

    start: int = START
    most: int = LARGEST
    probes: int = 25
    seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in ("start", "most", "probes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}: a whole number, 1 or more")
        if not isinstance(self.seconds, int | float) or not self.seconds > 0:
            raise ValueError(f"seconds is {self.seconds!r}: a time to search, above 0")


def probe_in(step: Callable[[int], Any], batch: int, room: Room) -> Probe:
    """Three full steps of one size in a cleared room. Whatever the step raises is read and dropped, never kept."""
    room.clear()
    began = time.perf_counter()
    fault, rate = _steps(step, batch, room)
    reading = Reading() if fault and fault.kind == "other" else room.read()
    if fault is None or fault.kind != "other":
        room.clear()  # out here, where the exception and its frames are gone
    return Probe(
        batch=batch,
        fits=fault is None and not reading.retries,
        seconds=time.perf_counter() - began,
        allocated=reading.allocated,
        reserved=reading.reserved,
        retries=reading.retries,
        fault=fault,
        rate=rate,
    )


def _steps(step: Callable[[int], Any], batch: int, room: Room) -> tuple[Fault | None, float | None]:
    """Run the steps, up to the first retry; what went wrong, else the rate after the first step."""
    try:
        for turn in range(STEPS):
            step(batch)
            if room.retries():
                return None, None
            if turn == 0:
                room.finish()
                first = time.perf_counter()
        room.finish()
        return None, (STEPS - 1) * batch / max(time.perf_counter() - first, 1e-9)
    except (Exception, SystemExit) as error:
        forget(error)
        return fault_of(error), None


class Search:
    """Tries one size after the other with ``probe`` until the ceiling is enclosed, or until something ends it."""

    def __init__(
        self,
        probe: Callable[[int], Probe],
        available: Callable[[], int | None],
        limits: Limits,
        *,
        growth: int = 64,
        host: bool = False,
        progress: Callable[[int], None] = lambda batch: None,
        now: Callable[[], float] = time.perf_counter,
    ):
        self._probe, self._available, self._progress, self._now = probe, available, progress, now
        self.limits, self.growth, self.host = limits, growth, host
        self.probes: list[Probe] = []
        self.notes: list[str] = []
        self.room, self.seconds = available(), 0.0
        self.ended: Ended = "found"

    def run(self) -> int | None:
        """The largest size that fits; None if none does."""
        began, size = self._now(), min(self.limits.start, self.limits.most)
        while size is not None:
            self._progress(size)
            self.probes.append(self._probe(size))
            left = self._available()
            self.room = left if self.room is None else min(self.room, left or self.room)
            self.seconds = self._now() - began
            size = self._next()
        return self.fits

    @property
    def fits(self) -> int | None:
        """The largest size that fitted, below every one that did not."""
        return max((p.batch for p in self.probes if p.fits and not (self.above and p.batch > self.above)), default=None)

    @property
    def above(self) -> int | None:
        """The smallest size that did not fit for want of memory."""
        return min((p.batch for p in self.probes if self._too_big(p)), default=None)

    @property
    def line(self) -> Line | None:
        """Through the two largest sizes that fitted, as the allocator counts tensors."""
        return self._line("allocated")

    def _too_big(self, probe: Probe) -> bool:
        """Whether it was memory that a probe lacked; the host's own counts only where that is what is searched."""
        if probe.fault is None:
            return not probe.fits
        return probe.fault.kind in ("memory", "maybe memory") or (self.host and probe.fault.kind == "host memory")

    def _next(self) -> int | None:
        """The next size, or None with the reason in ``ended``."""
        last = self.probes[-1]
        if last.fault and not self._too_big(last):
            return self._after_fault(last)
        size = self._wanted()
        if size is not None and len(self.probes) >= self.limits.probes:
            return self._end("probes")
        if size is not None and self._too_long(size):
            return self._end("time")
        return size

    def _end(self, why: Ended) -> None:
        self.ended = why

    def _after_fault(self, last: Probe) -> int | None:
        """A step that fails for another reason ends the search; only a batch of 1 may be too small for BatchNorm."""
        if last.batch > 1 or not needs_more_samples(last.fault):
            if self.above and self.fits is None:
                self.notes.append(
                    f"the step broke when memory had run out at {self.above}, which may have left the optimizer "
                    "half made: make model and optimizer anew, and begin with a smaller start"
                )
            return self._end("fault")
        self.notes.append(f"a batch of 1 cannot run ({last.fault.words}): {last.fault.advice}")
        if len(self.probes) == 1 and self.limits.most > 1:
            return 2
        return self._end("nothing fits")

    def _too_long(self, size: int) -> bool:
        """Whether the time is used up, or would be by this size, judged by the fastest rate so far."""
        rate = max((p.rate for p in self.probes if p.rate), default=None)
        needs = STEPS * size / rate if rate else 0.0
        return self.seconds >= self.limits.seconds or (
            len(self.probes) > 1 and self.seconds + needs > self.limits.seconds
        )

    def _wanted(self) -> int | None:
        good, bad = self.fits, self.above
        if good is None:
            return self._smaller(bad)
        if bad is None:
            return self._larger(good)
        if good >= CLOSE * (bad - 1):
            return self._end("found")
        return self._between(good, bad)

    def _smaller(self, bad: int) -> int | None:
        """Nothing has fitted yet."""
        tried = {p.batch for p in self.probes}
        size = max(1, bad // SECOND)
        return self._end("nothing fits") if size in tried else size

    def _larger(self, good: int) -> int | None:
        """Nothing has failed yet: toward the prediction, and then just above what fitted."""
        if good >= self.limits.most:
            return self._end("cap")
        if self._same_memory():
            return self._end("same memory")
        most = min(self.growth * good, self.limits.most)
        predicted = self._predicted()
        if len(self._read) < 2 or predicted is None:
            return min(SECOND * good, most)
        if len(self._read) == 2 and WAY * predicted > 2 * good:
            return self._on_grid(WAY * predicted, good, most + 1)
        just_above = good / CLOSE + 1
        return self._on_grid(max(BELOW * predicted, just_above), good, most + 1)

    def _between(self, good: int, bad: int) -> int:
        """Inside the two that enclose it: the prediction, or a step below the failure that doubles, or the middle.

        Where the prediction says that what fits is the end, the size just above it decides.
        """
        predicted, failed = self._predicted(), sum(self._too_big(p) for p in self.probes)
        middle, just_above = math.sqrt(good * bad), good / CLOSE + 1
        size = middle
        if predicted is not None and predicted <= WRONG * bad:
            step = bad * (1 - (1 - CLOSE) * 2 ** (failed - 1))
            size = max(min(BELOW * predicted, step), middle)
            if BELOW * predicted <= just_above and not self._crept(good):
                size = just_above
        if size < just_above < bad:
            size = just_above
        return self._on_grid(size, good, bad)

    def _crept(self, good: int) -> bool:
        """Whether the last probe was such a size just above, and fitted all the same."""
        before = [probe.batch for probe in self.probes[:-1] if probe.fits and probe.batch < good]
        return bool(before) and self.probes[-1].fits and good <= (2 - CLOSE**2) * max(before)

    def _on_grid(self, size: float, good: int, bad: int) -> int:
        """A whole number between the two, a multiple of 8 where that is fine enough."""
        size = int(size)
        if size >= 64 * GRID:
            size -= size % GRID
        return min(max(size, good + 1), bad - 1)

    def _same_memory(self) -> bool:
        """Whether sizes far apart take the same memory: less than a byte for each sample more."""
        read = self._read
        if len(read) < 2 or read[-1].batch < UNLIKE * read[0].batch:
            return False
        return read[-1].allocated - read[0].allocated < read[-1].batch - read[0].batch

    @property
    def _read(self) -> list[Probe]:
        """What fitted and could be read, the smallest first."""
        return sorted((p for p in self.probes if p.fits and p.allocated is not None), key=lambda p: p.batch)

    def _line(self, what: str) -> Line | None:
        read = self._read
        if len(read) < 2:
            return None
        (n1, m1), (n2, m2) = ((p.batch, getattr(p, what)) for p in read[-2:])
        if m1 is None or m2 is None:
            return None
        slope = (m2 - m1) / (n2 - n1)
        return Line(m2 - slope * n2, slope)

    def _predicted(self) -> float | None:
        """The size at which the memory would be full; None where nothing says so."""
        lines = [self._line(what) for what in ("allocated", "reserved")]
        known = [line for line in lines if line is not None and line.slope > 0]
        if self.room is None or not known:
            return None
        ends = [(self.room - line.base) / line.slope for line in known]
        bent = self._bent()
        return max(1.0, min(ends if bent is None else [*ends, bent]))

    def _bent(self) -> float | None:
        """Where a parabola through the three largest sizes is full, if their slopes rise; else None."""
        if len(self._read) < 3:
            return None
        (n1, m1), (n2, m2), (n3, m3) = ((p.batch, p.allocated) for p in self._read[-3:])
        first, second = (m2 - m1) / (n2 - n1), (m3 - m2) / (n3 - n2)
        if second <= BENDS * first:
            return None
        curve = (second - first) / (n3 - n1)
        slope = second + curve * (n3 - n2)  # at the largest
        left = self.room - m3
        return n3 + (math.sqrt(max(0.0, slope**2 + 4 * curve * left)) - slope) / (2 * curve)
