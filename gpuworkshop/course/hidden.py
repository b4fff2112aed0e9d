"""Chapter 7's round: a job with one bottleneck that the learner does not see, and one measured change after the other.

``begin`` draws the job from a seed. ``look`` measures it as it is; ``choose`` tries one change in turn with the run
before it, in one child, and records it in the ledger; the picture is the waterfall of the learner's own changes.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from gpuworkshop.child import ChildFailed, Progress
from gpuworkshop.course import faces, hidden_child, hidden_faces, hidden_panel
from gpuworkshop.course.controls import Status
from gpuworkshop.course.hidden_child import Seen
from gpuworkshop.course.lesson import Lesson
from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.loop import ledger
from gpuworkshop.loop.diagnose import diagnose
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.remedies import Facts, Remedy, by_id, proposals, remedies
from gpuworkshop.loop.trial_result import Trial
from gpuworkshop.machine import gpus
from gpuworkshop.report import Figure, Report
from gpuworkshop.timing import Rate
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.planted import PLANTED, Planted

SMALL_BATCHES = Planted(
    "small batches of a small GPT",
    "launches",
    Job("gpt-tiny"),
    Job("gpt-tiny").sizes.start.with_(reads_loss="rarely"),
    "a batch holds eight short sequences, so that every operation is tiny",
)
NAMES = (
    "decoding in one process",
    "slow storage",
    "pictures cropped on the host",
    "one call a sample",
    "outputs copied in each step",
    "every sample read in each step",
    "FP32 on a GPT",
)
"""Of the planted jobs those in which one change shows, and a trial is short enough to wait for."""

USUAL = "workers"
"""The first advice of most guides: what is tried where nobody has chosen."""

BIGGER = 8
"""A larger batch is so many times as large."""


def jobs(card: bool) -> tuple[Planted, ...]:
    """What can be drawn, with a card or without one."""
    here = "card" if card else "cpu"
    found = (one for one in PLANTED if one.name in NAMES and here in one.shows_on)
    return (*found, SMALL_BATCHES)


def draw(seed: int, card: bool) -> Planted:
    """The job of this seed; the same on every machine of the kind. TypeError for what is no whole number."""
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"seed is {seed!r}: a whole number, such as 1")
    among = jobs(card)
    return among[random.Random(seed).randrange(len(among))]


def begin(seed: int, lesson: Lesson | None = None, launcher: Sequence[str] = ()) -> HiddenJob:
    """Begin a round with the job of this seed. Behind a ``launcher`` it is measured there, with a card."""
    card = bool(launcher) or gpus.there_is_one()
    return HiddenJob(seed, draw(seed, card), lesson, launcher)


class Choice(msgspec.Struct, frozen=True):
    """One button of the panel: ids of remedies, and what it says."""

    ids: tuple[str, ...]
    says: str


class HiddenJob:
    """One job, looked at, changed step by step, and revealed at the end. ``lesson`` counts the time of measuring."""

    def __init__(self, seed: int, planted: Planted, lesson: Lesson | None = None, launcher: Sequence[str] = ()):
        self.seed, self.planted, self.launcher = seed, planted, tuple(launcher)
        self.id = uuid.uuid4().hex[:12]
        self.now: TrainConfig = planted.start
        self.seen: list[Seen] = []
        self.records: list[Record] = []
        self.advised = False
        self._lesson = lesson
        self._panel: Any = None

    @property
    def title(self) -> str:
        """What the learner may know of the job."""
        trains = "pictures" if self.planted.job.sizes.pictures else "text"
        return f"The job of seed {self.seed}: it trains on {trains}"

    @property
    def starve(self) -> StarveResult:
        """What the job's first look says of its waiting."""
        self._must_have_looked()
        return self.seen[0].look.starve

    @property
    def first_gain(self) -> Rate | None:
        """What the first change brought, in times the throughput; None where nothing could be measured."""
        seen = self.changes[0].comparison if self.changes else None
        return Rate(seen.ratio, seen.low, seen.high, seen.pairs, "times") if seen else None

    @property
    def changes(self) -> list[Record]:
        """The changes that were measured, kept or not."""
        return self.records[1:]

    def look(self, progress: Callable[[Progress], None] | None = None) -> Report:
        """Measure the job as it is, once, and show what was measured."""
        if not self.seen:
            turn = self._run(None, progress)
            self._saw(turn.seen)
            rate, here = turn.seen.look.starve.real, turn.seen.look.starve.conditions
            self._record(Record(ledger.now(), self.id, self._workload, "baseline", self.now, rate, here, kept=True))
        return self.measured()

    def measured(self) -> Report:
        """What was measured of the run as it stands now."""
        self._must_have_looked()
        return hidden_faces.measured(self.title, self.seen[-1], len([one for one in self.changes if one.kept]))

    def choices(self) -> tuple[Choice, ...]:
        """What can be chosen: every remedy for such a job, whether or not it helps, and two of them at once."""
        card, task = self._card, "pictures" if self.planted.job.sizes.pictures else "any"
        offered = [one for one in remedies() if one.limits != ("memory",) and one.task in ("any", task)]
        offered = [one for one in offered if card or not one.needs_card]
        single = [Choice((one.id,), hidden_faces.name(one)) for one in offered]
        both = (by_id(USUAL), by_id("batch"))
        says = f"two at once: {hidden_faces.names(both)}"
        return (*single, Choice(tuple(one.id for one in both), says))

    def choose(self, *ids: str, progress: Callable[[Progress], None] | None = None) -> Status:
        """Try a change, measured in turn with the run before it. Several ids at once are measured and never kept.

        KeyError names the ids there are. What goes wrong with the measurement is said, not raised.
        """
        self._must_have_looked()
        known = [id for choice in self.choices() for id in choice.ids]
        if unknown := [id for id in ids if id not in known]:
            raise KeyError(f"no change is called {unknown[0]!r}: there are {', '.join(dict.fromkeys(known))}")
        if not ids:
            return Status("Choose a change first.")
        chosen, after = [by_id(id) for id in dict.fromkeys(ids)], self.now
        for remedy in chosen:
            further = self._after(remedy, after)
            if further is None:
                return hidden_faces.nothing_to_change(remedy)
            after = further
        if tried := self._tried(after):
            return hidden_faces.tried_before(chosen, tried)
        try:
            turn = self._run(after, progress)
        except ChildFailed as failed:
            return Status(f"✗ Not measured: {failed}", tone="wrong")
        return self._keep_or_not(chosen, turn.trial, turn.seen)

    def unless_chosen(self, progress: Callable[[Progress], None] | None = None) -> Status:
        """Where nothing was chosen yet, try the usual first advice; else say what was measured."""
        if self.changes:
            return hidden_faces.so_far(self.changes)
        status = self.choose(USUAL, progress=progress)
        self.advised = bool(self.changes)
        self._redraw()
        return Status(f"Nothing was chosen, so the usual first advice was tried. {status}", tone=status.tone)

    def waterfall(self) -> Figure:
        """The learner's own waterfall: every change that was measured, kept or not."""
        self._must_have_looked()
        return hidden_faces.waterfall(self.records, self.seen[-1])

    def answer(self) -> Report:
        """What was planted, what the measurement says of it, and what the published guide would have said."""
        self._must_have_looked()
        whose = "The usual first advice" if self.advised else "Your first change"
        return hidden_faces.answer(self.title, self.planted, self.seen, self.changes, self._fitting(), whose)

    def reveal(self) -> hidden_faces.Folded:
        """The answer behind a fold, so that running all cells does not give it away."""
        shown = "`print(job.answer())` at the end of this cell shows it."
        return hidden_faces.Folded("Show what was planted", self.answer(), shown)

    def _fitting(self) -> list[Remedy]:
        """The changes that are meant against what was planted, and that this job's start leaves to be made."""
        return [one for one in remedies() if self.planted.limit in one.limits and self._proposed(one, self.start)]

    @property
    def start(self) -> TrainConfig:
        """The config that the round began with."""
        return self.planted.start

    # One change

    def _run(self, after: TrainConfig | None, progress: Callable[[Progress], None] | None) -> hidden_child.Turn:
        return hidden_child.run(self.planted.job, self.now, after, launcher=self.launcher, progress=progress)

    def measuring(self) -> AbstractContextManager[None]:
        """Around what a button measures: the chapter counts the time."""
        return self._lesson.measuring() if self._lesson else nullcontext()

    def _saw(self, seen: Seen | None) -> None:
        if seen:
            self.seen.append(seen)

    def _record(self, record: Record) -> None:
        self.records.append(record)
        ledger.add(record)

    def _keep_or_not(self, chosen: Sequence[Remedy], trial: Trial, seen: Seen | None) -> Status:
        before = diagnose(self.seen[-1].look).limit
        self._saw(seen)
        record = ledger.change(
            trial,
            chosen[0] if len(chosen) == 1 else None,
            run=self.id,
            workload=self._workload,
            conditions=self.seen[-1].look.starve.conditions,
            name=hidden_faces.names(chosen),
            limit_before=before,
            limit_after=diagnose(seen.look).limit if seen else "",
        )
        self._record(record)
        if trial.kept:
            self.now = trial.after
        return hidden_faces.outcome(record)

    def _after(self, remedy: Remedy, now: TrainConfig | None = None) -> TrainConfig | None:
        """The config that a remedy makes of the present one; None where there is nothing for it to change."""
        found = self._proposed(remedy, now or self.now)
        return found[-1] if found else None

    def _proposed(self, remedy: Remedy, config: TrainConfig) -> tuple[TrainConfig, ...]:
        here, sizes = self.seen[-1].look.starve.conditions, self.planted.job.sizes
        facts = Facts(here.cpus, self._card, lambda now: BIGGER * now.batch_size, sizes.pictures is not None)
        return proposals(remedy, config, facts)

    def _tried(self, after: TrainConfig) -> Record | None:
        """The same change as it was measured from here before; None where the noise left the outcome open."""
        tried = (one for one in reversed(self.changes) if one.before == self.now and one.config == after)
        last = next(tried, None)
        return None if last is None or hidden_faces.left_open(last) else last

    @property
    def _card(self) -> bool:
        return bool(self.seen) and self.seen[-1].look.starve.conditions.device != "cpu"

    @property
    def _workload(self) -> str:
        return f"a hidden job, seed {self.seed}"

    def _must_have_looked(self) -> None:
        if not self.seen:
            raise RuntimeError("the job was not measured yet: run the cell with .look() first")

    # Faces

    def _redraw(self) -> None:
        if self._panel is not None:
            self._panel.redraw()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self._panel is None and faces.widgets():
            self._panel = hidden_panel.Panel(self)
        return faces.bundle(self._panel and self._panel.box, hidden_faces.static(self.choices()))
