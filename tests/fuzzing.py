"""One switch for how much the property tests draw.

`GPUWORKSHOP_FUZZ=100000` sets the number of inputs of each property that is marked with :func:`fuzz`: the long mode,
which draws other inputs each time. Without it a property draws few, the same ones in every run. In both, one input
may take a second of CPU time and no more.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LONG = int(os.environ.get("GPUWORKSHOP_FUZZ", "0"))
SECONDS = 1.0
"""CPU time that one input may take; a machine that is busy with something else does not count."""


def fuzz(usual: int = 150, costs: int = 1) -> Callable[[Any], Any]:
    """A property of so many inputs; in the long mode of as many as are asked for, divided by what one `costs`."""

    def marked(test: Any) -> Any:
        test.hypothesis.inner_test = _limited(test.hypothesis.inner_test)
        how = settings(
            max_examples=LONG // costs or usual,
            derandomize=not LONG,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        return pytest.mark.fuzz(how(test))

    return marked


def _limited(inner: Callable[..., None]) -> Callable[..., None]:
    """Ends an input that takes longer, also one that would never end. Garbage of earlier inputs is not its own."""

    @functools.wraps(inner)
    def timed(*args: Any, **kwargs: Any) -> None:
        before = signal.signal(signal.SIGVTALRM, _too_long)
        gc.disable()
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            inner(*args, **kwargs)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            gc.enable()
            signal.signal(signal.SIGVTALRM, before)

    return timed


def _too_long(number: int, frame: FrameType | None) -> None:
    raise AssertionError(f"one input took more than {SECONDS:g} s of CPU time")
