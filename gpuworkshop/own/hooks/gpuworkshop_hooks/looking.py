"""The first steps: who steps, who feeds, what is used and where. Nothing is timed yet."""

from __future__ import annotations

import sys
from typing import Any

from gpuworkshop_hooks import facts, places, records
from gpuworkshop_hooks.planner import Planner
from gpuworkshop_hooks.session import BY_HAND

LOOK_STEPS = 10
BACKWARDS = 30
"""Backward passes without a step of any optimizer after which a backward pass counts as a step."""


class Looking:
    """Until :data:`LOOK_STEPS` rounds are over; then the marker, the clock and a plan are known."""

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
            "tf32": facts.asked(lambda: facts.tf32(torch, trained), False),
            "scaler": notes.scaler,
            "channels_last": facts.asked(lambda: facts.channels_last(torch, trained), None),
            "checkpointing": notes.checkpointing,
            "compiled": notes.compiled or facts.asked(lambda: facts.compiled(notes.model), False),
            "ddp": facts.asked(lambda: facts.parallel(notes.model), ""),
            "rank": rank,
            "world": world,
            "accumulation": 1.0 if session.by_backward else notes.backwards / max(1, stepped),
            "loaders": [feed.facts() for feed in session.feeding()],
            "optimizers": [facts.optimizer(one, session.place_of(one), self.counts[id(one)][1]) for one in optimizers],
            "waits": waits,
            "autocast_place": notes.autocast_place,
            "model": facts.asked(lambda: facts.model_class(notes.model), ""),
            "model_place": notes.model_place,
            "backward_place": notes.backward_place,
            "step_place": notes.step_place,
            "framework": notes.framework,
            "devices_set": notes.devices_set or facts.visible() != session.visible,
        }
