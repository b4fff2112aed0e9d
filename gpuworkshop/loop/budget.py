"""The time that a loop may take: no change is begun that would probably end too late."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from gpuworkshop.loop.climb import USUAL, USUAL_ON_CPU


class Spent:
    """Where the time of a loop goes: seconds by what was done. What is done within something else counts once."""

    def __init__(self, clock: Callable[[], float]):
        self.seconds: dict[str, float] = {}
        self._clock, self._doing, self._since = clock, "", 0.0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Around what is done; afterwards goes on what was done before."""
        outer = self._turn_to(what)
        try:
            yield
        finally:
            self._turn_to(outer)

    def _turn_to(self, what: str) -> str:
        """Book the time until now; what it was spent on."""
        before, now = self._doing, self._clock()
        if before:
            self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._doing, self._since = what, now
        return before


class Budget:
    """Seconds for baseline and changes, and what one change usually takes; ``seconds`` is None without a limit."""

    def __init__(self, asked: float | Literal["usual"] | None, device: str, clock: Callable[[], float]):
        self.usual = asked == USUAL
        self.seconds = (USUAL_ON_CPU if device == "cpu" else None) if asked == USUAL else asked
        self._clock, self._began, self._changes = clock, clock(), []

    @property
    def elapsed(self) -> float:
        """Seconds since the loop began."""
        return self._clock() - self._began

    def changed(self, seconds: float) -> None:
        """One change took so long, without what is only done once: how long the next one will take is judged by it."""
        self._changes.append(seconds)

    def used_up(self) -> str:
        """Why no further change is begun; "" while there is time for one. With the usual budget one is always tried."""
        if self.seconds is None:
            return ""
        usual = statistics.median(self._changes) if self._changes else 0.0
        left = self.seconds - self.elapsed
        if left > 0 and left >= usual or self.usual and not self._changes:
            return ""
        said = f"the budget of {self.seconds:.0f} s is used up"
        if left > 0:
            said += f": a change takes about {usual:.0f} s, and {left:.0f} s are left"
        return said + (" (the usual budget without a GPU; --budget none sets no limit)" if self.usual else "")
