"""Profile 20 steps: a trace file to keep, and what it says. Shares come from the trace, the step time from plain steps.

Three doors: :func:`measure` takes a loader and a step of yours, in this process; :func:`run` profiles a built-in
workload in a child process; :func:`read` takes a trace file that something else has written.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuworkshop import child, state
from gpuworkshop.child import Tell
from gpuworkshop.instruments.builtin import Asked, ask
from gpuworkshop.instruments.profile_result import ProfileResult, findings, report
from gpuworkshop.report import Origin
from gpuworkshop.timing import Plan, Rate, clock_for, in_turn, plan_for
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = ["ProfileResult", "findings", "measure", "read", "report", "run"]

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or its own log lines stand on stderr, in red in a notebook
STEPS = 20
WARM_UP, PROFILER_WARM_UP = 5, 3
WARM_UP_SECONDS = 1.0
FEWEST = 3
MOST_CALLS = 120_000
"""Calls of operators in a trace, if nobody asks for a number of steps; a file of 3 MB, and seconds to read."""
KEPT_TRACES = 5
RETRY_ABOVE = 0.05
"""Share of launches without a kernel above which a profile is made once more."""


ANOTHER = (
    "another profiler of PyTorch is at work in this process: end it first (a profiler option of your trainer, "
    "or a `with profile():` of another cell or in your step; restarting the kernel ends it too)"
)


class CannotProfile(ValueError):
    """Why nothing can be profiled, in one line that says what to do."""


def measure(
    loader: Iterable,
    step: Callable[[Any], Any],
    prepare: Callable[[Any], Any] | None = None,
    *,
    steps: int | None = None,
    trace_file: str | Path | None = None,
    device: str | None = None,
    workload: str = "your loader and step",
    unit: str = "samples/s",
    plan: Plan | None = None,
    progress: Callable[[child.Progress], None] | None = None,
    tell: Tell | None = None,
) -> ProfileResult:
    """Profile ``steps`` steps of your own ``loader`` and ``step`` in this process, then time plain ones.

    Not given, there are :data:`STEPS`, or fewer where a step makes thousands of calls (:data:`MOST_CALLS`).
    ``step`` and ``prepare`` as in :func:`gpuworkshop.instruments.starve.measure`. The trace is kept, gzipped, in
    ``trace_file``; by default in the state folder, where the newest few stay. Raises CannotProfile where another
    profiler is at work or the loader ends too early, LoaderFault for a loader that cannot be measured.
    """
    from gpuworkshop.instruments import arms, nsight
    from gpuworkshop.instruments.feed import Feed
    from gpuworkshop.machine.conditions import conditions
    from gpuworkshop.machine.gpus import default_device

    at_least_one(STEPS if steps is None else steps)
    arms.callable_step(step)
    nobody_else_profiles()
    place = place_for_trace(trace_file)
    device, tell = device or default_device(), tell or (_Shown(progress) if progress else Tell())
    prepare = prepare or (lambda batch: arms.moved(batch, device))
    with Feed(loader) as feed:
        run = _Steps(arms.Real("plain", feed, prepare, step), device, tell)
        run.warm_up(count=steps is None)
        asked = steps or enough_steps(run.step_calls)
        with tempfile.TemporaryDirectory() as folder:
            sums, shown = run.profiled(asked, Path(folder) / "trace.json")
            kept = keep(Path(folder) / "trace.json", place)
        plain = None if run.ended else run.plain(unit, plan)
    here = conditions(device)
    return ProfileResult(
        workload=workload,
        device=device,
        asked_steps=asked,
        batch_size=run.batch_size,
        plain=plain,
        sums=msgspec.structs.replace(sums, file=kept.name),
        timeline=shown,
        trace_file=str(kept),
        trace_bytes=kept.stat().st_size,
        conditions=here,
        origin=here.origin,
        step_calls=run.step_calls if steps is None and asked < STEPS else None,
        usual_steps=STEPS,
        counters=nsight.counters_allowed(),
    )


class _Shown(Tell):
    """Progress for whoever measures in the present process."""

    def __init__(self, show: Callable[[child.Progress], None]):
        self._show = show

    def progress(self, share: float, text: str = "") -> None:
        self._show(child.Progress(share, text))


def enough_steps(calls: int | None) -> int:
    """How many steps to profile where each makes so many calls of operators; None: they were not counted."""
    return STEPS if not calls else max(FEWEST, min(STEPS, MOST_CALLS // calls))


def at_least_one(steps: int) -> None:
    """CannotProfile for a number of steps that is none."""
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise CannotProfile(f"steps is {steps!r:.60}: a whole number, such as {STEPS}")
    if steps < 1:
        raise CannotProfile(f"steps is {steps}: at least 1 step is profiled")


def nobody_else_profiles() -> None:
    """CannotProfile while a profiler of PyTorch is at work in this process: a second one would see nothing."""
    import torch

    if torch.autograd._profiler_enabled():
        raise CannotProfile(ANOTHER)


class _Steps:
    """The steps of a job, one after the other: warm, profiled, plain. ``ended``: its loader has no more batches."""

    def __init__(self, arm: Any, device: str, tell: Tell):
        self.arm, self.device, self.tell, self.clock = arm, device, tell, clock_for(device)
        self.ended, self.batch_size, self.done = False, 0, 0
        self.step_calls: int | None = None

    def one(self) -> bool:
        """One step; False if the loader had no batch for it."""
        from gpuworkshop.instruments.feed import LoaderFault

        try:
            self.batch_size = self.arm.step(self.clock)
        except RuntimeError as error:
            if "Profiler is already enabled" in str(error):  # one that the step begins
                raise CannotProfile(ANOTHER) from error
            raise
        except LoaderFault:
            if not isinstance(self.arm.feed.loader, Iterator):
                raise
            self.ended = True
            return False
        self.done += 1
        return True

    def warm_up(self, count: bool = False) -> None:
        """A few steps before anything is recorded; fewer for an iterator, which has no batches to waste.

        ``count``: count the calls of the last one.
        """
        self.tell.progress(0.0, "warming up")
        once = isinstance(self.arm.feed.loader, Iterator)
        seconds = 0.0 if once or self.device == "cpu" else WARM_UP_SECONDS
        began = time.perf_counter()
        fewest = 1 if once else WARM_UP
        while self.done < fewest or time.perf_counter() - began < seconds:
            counts = count and self.done == fewest - 1
            if not (self.counted() if counts else self.one()):
                raise CannotProfile(f"the loader ended after {self.done} batches: nothing was left to profile")
        self.clock.finish()

    def counted(self) -> bool:
        """One step, with its calls of operators counted by a profiler of the host alone; as :meth:`one`."""
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as profiler

        with _quietly(), profiler(activities=[ProfilerActivity.CPU]) as run:
            went = self.one()
        with tempfile.TemporaryDirectory() as folder:
            run.export_chrome_trace(str(file := Path(folder) / "step.json"))
            self.step_calls = file.read_bytes().count(b'"cpu_op"')
        return went

    def profiled(self, steps: int, file: Path) -> tuple[Any, Any]:
        """What the trace of these steps adds up to, and its timeline; once more where kernels were lost."""
        from gpuworkshop.instruments import trace
        from gpuworkshop.instruments.trace_sums import sums
        from gpuworkshop.instruments.trace_timeline import timeline

        for attempt in (1, 2):
            self.tell.progress(0.2, "profiling" if attempt == 1 else "profiling again: kernels were lost")
            recorded = self.record(steps, file)
            self.tell.progress(0.6, "reading the trace")
            read = trace.read(file)
            found = sums(read)
            if self.ended or not found.launches or found.lost_launches <= RETRY_ABOVE * found.launches:
                break
        if self.ended:  # the profiler also marks the step that had no batch
            found = msgspec.structs.replace(found, steps=recorded)
        return found, timeline(read)

    def record(self, steps: int, file: Path) -> int:
        """Run the profiler over these steps and write its trace; how many steps it holds."""
        from torch.profiler import ProfilerActivity, schedule
        from torch.profiler import profile as profiler

        on = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device != "cpu" else [])
        warm = 0 if self.ended or isinstance(self.arm.feed.loader, Iterator) else PROFILER_WARM_UP
        self.clock.finish()
        with _quietly(), profiler(activities=on, schedule=schedule(wait=0, warmup=warm, active=steps, repeat=1)) as run:
            before = self.done
            for _ in range(warm + steps):
                if not self.one():
                    break
                run.step()
        if self.done - before <= warm:
            raise CannotProfile(f"the loader ended after {self.done} batches: nothing was left to profile")
        self.clock.drop_spans()
        run.export_chrome_trace(str(file))
        return self.done - before - warm

    def plain(self, unit: str, plan: Plan | None) -> Rate:
        """The throughput of the same steps without the profiler."""
        self.tell.progress(0.7, "plain steps")
        plan = plan or msgspec.structs.replace(plan_for(self.device), min_rounds=4)
        return in_turn([self.arm], self.clock, plan, unit=unit).rate("plain")


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """PyTorch warns of a schedule without a warm-up; here the warm-up came before."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
        yield


