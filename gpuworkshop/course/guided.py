"""The published guide beside the measurement, for several planted jobs on one card: where they part, and why.

It takes about four minutes and needs a card. Recorded by

    python -m gpuworkshop.course.guided > guided-h200.json
    python solutions/record.py guided-h200.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Progress, Tell
from gpuworkshop.loop import guide
from gpuworkshop.loop.diagnose import diagnose
from gpuworkshop.loop.look_result import Look
from gpuworkshop.machine import gpus
from gpuworkshop.machine.conditions import Conditions, conditions
from gpuworkshop.numbers import percent
from gpuworkshop.report import Finding, Origin, Report, Table, envelope
from gpuworkshop.workloads.planted import Limit, by_name

NAMES = (
    "decoding in one process",
    "slow storage",
    "one call a sample",
    "a GPT too small",
    "every sample read in each step",
    "outputs copied in each step",
    "large pageable batches",
    "FP32 on a GPT",
)
"""The planted jobs that are looked at, in this order."""


class Guided(msgspec.Struct, frozen=True):
    """One planted job: what was planted, and what was seen of it."""

    name: str
    limit: Limit
    look: Look

    @property
    def measured(self) -> Limit:
        """The limit by the diagnosis."""
        return diagnose(self.look).limit

    @property
    def advice(self) -> guide.Advice | None:
        """What the guide says; None where there is no utilization."""
        seen = self.look.watched
        return guide.guide(seen.busy, self.look.memory, workers=self.look.starve.workers) if seen else None

    @property
    def beside(self) -> Finding:
        """The guide beside the diagnosis, and why they disagree where they do."""
        return guide.beside(self.look, self.measured)


class GuidedResult(msgspec.Struct, frozen=True):
    """Several planted jobs on one card."""

    jobs: tuple[Guided, ...]
    conditions: Conditions
    origin: Origin


def run(
    names: Sequence[str] = NAMES,
    *,
    launcher: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
) -> GuidedResult:
    """Look at the planted jobs with these names in a child, here or behind ``launcher``. ChildFailed without a card."""
    target = "gpuworkshop.course.guided:in_child"
    return child.run(target, list(names), type=GuidedResult, launcher=launcher, progress=progress)


def in_child(request: list[str], tell: Tell) -> GuidedResult:
    """What the child does."""
    from gpuworkshop.loop.look import Eye
    from gpuworkshop.loop.trial import Bench

    device = gpus.default_device()
    if device == "cpu":
        raise ValueError("this needs a GPU, and there is none here")
    jobs = []
    for place, planted in enumerate(map(by_name, request)):
        tell.progress(place / len(request), planted.name)
        look = Eye(Bench(planted.job, planted.start, device)).look(planted.start, quick=True)
        jobs.append(Guided(planted.name, planted.limit, look))
    here = conditions(device)
    return GuidedResult(tuple(jobs), here, here.origin)


def findings(result: GuidedResult) -> tuple[Finding, ...]:
    """How often the guide names what was measured, and each disagreement with its reason."""
    apart = [job for job in result.jobs if job.beside.level != "ok"]
    title = f"The guide and the measurement agree in {len(result.jobs) - len(apart)} of {len(result.jobs)} jobs"
    why = "the guide reads two numbers, the measurement reads where the time goes"
    each = (msgspec.structs.replace(job.beside, title=f"{job.name}. {job.beside.title}") for job in apart)
    return (Finding("notice", title, why), *each)


def report(result: GuidedResult) -> Report:
    """The findings, one row a job, and all jobs on the map that the guide reads."""
    from gpuworkshop.figures.map import Track, two_axes

    rows = tuple(
        (
            job.name,
            percent(_busy(job)),
            percent(job.look.memory),
            job.advice.do if job.advice else "n/a",
            job.measured,
        )
        for job in result.jobs
    )
    columns = ("planted", "GPU utilization", "GPU memory", "the guide says", "measured limit")
    tracks = [Track(f"{job.name}: {job.measured}", _busy(job), job.look.memory) for job in result.jobs]
    figures = (two_axes(tracks, result.origin),)
    return Report("The guide beside the measurement", result.origin, findings(result), (Table(columns, rows),), figures)


def _busy(job: Guided) -> float | None:
    return job.look.watched.busy if job.look.watched else None


def main() -> None:
    """Measure here and print the envelope, which is what a recording is."""
    try:
        with closing(child.Bar("guided", sys.stderr)) as bar:
            result = run(progress=bar)
    except child.ChildFailed as failed:
        sys.exit(str(failed))
    sys.stdout.buffer.write(envelope(result, result.origin, findings(result)) + b"\n")


if __name__ == "__main__":
    main()
