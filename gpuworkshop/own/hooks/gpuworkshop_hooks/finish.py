"""The last steps: twenty under PyTorch's profiler, one under its flop counter, and the end."""

from __future__ import annotations

import functools
import os
from typing import Any

from gpuworkshop_hooks import counting, product, ranks, records
from gpuworkshop_hooks.ranks import LAST

PROFILED, WARM, FEWEST = 20, 3, 5
"""Profiled steps, those before them, and how many are profiled at least, unless that takes longer than :data:`LONG`."""
LONG = 3.0
TRACE = "trace.json"


class _Plain:
    """A phase that times nothing."""

    def __init__(self, planner: Any):
        self.planner, self.session, self.torch = planner, planner.session, planner.session.torch

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """Nothing is timed."""

    def interrupted(self, mark: Any) -> None:
        """Nothing is timed."""


def profiling(planner: Any) -> _Plain:
    """The profile, where there is time for it and nobody else's profiler is at work; else what comes after it."""
    session = planner.session
    each = max(2 * planner.each, 1e-9)  # a profiled step is longer
    steps = max(0, min(PROFILED, int((session.left() - 0.5) / each) - WARM))
    if (FEWEST + WARM) * each < LONG:
        steps = max(steps, FEWEST)
    if planner.stop_at:  # by steps, not by time; the others go on meanwhile
        steps = min(PROFILED, planner.stop_at - session.steps - WARM - LAST) if "profile" in planner.only else 0
    if "profile" not in planner.only:
        steps = 0
    elif session.torch.autograd._profiler_enabled():
        records.note("profiler taken")
        steps = 0
    elif not steps:
        records.note("no time for a profile")
    return Profiling(planner, steps).start() if steps else Counting(planner)


class Profiling(_Plain):
    """Steps under the profiler. A step's label begins and ends around the optimizer's call, not inside of it."""

    def __init__(self, planner: Any, steps: int):
        super().__init__(planner)
        self.profiler: Any = None
        self.seen = 0
        self.steps = steps
        self._original: Any = None
        self._shadowed = "step" in getattr(self.session.marker, "__dict__", {})

    def start(self) -> Profiling:
        """Begin at the end of the next step."""
        records.write("phase", name="profile", steps=self.session.steps, k=self.steps)
        self._outside(self.session.marker)
        return self

    def _outside(self, marker: Any) -> None:
        """Have the end of a step outside of the optimizer's own label."""
        original = getattr(marker, "step", None)
        self._original = original
        if original is None:
            return

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            out = original(*args, **kwargs)
            self._safely()
            return out

        marker.step = step

    def _safely(self) -> None:
        try:
            self._ended()
        except Exception as error:
            records.note("profiler failed", words=repr(error))
            self._leave()

    def step(self) -> None:
        """The end of a round; where the optimizer's step could be wrapped, that counts."""
        if self._original is None:
            self._safely()

    def _ended(self) -> None:
        if self.profiler is None:
            self._begin()
            return
        self.profiler.step()
        self.seen += 1
        if self.seen >= WARM + self.steps:
            self._write()

    def _begin(self) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self.session.clock.finish()
        on = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.session.clock.queues else [])
        plan = schedule(wait=0, warmup=WARM, active=self.steps, repeat=1)
        self.profiler = profile(activities=on, schedule=plan)
        self.profiler.start()

    def _write(self) -> None:
        self.session.clock.finish()
        self.profiler.stop()
        file = os.path.join(self.session.request["folder"], TRACE)
        self.profiler.export_chrome_trace(file)
        records.write("trace", file=file, steps=self.steps)
        self._leave()

    def _leave(self) -> None:
        if self._original is not None:
            vars(self.session.marker).pop("step", None)
            if self._shadowed:
                self.session.marker.step = self._original
        self.session.phase = Counting(self.planner)


class Counting(_Plain):
    """One step under the flop counter: the last one, so that an operator that it cannot take costs nothing."""

    def __init__(self, planner: Any):
        super().__init__(planner)
        self._count: Any = None
        self._samples = 0

    def step(self) -> None:
        """The end of the step before, then of the counted one."""
        if self._count is not None:
            self._end()
        elif "flops" in self.planner.only and counting.allowed(self.planner):
            self._begin()
        else:
            self._stop()

    def _stop(self) -> None:
        if self.session.steps < self.planner.stop_at:
            self.session.phase = ranks.Until(self.session, self.planner.stop_at)
        else:
            self.session.stop("measured")

    def _begin(self) -> None:
        records.write("phase", name="count", steps=self.session.steps, k=1)
        self._samples = self.session.samples
        try:
            self._count = counting.Count(self.torch)
            self._count.begin()
        except Exception as error:
            records.note("flops", why=repr(error))
            self._count = None
            self._stop()

    def _end(self) -> None:
        records.write("flops", samples=self.session.samples - self._samples, **self._count.end())
        self._count = None
        if self.session.world == 1:
            product.measure(self.session, self.planner.product_kind, self.planner.tf32)
        self._stop()
