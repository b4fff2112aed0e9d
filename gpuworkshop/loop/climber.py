"""The loop's own process: it holds the card, stands on one config, and tries one change after the other."""

from __future__ import annotations

import math
import time
import uuid
from contextlib import ExitStack
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments import arms, memory, starve
from gpuworkshop.instruments.starve import CEILING, REAL, StarveResult
from gpuworkshop.loop import ledger
from gpuworkshop.loop.climb import LoopResult, Request
from gpuworkshop.loop.diagnose import ranked
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.remedies import Facts, Remedy, proposals
from gpuworkshop.loop.trial import Bench, Trial
from gpuworkshop.machine import allocation
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.timing import in_turn
from gpuworkshop.workloads.config import TrainConfig
from gpuworkshop.workloads.train import need_card

SYNTHETIC = "synthetic"


def try_in_child(request: Any, tell: Tell) -> Trial:
    """What the child of :func:`try_one` does."""
    asked = msgspec.convert(request, Request)
    need_card(asked.only, asked.job, asked.device or default_device())
    return Bench(asked.job, asked.start, asked.device).trial(asked.start, asked.only, tell)


def in_child(request: Any, tell: Tell) -> LoopResult:
    """What the child of :func:`run` does."""
    asked = msgspec.convert(request, Request)
    need_card(asked.start, asked.job, asked.device or default_device())
    return Climb(asked, tell).climb()