# Trace files


def place_for_trace(file: str | Path | None = None) -> Path:
    """Where a trace is kept: ``file``, else a new name in the state folder. CannotProfile if it cannot be written."""
    if file is None:
        place = state.folder() / "traces" / f"profile-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}.json.gz"
    else:
        place = Path(file).expanduser().absolute()
    try:
        if file is None:
            place.parent.mkdir(parents=True, exist_ok=True)
        new = not place.exists()
        with place.open("ab"):  # asked before the steps are run, not after
            pass
        if new:  # nothing stays behind where no trace follows
            place.unlink(missing_ok=True)
    except OSError as error:
        raise CannotProfile(f"the trace cannot be kept in {place}: {error.strerror}") from None
    return place


def keep(trace: Path, place: Path) -> Path:
    """Gzip a trace into ``place``; of those in the state folder the newest few stay. CannotProfile if it is full."""
    try:
        with trace.open("rb") as text, gzip.open(place, "wb", compresslevel=1) as packed:
            shutil.copyfileobj(text, packed, 2**20)
    except BaseException as error:
        if place.is_file():  # half a trace is none
            place.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotProfile(f"the trace cannot be kept in {place}: {error.strerror or error}") from None
        raise
    if place.parent == state.folder() / "traces":
        for old in sorted(place.parent.glob("profile-*.json.gz"))[:-KEPT_TRACES]:
            old.unlink(missing_ok=True)
    return place


