"""Several ranks that train together follow one plan by step numbers: rank 0 makes it, all of them read it.

Each rank replays in the same steps, because one that loads keeps the others waiting; and all of them end after the
same step, so that none waits for one that is gone.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any

from gpuworkshop_hooks import records
from gpuworkshop_hooks.clock import Block

PLAN = "plan.json"
AHEAD = 12
"""Steps between making the plan and its first block: hosts may run ahead of their cards."""
LAST = 4
"""Steps after everything, so that rank 0 counts and then ends where the others do."""


def all_here(folder: str, world: int) -> bool:
    """Whether every rank writes into this folder: ranks of other nodes may not see it."""
    found = set()
    for name in glob.glob(os.path.join(folder, "records-*.jsonl")):
        with open(name, encoding="utf-8") as lines:
            found.update(one.get("rank") for one in map(_decoded, lines) if one.get("kind") == "settings")
    return len(found) >= world


def _decoded(line: str) -> dict:
    try:
        return json.loads(line)
    except ValueError:
        return {}


def make(planner: Any, baseline: int, pairs: int, beside: int) -> dict:
    """Rank 0: the blocks and the last step, as numbers of steps; written whole. ``beside``: steps after the blocks."""
    session, k, lead = planner.session, planner.k, 1
    if not all_here(session.request["folder"], session.world):
        records.note("ranks unseen", world=session.world)
        pairs = 0
    start = session.steps + AHEAD
    arms = ["now"] * baseline + [("now", "data ceiling")[(n % 2) ^ (n // 2 % 2)] for n in range(2 * pairs)]
    names = ["baseline"] * baseline + ["pairs"] * (2 * pairs)
    slots = [{"phase": names[n], "arm": arms[n], "first": start + n * (k + lead), "steps": k} for n in range(len(arms))]
    end = start + len(arms) * (k + lead)
    plan = {"slots": slots, "lead": lead, "end": end, "stop": end + beside + LAST}
    file = os.path.join(session.request["folder"], PLAN)
    with open(file + ".new", "w", encoding="utf-8") as text:
        json.dump(plan, text)
    os.replace(file + ".new", file)
    return plan


class Waiting:
    """A rank that waits for rank 0's plan."""

    def __init__(self, planner: Any):
        self.planner, self.session = planner, planner.session
        self._file = os.path.join(self.session.request["folder"], PLAN)

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """Nothing is timed yet."""

    def interrupted(self, mark: Any) -> None:
        """Nothing is timed yet."""

    def step(self) -> None:
        """The end of a round."""
        if os.path.exists(self._file):
            with open(self._file, encoding="utf-8") as text:
                self.session.phase = Slots(self.planner, json.load(text))


class Slots:
    """Blocks between fixed step numbers; what is not clean in one is left out of it."""

    def __init__(self, planner: Any, plan: dict):
        self.planner, self.session, self.plan = planner, planner.session, plan
        self._left = [slot for slot in plan["slots"] if slot["first"] > self.session.steps]
        self._slot: dict | None = None
        self.block = Block(self.session.clock)
        self.session.keeping = True
        records.write("phase", name="baseline", steps=self.session.steps, k=plan["slots"][0]["steps"])

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """A batch of a loader that feeds."""
        if self.block.running:
            self.block.fetched(samples, start, end)

    def interrupted(self, mark: Any) -> None:
        """What follows until the end of the next step is no step."""
        self.block.cut(mark)

    def step(self) -> None:
        """The end of a round: of a block, or of a step in it."""
        now = self.session.steps
        slot = self._slot
        if slot is not None:
            if self.block.running:
                self.block.step()
            elif now < slot["first"] + slot["steps"]:
                self.block.begin()
            if now >= slot["first"] + slot["steps"]:
                self._close(slot)
        if self._slot is None:
            self._next(now)

    def _next(self, now: int) -> None:
        if not self._left:
            self.session.let_go()
            self.session.phase = self.planner.after_slots(self.plan)
            return
        slot = self._left[0]
        if now >= slot["first"] - self.plan["lead"]:  # the step before belongs to its arm already, untimed
            self._enter(slot)
        if now >= slot["first"]:
            self._open(slot)

    def _enter(self, slot: dict) -> None:
        replay = slot["arm"] != "now"
        for feed in self.session.feeding():
            if feed.replaying != replay:
                feed.replay(replay)
        if slot["phase"] == "pairs" and self.session.keeping:
            self.session.keeping = False
            self.planner.end_of_baseline()
            records.write("phase", name="pairs", steps=self.session.steps, k=slot["steps"])

    def _open(self, slot: dict) -> None:
        self._slot = self._left.pop(0)
        self.block = Block(self.session.clock)
        self.block.begin()

    def _close(self, slot: dict) -> None:
        block = self.block.close()
        if block["steps"] and block["seconds"] > 0:
            records.write("block", phase=slot["phase"], arm=slot["arm"], n=self.session.steps, **block)
        self._slot = None


class Until:
    """Plain steps until the one after which all ranks end."""

    def __init__(self, session: Any, stop: int):
        self.session, self._stop = session, stop

    def fetched(self, samples: int, start: Any, end: Any) -> None:
        """Nothing is timed."""

    def interrupted(self, mark: Any) -> None:
        """Nothing is timed."""

    def step(self) -> None:
        """The end of a round."""
        if self.session.steps >= self._stop:
            self.session.stop("measured")
