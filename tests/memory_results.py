"""Results of memory as an H200 may give them: made up, to say what findings, figures and recordings make of them."""

from __future__ import annotations

from gpuworkshop.instruments import memory, memory_cure
from gpuworkshop.instruments.memory_faults import Fault
from gpuworkshop.instruments.memory_result import Attempt, BatchPoint, CureResult, Line, Moment, Probe
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import Job, TrainConfig

GIB, MIB = 2**30, 2**20
CARD = Conditions(
    device="cuda:0", machine="NVIDIA Test Card", uuid="GPU-0", driver="1.0", cpus=8, cpus_said_by="affinity",
    threads=8, python="3.11", torch="2.11", kit="0.0.1", date="2026-12-01",
)  # fmt: skip


def life(**facts) -> memory.MemoryResult:
    """Two steps of a model of 2 GiB, whose batch of 16 keeps 8."""

    def moment(name, step, gradients, optimizer, activations, peak):
        return Moment(name, step, 2 * GIB, gradients, optimizer, activations, GIB // 2, GIB // 2, 0, peak)

    moments = (
        moment("model on the device", 0, 0, 0, 0, 2 * GIB),
        moment("forward", 1, 0, 0, 8 * GIB, 10 * GIB),
        moment("backward", 1, 2 * GIB, 0, 0, 11 * GIB),
        moment("update", 1, 2 * GIB, 4 * GIB, 0, 8 * GIB),
        moment("gradients dropped", 2, 0, 4 * GIB, 0, 8 * GIB),
        moment("forward", 2, 0, 4 * GIB, 8 * GIB, 14 * GIB),
        moment("backward", 2, 2 * GIB, 4 * GIB, 0, 15 * GIB),
        moment("update", 2, 2 * GIB, 4 * GIB, 0, 8 * GIB),
    )
    usual = dict(
        workload="a test", batch_size=16, parameters=GIB // 2, optimizer="AdamW", moments=moments, by="allocator",
        total=140 * GIB, conditions=CARD, origin=CARD.origin,
    )  # fmt: skip
    return memory.MemoryResult(**{**usual, **facts})


def swept(**rates: float) -> memory.BatchSweep:
    """Rates by size: swept(b8=100.0, b16=200.0)."""
    points = [
        BatchPoint(int(size[1:]), Rate(value, 0.99 * value, 1.01 * value, 8, "images/s"),
                   Comparison(1.5, 1.4, 1.6, 8, 0.03, "faster"), GIB)
        for size, value in rates.items()
    ]  # fmt: skip
    return memory.BatchSweep("a test", tuple(points), CARD, CARD.origin)


def found(**facts) -> memory.CeilingResult:
    """A search that ended as it should."""
    usual = dict(
        workload="a test", ceiling=3200, above=3264, ended="found",
        probes=(Probe(8, True, 0.2, 2 * GIB, 3 * GIB), Probe(3200, True, 2.0, 130 * GIB, 136 * GIB),
                Probe(3264, False, 2.0, 133 * GIB, 138 * GIB, 3)),
        seconds=7.0, room=138 * GIB, total=140 * GIB, others=0, most=4096, conditions=CARD, origin=CARD.origin,
        line=Line(float(GIB), 42.6 * MIB),
    )  # fmt: skip
    return memory.CeilingResult(**{**usual, **facts})


def cure(*fits: bool, **facts) -> CureResult:
    """One attempt for each of ``fits``, in the taught order; ``facts`` of those with checkpointing."""
    steps = list(memory_cure.ladder(TrainConfig(batch_size=64), Job("gpt-tiny")))
    fault = Fault("memory", "OutOfMemoryError: CUDA out of memory.")
    attempts = [
        Attempt(change, now, ok, GIB, 0, None if ok else fault, **facts if now.checkpointing else {})
        for (change, now), ok in zip(steps, fits, strict=False)
    ]
    return CureResult("a test", 2 * GIB, 3 * GIB, tuple(attempts), "the job may hold 2 GiB", CARD, CARD.origin)
