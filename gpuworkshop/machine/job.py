"""What Slurm says of this job, from its variables. Each may be missing or odd; then it is not known, and no error."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuworkshop.machine.allocation import whole

_ONDEMAND = re.compile(r"(^|/)sys/dashboard(/|$)|^ondemand(/|$)|/batch_connect/")


class Job(msgspec.Struct, frozen=True):
    """One Slurm job, as its variables tell; "" or None for what they do not."""

    id: str
    name: str = ""
    partition: str = ""
    nodes: str = ""
    """As Slurm writes them, such as n[01-04]."""
    node_count: int | None = None
    this_node: str = ""
    gpus_asked: str = ""
    """What was asked for where Slurm repeats it, such as "b200:2 per node". A job that used --gres leaves no trace."""
    gpus_on_node: int | None = None
    """How many GPUs the job has on this node."""
    gpu_numbers: str = ""
    """Their numbers on the node, as Slurm counts them. Not CUDA's: in a cgroup a job's cards begin with 0 again."""
    cpus_per_task: int | None = None
    cpus_on_node: int | None = None
    tasks: int | None = None
    ends: float | None = None
    """When its time is over, in seconds of the system's clock."""
    kind: Literal["batch", "interactive", "OnDemand", "unknown"] = "unknown"


def job(env: Mapping[str, str] = os.environ) -> Job | None:
    """The job that this process runs in; None outside of one."""
    number = whole(env, "SLURM_JOB_ID") or whole(env, "SLURM_JOBID")
    if number is None:
        return None
    return Job(
        id=_array(env) or str(number),
        name=_text(env, "SLURM_JOB_NAME"),
        partition=_text(env, "SLURM_JOB_PARTITION"),
        nodes=_text(env, "SLURM_JOB_NODELIST") or _text(env, "SLURM_NODELIST"),
        node_count=whole(env, "SLURM_JOB_NUM_NODES") or whole(env, "SLURM_NNODES"),
        this_node=_text(env, "SLURMD_NODENAME"),
        gpus_asked=_asked(env),
        gpus_on_node=whole(env, "SLURM_GPUS_ON_NODE"),
        gpu_numbers=_text(env, "SLURM_STEP_GPUS") or _text(env, "SLURM_JOB_GPUS"),
        cpus_per_task=whole(env, "SLURM_CPUS_PER_TASK"),
        cpus_on_node=whole(env, "SLURM_CPUS_ON_NODE"),
        tasks=whole(env, "SLURM_NTASKS"),
        ends=whole(env, "SLURM_JOB_END_TIME"),
        kind=_kind(env),
    )


def _text(env: Mapping[str, str], name: str) -> str:
    """One line of printable text."""
    return "".join(letter for letter in env.get(name, "").strip() if letter.isprintable())[:500]


def _array(env: Mapping[str, str]) -> str:
    """The name that people use for a task of an array, such as 61000001_7."""
    first, task = whole(env, "SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID", "")
    return f"{first}_{task}" if first and task.isascii() and task.isdecimal() else ""


def _asked(env: Mapping[str, str]) -> str:
    asked = {"SLURM_GPUS": "", "SLURM_GPUS_PER_NODE": " per node", "SLURM_GPUS_PER_TASK": " per task"}
    return ", ".join(_text(env, name) + each for name, each in asked.items() if _text(env, name))


def _kind(env: Mapping[str, str]) -> Literal["batch", "interactive", "OnDemand", "unknown"]:
    """How it was started. A session of Open OnDemand is a batch job too, and is known by its name."""
    if _ONDEMAND.search(_text(env, "SLURM_JOB_NAME")):
        return "OnDemand"
    if env.get("ENVIRONMENT") == "BATCH":
        return "batch"
    if env.get("SLURM_PTY_PORT") or env.get("SLURM_JOB_NAME") in ("interactive", "bash"):
        return "interactive"
    return "unknown"
