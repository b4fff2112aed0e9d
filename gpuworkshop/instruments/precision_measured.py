"""What every door of precision does: make the arms, look at each alone, then time them in turn. Imports torch."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import torch

from gpuworkshop.child import Tell
from gpuworkshop.instruments import arms, flops, precision_memory, torch_settings
from gpuworkshop.instruments.loader_faults import no_loader
from gpuworkshop.instruments.memory_faults import forget, is_memory
from gpuworkshop.instruments.precision_arms import NoSuchArm, Running
from gpuworkshop.instruments.precision_result import PAIRS, Arm, ArmResult, Pair, PrecisionResult, Support
from gpuworkshop.instruments.precision_support import support
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.timing import Plan, Rounds, clock_for, in_turn, plan_for

PRODUCT_SECONDS = 1.0
PRODUCT_PAIRS = [pair for pair in PAIRS if set(pair) <= {"fp32", "tf32", "bf16", "fp16"}]
NO_ROOM = "does not fit into the memory beside the other arms"
Make = Callable[[Arm, str], Running]
"""Makes an arm on a device."""


def measured(
    asked: Sequence[Arm],
    make: Make,
    batches: Sequence[Any],
    device: str | None,
    workload: str,
    unit: str,
    plan: Plan | None,
    tell: Tell | None,
) -> PrecisionResult:
    """Make the arms, look at each alone, then time them in turn."""
    began, tell, device = time.monotonic(), tell or Tell(), str(device or default_device())
    resident = [arms.moved(batch, device) for batch in few(batches)]
    here, can = conditions(device), support(device)
    with torch_settings.kept():
        ready, seen = _prepared(asked, make, resident[0], device, can, tell.part(0.0, 0.3))
        if not ready:
            raise ValueError("nothing can be measured: " + "; ".join(f"{id}: {one.note}" for id, one in seen.items()))
        rounds = _timed(ready, resident, device, unit, plan, tell.part(0.3, 0.8))
        formats = dict.fromkeys(running.arm.format for running in ready)
        ready.clear()
        products = _products(tuple(formats), device, tell.part(0.8, 0.95))
    return PrecisionResult(
        workload=workload,
        batch_size=arms.size(resident[0]),
        arms=tuple(_complete(found, rounds, products, device) for found in seen.values()),
        pairs=_pairs(rounds, PAIRS),
        products={name: products.rate(name) for name in products.blocks} if products else {},
        product_pairs=_pairs(products, PRODUCT_PAIRS),
        support=can,
        seconds=time.monotonic() - began,
        conditions=here,
        origin=here.origin,
    )


def few(batches: Iterable[Any]) -> list[Any]:
    """The first batches of a list or a loader. TypeError for what is neither, ValueError where there is none."""
    if isinstance(batches, torch.Tensor) or (why := no_loader(batches)):
        said = "one tensor is no list of batches" if isinstance(batches, torch.Tensor) else why
        raise TypeError(f"{said}: batches is a few of them, such as [next(iter(loader))]")
    taken = list(itertools.islice(batches, arms.RESIDENT_BATCHES))
    if not taken:
        raise ValueError("there is no batch to measure with: hand over a few, such as [next(iter(loader))]")
    return taken


def _prepared(
    asked: Sequence[Arm], make: Make, batch: Any, device: str, can: Support, tell: Tell
) -> tuple[list[Running], dict[str, ArmResult]]:
    """The arms that can run beside each other, and what was seen of every arm by id on the way."""
    ready, seen = [], {}
    for place, one in enumerate(asked):
        tell.progress(place / len(asked), f"{one.title}: first steps")
        note = _not_here(one, can)
        running, found = (None, ArmResult(one, note=note)) if note else _tried(one, make, batch, device)
        seen[one.id] = found
        if running:
            ready.append(running)
    while len(ready) > 1 and not all(_steps(running, batch) for running in ready):
        least = ready.pop().arm
        seen[least.id], running = ArmResult(least, note=NO_ROOM), None
        _tidy(device)
    return ready, seen


def _tried(one: Arm, make: Make, batch: Any, device: str) -> tuple[Running | None, ArmResult]:
    """An arm after its first steps; None with the reason where it cannot be, or does not fit."""
    try:
        return _looked_at(one, make, batch, device)
    except NoSuchArm as error:
        note = str(error)
    except Exception as error:
        if not is_memory(error):
            raise
        forget(error)
        note = NO_ROOM
    _tidy(device)
    return None, ArmResult(one, note=note)


def _steps(running: Running, batch: Any) -> bool:
    """Whether an arm can do a step while all others lie in the memory too."""
    running.enter()
    try:
        running.step(batch)
        running.drop()
    except Exception as error:
        if not is_memory(error):
            raise
        forget(error)
        return False
    return True


def _not_here(one: Arm, can: Support) -> str:
    """Why an arm would be the same as another one here; "" if it is not."""
    if one.format == "tf32" and can.tf32 is False:
        return f"{'this card' if can.card else 'a CPU'} has no TF32 units: products would be FP32's"
    return ""


def _looked_at(one: Arm, make: Make, batch: Any, device: str) -> tuple[Running, ArmResult]:
    """An arm after its first steps: its first loss, what it computes, and the memory of one step."""
    below = precision_memory.in_tensors(device)
    running = make(one, device)
    running.enter()
    first = _number(running.step(batch))
    counted = flops.count_step(lambda: running.step(batch), arms.size(batch), device)
    running.drop()
    memory = None
    if device.startswith("cuda") or not one.compiled:  # hooks see nothing of a compiled step
        memory = precision_memory.of_step(running.step, batch, device, below)
    running.drop()
    return running, ArmResult(one, flops=counted, memory=memory, first_loss=first)


def _number(loss: Any) -> float | None:
    """A loss as a number; None for whatever a step returns that is none."""
    if isinstance(loss, torch.Tensor):
        return float(loss.detach()) if loss.numel() == 1 and not loss.is_complex() else None
    return float(loss) if isinstance(loss, int | float) else None


def _tidy(device: str) -> None:
    """Give the memory of an arm that did not fit back; outside of ``except``, whose error holds it."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _timed(ready: list[Running], batches: list[Any], device: str, unit: str, plan: Plan | None, tell: Tell) -> Rounds:
    """The arms in turn, until the compared pairs are narrow enough or time is up."""
    names = {running.arm.id for running in ready}
    pairs = [pair for pair in PAIRS if set(pair) <= names]
    return in_turn(
        [running.in_turn(batches) for running in ready],
        clock_for(device),
        plan or plan_for(device),
        pairs=pairs,
        unit=unit,
        progress=lambda share: tell.progress(share, "all formats in turn"),
    )


def _products(formats: Sequence[flops.Format], device: str, tell: Tell) -> Rounds | None:
    """A large product in each format; None where there is no room for it."""
    tell.progress(0.0, "a large product in each format")
    try:
        return flops.matrix_products(device, formats, PRODUCT_SECONDS)
    except Exception as error:
        if not is_memory(error):
            raise
        return None


def _complete(found: ArmResult, rounds: Rounds, products: Rounds | None, device: str) -> ArmResult:
    """An arm with its rate, and how fast it computes."""
    if found.arm.id not in rounds.blocks:
        return found
    rate, format = rounds.rate(found.arm.id), found.arm.format
    product = products.rate(format) if products else None
    achieved = flops.achieved(found.flops, rate, product, flops.peak(device, format))
    return msgspec.structs.replace(found, rate=rate, achieved=achieved)


def _pairs(rounds: Rounds | None, wanted: Iterable[tuple[str, str]]) -> tuple[Pair, ...]:
    names = set(rounds.blocks) if rounds else set()
    return tuple(Pair(over, one, rounds.compare(over, one)) for over, one in wanted if {over, one} <= names)
