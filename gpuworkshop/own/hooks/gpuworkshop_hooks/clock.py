"""The clocks of a block: the host's, or events on the card, read after one synchronize a block."""

from __future__ import annotations

from time import perf_counter
from typing import Any


class HostClock:
    """Marks are seconds of the host."""

    queues = False
    mark = staticmethod(perf_counter)

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; valid after :meth:`finish`."""
        return end - start

    def finish(self) -> None:
        """Wait until everything that was started is done."""

    def here(self) -> None:
        """Called where a block begins."""

    def free(self, marks: list) -> None:
        """Marks that are not needed any more."""


class AppleClock(HostClock):
    """The host's, for an Apple GPU: its queue is waited for at the ends of a block."""

    def __init__(self, torch: Any):
        self.finish = torch.mps.synchronize


class CardClock:
    """Marks are events on the stream that was current when the clock was made; used events are used again."""

    queues = True

    def __init__(self, torch: Any):
        self._cuda, self._spare = torch.cuda, []
        self._stream = torch.cuda.current_stream()

    def mark(self) -> Any:
        """An event, recorded now."""
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def here(self) -> None:
        """Marks go onto the stream that is current now."""
        self._stream = self._cuda.current_stream()

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds on the card between two events; valid after :meth:`finish`."""
        return start.elapsed_time(end) / 1000.0

    def finish(self) -> None:
        """Wait until the card has done everything."""
        self._cuda.synchronize()

    def free(self, marks: list) -> None:
        """Take events back; no mark may be in it twice."""
        self._spare.extend(marks)


class Block:
    """One block: clean intervals between step ends, with what was fetched and waited in them.

    An interval in which something else than a step happened (validation, a new epoch) is cut out: :meth:`cut` ends
    the running segment at a mark, and :meth:`begin` starts the next one.
    """

    def __init__(self, clock: Any):
        self._clock, self._segments, self._waits = clock, [], []
        clock.here()
        self._start: Any = None
        self._step_waits: list = []
        self.steps = self.samples = self._pending = 0

    @property
    def running(self) -> bool:
        """Whether a segment is open."""
        return self._start is not None

    def begin(self) -> None:
        """Start a segment now, at the end of a step."""
        self._pending, self._step_waits = 0, []
        self._start = self._last = self._clock.mark()

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """A batch came between two marks, for the step that is on its way."""
        self._pending += samples
        if end is not None:
            self._step_waits.append((start, end))

    def step(self) -> None:
        """A step ended cleanly."""
        self.steps += 1
        self.samples += self._pending
        self._waits += self._step_waits
        self._pending, self._step_waits = 0, []
        if not self._clock.queues:
            self._last = self._clock.mark()

    def cut(self, mark: Any = None) -> None:
        """End the segment: at the last step's end, or on a card at ``mark``, before other work is queued."""
        if self._start is None:
            return
        end = self._last if not self._clock.queues else (mark or self._clock.mark())
        self._segments.append((self._start, end))
        self._start, self._pending, self._step_waits = None, 0, []

    def close(self) -> dict:
        """The finished block as it is recorded; waits once for the card."""
        self.cut()
        self._clock.finish()
        seconds = sum(self._clock.seconds(start, end) for start, end in self._segments)
        wait = sum(self._clock.seconds(start, end) for start, end in self._waits)
        self._clock.free([mark for pair in self._waits for mark in pair])
        return {"seconds": seconds, "steps": self.steps, "samples": self.samples, "spans": {"wait": wait}}
