"""Changes to the step and to what is done beside it, each with what it should bring to this run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuworkshop.loop.diagnose import bound
from gpuworkshop.loop.remedies import by_id
from gpuworkshop.numbers import percent
from gpuworkshop.own.facts import Candidate, Facts, most, without
from gpuworkshop.own.frame import Kind
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import Wait
from gpuworkshop.own.roles import IN_LOADER, Role
from gpuworkshop.own.task import RARELY

BESIDE: dict[Kind, str] = {
    "validation": "rare-validation",
    "saving": "rare-saving",
    "collect": "collect",
    "empty_cache": "empty-cache",
    "one call": "one-call",
    "batch loop": "batch-loop",
    "read loop": "one-read",
    "weights loop": "weights-at-once",
    "read": "rare-loss",
    "beside": "beside",
}
"""What is done about a line that takes the training thread's time."""

BETWEEN_STEPS = frozenset({"validation", "saving", "collect"})
"""What takes its time whether or not the card is idle meanwhile."""

IN_GRAPH: tuple[Kind, ...] = ("one call", "batch loop", "beside")
"""What the backward pass goes through again."""

LOOPS: tuple[Kind, ...] = ("one call", "batch loop", "read loop", "beside", "weights loop")

EVERY = (RARELY, 200, 500, 1000)

SELDOM = 0.2
"""A line that waits for the card in fewer of the steps is left alone."""

OFTEN = 3
"""What is done between steps must be seen between so many: once in an epoch tells nothing of its part of the time."""

FUSED = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
LARGEST_TIMES, LARGEST_BATCH = 64, 1024
"""A batch is made at most so many times larger in one change, and beyond so many samples no more than eight times."""

CALL_MICROSECONDS, MOST_CALL_MICROSECONDS = 12.0, 40.0
"""On a CPU an operator that takes less, on the mean, is mostly called and hardly works; up to the second on a busy one,
where the median operator says so."""


def line_candidates(facts: Facts) -> Iterator[Candidate]:
    """What could pay by the lines at which the script was found, of all its time."""
    for role in facts.roles:
        yield from _beside(facts, role)
    yield from _optimizer(facts)


def step_candidates(facts: Facts) -> Iterator[Candidate]:
    """What could pay in the step, of the time of the steps."""
    yield from _larger_batch(facts)
    yield from _waits(facts)
    yield from _formats(facts)
    yield from _compiled(facts)
    yield from _memory(facts)
    yield from _threads(facts)
    yield from _several(facts)


def _beside(facts: Facts, role: Role) -> Iterator[Candidate]:
    remedy = BESIDE.get(role.kind)
    if remedy is None or (role.kind == "read" and not facts.card):
        return
    if role.kind in BETWEEN_STEPS and 0 < role.steps < OFTEN:
        return
    whole = facts.with_backward(role) if role.kind in IN_GRAPH else role.share
    share = whole if role.kind in BETWEEN_STEPS else min(whole, facts.idle)
    why = f"{percent(role.share)} of the time is spent there"
    why += f", {percent(whole)} with its part of the backward pass" if whole > role.share else ""
    expected = without(share * remedies()[remedy].effect)
    at_most = without(most(_reached_by(facts, role, whole)))
    yield Candidate(remedy, expected, at_most, why, role.place, {"every": str(_every(whole))})


def _reached_by(facts: Facts, role: Role, whole: float) -> float:
    """The largest share that a change to a line can take away.

    A loop ahead of backward() fills the graph that is gone through, and thrown away on other lines: all of the step.
    """
    if not role.ahead or role.kind not in IN_GRAPH:
        return whole
    outside = facts.share("optimizer", "step", "validation", "saving", "collect", "empty_cache", *IN_LOADER)
    return max(whole, min(1.0, sum(one.share for one in facts.roles)) - outside)


def _every(share: float) -> int:
    """Every how many steps, so that what is done then takes a twentieth of the time: 100, 200, 500 ..."""
    wanted = min(share, 0.99) / (1 - min(share, 0.99)) / 0.05
    return next(n for n in EVERY if n >= wanted or n == EVERY[-1])


# A larger batch


