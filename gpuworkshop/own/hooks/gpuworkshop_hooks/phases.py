"""The schedule, by steps: look, warm up, a baseline, real and replayed steps in turn, a profile, a count, the end."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from gpuworkshop_hooks import facts, ranks, records
from gpuworkshop_hooks.clock import Block
from gpuworkshop_hooks.finish import profiling
from gpuworkshop_hooks.session import BY_HAND
from gpuworkshop_hooks.stacks import Stacks

LOOK_STEPS = 10
BACKWARDS = 30
"""Backward passes without a step of any optimizer after which a backward pass counts as a step."""
BASELINE_STEPS = 50
FEWEST_STEPS = 8
BLOCKS = 8
MAX_WARM_UP = 8
BESIDE = 40
"""Steps in which rank 0 is looked at and profiled while the others go on."""
AGREEMENT = 0.05
WIDTH = 0.03
SHORT_EPOCH = 5.0
"""Seconds; whoever has longer epochs is not done soon."""


class Looking:
    """The first steps: who steps, who feeds, what is used and where; then the marker, the clock and a plan."""

    def __init__(self, session: Any, notes: Any):
        self.session, self.notes = session, notes
        self.counts: dict[int, list[Any]] = {}
        self.rounds = self.backwards = 0
        self._waits_from, self._interrupted, self._interruptions = 0, False, 0

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """Nothing is timed yet."""

    def interrupted(self, mark: Any) -> None:
        """Something else than a step is done; where that is so in most rounds, it is part of a step."""
        self._interrupted = True

    def went_back(self) -> None:
        """A backward pass ended."""
        self.backwards += 1
        if self.backwards >= BACKWARDS and not self.counts:
            records.note("no optimizer")
            self.session.by_backward = True
        if self.session.by_backward:
            self.stepped(BY_HAND)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step."""
        first = not self.counts
        entry = self.counts.setdefault(id(optimizer), [optimizer, 0])
        entry[1] += 1
        if first:
            self._first_step(optimizer)
        leader = next(iter(self.counts.values()))
        if optimizer is leader[0]:
            self._round(leader[1])

    def _first_step(self, optimizer: Any) -> None:
        import sys

        from gpuworkshop_hooks import places

        self.notes.step_place = places.here(sys._getframe(1))
        self.notes.framework = facts.framework()
        self.session.first_step()
        main = sys.modules.get("__main__")
        records.write("first step", script=str(getattr(main, "__file__", "") or ""))

    def _round(self, count: int) -> None:
        self.session.steps = count
        self._interruptions += self._interrupted
        self._interrupted = False
        records.alive(n=count)
        for feed in self.session.feeds:
            feed.rounds += feed.since_step > 0
            feed.since_step = 0
        if count == 2:
            self.notes.watch_waits()
            self._waits_from = count
        if count >= LOOK_STEPS or (count > 3 and self.session.late(0.15) and facts.world(self.session.torch)[1] == 1):
            self._settle(count)

    def _settle(self, count: int) -> None:
        session, notes = self.session, self.notes
        marker = self._marker()
        for feed in session.feeds:
            feed.feeding = feed.rounds >= count / 2
            feed.short = feed.epochs >= count / 2
        session.always = self._interruptions > count / 2
        waits = notes.waits_seen(count - self._waits_from)
        notes.end()
        optimizers = [entry[0] for entry in self.counts.values() if entry[0] != BY_HAND]
        stepped = sum(entry[1] for entry in self.counts.values())
        self.trained = facts.weights(optimizers) or list(notes.model.parameters() if notes.model is not None else ())
        session.settle(marker, facts.device_of(self.trained) or notes.loss_device or "cpu")
        settings = self._settings(optimizers, waits, stepped)
        records.write("settings", **settings)
        session.steps = count
        session.phase = Planner(session, notes, settings).warm_up()

    def _marker(self) -> Any:
        """The optimizer whose step ends a round: the one that steps least, of equals the last."""
        entries = [entry for entry in self.counts.values() if entry[1] > 1] or list(self.counts.values())
        least = min(entry[1] for entry in entries)
        return [entry for entry in entries if entry[1] <= least + 1][-1][0]

    def _settings(self, optimizers: list[Any], waits: list[dict], stepped: int) -> dict:
        torch, notes, session = self.session.torch, self.notes, self.session
        trained = self.trained
        rank, world = facts.world(torch)
        return {
            **facts.machine(torch, session.device),
            "weights_kind": facts.kind_of(trained),
            "autocast": notes.autocast,
            "tf32": facts.tf32(torch, trained),
            "scaler": notes.scaler,
            "channels_last": facts.channels_last(torch, trained),
            "checkpointing": notes.checkpointing,
            "compiled": notes.compiled or facts.compiled(notes.model),
            "ddp": facts.parallel(notes.model),
            "rank": rank,
            "world": world,
            "accumulation": 1.0 if session.by_backward else notes.backwards / max(1, stepped),
            "loaders": [feed.facts() for feed in session.feeding()],
            "optimizers": [facts.optimizer(one, session.place_of(one), self.counts[id(one)][1]) for one in optimizers],
            "waits": waits,
            "autocast_place": notes.autocast_place,
            "model": facts.model_class(notes.model),
            "model_place": notes.model_place,
            "backward_place": notes.backward_place,
            "step_place": notes.step_place,
            "framework": notes.framework,
            "devices_set": notes.devices_set or facts.visible() != session.visible,
        }


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
        self.block.cut(mark)
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
            records.write("block", phase=self.name, arm=self.arm, n=self.session.steps, **block)
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

    def __init__(self, planner: Planner):
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
        return self._same or self.count >= MAX_WARM_UP or self.session.late(0.3)

    def after(self) -> Any:
        return self.planner.baseline() if self.session.world == 1 else self.planner.together()


