"""A chapter from its first cell to its last: progress bars, whether an effect shows here, cost, release.

A card that is held is held from the first cell on, also while somebody reads. So a :class:`Lesson` counts
both: the time since it began, and the part of it in which something was measured.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gpuworkshop.child import Bar, Progress
from gpuworkshop.course.faces import Note
from gpuworkshop.instruments.scaling_result import ScalingResult
from gpuworkshop.instruments.starve import StarveResult
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.machine import gpus
from gpuworkshop.machine.conditions import Conditions, conditions, host
from gpuworkshop.report import Finding, Report, measured_here
from gpuworkshop.timing import Comparison

MIB = 2**20
PLANTED = (
    "The variant that shows it: run `job = Job(job.preset, storage_wait_ms=4)` in a new cell, then measure again. "
    "Every file read then really waits 4 ms, as on slow storage, and the report names it planted."
)


class Measured(Protocol):
    """A result that says where it was measured."""

    @property
    def conditions(self) -> Conditions: ...


class Lesson:
    """One run through a chapter. ``now`` gives seconds and can be replaced."""

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._began = now()
        self._measuring = 0.0

    @contextmanager
    def bar(self, title: str) -> Iterator[Callable[[Progress | float], None]]:
        """Count the block as measuring, and show how far it is while it runs.

        Gives the callable for ``progress=``; it takes a child's Progress or a share from 0 to 1. Where the
        bar stood there is in the end how long it took. Nothing is shown if it was never called. It goes to
        stdout: what goes to stderr gets a red ground in JupyterLab.
        """
        began, drawn = self._now(), Bar(title, sys.stdout)
        try:
            with self.measuring():
                yield lambda seen: drawn(seen if isinstance(seen, Progress) else Progress(seen))
        finally:
            if drawn.close():
                print(f"{title}: {self._now() - began:.0f} s")

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the block as measuring; :meth:`bar` does so by itself."""
        began = self._now()
        try:
            yield
        finally:
            self._measuring += self._now() - began

    def cost(self, seen: Measured | None = None, launcher: Sequence[str] = ()) -> Report:
        """What the chapter has cost until now, and what ``seen`` says of the time that its run takes.

        ``seen`` says on which device the chapter measured; without it, it is what PyTorch takes by default (imports
        torch). Behind a ``launcher`` a card is held only while something is measured.
        """
        where = seen.conditions if seen else conditions(gpus.default_device())
        card = where.device != "cpu"
        cards = seen.ranks if isinstance(seen, ScalingResult) else 1
        units = cards if card else where.cpus
        measured = self._measuring / 60 * units
        held = measured if launcher else (self._now() - self._began) / 60 * units
        found = [*(_card_cost(held, measured) if card else _cpu_cost(where, held, measured))]
        if isinstance(seen, StarveResult):
            found.append(_naive(seen))
        if isinstance(seen, WatchResult) and seen.busy is not None:
            found.append(_unused(seen.busy))
        if isinstance(seen, ScalingResult) and seen.ranks > 1:
            found.append(_lost(seen))
        return Report("What this chapter cost", where.origin, tuple(found))


def begin() -> Lesson:
    """Begin a chapter: its clock starts."""
    return Lesson()


def _card_cost(held: float, measured: float) -> Iterator[Finding]:
    """``held`` and ``measured`` are card-minutes."""
    idle = max(0.0, held - measured)
    share = idle / held if held else 0.0
    reading = f"{share:.0%} of the time nothing was measured; what the measured runs waited comes on top"
    yield Finding("notice", f"Used: {held:.1f} card-minutes, {measured:.1f} of them for measuring")
    yield Finding("notice", f"Wasted: {idle:.1f} card-minutes or more", reading)


def _cpu_cost(where: Conditions, held: float, measured: float) -> Iterator[Finding]:
    """``held`` and ``measured`` are CPU-minutes."""
    cpus = f"{where.cpus} CPUs since the first cell"
    yield Finding("notice", f"Used: {held:.1f} CPU-minutes, {measured:.1f} of them for measuring", cpus)
    yield Finding("ok", "Wasted: no card-minutes", "no card was held; one would have been idle while you read")


def _naive(seen: StarveResult) -> Finding:
    title = f"At the naive start {seen.wait_share:.0%} of the time is {seen.wait_name}"
    return Finding("notice", title, f"of an hour of that run {60 * seen.wait_share:.0f} minutes are lost")


def _unused(busy: float) -> Finding:
    title = f"In the watched run the card was busy {busy:.0%} of the time"
    return Finding("notice", title, f"of an hour of that run {60 * (1 - busy):.0f} card-minutes are wasted")


def _lost(seen: ScalingResult) -> Finding:
    found = seen.world("weak").efficiency
    lost, least, most = (max(0.0, 1 - share / 100) for share in (found.value, found.high, found.low))
    title = f"{seen.ranks} ranks together lose {lost:.0%} of what each does alone ({least:.0%} to {most:.0%})"
    of = "card" if seen.conditions.device != "cpu" else "core"
    return Finding("notice", title, f"of an hour {60 * seen.ranks * lost:.0f} {of}-minutes buy nothing")


def effect(what: str, comparison: Comparison | None, instead: str = PLANTED) -> Note:
    """Whether this machine shows ``what`` the lesson needs, and if not, what shows it ``instead``.

    ``comparison`` is the measured one, None if nothing came out better.
    """
    if comparison and comparison.verdict == "faster":
        return Note(f"This machine shows it: {what}", "right", text=(f"Measured, {comparison}.",))
    seen = f"Measured, {comparison}." if comparison else "Nothing that was measured did better."
    return Note(f"This machine does not show it: {what}", "hint", text=(seen, instead))


def free_card() -> Report:
    """Give back what this kernel holds of its card, and show what is left. Imports torch."""
    import torch

    if not torch.cuda.is_available():
        none = Finding("ok", "There is no card in this session, so none is held")
        return Report("The card", measured_here(host()), (none,))
    gc.collect()
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()  # what matrix products keep for themselves counts as tensors
    torch.cuda.empty_cache()
    return Report("The card", measured_here(torch.cuda.get_device_name()), (_held(), _still_yours()))


def _held() -> Finding:
    """What this kernel holds, by PyTorch's allocator, and what is in use on the whole card, by CUDA."""
    import torch

    if not torch.cuda.is_initialized():
        return Finding("ok", "Free: this kernel holds nothing of the card")
    allocated, reserved = torch.cuda.memory_allocated() / MIB, torch.cuda.memory_reserved() / MIB
    free, total = (size / MIB for size in torch.cuda.mem_get_info())
    evidence = (
        f"{allocated:.0f} MiB in tensors, {reserved:.0f} MiB kept for new ones; on the whole card "
        f"{total - free:,.0f} of {total:,.0f} MiB are in use, this kernel's CUDA context among them"
    )
    if allocated:
        again = "del NAME  # each name that holds tensors on the card; then run this cell again"
        return Finding("warning", "Tensors of this kernel are still on the card", evidence, again)
    return Finding("ok", "Free: no tensor of this kernel is on the card", evidence)


def _still_yours() -> Finding:
    return Finding(
        "notice",
        "The card stays yours until the job ends, idle or not",
        "shutting down the kernel gives back its context too; only the end of the job gives back the card",
        "scancel $SLURM_JOB_ID   # in a terminal of this session, when you are done",
    )