def overhead(facts: Facts) -> float:
    """Share of a step that does not grow with the batch: what calls cost, whatever they work on, and the optimizer.

    Without what other changes take away.
    """
    profile, shares = facts.look.traced, facts.shares
    if profile is None:
        return 0.0
    loops = sum(facts.with_backward(role) for role in facts.roles if role.kind in LOOPS)
    if facts.card:
        return max(0.0, (shares.launches or 0.0) - loops)
    typical = max(CALL_MICROSECONDS, min(2 * profile.median, MOST_CALL_MICROSECONDS))
    calling = min(1.0, typical / profile.mean)
    reached = facts.look.achieved.of_product if facts.look.achieved else None
    large, small = shares.compute or 0.0, (shares.launches or 0.0) * (1 - calling)
    large = large if reached is None else max(2 * reached, large * (1 - calling))
    fixed = facts.share("optimizer")
    works = min(1.0, (large + small) / max(1 - shares.data, 0.01))
    return fixed + max(0.0, 1 - shares.data - loops - fixed) * (1 - works)


def _larger_batch(facts: Facts) -> Iterator[Candidate]:
    loader, cost = facts.loader, overhead(facts)
    if loader is None or not loader.batch_size or cost <= 0:
        return
    times = _times(facts, cost)
    if times < 2:
        return
    why = f"calls and the optimizer take {percent(cost)} of a step of {loader.batch_size} samples"
    passes = round(facts.settings.accumulation)
    if passes > 1:
        fewer = math.gcd(passes, times) if passes % times else times
        values = {
            "batch_size": str(loader.batch_size * fewer), "accumulation": str(passes // fewer),
            "accumulation_now": str(passes),
        }  # fmt: skip
        yield Candidate("micro-batch", _with_batch(cost, fewer), float(fewer), why, loader.place, values)
        return
    values = {"batch_size": str(loader.batch_size * times)}
    yield Candidate("batch", _with_batch(cost, times), float(times), why, loader.place, values)


def _with_batch(cost: float, times: int) -> float:
    """The gain of so many times the batch, never that many times itself: part of the rest grows too."""
    return without(0.9 * cost * (1 - 1 / times))


def _times(facts: Facts, cost: float) -> int:
    """How many times larger: until calls take a twentieth of a step, within memory and data; a power of two."""
    loader, rest = facts.loader, max(0.02, 1 - cost)
    times = min(LARGEST_TIMES, cost / (0.05 * rest), max(LARGEST_BATCH / loader.batch_size, 8))
    if facts.look.memory:
        times = min(times, 0.7 / facts.look.memory)
    if loader.epochs > 1:
        times = min(times, loader.batches / loader.epochs / 4)
    return 2 ** int(math.log2(times)) if times >= 2 else 1


# Parts of the step


def _optimizer(facts: Facts) -> Iterator[Candidate]:
    share = min(facts.share("optimizer"), facts.idle)
    for one in facts.settings.optimizers[:1]:
        if one.kind in FUSED and not one.fused and share > 0:
            why = f"the optimizer takes {percent(share)} of the time"
            expected = without(share * remedies()["fused"].effect)
            yield Candidate("fused", expected, without(most(share)), why, one.place, {"optimizer": one.kind})


def _waits(facts: Facts) -> Iterator[Candidate]:
    """Lines at which the host waits for a card."""
    shares, waits = facts.shares, facts.settings.waits
    if not facts.card or not waits or facts.look.traced is None or waits[0].a_step < SELDOM:
        return
    if sum(facts.with_backward(role) for role in facts.roles if role.kind in LOOPS) > 0.3:
        return  # the loop goes first, and its waits with it
    waiting, late, copies = shares.synchronizing or 0.0, shares.launches or 0.0, shares.copies or 0.0
    first = waits[0]
    asked = f"{first.call} is called {first.a_step:.3g} times a step"
    why = f"card and host wait for each other {percent(waiting)} of the time; {asked}"
    if first.call == "empty_cache":
        yield Candidate("empty-cache", without(waiting + 0.5 * late), without(facts.idle), why, first.place)
    elif first.a_step >= 4:
        yield Candidate("one-read", without(0.9 * (waiting + 0.9 * late)), without(waiting + late), why, first.place)
    else:
        at_most = bound(by_id("rare-loss"), facts.look, facts.cpus)
        values = {"every": str(RARELY)}
        gone = 0.9 * waiting + 0.2 * late + (0.9 * copies * (1 - facts.look.traced.to_card) if _copies(waits) else 0.0)
        yield Candidate("rare-loss", without(gone), at_most, why, first.place, values)


def _copies(waits: tuple[Wait, ...]) -> bool:
    return any(wait.call in ("cpu", "numpy", "tolist") for wait in waits)


def _formats(facts: Facts) -> Iterator[Candidate]:
    """Number formats and layouts, on a card that computes."""
    used, work = facts.settings, facts.shares.compute or 0.0
    if not facts.card or facts.look.traced is None:
        if used.channels_last is False:
            why = "convolutions with contiguous weights"
            yield Candidate("channels-last", without(0.1 * work), without(work), why, used.model_place)
        return
    reached = facts.look.achieved.of_product if facts.look.achieved else None
    why = f"computing takes {percent(work)} of the time in {(used.precision or 'FP32').upper()}"
    why += f", at {percent(reached)} of a large product" if reached else ""
    values = {"device": used.device.partition(":")[0], "bf16": "True", "tf32": "True"}
    if used.precision in ("fp32", "tf32") and not used.autocast:
        gone = 0.6 if used.precision == "fp32" else 0.35
        yield Candidate("bf16", without(gone * work), without(work), why, used.model_place or used.step_place, values)
    if used.precision == "fp32" and not used.autocast:
        script = used.model_place or used.step_place
        yield Candidate("tf32", without(0.5 * work), without(work), why, script, values)
    if used.channels_last is not None and not facts.written("cudnn.benchmark"):
        yield Candidate(
            "cudnn-benchmark", without(0.06 * work), without(work), why, used.model_place or used.step_place
        )
    if used.channels_last is False:
        gone = 0.3 if used.precision in ("bf16", "fp16", "mixed") else 0.1
        yield Candidate("channels-last", without(gone * work), without(work), why, used.model_place)


def _compiled(facts: Facts) -> Iterator[Candidate]:
    late, work, used = facts.shares.launches or 0.0, facts.shares.compute or 0.0, facts.settings
    if used.compiled or not facts.card or facts.look.traced is None:
        return
    late = max(0.0, late - facts.share(*LOOPS))
    why = f"launches take {percent(late)} of the time, {facts.look.traced.calls:,.0f} kernels a step"
    done = facts.look.achieved.of_product if facts.look.achieved else None
    gone = remedies()["compile"].effect * late + 0.12 * work * (1 - min(1.0, done) if done is not None else 0.25)
    yield Candidate(
        "compile", without(gone), without(late + work), why, facts.settings.model_place, {"compiled": "True"}
    )


def _memory(facts: Facts) -> Iterator[Candidate]:
    used, memory = facts.settings, facts.look.memory
    in_step = (facts.shares.compute or 0.0) + (facts.shares.launches or 0.0)
    if used.checkpointing and (memory is None or memory < 0.5):
        why = f"memory {percent(memory)}" if memory is not None else "activations are computed twice"
        yield Candidate("no-checkpointing", without(0.25 * in_step), without(0.35 * in_step), why, used.model_place)


def _threads(facts: Facts) -> Iterator[Candidate]:
    """Fewer threads than CPUs, on a CPU."""
    threads, work = facts.result.conditions.threads or facts.cpus, facts.shares.compute or 0.0
    if facts.card or threads >= facts.cpus or (facts.loader and facts.loader.workers):
        return
    gone = work * (1 - threads / facts.cpus)
    why = f"{threads} of {facts.cpus} CPUs compute, {percent(work)} of the time"
    values = {"cpus": str(facts.cpus)}
    yield Candidate("threads", without(gone * remedies()["threads"].effect), without(gone), why, None, values)


def _several(facts: Facts) -> Iterator[Candidate]:
    """Several cards."""
    used, talking = facts.settings, facts.result.communication or 0.0
    if used.ddp == "DataParallel":
        yield Candidate("ddp", 1.3, math.inf, "DataParallel was seen at work", used.model_place)
    if not talking:
        return
    why = f"communication with nothing beside it takes {percent(talking)} of the time"
    passes = max(1.0, used.accumulation)
    if passes > 1 and used.ddp == "DDP":
        gone = talking * (1 - 1 / passes)
        yield Candidate("no-sync", without(0.9 * gone), without(gone), why, used.backward_place)
    if facts.loader and facts.loader.batch_size:
        values = {"batch_size": str(2 * facts.loader.batch_size)}
        yield Candidate("larger-share", without(0.45 * talking), without(talking), why, facts.loader.place, values)
