"""What do more cards bring? One rank alone, worlds of several, and the same without their all-reduce, in turn.

- *weak scaling*: every rank has the whole batch, so more ranks do more work in the same time.
- *strong scaling*: the ranks share the batch, so more ranks do the same work in less time.
- *efficiency* = throughput / (ranks x that of one rank alone).
- *floor*: the same ranks and the same wrapper, but no all-reduce (``no_sync``). What a step takes above it is
  communication that nothing hides.

torchrun starts the ranks as a child: NCCL between cards, gloo between CPUs, one thread in each rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuworkshop import child
from gpuworkshop.child import ChildFailed, Deadline, Progress
from gpuworkshop.instruments.scaling_faults import explained
from gpuworkshop.instruments.scaling_findings import findings, report
from gpuworkshop.instruments.scaling_plan import Request, refused_before
from gpuworkshop.instruments.scaling_result import ScalingResult, World, efficiency_by_hand
from gpuworkshop.machine import gpus
from gpuworkshop.machine.allocation import cpus
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job, TrainConfig

__all__ = ["ScalingResult", "World", "efficiency_by_hand", "findings", "launch", "report", "run", "torchrun"]

PATIENCE = 300.0
"""Seconds without a sign of life after which the ranks are ended; the first run may have to write its pictures."""

MOST_RANKS = 1024
LATEST = 10_000
"""Milliseconds that a planted straggler may wait in a step."""


def run(
    config: TrainConfig | None = None,
    job: Job | None = None,
    ranks: int = 2,
    launcher: Sequence[str] = (),
    *,
    progress: Callable[[Progress], None] | None = None,
    straggler_ms: float = 0.0,
    plan: Plan | None = None,
    only_weak: bool = False,
    patience: float = PATIENCE,
) -> ScalingResult:
    """Measure how a built-in workload scales to ``ranks`` on this node, or on the one behind ``launcher``.

    ``straggler_ms`` plants a real wait in each step of the last rank. Raises :class:`ChildFailed` with one line when a
    rank fails, dies, or says nothing for ``patience`` seconds, and for more ranks than the cards allow.
    """
    job = job or Job()
    check_ranks(ranks, launcher)
    if isinstance(straggler_ms, bool) or not isinstance(straggler_ms, int | float) or not 0 <= straggler_ms <= LATEST:
        raise ChildFailed(f"straggler_ms is {straggler_ms!r:.40}: between 0 and {LATEST}", bad_input=True)
    asked = Request(config or job.sizes.start, job, ranks, straggler_ms, plan, only_weak)
    target = "gpuworkshop.instruments.scaling_rank:in_rank"
    return launch(target, asked, ranks, type=ScalingResult, launcher=launcher, progress=progress, patience=patience)


def check_ranks(ranks: Any, launcher: Sequence[str]) -> None:
    """ChildFailed for what is no number of ranks, and for more than the cards or CPUs here allow.

    Behind a launcher nothing is known before it runs; there the ranks themselves look.
    """
    if why := _no_count(ranks):
        raise ChildFailed(why, bad_input=True)
    if not launcher and ranks > 1 and (why := refused_before(ranks, gpus.cards(), cpus().count)):
        raise ChildFailed(why, bad_input=True)


def launch(
    target: str,
    request: Any,
    ranks: int,
    *,
    type: type,
    launcher: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    patience: float = PATIENCE,
) -> Any:
    """Call ``target`` in every rank of a world and return what rank 0 returns.

    The ranks hear when this process ends, however it does, and end with it. An error of the first failing rank comes
    out as one line; PyTorch's words are in the log of the :class:`ChildFailed`.
    """
    if not isinstance(target, str):
        why = "a function of a notebook cannot be imported by another process: write it to a file, and run that file"
        raise ChildFailed(why, bad_input=True)
    if not launcher and (why := no_torchrun()):
        raise ChildFailed(why, bad_input=True)
    deadline = Deadline(patience)

    def hear(said: Progress) -> None:
        deadline.move(patience)
        if progress is not None:
            progress(said)

    front = (*launcher, *unset_defaults(), *torchrun(ranks))
    try:
        return child.run(target, request, type=type, launcher=front, progress=hear, timeout=deadline, as_argument=True)
    except ChildFailed as failed:
        raise explained(failed, patience) from None


def torchrun(ranks: int, python: str = sys.executable) -> tuple[str, ...]:
    """The words of torchrun that start any command as ``ranks`` ranks on this node.

    It finds a free port and a name for this rendezvous by itself, speaks over loopback, and never starts again.
    """
    words = ("--standalone", "--local-addr=127.0.0.1", "--max-restarts=0", f"--nproc-per-node={ranks}", "--no-python")
    return (python, "-m", "torch.distributed.run", *words)


def unset_defaults(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Words that take every PET_... away: torchrun reads its options from them, such as the nodes of another job."""
    names = sorted(name for name in env if name.startswith("PET_") and "=" not in name)
    return ("env", *(word for name in names for word in ("-u", name))) if names else ()


def no_torchrun() -> str:
    """Why torchrun cannot be started from this Python; "" if it can. Imports nothing."""
    found = find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return "PyTorch is not installed for this Python: several ranks need it"
    if not any((Path(place) / "distributed" / "run.py").exists() for place in found.submodule_search_locations):
        return "this PyTorch comes without torchrun (torch.distributed.run): install a usual build"
    return ""


def _no_count(ranks: Any) -> str:
    """Why something is no number of ranks; "" if it is one."""
    if not isinstance(ranks, int) or isinstance(ranks, bool):
        return f"ranks is {ranks!r:.40}: a whole number"
    return "" if 1 <= ranks <= MOST_RANKS else f"ranks is {ranks}: between 1 and {MOST_RANKS}"
