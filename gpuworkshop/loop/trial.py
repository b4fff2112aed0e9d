"""One trial: the run as it is and the same run with a change, in turn; if it is faster, whether it still learns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec
import torch

from gpuworkshop.child import Tell
from gpuworkshop.instruments import arms
from gpuworkshop.instruments.feed import LoaderFault
from gpuworkshop.instruments.learning import Judgement, Learned, Numerics, judge, learn
from gpuworkshop.loop.budget import Spent
from gpuworkshop.loop.pace import pace_for
from gpuworkshop.loop.parked import Parked
from gpuworkshop.loop.remedies import Parts, explaining, parts
from gpuworkshop.loop.trial_result import UNATTRIBUTED, Trial
from gpuworkshop.machine import allocation
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Plan, Rounds, clock_for, in_turn
from gpuworkshop.workloads.config import Job, TrainConfig, changed
from gpuworkshop.workloads.pictures import PictureFault
from gpuworkshop.workloads.train import Training, build

CANNOT = (LoaderFault, PictureFault, torch.OutOfMemoryError)
"""What a changed run may meet that the unchanged one does not: then it is refused, and a loop goes on."""

ArmOf = Callable[[str, Training], arms.Real]
"""What makes an arm of a run, by its name."""

UNCHANGED = "learning of the unchanged run"
"""What is spent once, and not on each change."""

SEEDS = (0, 1)
"""Seeds of the unchanged run that a changed one is held against."""


class Bench:
    """Where trials of one job are made: the device, its plan, the held-out pictures, the unchanged run's learning."""

    def __init__(
        self,
        job: Job,
        reference: TrainConfig,
        device: str | None = None,
        plan: Plan | None = None,
        budget_seconds: float | None = None,
    ):
        self.job, self.reference = job, reference
        self.device = device or default_device()
        self.pace = pace_for(self.device, budget_seconds, plan)
        self.plan, self.clock = self.pace.trial, clock_for(self.device)
        self.spent = Spent(time.monotonic)
        self._learned: dict[tuple[TrainConfig, int], Learned] = {}
        self._anchors: dict[int, TrainConfig] = {}
        self._held_out: Sequence[tuple] | None = None

    def build(self, config: TrainConfig, seed: int | None = None) -> Training:
        """A training run of this job."""
        job = self.job if seed is None else msgspec.structs.replace(self.job, seed=seed)
        return build(config, job, self.device)

    def trial(self, before: TrainConfig, after: TrainConfig, tell: Tell | None = None) -> Trial:
        """Measure ``after`` against ``before`` in turn. Several remedies at once are never kept."""
        tell = tell or Tell()
        names = changed(before, after)
        try:
            rounds, paid = self._in_turn(before, after, tell)
        except CANNOT as fault:
            return self._refused(before, after, f"not possible: {fault}")
        comparison = rounds.compare("before", "after")
        remedy = explaining(before, after)
        several = parts(before, after) if names and remedy is None else None
        learning = None
        if names and comparison.verdict == "faster":
            tell.progress(0.8, "does it still learn?")
            learning = self.judge(after, (remedy or several).numerics, before)
        kept, why = _decision(comparison, learning, names, several)
        return Trial(
            before=before,
            after=after,
            changed=names,
            comparison=comparison,
            rate_before=rounds.rate("before"),
            rate_after=rounds.rate("after"),
            learning=learning,
            kept=kept,
            why=why,
            paid_once_seconds=paid,
            origin=self._origin(),
            planted=self.job.planted,
        )

    def _in_turn(self, before: TrainConfig, after: TrainConfig, tell: Tell) -> tuple[Rounds, float]:
        """Both runs in turn, and the seconds that the change costs once. Neither is left on the card."""
        try:
            return self._rounds(before, after, arms.real, tell)
        except torch.OutOfMemoryError as fault:
            if self.device == "cpu":
                raise
            alone = str(fault)  # the error itself would keep what it met on the card
        gc.collect()
        torch.cuda.empty_cache()
        tell.progress(0.0, f"one at a time on the card: {alone.partition('.')[0]}")
        return self._rounds(before, after, Parked, tell)

    def _rounds(self, before: TrainConfig, after: TrainConfig, arm: ArmOf, tell: Tell) -> tuple[Rounds, float]:
        with ExitStack() as stack:
            slow = stack.enter_context(arm("before", self.build(before)))
            began = time.perf_counter()
            changed_run = self.build(after)
            paid = time.perf_counter() - began if after.data_path == "pre-decoded" != before.data_path else 0.0
            fast = stack.enter_context(arm("after", changed_run))
            if after.compiled and not before.compiled:
                paid += self._first_step(fast)
            watch = lambda share: tell.progress(0.8 * share)  # noqa: E731
            return in_turn([slow, fast], self.clock, self.plan, unit=self.job.sizes.unit, progress=watch), paid

    def _first_step(self, arm: arms.Real) -> float:
        """Seconds that the first step takes longer than the second: compiling is done in it."""
        arm.resume()
        try:
            arm.feed.next()  # the workers' start is no part of it
            times = []
            for _ in range(2):
                began = time.perf_counter()
                arm.step(self.clock)
                self.clock.finish()
                times.append(time.perf_counter() - began)
            self.clock.drop_spans()
        finally:
            arm.pause()
        return max(0.0, times[0] - times[1])

    def _refused(self, before: TrainConfig, after: TrainConfig, why: str) -> Trial:
        what = dict(before=before, after=after, changed=changed(before, after), kept=False, why=why)
        return Trial(**what, origin=self._origin(), planted=self.job.planted)

    def _origin(self) -> Origin:
        return conditions(self.device).origin

    def judge(self, config: TrainConfig, numerics: Numerics, before: TrainConfig | None = None) -> Judgement:
        """Train ``config`` for the preset's samples and hold it against runs of ``before``, the unchanged config.

        One seed of each suffices where the changed run is no worse; where it looks worse, a second of both decides.
        """
        first, reference = self.build(config), self._anchor(before or self.reference)
        if not first.can_learn:
            return Judgement(None, "learning not judged: the pictures have no classes")
        with self.spent.on("learning"):
            usual, runs = [self._usual(reference, SEEDS[0])], [self.learn(first)]
            if judge(usual, runs, numerics).ok is False:  # one seed may be unlucky
                usual += [self._usual(reference, seed) for seed in SEEDS[1:]]
                runs += [self.learn(self.build(config, seed)) for seed in SEEDS[1:]]
            else:
                self._learned.setdefault((_content(config), first.job.seed), runs[0])
        return judge(usual, runs, numerics)

    def _anchor(self, before: TrainConfig) -> TrainConfig:
        """The config that runs like ``before`` are held against: the first unchanged one with a batch of this size.

        So it is trained once, and small losses of one change after the other cannot add up unseen.
        """
        return self._anchors.setdefault(before.batch_size, before)

    def _usual(self, config: TrainConfig, seed: int) -> Learned:
        """How a config learns; trained once for all configs whose batches and arithmetic are the same."""
        key = _content(config), seed
        if key not in self._learned:
            decodes = self.job.sizes.pictures is not None and config.data_path == "cpu-decode"
            quick = key[0].with_(workers=allocation.cpus().count if decodes else 0)
            with self.spent.on(UNCHANGED):
                self._learned[key] = self.learn(self.build(quick, seed))
        return self._learned[key]

    def learn(self, training: Training) -> Learned:
        """Loss on held-out samples before and after the preset's number of training samples."""
        if self._held_out is None:
            self._held_out = training.task.held_out()
        return learn(training, self.job.sizes.learning_samples, self._held_out)


def _decision(
    comparison: Comparison, learning: Judgement | None, names: tuple[str, ...], several: Parts | None = None
) -> tuple[bool, str]:
    """Whether a trial's change is kept, and why. ``several``: what was changed, where it is more than one remedy's."""
    if not names:
        return False, "nothing was changed"
    fails = comparison.verdict == "faster" and learning is not None and learning.ok is False
    why = f"{comparison}, but {learning.says}" if fails else str(comparison)
    if several:
        all_of = "both" if len(several.names) == 2 else "all"
        return False, f"{why}; {UNATTRIBUTED}: {several} were {all_of} changed"
    return comparison.verdict == "faster" and not fails, why


def _content(config: TrainConfig) -> TrainConfig:
    """A config without the settings that never change what a batch holds."""
    loader = dict(workers=0, persistent_workers=False, prefetch_factor=None, pin_memory=False)
    return config.with_(**loader, reads_loss="rarely", calls="a batch")
