"""Looks at the training thread's stack from another thread, in steps that are not timed: at which lines it is found."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from gpuworkshop_hooks import places, records
from gpuworkshop_hooks.feed import Feed

EVERY = 0.003
FRAMES = 12
AT_ONCE = 2e-5
SECONDS, LONGEST = 1.5, 6.0
"""How long is looked: up to the longest where a whole epoch fits, with what is done between two of them."""
FEWEST_STEPS = 10


class Stacks:
    """A phase of plain steps; validation and what else is done between steps is looked at too.

    A look has to wait for the interpreter's lock, longest where pure Python runs: so each counts as the time since
    the look before it. The lock is handed over at once meanwhile, or all looks would fall on the next call that
    lets go of it by itself.
    """

    def __init__(self, planner: Any):
        self.planner, self.session = planner, planner.session
        self._counts: dict[tuple, float] = {}
        self._found_in: dict[tuple, set] = {}
        self._looks = self._steps = 0
        self._on = True

    def start(self) -> Stacks:
        """Begin to look."""
        records.write("phase", name="stacks", steps=self.session.steps, k=1)
        self._until = time.monotonic() + self._seconds()
        self._switching = sys.getswitchinterval()
        sys.setswitchinterval(AT_ONCE)
        self._thread = threading.Thread(target=self._look, name="gpuworkshop", daemon=True)
        self._thread.start()
        return self

    def _seconds(self) -> float:
        left = 0.2 * self.session.left()
        epochs = [feed.most * self.planner.each for feed in self.session.feeding() if feed.most]
        whole = 1.2 * min(epochs) if epochs and 1.2 * min(epochs) <= LONGEST else 0.0
        return min(left, max(SECONDS, whole))

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """Nothing is timed."""

    def interrupted(self, mark: Any) -> None:
        """Nothing is timed."""

    def step(self) -> None:
        """The end of a round."""
        self._steps += 1
        if self.planner.stop_at:  # ranks that train together count steps
            if self._steps < FEWEST_STEPS:
                return
        elif time.monotonic() < self._until or (self._steps < FEWEST_STEPS and not self.session.late(0.9)):
            return
        self._on = False
        self._thread.join(1.0)
        sys.setswitchinterval(self._switching)
        records.write("stacks", looks=self._looks, hot=self._hot())
        self.session.phase = self.planner.after_stacks()

    def _look(self) -> None:
        try:
            before = time.perf_counter()
            while self._on:
                time.sleep(EVERY)
                frame = sys._current_frames().get(self.session.thread)
                key, now = own_frames(frame), time.perf_counter()
                self._looks += 1
                self._counts[key] = self._counts.get(key, 0.0) + now - before
                self._found_in.setdefault(key, set()).add(self._steps)
                before = now
        except Exception as error:
            records.fault("stacks", error, fatal=False)

    def _hot(self) -> list[dict]:
        found = sorted(self._counts.items(), key=lambda item: -item[1])
        whole = max(sum(self._counts.values()), 1e-9)
        return [
            {
                "places": [places.at(*line) for line in lines],
                "share": seconds / whole,
                "in_loader": in_loader,
                "steps": len(self._found_in[(lines, in_loader)]),
            }
            for (lines, in_loader), seconds in found[:40]
            if lines
        ]


def own_frames(frame: Any) -> tuple[tuple, bool]:
    """The own lines of a stack, the innermost first, and whether a loader is inside next() there."""
    lines, in_loader, following = [], False, Feed.next.__code__
    while frame is not None:
        code = frame.f_code
        if code is following:
            in_loader = True
        elif len(lines) < FRAMES and places.is_own(code.co_filename):
            lines.append((code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name))
        frame = frame.f_back
    return tuple(lines), in_loader