def read(file: str | Path) -> ProfileResult:
    """What a trace file says, whoever wrote it. NoTrace where it cannot be read."""
    from gpuworkshop.instruments import trace
    from gpuworkshop.instruments.trace_sums import sums
    from gpuworkshop.instruments.trace_timeline import timeline

    file = Path(file).expanduser()
    whole, about = trace.read(file), file.stat()
    written = datetime.date.fromtimestamp(about.st_mtime).isoformat()
    return ProfileResult(
        workload=file.name,
        device="cuda" if len(whole.device) else "cpu",
        asked_steps=None,
        batch_size=None,
        plain=None,
        sums=sums(whole),
        timeline=timeline(whole),
        trace_file=str(file),
        trace_bytes=about.st_size,
        conditions=None,
        origin=Origin("recorded on", whole.card or "a machine that the trace does not name", written),
    )


# ---------------------------------------------------------------- the second door: a built-in workload in a child


class Request(Asked, frozen=True, kw_only=True):
    """What a profile child is asked for."""

    steps: int | None = None
    trace_file: str | None = None


def run(
    config: TrainConfig | None = None,
    job: Job | None = None,
    *,
    steps: int | None = None,
    trace_file: str | Path | None = None,
    launcher: Sequence[str] = (),
    progress: Callable[[child.Progress], None] | None = None,
) -> ProfileResult:
    """Profile a built-in workload in a child process, here or behind ``launcher``. CannotProfile for bad arguments."""
    at_least_one(STEPS if steps is None else steps)
    place = None if trace_file is None else str(place_for_trace(trace_file))
    more = dict(steps=steps, trace_file=place, launcher=launcher, progress=progress)
    return ask(f"{__name__}:in_child", Request, config, job, type=ProfileResult, **more)


def in_child(request: Any, tell: Tell) -> ProfileResult:
    """What the child does with a :class:`Request`."""
    asked = msgspec.convert(request, Request)
    training = asked.training(tell)
    result = measure(
        training.loader,
        lambda ready: training.step(*ready),
        training.prepare,
        steps=asked.steps,
        trace_file=asked.trace_file,
        device=training.device,
        **asked.names,
        tell=tell.part(0.1, 1.0),
    )
    return msgspec.structs.replace(result, config=asked.config, planted=asked.job.planted)
