"""Chapter 5: short measurements of live objects, a job that runs out of memory, and claims beside measurements.

The plans are short, so that the chapter fits into its seconds on two CPU cores; the verbs `memory` and `precision`
measure for longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Progress, Tell
from gpuworkshop.instruments import memory, precision
from gpuworkshop.instruments.memory import BatchSweep, CeilingResult, CureResult
from gpuworkshop.instruments.precision_result import PrecisionResult
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.numbers import percent
from gpuworkshop.report import Origin, Report, Table
from gpuworkshop.timing import Comparison, Plan, Rate
from gpuworkshop.workloads.config import Job

SWEEP = {
    "cpu": Plan(block_seconds=0.04, min_steps=1, min_rounds=6, budget_seconds=1.2, max_warm_up_blocks=1),
    "card": Plan(block_seconds=0.3, min_rounds=4, budget_seconds=5.0),
}
FORMATS = {
    "cpu": Plan(block_seconds=0.08, min_steps=1, min_rounds=6, budget_seconds=2.4, max_warm_up_blocks=1),
    "card": Plan(block_seconds=0.4, min_rounds=6, budget_seconds=8.0),
}
"""Of two arms; more get more in proportion."""

ROOM = (0.15, 0.20)
"""The shares of a card's memory of which the workshop says that they leave room for a batch four to eight times."""
WORKSHOP = Origin("claimed by", "the AICR Training Workshop 2")


class _Shown(Tell):
    """What a measurement in this process says of itself, for the bar of a chapter."""

    def __init__(self, show: Callable[[Progress], Any]):
        self._show = show

    def progress(self, share: float, text: str = "") -> None:
        self._show(Progress(share, text))


def sweep(
    step: Callable[[int], Any], sizes: Sequence[int], *, progress: Callable[[Progress], Any] = lambda seen: None
) -> BatchSweep:
    """Throughput of ``step(batch_size)`` at each of ``sizes`` in turn, in this process, shortly."""
    plan = SWEEP["cpu" if default_device() == "cpu" else "card"]
    return memory.sweep(step, sizes, plan=plan, workload="the network above, FP32", tell=_Shown(progress))


def formats(
    model: Any,
    loss: Callable[[Any, Any], Any],
    batches: Iterable[Any],
    checkpointed: Callable[[Any], Any],
    *,
    progress: Callable[[Progress], Any] = lambda seen: None,
) -> PrecisionResult:
    """The same step in FP32, TF32, BF16 and BF16 with checkpointing, in turn, in this process, shortly."""
    how = dict(plan=FORMATS["cpu" if default_device() == "cpu" else "card"], tell=_Shown(progress))
    named = dict(checkpointed=checkpointed, workload="the network above")
    return precision.measure(model, loss, batches, **named, **how)


def cure(*, launcher: Sequence[str] = (), progress: Callable[[Progress], Any] | None = None) -> CureResult | None:
    """A GPT that runs out of a planted limit in a child, and its cure; None, and a line, where the child did not live.

    On a CPU the limit holds for the whole process, and a library that gets no memory may end it. The notebook then
    shows the recording.
    """
    on_card = bool(launcher) or default_device() != "cpu"
    try:
        return memory.cured(
            job=Job("gpt" if on_card else "gpt-small"),
            share=0.65 if on_card else 0.9,
            launcher=launcher,
            progress=progress,
        )
    except child.ChildFailed as failed:
        print(f"Not measured here: {failed}")
        return None


# ---------------------------------------------------------------- what the chapter shows of a result


def life(result: memory.MemoryResult) -> Report:
    """The report of a life of the memory, without the table of pairs, which the chapter has in its text."""
    return msgspec.structs.replace(memory.report(result), tables=())


def table(result: PrecisionResult) -> Report:
    """The report of precision without the picture of the bits, which has a cell of its own."""
    whole = precision.report(result)
    return msgspec.structs.replace(whole, figures=whole.figures[:1])


