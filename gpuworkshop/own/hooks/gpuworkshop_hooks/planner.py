"""The schedule: how long each part is, by the time of a step and what is left of the budget, and what follows what."""

from __future__ import annotations

import math
from typing import Any

from gpuworkshop_hooks import ranks, records
from gpuworkshop_hooks.finish import profiling
from gpuworkshop_hooks.stacks import Stacks
from gpuworkshop_hooks.timed import BLOCKS, Baseline, Pairs, WarmUp

BASELINE_STEPS = 50
FEWEST_STEPS = 8
BESIDE = 40
"""Steps in which rank 0 is looked at and profiled while the others go on."""
SHORT_EPOCH = 5.0
"""Seconds; whoever has longer epochs is not done soon."""
PARTS = ("baseline", "headroom", "profile", "flops")


class Planner:
    """How long each part is, from the time of a step and what is left of the budget."""

    def __init__(self, session: Any, notes: Any, settings: dict):
        self.session, self.notes = session, notes
        self.product_kind, self.tf32 = settings["autocast"] or settings["weights_kind"] or "float32", settings["tf32"]
        card = session.clock.queues
        self.block_seconds = 0.6 if card else 0.25
        self.baseline_seconds = 10.0 if card else 2.5
        self.pair_seconds = 28.0 if card else 8.0
        self.each = 0.0
        self.shortened = False
        self.stop_at = 0
        self.compiled, self.parallel = settings["compiled"], settings["ddp"]
        self.only = set(session.request.get("only") or PARTS)
        self._share_out()

    def _share_out(self) -> None:
        """Of a small budget every part gets less."""
        left = self.session.left()
        if self.only == {"baseline"}:
            self.baseline_seconds = min(self.baseline_seconds, 0.6 * left)
        elif left < 2.5 * (self.baseline_seconds + self.pair_seconds):
            self.baseline_seconds, self.pair_seconds = 0.2 * left, 0.3 * left
        if left < 80 * self.block_seconds:
            self.block_seconds = max(0.05, left / 80)

    def learn(self, each: float) -> None:
        """How long a step is, in seconds. With short epochs the script may be short: shorter blocks see more of it."""
        self.each = each
        epochs = [feed.most * each for feed in self.session.feeding() if feed.most]
        if epochs and max(epochs) < SHORT_EPOCH and not self.shortened:
            self.shortened = True
            self.block_seconds, self.baseline_seconds = 0.4 * self.block_seconds, 0.4 * self.baseline_seconds

    def fewest(self, each: float) -> int:
        """Steps of a block at least: two, and one where a step is longer than a block."""
        return 1 if each > self.block_seconds else 2

    def whole(self, steps: float) -> int:
        """A multiple of the workers: batches come in bursts of so many."""
        period = max([1, *(len(feed._workers) for feed in self.session.feeding())])
        return max(1, period * math.ceil(steps / period - 1e-9))

    def warm_up(self) -> Any:
        if self.session.rank:
            return ranks.Waiting(self)
        return WarmUp(self).start()

    def baseline(self) -> Any:
        wanted = BASELINE_STEPS
        if self.each * BASELINE_STEPS > 0.35 * self.session.left():
            wanted = max(FEWEST_STEPS, int(0.35 * self.session.left() / max(self.each, 1e-9)))
            records.note("budget", steps=wanted)
        self.k = self.whole(max(self.fewest(self.each), min(self.block_seconds / max(self.each, 1e-9), 1e6)))
        if self.session.device.startswith("cuda"):
            self.session.torch.cuda.reset_peak_memory_stats()
        return Baseline(self, self.k, wanted, self.baseline_seconds).start()

    def after_baseline(self) -> Any:
        session = self.session
        self.end_of_baseline()
        feeding = session.feeding()
        if "headroom" in self.only and feeding and all(len(feed.kept) >= 2 for feed in feeding):
            return Pairs(self, self.k).start()
        return self.after_pairs()

    def end_of_baseline(self) -> None:
        """What belongs to the plain steps is asked now: memory, and the losses."""
        self._memory()
        records.write("losses", **self.notes.losses_seen())
        self.notes.end_losses()

    def together(self) -> Any:
        """Several ranks: rank 0 makes a plan for all, once it knows how long a step is; the others wait for it."""
        session = self.session
        each, left = max(self.each, 1e-9), session.left()
        self.k = self.whole(max(self.fewest(each), self.block_seconds / each))
        block = self.k * each
        baseline = max(4, math.ceil(max(BASELINE_STEPS / self.k, self.baseline_seconds / block)))
        baseline = max(2, min(baseline, int(0.3 * left / block)))
        feeding = session.feeding()
        pairs = 0
        if "headroom" in self.only and feeding:
            pairs = 2 * max(1, min(BLOCKS, int(0.5 * left / block / 2)) // 2)
        return ranks.Slots(self, ranks.make(self, baseline, pairs, BESIDE if "profile" in self.only else 0))

    def after_slots(self, plan: dict) -> Any:
        """The blocks are over: rank 0 profiles, the others go on until the last step of all."""
        if self.session.keeping:  # there were no pairs
            self.session.keeping = False
            self.end_of_baseline()
        self.stop_at = plan["stop"]
        return ranks.Until(self.session, self.stop_at) if self.session.rank else self.after_pairs()

    def _memory(self) -> None:
        if self.session.device.startswith("cuda"):
            cuda = self.session.torch.cuda
            free, total = cuda.mem_get_info()
            records.write(
                "memory", reserved=cuda.max_memory_reserved(), free=free, total=total, now=cuda.memory_reserved()
            )

    def after_pairs(self) -> Any:
        if "profile" in self.only:
            return Stacks(self).start()
        return self.after_stacks()

    def after_stacks(self) -> Any:
        return profiling(self)
