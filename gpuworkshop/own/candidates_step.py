"""Changes to the step itself, each with what it should bring to this run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuworkshop.loop.diagnose import bound
from gpuworkshop.loop.remedies import by_id
from gpuworkshop.numbers import percent
from gpuworkshop.own.facts import LOOPS, Candidate, Facts, without
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import Wait
from gpuworkshop.own.task import RARELY

SELDOM = 0.2
"""A line that waits for the card in fewer of the steps is left alone."""


def step_candidates(facts: Facts) -> Iterator[Candidate]:
    """What could pay in the step, of the time of the steps."""
    yield from _waits(facts)
    yield from _formats(facts)
    yield from _compiled(facts)
    yield from _memory(facts)
    yield from _threads(facts)
    yield from _several(facts)


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