def bf16_speed(result: PrecisionResult) -> Rate | None:
    """How many times as fast a step is in BF16 as in FP32; None where they were not compared."""
    seen = result.bf16_over_fp32
    return seen and Rate(seen.ratio, seen.low, seen.high, seen.pairs, "times")


def bf16_saving(result: PrecisionResult) -> Rate | None:
    """Percent of the activation memory that BF16 saves: counted, not timed, so without a spread."""
    share = result.bf16_saves
    return None if share is None else Rate(100 * share, 100 * share, 100 * share, 1, "%")


def grown(swept: BatchSweep) -> Comparison | None:
    """The knee against the smallest batch; None where the smallest is the knee."""
    return next((point.against_smallest for point in swept.measured if point.batch == swept.knee), None)


# ---------------------------------------------------------------- what the workshop claims


def beside(
    measured: PrecisionResult,
    swept: BatchSweep,
    ceiling: CeilingResult | None,
    recorded: tuple[PrecisionResult | None, BatchSweep | None, CeilingResult | None],
) -> Report:
    """The workshop's numbers, each beside what was measured here and what was recorded on a card."""
    values = _values(measured, swept, ceiling), _values(*recorded)
    rows = tuple((*claim, here, there) for claim, here, there in zip(CLAIMS, *values, strict=True))
    origins = {str(one.origin) for one in recorded if one}
    marks = f"{WORKSHOP}; {measured.origin}; {'; '.join(sorted(origins)) or 'nothing is recorded'}"
    columns = ("what", "claimed", "measured here", "recorded")
    return Report("What the workshop states", measured.origin, (), (Table(columns, rows, marks),))


CLAIMS = (
    ("BF16, a large product", "2 to 4x FP32"),
    ("BF16, activations", "about half"),
    ("checkpointing, activations", "60 to 70% less"),
    ("checkpointing, time of a step", "about 30% more"),
    ("batch doubled, throughput", "about 2x, unless saturated"),
    ("memory at 15 to 20%, batch", "room for 4 to 8x"),
)


def _values(formats: PrecisionResult | None, swept: BatchSweep | None, ceiling: CeilingResult | None) -> Iterator[str]:
    """What one set of results has to say to each claim, in their order; "n/a" where it says nothing."""
    yield _product(formats) if formats else "n/a"
    yield _less(formats.bf16_saves) if formats else "n/a"
    yield _less(formats.checkpointing_saves) if formats else "n/a"
    yield _more(formats.checkpointing_takes) if formats else "n/a"
    yield _doubled(swept) if swept else "n/a"
    yield _room(ceiling) if ceiling else "n/a"


def _product(formats: PrecisionResult) -> str:
    over = (("FP32", formats.product_ratio("bf16", "fp32")), ("TF32", formats.product_ratio("bf16", "tf32")))
    told = [f"{seen.ratio:.2g}x {name}" for name, seen in over if seen]
    return ", ".join(told) or "n/a"


def _less(share: float | None) -> str:
    return "n/a" if share is None else f"{percent(share)} less"


def _more(takes: tuple[float, float, float] | None) -> str:
    if takes is None:
        return "n/a"
    change, low, high = (100 * (ratio - 1) for ratio in takes)
    return f"{change:+.0f}% ({low:+.0f} to {high:+.0f}%)"


def _doubled(swept: BatchSweep) -> str:
    """The first doubling of a sweep, and its last."""
    pairs = [(one, two) for one, two in pairwise(swept.measured) if two.batch == 2 * one.batch]
    told = [f"{two.rate.value / one.rate.value:.2f}x at {one.batch}" for one, two in pairs]
    return ", ".join(dict.fromkeys((told[0], told[-1]))) if told else "n/a"


def _room(found: CeilingResult) -> str:
    """How often the batch at 15 and at 20% of the card fits up to the ceiling, by the measured line."""
    if not (found.ceiling and found.line and found.total):
        return "n/a"
    batches = [(share * found.total - found.line.base) / found.line.slope for share in ROOM]
    if min(batches) < 1:
        return "n/a"
    least, most = sorted(found.ceiling / batch for batch in batches)
    return f"{least:.1f} to {most:.1f}x"
