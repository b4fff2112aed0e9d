"""The loop's own process: it holds the card, stands on one config, and tries one change after the other."""

from __future__ import annotations

import math
import time
import uuid
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments import memory
from gpuworkshop.loop import ledger
from gpuworkshop.loop.budget import Budget
from gpuworkshop.loop.climb import Request
from gpuworkshop.loop.climb_result import NOTHING_PAYS, LoopResult
from gpuworkshop.loop.diagnose import bound, ranked, which_limit
from gpuworkshop.loop.final import final
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.look import Eye
from gpuworkshop.loop.look_result import Look
from gpuworkshop.loop.remedies import Facts, Remedy, proposals
from gpuworkshop.loop.trial import UNCHANGED, Bench, Trial
from gpuworkshop.machine import allocation
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.workloads.config import TrainConfig
from gpuworkshop.workloads.train import need_card


def try_in_child(request: Any, tell: Tell) -> Trial:
    """What the child of :func:`gpuworkshop.loop.climb.try_one` does."""
    asked = msgspec.convert(request, Request)
    need_card(asked.only, asked.job, asked.device or default_device())
    return Bench(asked.job, asked.start, asked.device).trial(asked.start, asked.only, tell)


def in_child(request: Any, tell: Tell) -> LoopResult:
    """What the child of :func:`gpuworkshop.loop.climb.run` does."""
    asked = msgspec.convert(request, Request)
    need_card(asked.start, asked.job, asked.device or default_device())
    return Climb(asked, tell).climb()


