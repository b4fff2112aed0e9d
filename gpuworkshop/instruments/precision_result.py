"""What precision compares and what it found: facts only. What they mean is said by :mod:`.precision_findings`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpuworkshop.instruments.flops import Achieved, Flops, Format
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig


class Arm(msgspec.Struct, frozen=True):
    """One way to do the same step: the format of its products, and what else differs."""

    id: str
    title: str
    format: Format
    checkpointing: bool = False
    compiled: bool = False

    @property
    def autocast(self) -> str:
        """The type that autocast is asked for, as PyTorch writes it; "" without autocast."""
        return {"bf16": "bfloat16", "fp16": "float16"}.get(self.format, "")


ARMS = (
    Arm("fp32", "FP32", "fp32"),
    Arm("tf32", "TF32", "tf32"),
    Arm("bf16", "BF16", "bf16"),
    Arm("bf16-checkpointing", "BF16 + checkpointing", "bf16", checkpointing=True),
    Arm("fp16", "FP16 + scaler", "fp16"),
    Arm("bf16-compiled", "BF16 + compile", "bf16", compiled=True),
)
USUAL = ("fp32", "tf32", "bf16", "bf16-checkpointing")
"""What is measured when nothing is said."""

PAIRS = (
    ("fp32", "bf16"),
    ("tf32", "bf16"),
    ("fp32", "tf32"),
    ("bf16", "bf16-checkpointing"),
    ("fp32", "fp16"),
    ("tf32", "fp16"),
    ("bf16", "fp16"),
    ("bf16", "bf16-compiled"),
)
"""What is compared: (over this, this). BF16 against FP32 alone says little where TF32 is one line away."""


def arm(id: str) -> Arm:
    """The arm with this id; ValueError for any other."""
    found = next((one for one in ARMS if one.id == id), None)
    if found is None:
        raise ValueError(f"no arm {id!r}: there are {', '.join(one.id for one in ARMS)}")
    return found


def arms_of(ids: Iterable[str]) -> list[Arm]:
    """The arms with these ids, each once. ValueError for none, for a text, and for an id that there is none of."""
    if isinstance(ids, str):
        raise ValueError(f'arms is one text: give a list of ids, such as ["{ids}"]')
    found = [arm(id) for id in dict.fromkeys(ids)]
    if not found:
        raise ValueError(f"no arm is asked for: there are {', '.join(one.id for one in ARMS)}")
    return found


class Support(msgspec.Struct, frozen=True):
    """Which formats a device multiplies in units of its own. None: not known."""

    name: str
    card: bool
    bf16: bool | None = None
    tf32: bool | None = None
    fp16: bool | None = None
    capability: tuple[int, int] | None = None
    said_by: str = ""
    """What decided it."""
    pytorch_says: bool | None = None
    """``torch.cuda.is_bf16_supported()``, which counts emulation."""

    def has(self, format: Format) -> bool | None:
        """Whether there are units for a format; FP32 every device has."""
        return True if format == "fp32" else getattr(self, format)


class StepMemory(msgspec.Struct, frozen=True):
    """The memory of one step, in bytes."""

    activations: int | None
    """On a card: the most in tensors during a step above what lay there before it, gradients dropped. On a CPU: what
    autograd keeps for the backward pass."""
    peak: int | None
    """The most in tensors, with weights, gradients and optimizer, without the batch; None on a CPU."""
    by: Literal["allocator", "saved tensors"]


class ArmResult(msgspec.Struct, frozen=True):
    """One arm as measured; without a rate it could not be, and ``note`` says why."""

    arm: Arm
    rate: Rate | None = None
    flops: Flops | None = None
    achieved: Achieved | None = None
    memory: StepMemory | None = None
    first_loss: float | None = None
    """Of the first step, from the same weights in every arm."""
    learning: Judgement | None = None
    """None when it was not asked for."""
    note: str = ""

    @property
    def active(self) -> bool | None:
        """Whether autocast did anything: some product in a step gave the lower type. None where it was not counted."""
        if not self.arm.autocast:
            return True
        return self.flops.share(self.arm.autocast) > 0 if self.flops and self.flops.by_format else None


class Pair(msgspec.Struct, frozen=True):
    """Throughput of one arm over another, both by id."""

    over: str
    arm: str
    seen: Comparison


class PrecisionResult(msgspec.Struct, frozen=True):
    """The same step in several number formats, in turn on resident batches."""

    workload: str
    batch_size: int
    arms: tuple[ArmResult, ...]
    pairs: tuple[Pair, ...]
    products: dict[str, Rate]
    """FLOP/s of a large matrix product in each format."""
    product_pairs: tuple[Pair, ...]
    """The same products compared, by format."""
    support: Support
    seconds: float
    """How long all of it took, without starting Python."""
    conditions: Conditions
    origin: Origin
    config: TrainConfig | None = None
    planted: str = ""

    def arm(self, id: str) -> ArmResult | None:
        """One arm, if it could be measured."""
        return next((one for one in self.arms if one.arm.id == id and one.rate), None)

    def ratio(self, arm: str, over: str) -> Comparison | None:
        """Throughput of ``arm`` over another; None where they were not compared, or autocast did nothing."""
        both = self.arm(arm), self.arm(over)
        if not all(both) or any(one.active is False for one in both):
            return None
        return next((pair.seen for pair in self.pairs if (pair.over, pair.arm) == (over, arm)), None)

    def product_ratio(self, format: str, over: str) -> Comparison | None:
        """The same for the large matrix product."""
        return next((pair.seen for pair in self.product_pairs if (pair.over, pair.arm) == (over, format)), None)

    @property
    def bf16_over_fp32(self) -> Comparison | None:
        """How much faster a step is in BF16 than in FP32 without TF32."""
        return self.ratio("bf16", "fp32")

    @property
    def bf16_over_tf32(self) -> Comparison | None:
        """How much faster a step is in BF16 than in TF32."""
        return self.ratio("bf16", "tf32")

    @property
    def bf16_saves(self) -> float | None:
        """The share of the activation memory of FP32 that BF16 does without."""
        return self._saves("bf16", "fp32")

    @property
    def checkpointing_saves(self) -> float | None:
        """The share of the activation memory of BF16 that checkpointing does without."""
        return self._saves("bf16-checkpointing", "bf16")

    @property
    def checkpointing_takes(self) -> tuple[float, float, float] | None:
        """Time of a step with checkpointing over one without, and the ends of its interval."""
        seen = self.ratio("bf16-checkpointing", "bf16")
        return (1 / seen.ratio, 1 / seen.high, 1 / seen.low) if seen else None

    @property
    def checkpointing_computes(self) -> float | None:
        """Floating-point operations that checkpointing adds, as a share of the step's."""
        found = self.arm("bf16-checkpointing")
        return found.flops.again if found and found.flops and found.flops.total else None

    def _saves(self, arm: str, over: str) -> float | None:
        both = [self.arm(arm), self.arm(over)]
        sizes = [one.memory.activations if one and one.memory and one.active is not False else None for one in both]
        return 1 - sizes[0] / sizes[1] if sizes[0] is not None and sizes[1] else None