class Baseline(Timed):
    """Plain steps: the rate, the wait, and the losses; the last batches are kept for the replay."""

    def __init__(self, planner: Planner, k: int, steps: int, seconds: float):
        super().__init__(planner.session, "baseline", k)
        self.planner, self.wanted, self.seconds = planner, steps, seconds
        self._done_steps = self._done_seconds = 0
        self.session.keeping = True
        self._began, self._from = time.monotonic(), self.session.steps

    def keep(self, block: dict) -> bool:
        self._done_steps += block["steps"]
        self._done_seconds += block["seconds"]
        return True

    def done(self) -> bool:
        full = self._done_steps >= self.wanted and self._done_seconds >= self.seconds and self.count >= 4
        return full or (self.count >= 2 and self.session.late(0.5))

    def after(self) -> Any:
        self.session.keeping = False
        records.write("beside", share=self._beside(), interruptions=self.interruptions)
        return self.planner.after_baseline()

    def _beside(self) -> float:
        """Share of the time in which something else was done than steps; 0 where nothing was."""
        whole, steps = time.monotonic() - self._began, self.session.steps - self._from
        each = self._done_seconds / max(1, self._done_steps)
        return max(0.0, 1.0 - steps * each / whole) if self.interruptions and whole > 0 else 0.0


class Pairs(Timed):
    """Real and replayed steps in turn, A B, B A: what the loader costs at most."""

    ARMS = ("now", "data ceiling")

    def __init__(self, planner: Planner, k: int):
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
        self.only = set(session.request.get("only") or ("baseline", "headroom", "profile", "flops"))
        self._share_out()

    def _share_out(self) -> None:
        """Of a small budget every part gets less."""
        left = self.session.left()
        if left < 2.5 * (self.baseline_seconds + self.pair_seconds):
            self.baseline_seconds, self.pair_seconds = 0.2 * left, 0.3 * left
            self.block_seconds = min(self.block_seconds, max(0.05, left / 80))

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
