"""What a step computes: its floating-point operations, how fast a run does them, and how fast the device could.

Counted are matrix products and convolutions, two operations for each multiplication with its addition, as they are
written and not as a kernel skips them (a causal attention counts in full). One step runs eagerly and is looked at
operator by operator: what it counted, in which format, what was computed again for the backward pass, and which
operators multiply without a known formula. A kernel that is launched past PyTorch's operators is not seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpuworkshop.timing import Clock, Plan, Rate, Rounds, clock_for, in_turn

if TYPE_CHECKING:  # the results are read without torch
    from gpuworkshop.workloads.train import Training

Format = Literal["fp32", "tf32", "bf16", "fp16"]
UNCOUNTED = 0.10
"""Largest share of uncounted operators with which a share of the peak is told."""

SIDE = {"cpu": 512, "card": 8192}
"""Rows of the square matrices of the measured product; on a card far beyond its caches."""

FLOP_RATE = "FLOP/s"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))

OPERATORS = Path(__file__).with_suffix(".toml")
"""Operators of PyTorch that multiply and have no formula, and families of operators that never do."""


class Flops(msgspec.Struct, frozen=True):
    """The floating-point operations of one step of ``samples`` samples."""

    total: int
    """Without what is computed again, so that a change that recomputes does not look like more work done."""
    samples: int
    recomputed: int = 0
    """Computed a second time in the backward pass: activation checkpointing."""
    by_operator: dict[str, int] = {}
    """Of ``total`` and ``recomputed`` together."""
    by_format: dict[str, int] = {}
    """The same by the type of the operator's result, such as "bfloat16": what autocast really did."""
    uncounted: tuple[str, ...] = ()
    """Operators that multiply, and have no formula."""
    uncounted_share: float = 0.0
    """Of the time of all operators that multiply, 0 to 1."""

    @property
    def per_sample(self) -> float:
        """FLOP a sample."""
        return self.total / self.samples

    @property
    def whole(self) -> bool:
        """Whether enough was counted to tell a share of a peak."""
        return self.total > 0 and self.uncounted_share <= UNCOUNTED

    @property
    def again(self) -> float:
        """What is computed again, as a share of ``total``."""
        return self.recomputed / self.total if self.total else 0.0

    def share(self, format: str) -> float:
        """The share of all counted operations with results of this type, 0 to 1."""
        return self.by_format.get(format, 0) / max(1, sum(self.by_format.values()))


class Peak(msgspec.Struct, frozen=True):
    """The dense peak of a device in one format, FLOP/s, and who says so; None with ``says`` why there is none."""

    value: float | None
    says: str


class Achieved(msgspec.Struct, frozen=True):
    """How fast a run computes: FLOP/s with interval, and that as shares of what could be, None where not known."""

    rate: Rate | None
    """None when nothing was counted."""
    of_product: float | None = None
    """Of a large matrix product, measured on the same device in the same format."""
    of_peak: float | None = None
    """Of the published peak in the same format: the model FLOPs utilization, MFU."""
    why: str = ""
    """Why there is no ``of_peak``."""


def count(training: Training) -> Flops:
    """The FLOP of one step of a built-in training run, on a random batch; the step is done. Imports torch."""
    x, y = training.task.random_batch()
    return count_step(lambda: training.step(x, y), len(y), training.device)


def count_step(step: Callable[[], Any], samples: int, device: str) -> Flops:
    """The FLOP of one call of ``step``, which is done eagerly, also where it was compiled. Imports torch."""
    import torch

    from gpuworkshop.instruments.flops_counter import Looking, counter

    clock = clock_for(device)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings(
            "ignore", "Using `torch.compile", UserWarning
        )  # the counter's hooks on a compiled model
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        counted = stack.enter_context(counter())
        looking = stack.enter_context(Looking(counted, clock))
        step()
    clock.finish()
    return looking.flops(samples)


def matrix_product(device: str, format: Format, seconds: float = 1.0) -> Rate:
    """The FLOP/s of a large square product of random matrices in about ``seconds``, with interval. Imports torch.

    Random numbers, because zeros need less power and so keep a card's clock higher. Raises torch.OutOfMemoryError.
    """
    return matrix_products(device, (format,), seconds).rate(format)


def matrix_products(device: str, formats: Sequence[Format], seconds: float = 1.0) -> Rounds:
    """The same for several formats in turn, about ``seconds`` each; their names are the arms'."""
    from gpuworkshop.workloads import tf32

    plan = Plan(block_seconds=seconds / 10, budget_seconds=seconds, max_warm_up_blocks=4)
    with tf32.kept():
        return in_turn([Product(device, one) for one in formats], clock_for(device), plan, unit=FLOP_RATE)


class Product:
    """A large matrix product as an arm; its "samples" are floating-point operations."""

    period = 1

    def __init__(self, device: str, format: Format):
        import torch

        self.name = format
        self._side = SIDE["cpu" if device == "cpu" else "card"]
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(format, torch.float32)
        self._a, self._b = (torch.randn(self._side, self._side, device=device).to(kind) for _ in range(2))

    def resume(self) -> None:
        """Before each block: the format's switches."""
        from gpuworkshop.workloads import tf32

        tf32.allow(self.name == "tf32")

    def pause(self) -> None:
        """Nothing runs between blocks."""

    def step(self, clock: Clock) -> int:
        """One product; its floating-point operations."""
        self._a.mm(self._b)
        return 2 * self._side**3


def peak(device: str, format: Format) -> Peak:
    """What the card here can do at most in a format, by its entry in the table. Imports torch."""
    from gpuworkshop.machine import gpus, rated
    from gpuworkshop.machine.nvml import in_time

    card = gpus.card(device)
    if card is None:
        return Peak(None, "a CPU has no published peak here")
    seen = next((one for one in gpus.seen_by_torch() if one.cuda == card.cuda), None)
    with in_time() as nvml:
        found = rated.rated(nvml, card, seen)
    if found.peak is None:
        return Peak(None, found.why or f"this card contradicts its entry: {found.disagreements[0]}")
    most = getattr(found.peak.peaks, format)
    if most is None:
        return Peak(None, f"{found.peak.title} has no {format.upper()} units")
    return Peak(most * 1e12, found.peak.title)


def achieved(flops: Flops, rate: Rate, product: Rate | None = None, peak: Peak | None = None) -> Achieved:
    """FLOP/s of a run that does ``rate`` samples/s, held against a measured product and a published peak."""
    if not flops.total:
        return Achieved(None, why="nothing could be counted")
    each = flops.per_sample
    done = Rate(rate.value * each, rate.low * each, rate.high * each, rate.n, FLOP_RATE)
    if not flops.whole:
        names = ", ".join(flops.uncounted[:3])
        return Achieved(done, why=f"{flops.uncounted_share:.0%} of the multiplying time is not counted: {names}")
    of_product = done.value / product.value if product else None
    if peak is None or peak.value is None:
        return Achieved(done, of_product, why=peak.says if peak else "the peak was not asked for")
    return Achieved(done, of_product, done.value / peak.value)


def speed(rate: Rate | None) -> str:
    """A rate in FLOP/s with its spread, with the prefix that suits it: "114 TFLOP/s ±1%"; "n/a" for None."""
    if rate is None:
        return "n/a"
    size, prefix = next(((n, p) for n, p in _PREFIXES if rate.value >= n), _PREFIXES[-1])
    return str(Rate(rate.value / size, rate.low / size, rate.high / size, rate.n, f"{prefix}FLOP/s"))
