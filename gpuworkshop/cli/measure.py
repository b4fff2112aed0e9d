"""The verbs that measure a built-in training job: starve and profile; and the flags that say which job."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from gpuworkshop.cli.base import AsJson, BadInput, Switch, app, bad_input, progress_bar, show
from gpuworkshop.workloads.choices import Calls, DataPath, MemoryFormat, Precision, ReadsLoss, Transform

if TYPE_CHECKING:
    from gpuworkshop.workloads.config import Job, TrainConfig

WHERE = Group("The job, and where it runs")
SETTINGS = Group("Settings of the run; not given: the naive start (FP32, no workers)")


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True)
class Where:
    """What is measured, where it runs, and in which form the answer comes.

    Attributes
    ----------
    preset
        Built-in workload: pictures (tiny, card, card-small) or text (gpt-tiny, gpt-small, gpt); card, card-small and
        gpt need a GPU. Not given: card where this machine has one, else tiny.
    data
        Folder of your own pictures, one folder per class; instead of the set that the kit writes.
    storage_wait_ms
        Planted: milliseconds that every file read really waits, to stand for slow storage.
    launcher
        Command to put in front, in quotes: "srun --gres=gpu:1 --cpus-per-task=8". Say the preset with it.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """

    preset: Literal["tiny", "card", "gpt-tiny", "gpt", "card-small", "gpt-small"] | None = None
    data: str | None = None
    storage_wait_ms: float = 0.0
    launcher: Annotated[str, Parameter(show_default=False)] = ""
    as_json: AsJson = False

    def job(self, without_card: str = "tiny") -> "Job":
        """The training job that is meant; BadInput if there is none such. ``without_card`` is the preset for a CPU."""
        from gpuworkshop.workloads.config import Job

        with bad_input():
            preset = self.preset or self._preset_here(without_card)
            return Job(preset=preset, data=self.data, storage_wait_ms=self.storage_wait_ms)

    def how(self, title: str) -> dict[str, Any]:
        """Launcher and progress bar, as every instrument takes them."""
        with bad_input("--launcher: "):
            return {"launcher": tuple(shlex.split(self.launcher)), "progress": progress_bar(title)}

    def _preset_here(self, without_card: str) -> str:
        if self.launcher:
            raise BadInput("--launcher runs elsewhere: say what to run there, such as --preset card")
        from gpuworkshop.machine import gpus

        return "card" if gpus.there_is_one() else without_card


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
    fused
        Let the optimizer update all weights in a few kernels.
    compiled
        Make one kernel of many with torch.compile.
    checkpointing
        Compute activations again in the backward pass instead of keeping them.
    reads_loss
        What the host reads in each step, and waits for.
    transform
        Where pre-decoded pictures are cropped.
    calls
        Whether the model is called for a batch at once, or for each sample.
    """

    data_path: DataPath | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: Switch = False
    persistent_workers: Switch = False
    batch_size: int | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat | None = None
    fused: Switch = False
    compiled: Switch = False
    checkpointing: Switch = False
    reads_loss: ReadsLoss | None = None
    transform: Transform | None = None
    calls: Calls | None = None

    def config(self, job: "Job") -> "TrainConfig":
        """The naive start of `job` with these settings; BadInput where they do not go together."""
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        with bad_input():
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
    return show(instrument, result, where.as_json)


@app.command
def profile(
    trace: str | None = None,
    /,
    *,
    steps: Annotated[int | None, Parameter(show_default=False)] = None,
    keep: Annotated[str | None, Parameter(show_default=False)] = None,
    settings: Settings = Settings(),
    where: Where = Where(),
) -> int:
    """Where does the time of 20 steps go? On the card, on the host, in copies, in gaps.

    Parameters
    ----------
    trace
        A trace file of PyTorch's profiler, from any job: read it instead of profiling.
    steps
        Steps to profile. Not given: 20, or fewer of a job whose step makes thousands of calls.
    keep
        Where to keep the trace, gzipped. Not given: in your state folder, where the newest five stay.
    """
    from gpuworkshop.instruments import profile as instrument

    if trace is not None:
        with bad_input():
            result = instrument.read(trace)
    else:
        job = where.job()
        config, how = settings.config(job), where.how("profile")
        with bad_input(kind=instrument.CannotProfile):
            result = instrument.run(config, job, steps=steps, trace_file=keep, **how)
    return show(instrument, result, where.as_json)