class Climb:
    """One loop in progress: the config it stands on, what was tried, and what was recorded."""

    def __init__(self, asked: Request, tell: Tell):
        self.asked, self.tell, self.began = asked, tell, time.monotonic()
        self.bench = Bench(asked.job, asked.start, asked.device)
        self.now, self.records = asked.start, []
        self.refused: dict[str, Remedy] = {}
        pictures = asked.job.sizes.pictures is not None
        self.facts = Facts(allocation.cpus().count, self.bench.device != "cpu", self.knee, pictures)
        self.here = conditions(self.bench.device)
        self.id = uuid.uuid4().hex[:12]

    def climb(self) -> LoopResult:
        """Baseline, then one change after the other until nothing pays."""
        self.say("baseline")
        baseline = seen = self.look()
        self.record(
            Record(ledger.now(), self.id, self.asked.job.title, "baseline", self.now, seen.real, self.here, kept=True)
        )
        while not (stopped := self.stop()):
            kept = self.next_change(seen)
            if kept is None:
                stopped = self.stop() or "nothing that is left to try pays"
                break
            self.say("did the bottleneck move?")
            before, seen = seen, self.look(quick=True)
            self.refused = {} if before.limit != seen.limit else still_refused(self.refused, kept)
        return self.finish(baseline, stopped)

    def stop(self) -> str:
        """Why the loop must stop here; "" if it need not."""
        if sum(record.kept for record in self.records) - 1 >= self.asked.max_changes:
            return f"{self.asked.max_changes} changes were kept, as many as allowed"
        if self.asked.budget_seconds and time.monotonic() - self.began > self.asked.budget_seconds:
            return f"the budget of {self.asked.budget_seconds:.0f} s is used up"
        return ""

    def next_change(self, seen: StarveResult) -> Remedy | None:
        """Try remedies, the most promising first, until one is kept; None if none is."""
        for remedy, _ in ranked(seen, self.facts.cpus):
            if remedy.id in self.refused:
                continue
            self.refused[remedy.id] = remedy
            for config in proposals(remedy, self.now, self.facts):
                if self.stop():
                    return None
                self.say(f"{remedy.title}, in turn")
                trial = self.bench.trial(self.now, config, self.tell.part(self.share(), self.share()))
                self.record(self.change(remedy, trial))
                if trial.kept:
                    self.now = config
                    return remedy
        return None

    def change(self, remedy: Remedy, trial: Trial) -> Record:
        """The record of a trial."""
        return Record(
            when=ledger.now(),
            run=self.id,
            workload=self.asked.job.title,
            kind="change",
            config=trial.after,
            rate=trial.rate_after,
            conditions=self.here,
            before=trial.before,
            rate_before=trial.rate_before,
            remedy=remedy.title,
            code=remedy.code_for(trial.after),
            changed=trial.changed,
            comparison=trial.comparison,
            learning=trial.learning,
            kept=trial.kept,
            why=trial.why,
            paid_once_seconds=trial.paid_once_seconds,
        )

    def look(self, quick: bool = False) -> StarveResult:
        """Now against the data ceiling for the config that the loop stands on; quick: only to see what limits."""
        training = self.bench.build(self.now)
        training.use_precision()
        plan = msgspec.structs.replace(self.bench.plan, min_rounds=4, width=1.0) if quick else None
        door = dict(
            device=training.device,
            workload=self.asked.job.title,
            unit=self.asked.job.sizes.unit,
            loader_alone=not quick,
        )
        step = lambda ready: training.step(*ready)  # noqa: E731
        seen = starve.measure(training.loader, step, training.prepare, plan=plan, **door)
        return self.named(seen)

    def named(self, seen: StarveResult) -> StarveResult:
        """A result with what only the loop knows: the config and anything planted."""
        return msgspec.structs.replace(seen, config=self.now, planted=self.asked.job.planted)

    def knee(self, config: TrainConfig) -> int:
        """The smallest batch within 5% of the best throughput, on resident data."""
        self.say("batch sizes in turn")
        return memory.knee(self.bench.build, config, self.bench.clock, self.bench.plan)

    def finish(self, baseline: StarveResult, stopped: str) -> LoopResult:
        """Measure what was reached against both ceilings and against the best path that still decodes JPEGs."""
        self.say("final, against both ceilings")
        training, jpegs = self.bench.build(self.now), self.jpeg_paths()
        with ExitStack() as stack:
            last = [stack.enter_context(arms.real(REAL, training))]
            last.append(arms.resident(CEILING, training, last[0].take()))
            last.append(arms.resident(SYNTHETIC, training, arms.synthetic(training)))
            for name, config in jpegs.items():
                last.append(stack.enter_context(arms.real(name, self.bench.build(config))))
            rounds = in_turn(
                last, self.bench.clock, self.bench.plan, pairs=[(SYNTHETIC, REAL)], unit=self.asked.job.sizes.unit
            )
            final = self.named(starve.read(rounds, last[0], self.asked.job.title, self.here))
        best_jpegs = max(jpegs, key=lambda name: rounds.rate(name).value, default=None)
        self.tell.progress(1.0, "done")
        return LoopResult(
            run=self.id,
            job=self.asked.job,
            baseline=baseline,
            records=tuple(self.records),
            final=final,
            synthetic=rounds.rate(SYNTHETIC),
            of_synthetic=rounds.compare(SYNTHETIC, REAL),
            jpegs=rounds.rate(best_jpegs) if best_jpegs else None,
            jpegs_config=jpegs.get(best_jpegs),
            gain=math.prod(record.comparison.ratio for record in self.records if record.kept and record.comparison),
            stopped=stopped,
            seconds=time.monotonic() - self.began,
            conditions=self.here,
            origin=self.here.origin,
        )

    def jpeg_paths(self) -> dict[str, TrainConfig]:
        """The final config with JPEGs decoded each time, by name: by workers, and on the card if there is one."""
        if self.now.data_path != "pre-decoded":
            return {}
        workers = max(2, workers_rule(self.facts.cpus))
        paths = {"by workers": self.now.with_(data_path="cpu-decode", workers=workers, persistent_workers=True)}
        if self.facts.card:
            alone = dict(workers=0, persistent_workers=False, prefetch_factor=None)
            paths["on the card"] = self.now.with_(data_path="card-decode", **alone)
        return paths

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
    return {
        name: r
        for name, r in refused.items()
        if name == kept.id or "any" not in (r.limit, kept.limit) and r.limit != kept.limit
    }
