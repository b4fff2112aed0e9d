"""One trial: the run as it is and the same run with a change, in turn; if it is faster, whether it still learns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec
import torch

from gpuworkshop.child import Tell
from gpuworkshop.instruments import arms
from gpuworkshop.instruments.feed import LoaderFault
from gpuworkshop.instruments.learning import Judgement, Learned, Numerics, judge, learn
from gpuworkshop.loop.remedies import explaining
from gpuworkshop.loop.trial_result import Trial
from gpuworkshop.machine import allocation
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Plan, clock_for, in_turn, plan_for
from gpuworkshop.workloads.config import Job, TrainConfig, changed
from gpuworkshop.workloads.pictures import PictureFault
from gpuworkshop.workloads.train import Training, build

CANNOT = (LoaderFault, PictureFault, torch.OutOfMemoryError)
"""What a changed run may meet that the unchanged one does not: then it is refused, and a loop goes on."""

SEEDS = (0, 1)
"""Seeds of the unchanged run that a changed one is held against."""


class Bench:
    """Where trials of one job are made: the device, its plan, the held-out pictures, the unchanged run's learning."""

    def __init__(self, job: Job, reference: TrainConfig, device: str | None = None, plan: Plan | None = None):
        self.job, self.reference = job, reference
        self.device = device or default_device()
        self.plan, self.clock = plan or plan_for(self.device), clock_for(self.device)
        self._learned: dict[tuple[TrainConfig, int], Learned] = {}
        self._held_out: Sequence[tuple] | None = None

    def build(self, config: TrainConfig, seed: int | None = None) -> Training:
        """A training run of this job."""
        job = self.job if seed is None else msgspec.structs.replace(self.job, seed=seed)
        return build(config, job, self.device)

    def trial(self, before: TrainConfig, after: TrainConfig, tell: Tell | None = None) -> Trial:
        """Measure ``after`` against ``before`` in turn. Settings of more than one remedy are refused unmeasured."""
        tell = tell or Tell()
        names = changed(before, after)
        if names and explaining(before, after) is None:
            return self._refused(before, after, _not_one(names))
        began = time.perf_counter()
        try:
            slow, fast = self.build(before), self.build(after)
        except CANNOT as fault:
            return self._refused(before, after, f"not possible: {fault}")
        paid = time.perf_counter() - began if after.data_path == "pre-decoded" != before.data_path else 0.0
        try:
            with ExitStack() as stack:
                runs = (("before", slow), ("after", fast))
                in_trial = [stack.enter_context(arms.real(name, run)) for name, run in runs]
                watch = lambda share: tell.progress(0.8 * share)  # noqa: E731
                rounds = in_turn(in_trial, self.clock, self.plan, unit=self.job.sizes.unit, progress=watch)
        except CANNOT as fault:
            return self._refused(before, after, f"not possible: {fault}")
        comparison = rounds.compare("before", "after")
        remedy = explaining(before, after)
        learning = None
        if comparison.verdict == "faster":
            tell.progress(0.8, "does it still learn?")
            learning = self.judge(after, remedy.numerics if remedy else "training", before)
        kept, why = _decision(comparison, learning, names)
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

    def _refused(self, before: TrainConfig, after: TrainConfig, why: str) -> Trial:
        what = dict(before=before, after=after, changed=changed(before, after), kept=False, why=why)
        return Trial(**what, origin=self._origin(), planted=self.job.planted)

    def _origin(self) -> Origin:
        return conditions(self.device).origin

    def judge(self, config: TrainConfig, numerics: Numerics, before: TrainConfig | None = None) -> Judgement:
        """Train ``config`` for the preset's samples and hold it against runs of ``before``, the unchanged config."""
        first = self.build(config)
        if not first.can_learn:
            return Judgement(None, "learning not judged: the pictures have no classes")
        usual = [self._usual(before or self.reference, seed) for seed in SEEDS]
        runs = [self.learn(first)]
        if judge(usual, runs, numerics).ok is False:  # one seed may be unlucky
            runs += [self.learn(self.build(config, seed)) for seed in SEEDS[1:]]
        else:
            self._learned.setdefault((_content(config), first.job.seed), runs[0])
        return judge(usual, runs, numerics)

    def _usual(self, config: TrainConfig, seed: int) -> Learned:
        """How a config learns; trained once for all configs whose batches and arithmetic are the same."""
        key = _content(config), seed
        if key not in self._learned:
            decodes = self.job.sizes.pictures is not None and config.data_path == "cpu-decode"
            quick = key[0].with_(workers=allocation.cpus().count if decodes else 0)
            self._learned[key] = self.learn(self.build(quick, seed))
        return self._learned[key]

    def learn(self, training: Training) -> Learned:
        """Loss on held-out samples before and after the preset's number of training samples."""
        if self._held_out is None:
            self._held_out = training.task.held_out()
        return learn(training, self.job.sizes.learning_samples, self._held_out)


def _not_one(names: tuple[str, ...]) -> str:
    """Why a trial of these settings is not made."""
    return f"not measured: {', '.join(names)} changed at once are more than one remedy, so it cannot be attributed"


def _decision(comparison: Comparison, learning: Judgement | None, names: tuple[str, ...]) -> tuple[bool, str]:
    """Whether a trial's change is kept, and why."""
    if not names:
        return False, "nothing was changed"
    if comparison.verdict != "faster":
        return False, str(comparison)
    if learning and learning.ok is False:
        return False, f"{comparison}, but {learning.says}"
    return True, str(comparison)


def _content(config: TrainConfig) -> TrainConfig:
    """A config without the settings that never change what a batch holds."""
    same = dict(workers=0, persistent_workers=False, prefetch_factor=None, pin_memory=False, reads_loss="rarely")
    return config.with_(**same)
