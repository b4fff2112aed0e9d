"""The one watch of a process: counts rounds, hands batches and interruptions to the phase that is at work.

A round is one step of every optimizer: with one optimizer a step, with two of a GAN both. Its end is the end of the
step of one of them, the marker.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from threading import get_ident
from typing import Any

from gpuworkshop_hooks import facts, records
from gpuworkshop_hooks.clock import AppleClock, CardClock, HostClock
from gpuworkshop_hooks.feed import Feed, size

LONGEST = 300.0
"""Seconds of measuring where the caller set no budget."""
LEAST = 0.4
"""Share of a budget that is left for measuring, however long the script took to begin."""
BY_HAND = "gpuworkshop_step"
"""Stands for the optimizer of a script that has none."""


class Session:
    """What the hooks call. ``phase`` decides what happens at the end of a round; ``off`` ends all watching.

    ``marks``: whether next() stands between two marks of the clock. On a card those are events, each with its price.
    """

    def __init__(self, torch: Any, request: dict):
        self.torch, self.request = torch, request
        self.thread = get_ident()
        self.clock: Any = HostClock()
        self.feeds: list[Feed] = []
        self._by_loader: Any = weakref.WeakKeyDictionary()
        self._places: dict[int, dict | None] = {}
        self.marker: Any = None
        self.steps = self.samples = 0
        self.keeping = False
        self.phase: Any = None
        self.hooked = 0
        self.device, self.rank, self.world = "cpu", 0, 1
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._began = self._deadline = 0.0
        self.trained: set[int] = set()
        self.model: Any = None
        self.by_backward = False
        self.always = False
        self.marks = True
        self.forked = self.off = self.told = False

    # Loaders

    def feed_of(self, loader: Any, place: dict | None = None) -> Feed:
        """The watch over a loader."""
        feed = self._by_loader.get(loader)
        if feed is None:
            feed = self._by_loader[loader] = Feed(loader, place, self)
            self.feeds.append(feed)
        return feed

    def fetched(self, feed: Feed, batch: Any, start: Any, end: Any) -> None:
        """A loader gave a batch between two marks."""
        if self.marker is None:
            feed.since_step += self._trains()
        elif not feed.feeding:
            self.interrupted(feed, start)
            return
        samples = size(batch)
        self.samples += samples
        self.phase.fetched(samples, start, end)
        if self.keeping and not feed.full:
            feed.keep(batch)

    def _trains(self) -> bool:
        """Whether a batch that comes now is one to train on: a validation has no gradients, or its model is in eval."""
        return self.torch.is_grad_enabled() and getattr(self.model, "training", True)

    def interrupted(self, feed: Feed | None, mark: Any) -> None:
        """Something else than a step begins: an epoch, a validation, a file that is written."""
        if not self.always and (feed is None or not feed.short or not feed.feeding):
            self.phase.interrupted(mark)
        records.alive(n=self.steps)

    # Steps

    def optimizer_made(self, optimizer: Any, place: dict | None) -> None:
        """An optimizer was made: its weights are what is trained."""
        self._places[id(optimizer)] = place
        for group in optimizer.param_groups:
            self.trained.update(id(weight) for weight in group["params"])

    def place_of(self, optimizer: Any) -> dict | None:
        """Where an optimizer was made."""
        return self._places.get(id(optimizer))

    def by_hand(self) -> int:
        """``getattr(torch, "gpuworkshop_step", int)()`` after each step: for a script without an optimizer object."""
        self.stepped(BY_HAND)
        return 0

    def went_back(self) -> None:
        """A backward pass ended, in the first steps: it may be all that is ever seen of a step."""
        if self.marker is None and not self.off:
            self.phase.went_back()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step, or skipped one."""
        if self.forked:
            self._forked_step()
        if self.off or (self.clock.queues and self.torch.cuda.is_current_stream_capturing()):
            return
        self.hooked += 1
        try:
            if self.marker is None:
                self.phase.stepped(optimizer)
            elif optimizer is self.marker:
                self.round_done()
        except Exception as error:
            self.give_up(error)

    def _forked_step(self) -> None:
        """A process that the script forked trains: a forked loader's worker never does."""
        if not self.told:
            self.told = True
            records.note("forked")

    def round_done(self) -> None:
        """The end of a round."""
        self.steps += 1
        self.phase.step()

    def give_up(self, error: BaseException) -> None:
        """An error of ours: the script goes on unwatched."""
        self.off = True
        records.fault(type(self.phase).__name__, error)
        self.let_go()

    def at_exit(self) -> None:
        """The script ends by itself: stopped workers must hear it, and what was counted is kept."""
        if not self.forked:
            self.let_go()
            records.write("sums", **self.sums())

    def let_go(self) -> None:
        """Whatever is stopped goes on, and loaders give their own batches."""
        for feed in self.feeds:
            feed.replay(False)

    def settle(self, marker: Any, device: str) -> None:
        """The first steps are over: whose step ends a round, and which clock belongs to its device."""
        self.marker, self.device = marker, device
        self.rank, self.world = facts.world(self.torch)
        if self.device.startswith("cuda"):
            self.clock = CardClock(self.torch)
        elif self.device.startswith("mps"):
            self.clock = AppleClock(self.torch)

    # Time

    def left(self) -> float:
        """Seconds that are left for measuring."""
        return max(0.0, self._deadline - time.time())

    def late(self, share: float) -> bool:
        """Whether this share of the time from the first step to the deadline is over."""
        return time.time() > self._deadline - (1 - share) * (self._deadline - self._began)

    def first_step(self) -> None:
        """From here on the time for measuring counts."""
        self._began = time.time()
        budget = self.request.get("budget")
        asked = self.request["began"] + budget if budget else self._began + LONGEST
        self._deadline = max(asked, self._began + LEAST * (budget or 0.0))

    def feeding(self) -> list[Feed]:
        """The loaders that feed the steps."""
        return [feed for feed in self.feeds if feed.feeding]

    def sums(self) -> dict:
        """What is counted until now."""
        feeding = self.feeding()
        return {
            "steps": self.steps,
            "loaders": [feed.facts() for feed in feeding],
            "startups": [feed.startup for feed in feeding],
        }

    def stop(self, why: str) -> None:
        """End the process here, between two steps, so that nothing of the script's own end is run.

        Not by an exception: a script may catch it, save a checkpoint in a `finally` as if it had ended, or wait for
        other ranks in an exit handler. Its files are as after a kill between two steps; what it printed is flushed.
        """
        self.clock.finish()
        for feed in self.feeds:
            feed.kill()
        records.write("end", why=why, **self.sums())
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(0)
