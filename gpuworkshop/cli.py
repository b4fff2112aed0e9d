"""The command `gpuworkshop`: one function per verb; each returns its exit code.

Exit codes: 0 fine, 1 a finding of level fail, 2 bad usage or input (one line on stderr), 130 interrupted.
A verb imports its instrument when it runs: `--help` answers at once and works where PyTorch is missing.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from gpuworkshop import __version__
from gpuworkshop.workloads.config import DataPath, Job, MemoryFormat, Precision, TrainConfig, seconds

if TYPE_CHECKING:
    from gpuworkshop.child import Progress

FINE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="gpuworkshop",
    help="Measure what a GPU job really does, fix one thing, and prove that it helped.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)

WHERE = Group("The job, and where it runs")
SETTINGS = Group("Settings of the run; what is not given stays at the naive start")
Switch = Annotated[bool, Parameter(negative="", show_default=False)]


class BadInput(ValueError):
    """What was asked for makes no sense; the message is one line for the person who asked."""


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True)
class Where:
    """What is measured, where it runs, and in which form the answer comes.

    Attributes
    ----------
    preset
        Built-in workload: tiny runs on any CPU, card needs a GPU. Not given: card where this machine has one.
    data
        Folder of your own pictures, one folder per class; instead of the set that the kit writes.
    storage_wait_ms
        Planted: milliseconds that every file read really waits, to stand for slow storage.
    launcher
        Command to put in front, in quotes: "srun --gres=gpu:1 --cpus-per-task=8".
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """

    preset: Literal["tiny", "card"] | None = None
    data: str | None = None
    storage_wait_ms: float = 0.0
    launcher: Annotated[str, Parameter(show_default=False)] = ""
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False

    def job(self) -> Job:
        """The training job that is meant; BadInput if there is none such."""
        with _input():
            preset = self.preset or self._preset_here()
            return Job(preset=preset, data=self.data, storage_wait_ms=self.storage_wait_ms)

    def how(self, title: str) -> dict[str, Any]:
        """Launcher and progress bar, as every instrument takes them."""
        with _input("--launcher: "):
            return {"launcher": tuple(shlex.split(self.launcher)), "progress": _progress(title)}

    def _preset_here(self) -> str:
        if self.launcher:
            raise BadInput("--launcher runs elsewhere: say what to run there, --preset tiny or card")
        from gpuworkshop.machine import gpus

        return "card" if gpus.there_is_one() else "tiny"


@Parameter(name="*", group=SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one training run: the fields of TrainConfig as flags.

    Attributes
    ----------
    data_path
        Where a JPEG becomes a tensor.
    workers
        Processes that load data in parallel.
    prefetch_factor
        Batches that each worker loads ahead.
    pin_memory
        Load batches into page-locked host memory.
    persistent_workers
        Keep the workers from one epoch to the next.
    batch_size
        Samples a step.
    precision
        Number format of the matrix operations.
    memory_format
        Layout of pictures in memory.
    """

    data_path: DataPath | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: Switch = False
    persistent_workers: Switch = False
    batch_size: int | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat | None = None

    def config(self, job: Job) -> TrainConfig:
        """The naive start of `job` with these settings; BadInput where they do not go together."""
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        with _input():
            return job.sizes.start.with_(**given)


@app.command
def starve(*, sweep: Switch = False, settings: Settings = Settings(), where: Where = Where()) -> int:
    """Does the step wait for data, and how much would it gain if it did not?

    Parameters
    ----------
    sweep
        Measure several numbers of workers in turn, up to the CPUs that the job has.
    """
    from gpuworkshop.instruments import starve as instrument

    job = where.job()
    measure = instrument.run_sweep if sweep else instrument.run
    result = measure(settings.config(job), job, **where.how("starve"))
    return _show(instrument, result, where.as_json)


@app.command
def loop(*, budget: str | None = None, max_changes: int | None = None, where: Where = Where()) -> int:
    """Measure, diagnose, change one thing, measure again; until nothing pays.

    Parameters
    ----------
    budget
        No new change is tried after this time, such as 90s or 2m.
    max_changes
        Changes to keep at most.
    """
    from gpuworkshop.loop import climb

    with _input("--budget: "):
        limit = None if budget is None else seconds(budget)
    most = {} if max_changes is None else {"max_changes": max_changes}
    result = climb.run(where.job(), budget_seconds=limit, **most, **where.how("loop"))
    return _show(climb, result, where.as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` if none is given, and return its exit code."""
    if sys.platform == "win32":
        return _say("native Windows is not supported; everything works in WSL2", BAD_INPUT)
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return app(words, exit_on_error=False, print_error=False, result_action="return_value") or FINE
    except KeyboardInterrupt:
        message, status = "interrupted; what was recorded until then is kept", INTERRUPTED
    except (CycloptsError, BadInput) as error:
        message, status = str(error), BAD_INPUT
    except RuntimeError as error:
        if not _child_failed(error):
            raise
        message, status = str(error), BAD_INPUT if error.bad_input else FAILED
        if not error.bad_input:
            print(error.log, file=sys.stderr)
    return _say(message, status)  # said out here, where the measurement is over and its progress bar gone


def _say(message: str, status: int) -> int:
    print("gpuworkshop:", " ".join(message.split()), file=sys.stderr)
    return status


@contextmanager
def _input(where: str = "") -> Iterator[None]:
    """Turn a ValueError about what was asked for into BadInput; one from a measurement stays a bug."""
    try:
        yield
    except ValueError as error:
        raise BadInput(f"{where}{error}") from error


def _child_failed(error: RuntimeError) -> bool:
    from gpuworkshop.child import ChildFailed

    return isinstance(error, ChildFailed)


def _show(instrument: ModuleType, result: Any, as_json: bool) -> int:
    """Print one result in the face that suits stdout; the exit code of its findings."""
    if as_json:
        from gpuworkshop.report import envelope

        findings = tuple(instrument.findings(result))
        print(envelope(result, result.origin, findings).decode())
        return FAILED if any(finding.level == "fail" for finding in findings) else FINE
    report = instrument.report(result)
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(report)
    else:
        print(report)
    return FAILED if report.failed else FINE


def _progress(title: str) -> "Callable[[Progress], None] | None":
    """A progress bar where somebody watches; a log file gets none."""
    from gpuworkshop import child

    return child.Bar(title, sys.stderr) if sys.stderr.isatty() else None
