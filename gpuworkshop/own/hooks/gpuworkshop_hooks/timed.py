"""The timed phases, made of blocks of steps: warm-up, baseline, and real against replayed batches in turn."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from gpuworkshop_hooks import records
from gpuworkshop_hooks.clock import Block

BLOCKS = 8
MAX_WARM_UP = 8
AGREEMENT = 0.05
WIDTH = 0.03
SEVERAL = 3
"""Interruptions of a baseline from which on their share of the time is told."""


class Timed:
    """Blocks of ``k`` clean steps, one after the other; ``arms`` names the arm of each, ``done`` says when to end."""

    def __init__(self, session: Any, name: str, k: int):
        self.session, self.name, self.k = session, name, k
        self.blocks: dict[str, list[dict]] = {}
        self.count = 0
        self.arm = ""
        self._wait = self.interruptions = 0
        self._lead = 1 if session.clock.queues else 0

    def start(self) -> Timed:
        """Begin the first block at the end of this step."""
        records.write("phase", name=self.name, k=self.k, steps=self.session.steps)
        self._open()
        return self

    def _open(self) -> None:
        arm = self.next_arm()
        if arm != self.arm:
            self.arm = arm
            for feed in self.session.feeding():
                feed.replay(arm == "data ceiling")
        self.block = Block(self.session.clock)
        self._wait = self._lead
        if not self._wait:
            self.block.begin()

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """A batch of a loader that feeds."""
        self.block.fetched(samples, start, end)

    def interrupted(self, mark: Any) -> None:
        """What follows until the end of the next step is no step."""
        self.interruptions += self.block.running
        if self.session.marks:
            self.block.cut(mark)
        else:  # nobody knows when the last step's work ended on the card
            self.block = Block(self.session.clock)
        self._wait = max(self._wait, 1)

    def step(self) -> None:
        """The end of a round."""
        if self._wait:
            self._wait -= 1
            if not self._wait:
                self.block.begin()
        else:
            self.block.step()
            if self.block.steps >= self.k:
                self._close()

    def _close(self) -> None:
        block = self.block.close()
        self.count += 1
        if self.keep(block):
            self.blocks.setdefault(self.arm, []).append(block)
            records.later("block", phase=self.name, arm=self.arm, n=self.session.steps, **block)
        if self.done():
            self.session.phase = self.after()
        else:
            self._open()

    def next_arm(self) -> str:
        return "now"

    def keep(self, block: dict) -> bool:
        return block["seconds"] > 0

    def done(self) -> bool:
        raise NotImplementedError

    def after(self) -> Any:
        raise NotImplementedError


class WarmUp(Timed):
    """Until two blocks in a row take the same time a step; finds how many steps fill a block."""

    def __init__(self, planner: Any):
        super().__init__(planner.session, "warm-up", planner.whole(2))
        self.planner, self._before, self._same = planner, 0.0, False

    def keep(self, block: dict) -> bool:
        each = block["seconds"] / max(1, block["steps"])
        planner = self.planner
        planner.learn(each)
        wanted = planner.whole(max(planner.fewest(each), planner.block_seconds / max(each, 1e-9)))
        enough = self.k >= wanted
        self._same = enough and self._before > 0 and abs(each / self._before - 1) < AGREEMENT
        self.k, self._before = min(wanted, 10 * self.k), each
        return False

    def done(self) -> bool:
        return self._same or self.count >= MAX_WARM_UP or (self.count >= 2 and self.session.late(0.3))

    def after(self) -> Any:
        return self.planner.baseline() if self.session.world == 1 else self.planner.together()


class Baseline(Timed):
    """Plain steps: the rate, the wait, and the losses; the last batches are kept for the replay."""

    def __init__(self, planner: Any, k: int, steps: int, seconds: float):
        super().__init__(planner.session, "baseline", k)
        self.planner, self.wanted, self.seconds = planner, steps, seconds
        self._done_steps = self._done_seconds = 0
        self.session.keeping = True
        self.session.marks = not self.session.clock.queues or planner.shortened
        self._began, self._from = time.monotonic(), self.session.steps

    def keep(self, block: dict) -> bool:
        self._done_steps += block["steps"]
        self._done_seconds += block["seconds"]
        return True

    def done(self) -> bool:
        full = self._done_steps >= self.wanted and self._done_seconds >= self.seconds and self.count >= 4
        latest = 0.9 if self.planner.only == {"baseline"} else 0.5
        return full or (self.count >= 2 and self.session.late(latest))

    def after(self) -> Any:
        self.session.keeping, self.session.marks = False, True
        records.write("beside", share=self._beside(), interruptions=self.interruptions)
        return self.planner.after_baseline()

    def _beside(self) -> float:
        """Share of the time in which something else was done than steps; of rare things no share can be told."""
        whole, steps = time.monotonic() - self._began, self.session.steps - self._from
        each = self._done_seconds / max(1, self._done_steps)
        return max(0.0, 1.0 - steps * each / whole) if self.interruptions >= SEVERAL and whole > 0 else 0.0


class Pairs(Timed):
    """Real and replayed steps in turn, A B, B A: what the loader costs at most."""

    ARMS = ("now", "data ceiling")

    def __init__(self, planner: Any, k: int):
        super().__init__(planner.session, "pairs", k)
        self.planner = planner
        self._until = time.monotonic() + planner.pair_seconds

    def next_arm(self) -> str:
        turn, second = divmod(self.count, 2)
        return self.ARMS[second ^ (turn % 2)]

    def done(self) -> bool:
        pairs, odd = divmod(self.count, 2)
        if odd or pairs % 2:
            return False
        if pairs >= 2 and self.session.late(0.8):
            return True
        return pairs >= BLOCKS and (time.monotonic() >= self._until or self._narrow())

    def _narrow(self) -> bool:
        real, again = (self.blocks.get(name, []) for name in self.ARMS)
        logs = [
            math.log((two["steps"] / two["seconds"]) / (one["steps"] / one["seconds"]))
            for one, two in _zip(real, again)
        ]
        return 2.2 * statistics.stdev(logs) / math.sqrt(len(logs)) <= WIDTH

    def after(self) -> Any:
        self.session.let_go()
        return self.planner.after_pairs()


def _zip(first: list, second: list) -> list:
    return list(map(lambda *pair: pair, first, second))
