"""What PyTorch answers, asked step by step in a child process: the calling process never wakes CUDA and can still fork.

Before a step its name is told, after it everything known so far: when a step does not come back, or takes the process
with it, the caller knows which one it was and keeps the rest. No package but torch is imported here.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.machine import gpus
from gpuworkshop.machine.gpus import Seen
from gpuworkshop.report import clean

StepName = Literal["import torch", "is_available", "device list", "allocation", "round trip", "BF16 product"]
STEPS: tuple[StepName, ...] = get_args(StepName)
ELEMENTS = 1 << 16
"""32-bit patterns that make the round trip, each another."""
SIDE = 64
"""Rows and columns of the product: its sums of -1, 0 and 1 are whole numbers that BF16 holds exactly."""
_ADVICE = (
    " CUDA kernel errors might be",
    " For debugging consider",
    " Compile with `TORCH_USE_CUDA_DSA`",
    ", please report a bug",
    " please report a bug",
)
BF16_FROM = 8
"""First compute capability with BF16 tensor cores; older cards do without the product."""


class Fault(msgspec.Struct, frozen=True):
    """A step that raised: its name, the type of the exception, its words in one line."""

    step: StepName
    kind: str
    words: str
    missing: str = ""
    """The module that could not be found, for a failed import."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}" if self.words else self.kind


class Build(msgspec.Struct, frozen=True):
    """What this PyTorch was built with. ``cuda`` and ``hip`` are versions such as "13.0"; None: not in this build."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    kernels: tuple[str, ...] = ()
    """What it has kernels for, such as sm_90; compute_90 is code that the driver can compile for later cards."""
    place: str = ""
    mps: bool = False
    """Whether an Apple GPU can be used."""


class Trip(msgspec.Struct, frozen=True):
    """What happened when one card was used. None: not tried, or not possible on such a card."""

    cuda: int
    same: bool | None = None
    """Whether a tensor came back from the card bit for bit."""
    bf16: bool | None = None
    """Whether a BF16 matrix product on the card equals the one on the CPU."""
    fault: Fault | None = None


class TorchSays(msgspec.Struct, frozen=True):
    """All that PyTorch has answered so far."""

    build: Build | None = None
    available: bool | None = None
    why_not: str = ""
    """The first warning or error about CUDA in PyTorch's own words, one line."""
    seen: tuple[Seen, ...] = ()
    trips: tuple[Trip, ...] = ()
    fault: Fault | None = None
    """What a step before the trips raised."""
    seconds: dict[str, float] = {}
    """How long each step took; of the trips all cards together."""


class Probe:
    """The steps, and what is known after each of them."""

    def __init__(self, tell: Tell):
        self.says = TorchSays()
        self._tell = tell

    def run(self) -> TorchSays:
        """Take every step that makes sense after the one before it."""
        torch = self._ask("import torch", _import)
        if torch is not None:
            self._learn(build=_build(torch))
            self._ask("is_available", lambda: self._available(torch))
        if self.says.available:
            self._learn(seen=self._ask("device list", gpus.seen_by_torch) or ())
            for device in self.says.seen:
                self._visit(torch, device)
        return self.says

    def _available(self, torch: Any) -> None:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            available = bool(torch.cuda.is_available())
        words = next((_line(str(one.message)) for one in heard if "cuda" in str(one.message).lower()), "")
        if not available and not words and (self.says.build.cuda or self.says.build.hip):
            words = _why_not(torch)
        self._learn(available=available, why_not=words)

    def _visit(self, torch: Any, device: Seen) -> None:
        """Use one card: allocate, send a tensor there and back, multiply."""
        before, name = self.says.trips, f"cuda:{device.cuda}"
        trip = Trip(device.cuda)
        steps: list[tuple[StepName, str, Callable]] = [
            ("allocation", "", _allocate),
            ("round trip", "same", _round_trip),
        ]
        if (device.capability or (BF16_FROM,))[0] >= BF16_FROM:
            steps.append(("BF16 product", "bf16", _product))
        for step, learned, act in steps:
            self._learn(trips=(*before, trip))
            answer, fault = self._step(step, lambda act=act: act(torch, name), f"{step} on {name}")
            trip = msgspec.structs.replace(
                trip, **({"fault": fault} if fault else {learned: answer} if learned else {})
            )
            if fault:
                break
        self._learn(trips=(*before, trip))

    def _ask(self, name: StepName, act: Callable[[], Any]) -> Any:
        """One step before the cards; its fault is PyTorch's."""
        answer, fault = self._step(name, act, name)
        if fault:
            self._learn(fault=fault)
        return answer

    def _step(self, name: StepName, act: Callable[[], Any], said: str) -> tuple[Any, Fault | None]:
        """Tell the step, take it and keep its time: its answer, or its fault."""
        self._tell.progress(STEPS.index(name) / len(STEPS), said)
        start = time.perf_counter()
        try:
            return act(), None
        except Exception as error:
            missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
            return None, Fault(name, type(error).__name__, _line(str(error)), missing)
        finally:
            taken = self.says.seconds.get(name, 0.0) + time.perf_counter() - start
            self._learn(seconds={**self.says.seconds, name: taken})

    def _learn(self, **facts: Any) -> None:
        self.says = msgspec.structs.replace(self.says, **facts)
        self._tell.record(self.says)


def _import() -> Any:
    import torch

    return torch


def _build(torch: Any) -> Build:
    def ask(question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except Exception:  # builds of other makers lack one or the other
            return otherwise

    version = getattr(torch, "version", None)
    return Build(
        version=clean(str(getattr(torch, "__version__", ""))),
        cuda=getattr(version, "cuda", None) or None,
        hip=getattr(version, "hip", None) or None,
        kernels=tuple(ask(lambda: torch.cuda.get_arch_list(), ())),
        place=clean(str(getattr(torch, "__file__", "") or "")),
        mps=bool(ask(lambda: torch.backends.mps.is_available(), False)),
    )


def _why_not(torch: Any) -> str:
    """Why CUDA does not start, in PyTorch's words: is_available() alone is silent."""
    try:
        torch.cuda.init()
    except Exception as error:
        return _line(str(error))
    return ""


def _allocate(torch: Any, device: str) -> None:
    torch.ones(1, device=device)
    torch.cuda.synchronize(device)  # an error of the card shows here, not later


def _round_trip(torch: Any, device: str) -> bool:
    """Whether 2**16 different 32-bit patterns come back as they went."""
    sent = torch.arange(ELEMENTS, dtype=torch.int64).mul(2654435761).remainder(2**32).sub(2**31).to(torch.int32)
    return bool(torch.equal(sent.to(device).cpu(), sent))


def _product(torch: Any, device: str) -> bool:
    """Whether a product of whole numbers in BF16 is the same on the card and on the CPU, to the last bit."""
    numbers = torch.arange(SIDE * SIDE, dtype=torch.float32)
    left = numbers.mul(7).remainder(11).remainder(3).sub(1).reshape(SIDE, SIDE)
    right = numbers.mul(5).remainder(13).remainder(3).sub(1).reshape(SIDE, SIDE)
    there = left.to(device).to(torch.bfloat16) @ right.to(device).to(torch.bfloat16)
    return bool(torch.equal(there.cpu().to(torch.float32), left @ right))


def _line(text: str) -> str:
    """An error's first words, without the advice that follows them: it is for who debugs CUDA or PyTorch."""
    words = " ".join(clean(text).split())
    for end in _ADVICE:
        words = words.partition(end)[0]
    return words[:600]
