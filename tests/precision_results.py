"""Results of precision as a card might give them, for the tests that only read them."""

import math

from gpuworkshop.instruments.flops import Achieved, Flops
from gpuworkshop.instruments.precision_result import (
    PAIRS,
    ArmResult,
    Pair,
    PrecisionResult,
    StepMemory,
    Support,
    arm,
)
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import Comparison, Rate, compare


def seen(ratio: float) -> Comparison:
    """A comparison that is narrow around a ratio."""
    return compare([math.log(ratio) + 0.001 * (-1) ** n for n in range(8)])


def one(id: str, rate: float, gib: float, **more) -> ArmResult:
    lower = arm(id).autocast or "float32"
    flop = Flops(1000, 16, by_format={lower: 1000})
    memory = StepMemory(int(gib * 2**30), int((gib + 3.7) * 2**30), "allocator")
    speed = Achieved(Rate(rate * 1e12, rate * 0.99e12, rate * 1.01e12, 8, "FLOP/s"), 0.5, 0.4)
    defaults = dict(flops=flop, achieved=speed, memory=memory, first_loss=10.4)
    return ArmResult(arm(id), Rate(rate, rate * 0.99, rate * 1.01, 8, "sequences/s"), **(defaults | more))


def made(support: Support | None = None, **more) -> PrecisionResult:
    """A result as a card might give it; with BF16 that is emulated, it is slower than FP32."""
    can = support or Support("NVIDIA H200", True, True, True, True, (9, 0), "compute capability 9.0")
    rates = {"fp32": 76.0, "tf32": 260.0, "bf16": 470.0, "bf16-checkpointing": 308.0}
    if can.bf16 is False:
        rates = {"fp32": 10.0, "tf32": 10.0, "bf16": 8.0, "bf16-checkpointing": 6.0}
    sizes = {"fp32": 8.2, "tf32": 8.2, "bf16": 5.9, "bf16-checkpointing": 2.6}
    here = conditions("cpu")
    values = dict(
        workload="GPT",
        batch_size=16,
        arms=tuple(one(id, rate, sizes[id]) for id, rate in rates.items()),
        pairs=tuple(Pair(a, b, seen(rates[b] / rates[a])) for a, b in PAIRS if {a, b} <= set(rates)),
        products={name: Rate(1e12, 0.9e12, 1.1e12, 8, "FLOP/s") for name in ("fp32", "tf32", "bf16")},
        product_pairs=(Pair("fp32", "bf16", seen(15.0)), Pair("tf32", "bf16", seen(1.9))),
        support=can,
        seconds=70.0,
        conditions=here,
        origin=here.origin,
    )
    return PrecisionResult(**(values | more))
