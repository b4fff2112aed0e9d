"""Do you have the GPU? Five checks, each with its cause and its exact fix, before any other number is believed.

What the driver says comes at once, from NVML; what PyTorch says comes from a child process with a time limit for each
step. The calling process never wakes CUDA: a kernel in which this ran holds no card and can still fork.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from gpuworkshop import child
from gpuworkshop.child import ChildFailed, Progress
from gpuworkshop.cluster import site
from gpuworkshop.instruments import verify_first
from gpuworkshop.instruments.verify_child import Answer, Asked
from gpuworkshop.instruments.verify_findings import findings, report
from gpuworkshop.instruments.verify_first import First
from gpuworkshop.instruments.verify_result import Caller, Expected, Place, Stopped, VerifyResult, expected
from gpuworkshop.machine import disk, frontend, interpreter
from gpuworkshop.machine.conditions import host
from gpuworkshop.machine.nvml import Nvml
from gpuworkshop.report import Origin, Report, measured_here

__all__ = ["VerifyResult", "findings", "report", "run"]

STEP_SECONDS = 60.0
"""How long a step may take before the driver is said not to answer."""
IMPORT_SECONDS = 180.0
"""The same for `import torch`, which on a cold file system is slow and still comes."""
BINDINGS = ("nvidia-ml-py", "nvidia-ml-py3", "pynvml")


def run(
    expect: str | Expected = "",
    launcher: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    first: Callable[[Report], None] | None = None,
    *,
    step_seconds: float = STEP_SECONDS,
) -> VerifyResult:
    """Check the GPU of this job, here or behind ``launcher`` (``("srun", "--gres=gpu:1")``).

    ``expect``: the card that was asked for, such as "b200"; ValueError for one that nobody knows. ``first`` is called
    with the driver's part as soon as it is there. Raises ChildFailed when a launcher brings no answer at all.
    """
    wanted = card_called(expect) if isinstance(expect, str) else expect
    asking = _Asking(wanted, tuple(launcher), first, progress, step_seconds)
    return asking.run()


class _Asking:
    """One run: the child's answers as they come, and what is asked here while it starts."""

    def __init__(
        self,
        wanted: Expected | None,
        launcher: tuple[str, ...],
        first: Callable[[Report], None] | None,
        progress: Callable[[Progress], None] | None,
        step_seconds: float,
    ):
        self._wanted, self._launcher = wanted, launcher
        self._say, self._show = first, progress
        self._limit = step_seconds
        self._deadline = child.Deadline(None if launcher else IMPORT_SECONDS)
        self._answer = Answer()
        self._step, self._since = "", time.monotonic()
        self._nvml: Nvml | None = None
        self._disk: disk.Asking | None = None
        self._place = Place()
        self._caller = Caller(interpreter.here())

    def run(self) -> VerifyResult:
        """Ask, and put the answers together."""
        stopped = self._ask()
        answer, first = self._answer, self._answer.first
        if self._nvml is not None:
            if answer.torch.seen:
                first = verify_first.joined(self._nvml, first, answer.torch.seen)
            self._nvml.close()
        return self._result(first, stopped=stopped, disk=self._disk.answer())

    def _ask(self) -> Stopped | None:
        """Run the child to its end; why it ended early, if it did."""
        try:
            child.run(
                "gpuworkshop.instruments.verify_child:in_child",
                Asked(first=bool(self._launcher)),
                type=Answer,
                launcher=self._launcher,
                progress=self._heard,
                record=self._learned,
                timeout=self._deadline,
                meanwhile=None if self._launcher else self._here,
            )
        except ChildFailed as error:
            if self._answer.first is None:  # the launcher's own failure
                raise
            waited = time.monotonic() - self._since
            words = "no answer" if self._deadline.passed else str(error)
            return Stopped(self._step or "import torch", self._deadline.passed, words, waited)
        return None

    def _here(self) -> None:
        """What is asked in this process while the child imports PyTorch."""
        self._nvml = verify_first.open_driver()
        self._learn_first(verify_first.look(self._nvml))

    def _learn_first(self, found: First) -> None:
        """Say what the driver said, then ask what takes longer and nobody waits for."""
        self._answer = msgspec.structs.replace(self._answer, first=found)
        if self._say is not None:
            self._say(report(self._result(found, partial=True)))
        self._disk, self._caller, self._place = disk.Asking(), caller(), place()

    def _learned(self, record: msgspec.Raw) -> None:
        answer = msgspec.json.decode(record, type=Answer)
        if answer.first is not None and self._answer.first is None:
            self._learn_first(answer.first)
        first = answer.first or self._answer.first
        self._answer = Answer(answer.torch, first)

    def _heard(self, told: Progress) -> None:
        """A step begins: its time is limited from here on."""
        if told.text:
            self._step, self._since = told.text, time.monotonic()
            self._deadline.move(IMPORT_SECONDS if told.text == "import torch" else self._limit)
        if self._show is not None:
            self._show(told)

    def _result(self, first: First, **more: Any) -> VerifyResult:
        return VerifyResult(
            first=first,
            torch=self._answer.torch,
            caller=self._caller,
            place=self._place,
            origin=origin(first),
            expect=self._wanted,
            launcher=self._launcher,
            **more,
        )


def caller() -> Caller:
    """The present process. If it has woken CUDA itself, it is asked how many cards it sees; it is never woken here."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    awake = cuda.device_count() if cuda is not None and cuda.is_initialized() else None
    return Caller(interpreter.here(), frontend.look(), _bindings(), awake)


def _bindings() -> dict[str, str]:
    """Installed packages that bring, or claim to bring, the module pynvml."""
    from importlib import metadata

    found = {}
    for name in BINDINGS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def place() -> Place:
    """What the site file of this cluster says that matters here."""
    try:
        here = site.load()
    except site.SiteError as error:
        return Place(problem=str(error))
    return Place(here.name, here.source_of(here.idle), here.help, here.idle, here.interactive())


def card_called(name: str) -> Expected | None:
    """The kind of card that somebody means by this name; None for "". ValueError lists those that are known."""
    return expected(name, _families()) if name else None


def _families() -> Iterator[tuple[str, str, str]]:
    """The kinds of cards of every site that the kit knows, the chosen one's first."""
    chosen = os.environ.get(site.VARIABLE)
    for name in dict.fromkeys(filter(None, (chosen, *site.shipped()))):
        here = site.load(name)
        yield from ((here.name, family.name, family.card) for family in here.families)


def origin(first: First) -> Origin:
    """The mark of a result: the card, or the CPU where there is none."""
    kinds = dict.fromkeys(card.name for card in first.cards.mine)
    return measured_here(", ".join(kinds) or host(first.cpus))