class Climb:
    """One loop in progress: the config it stands on, what was tried, and what was recorded."""

    def __init__(self, asked: Request, tell: Tell):
        self.asked, self.tell = asked, tell
        device = asked.device or default_device()
        self.budget = Budget(asked.budget_seconds, device, lambda: time.monotonic())
        self.bench = Bench(asked.job, asked.start, device, budget_seconds=self.budget.seconds)
        self.spent = self.bench.spent
        self.eye = Eye(self.bench)
        self.now, self.records, self.looks = asked.start, [], []
        self.refused: dict[str, Remedy] = {}
        pictures = asked.job.sizes.pictures is not None
        self.facts = Facts(allocation.cpus().count, self.bench.device != "cpu", self.knee, pictures)
        self.here = conditions(self.bench.device)
        self.id = uuid.uuid4().hex[:12]

    def climb(self) -> LoopResult:
        """Baseline, then one change after the other until nothing pays."""
        self.say("baseline")
        with self.spent.on("baseline"):
            seen = self.look()
        self.looks.append(seen)
        what = dict(config=self.now, rate=seen.starve.real, conditions=self.here, kept=True)
        found = which_limit(seen)
        self.record(Record(ledger.now(), self.id, self.asked.job.title, "baseline", limit_after=found, **what))
        while not (stopped := self.stop()):
            kept = self.next_change(seen)
            if kept is None:
                stopped = self.stop() or NOTHING_PAYS
                break
            before, seen = seen, self.looks[-1]
            moved = which_limit(before) != which_limit(seen)
            self.refused = {} if moved else still_refused(self.refused, kept)
            if self.may_grow():
                self.refused.pop("batch", None)
        return self.finish(stopped)

    def stop(self) -> str:
        """Why the loop must stop here; "" if it need not."""
        if sum(record.kept for record in self.records) - 1 >= self.asked.max_changes:
            return f"{self.asked.max_changes} changes were kept, as many as allowed"
        return self.budget.used_up()

    def next_change(self, seen: Look) -> Remedy | None:
        """Try remedies, the most promising first, until one is kept; None if none is."""
        for remedy, _ in ranked(seen, self.facts.cpus):
            if remedy.id in self.refused:
                continue
            if self.stop():
                return None
            self.refused[remedy.id] = remedy
            began = self.lasting()
            configs = proposals(remedy, self.now, self.facts)
            for config in configs:
                if config != configs[0] and self.stop():
                    return None
                kept = self.try_change(remedy, config, seen)
                self.budget.changed(self.lasting() - began)
                if kept:
                    return remedy
                began = self.lasting()
        return None

    def lasting(self) -> float:
        """Seconds since the loop began, without those that no further change will take again."""
        return self.budget.elapsed - self.spent.seconds.get(UNCHANGED, 0.0)

    def untried(self, seen: Look) -> tuple[str, ...]:
        """Titles of the remedies that would come next and that this loop has not tried from any config."""
        tried = {record.remedy for record in self.records}
        unmeasured = msgspec.structs.replace(self.facts, knee=lambda config: 2 * config.batch_size)
        offered = [remedy for remedy, _ in ranked(seen, self.facts.cpus) if remedy.title not in tried]
        return tuple(remedy.title for remedy in offered if proposals(remedy, self.now, unmeasured))

    def try_change(self, remedy: Remedy, config: TrainConfig, seen: Look) -> bool:
        """Measure one change against the run as it is; if it is kept, look at what limits now; record it."""
        self.say(f"{remedy.title}, in turn")
        with self.spent.on("trials"):
            trial = self.bench.trial(self.now, config, self.tell.part(self.share(), self.share()))
        record = self.change(remedy, trial, seen)
        if trial.kept:
            self.now = config
            self.say("did the bottleneck move?")
            with self.spent.on("looks"):
                self.looks.append(self.look(quick=True))
            record = msgspec.structs.replace(record, limit_after=which_limit(self.looks[-1]))
        self.record(record)
        return trial.kept

    def change(self, remedy: Remedy, trial: Trial, seen: Look) -> Record:
        """The record of a trial."""
        at_most = bound(remedy, seen, self.facts.cpus)
        return ledger.change(
            trial,
            remedy,
            run=self.id,
            workload=self.asked.job.title,
            conditions=self.here,
            at_most=at_most if at_most < math.inf else None,
            limit_before=which_limit(seen),
        )

    def may_grow(self) -> bool:
        """Whether the last change was to the largest batch that was looked at: then the knee may lie beyond."""
        last = self.records[-1]
        most = memory.LARGEST["card" if self.facts.card else "cpu"]
        return last.changed == ("batch_size",) and last.config.batch_size >= most * last.before.batch_size

    def look(self, quick: bool = False) -> Look:
        """What limits the config that the loop stands on; quick: only as long as it takes to see that."""
        return self.eye.look(self.now, quick=quick)

    def knee(self, config: TrainConfig) -> int:
        """The smallest batch within 5% of the best throughput, on resident data."""
        self.say("batch sizes in turn")
        with self.spent.on("batch sizes"):
            return memory.knee(self.bench.build, config, self.bench.clock, self.bench.plan)

    def finish(self, stopped: str) -> LoopResult:
        """Measure what was reached against both ceilings, and put everything together."""
        self.say("final, against both ceilings")
        with self.spent.on("final run"):
            reached = final(self.eye, self.now, self.facts)
        self.tell.progress(1.0, "done")
        return LoopResult(
            run=self.id,
            job=self.asked.job,
            baseline=self.looks[0].starve,
            records=tuple(self.records),
            looks=tuple(self.looks),
            stopped=stopped,
            seconds=self.budget.elapsed,
            conditions=self.here,
            origin=self.here.origin,
            gain=math.prod(r.comparison.ratio for r in self.records if r.kept and r.comparison),
            spent=self.spent.seconds,
            untried=() if stopped == NOTHING_PAYS else self.untried(self.looks[-1]),
            **reached,
        )

    def record(self, record: Record) -> None:
        """Keep a record here and hand it to whoever waits."""
        self.records.append(record)
        self.tell.record(record)

    def share(self) -> float:
        """A rough share of the way: the number of remedies that were looked at."""
        return min(0.95, len(self.records) / (len(self.records) + 6))

    def say(self, text: str) -> None:
        """Tell what is being done."""
        self.tell.progress(self.share(), text)


def still_refused(refused: dict[str, Remedy], kept: Remedy) -> dict[str, Remedy]:
    """What need not be tried again after a change was kept while the limit stayed where it was.

    A change to the step can make another change to the step pay, and a change to the data path another one to the
    data path. The kept change itself has nothing left to bring.
    """
    return {name: r for name, r in refused.items() if name == kept.id or not _alike(r, kept)}


def _alike(one: Remedy, other: Remedy) -> bool:
    """Whether two remedies change the same part of a run."""
    return "any" in (*one.limits, *other.limits) or one.in_step == other.in_step
