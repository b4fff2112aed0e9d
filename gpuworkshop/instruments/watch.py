"""What does the job do with its card? Look at it, five times a second, while something runs.

Two doors: ``with Watch() as seen: ...`` around lines in this process, a notebook cell say, and then ``seen.result``;
:func:`run` around a command. Both only look: they keep no card busy and hold no card.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpuworkshop.instruments import launched
from gpuworkshop.instruments.command import CannotStart, running
from gpuworkshop.instruments.sampler import INTERVAL, Sampler
from gpuworkshop.instruments.samples import Sample, WatchedCard
from gpuworkshop.instruments.watch_findings import findings
from gpuworkshop.instruments.watch_read import read
from gpuworkshop.instruments.watch_report import map, processes_report, report
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.report import Report

__all__ = ["CannotStart", "Watch", "WatchResult", "findings", "map", "processes", "report", "run"]

LONGEST_TITLE = 60
LONGEST_INTERVAL = 3600
"""Seconds."""


def checked(interval: float) -> float:
    """An interval in seconds; ValueError for what is none."""
    if not (isinstance(interval, int | float) and 0 < interval <= LONGEST_INTERVAL):
        raise ValueError(f"the interval must be above 0 and at most {LONGEST_INTERVAL} seconds, not {interval!r}")
    return interval


class Watch:
    """Watches this job's cards from ``with`` to its end; ``result`` is there at any time and final after it.

    ``interval`` is the time between two looks in seconds, at least 0.2: the driver has nothing new any sooner. With
    ``whole_user`` everything of this user counts as watched, not this process alone. ``env`` names the cards, where
    what is watched has an environment of its own. Raises ValueError for no interval.
    """

    def __init__(
        self,
        interval: float = INTERVAL,
        *,
        what: str = "this process",
        whole_user: bool = False,
        env: Mapping[str, str] = os.environ,
    ):
        self.what, self.asked = what, checked(interval)
        self.sampler = Sampler(interval, env, whole_user=whole_user)
        self._final: WatchResult | None = None

    def __enter__(self) -> Watch:
        if self.sampler.started:
            raise RuntimeError("a Watch watches once: make another one, with Watch() as seen")
        self.sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the watch; may be called twice."""
        if self._final is None:
            self.sampler.stop()
            self._final = self._seen()

    @property
    def result(self) -> WatchResult:
        """What was seen until now."""
        return self._final or self._seen()

    @property
    def over(self) -> bool:
        """Whether it has ended, so that no further sample comes."""
        return self._final is not None

    @property
    def samples(self) -> list[Sample]:
        """All samples until now, the oldest first."""
        return self.sampler.samples

    @property
    def watched(self) -> tuple[WatchedCard, ...]:
        """The cards; empty until the driver has answered, and where there is none."""
        return self.sampler.watched

    def waiting(self):
        """``with seen.waiting(): batch = next(batches)``: report the time of these lines as waiting for data."""
        return self.sampler.waiting()

    def batches(self, loader: Iterable) -> Iterator:
        """The batches of ``loader``, with the time inside its ``next()`` reported as waiting for data."""
        source = iter(loader)
        while True:
            with self.waiting():
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def _seen(self) -> WatchResult:
        return read(self.sampler, self.what, self.asked)


def run(
    command: Sequence[str], *, interval: float = INTERVAL, stdout_to_stderr: bool = False, adopt: bool = False
) -> WatchResult:
    """Run ``command`` and watch the cards of this job until it ends; its exit status is ``result.status``.

    Streams and signals are the command's own, see :mod:`.command`. Raises CannotStart when it cannot be started, and
    ValueError for no command. ``stdout_to_stderr`` and ``adopt`` are for a process that only watches.
    """
    if not command:
        raise ValueError("no command to run")
    if isinstance(command, str) or not all(isinstance(word, str) for word in command):
        raise ValueError(f'a command is a list of words, such as ["python", "train.py"], not {command!r}')
    begins, env = launched.read(command, os.environ)
    watch = Watch(interval, what=_title(command), env=env)
    with running(command, stdout_to_stderr=stdout_to_stderr, adopt=adopt) as started:
        with watch:
            status = started.wait()
        left = started.left()
    return msgspec.structs.replace(watch.result, status=status, left=left, launched=begins)


def processes() -> Report:
    """Who is on this job's cards now: this process and what it started, leftovers of yours, other people's."""
    with Watch(what="processes") as watch:
        watch.sampler.wait_for_first()
    return processes_report(watch.result)


def _title(command: Sequence[str]) -> str:
    whole = shlex.join(command)
    return whole if len(whole) <= LONGEST_TITLE else whole[: LONGEST_TITLE - 4] + " ..."
