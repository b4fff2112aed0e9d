"""What the children of the claims do that no instrument does: train with the card hidden, watch jobs, ask for types."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.course.claims_readings import LoaderSeen, Looked, Trained
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.timing import Comparison, Plan, Rate, clock_for, in_turn
from gpuworkshop.workloads.config import Job, TrainConfig

WATCHED_SECONDS = 5.0
"""So long a job is watched: 25 of the driver's windows."""
LEAST_WINDOWS = 10
FEW_ROUNDS = 4
ON_CARD = Plan(block_seconds=0.6, min_rounds=6, budget_seconds=7.0)
"""Shorter than an instrument alone would take: many jobs are measured, and each claim's interval says how well."""
ON_CPU = Plan(block_seconds=0.1, min_rounds=6, budget_seconds=3.0, max_warm_up_blocks=3)


class Watched(msgspec.Struct, frozen=True):
    """A job to look at."""

    name: str
    job: Job
    config: TrainConfig


class Ask(msgspec.Struct, frozen=True):
    """What to look at: the naive job with 0 workers and with some, other jobs, and workers for prefetch_factor."""

    zero: Watched
    some: Watched | None
    others: tuple[Watched, ...]
    prefetch: TrainConfig


def trained(request: Any, tell: Tell) -> Trained:
    """Three steps of a small network, on the card if PyTorch reaches one, else on the CPU."""
    import torch
    from torch import nn

    from gpuworkshop.machine.conditions import conditions

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        error = ""
        try:
            model = nn.Linear(64, 8).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(
                    model(torch.randn(32, 64, device=device)), torch.randint(8, (32,), device=device)
                ).backward()
                optimizer.step()
        except RuntimeError as raised:
            error = f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
    here = conditions("cuda:0" if device == "cuda" else "cpu")
    return Trained(device, error, tuple(str(one.message) for one in caught), here)


def types(request: Any, tell: Tell) -> dict[str, str]:
    """Types in one step under BF16 autocast on this device, as PyTorch names them."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, softmax

    from gpuworkshop.machine.gpus import default_device

    device = default_device()
    torch.manual_seed(0)
    first, norm, batch_norm = (part.to(device) for part in (nn.Linear(16, 16), nn.LayerNorm(16), nn.BatchNorm1d(16)))
    with torch.autocast(device.partition(":")[0], torch.bfloat16):
        product = first(torch.randn(8, 16, device=device))
        made = {"softmax": softmax(product, -1), "layer norm": norm(product), "batch norm": batch_norm(product)}
        loss = cross_entropy(product, torch.randint(16, (8,), device=device))
    loss.backward()
    made = {"weights": first.weight, "gradients": first.weight.grad, "loss": loss, **made}
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in made.items()}


def idle(request: Any, tell: Tell) -> WatchResult:
    """The card while nothing runs on it; no part of this process wakes it."""
    import time

    from gpuworkshop.instruments.watch import Watch

    with Watch(what="an idle card") as seen:
        time.sleep(WATCHED_SECONDS)
    return seen.result


def loaders(request: Any, tell: Tell) -> LoaderSeen:
    """Look at the jobs of an :class:`Ask`, one after the other."""
    from gpuworkshop.machine.gpus import default_device

    asked, device = msgspec.convert(request, Ask), default_device()
    told = [one for one in (asked.some, *asked.others) if one]
    tell.progress(0.0, asked.zero.name)
    zero, rest = _look(asked.zero, device, alone=True), []
    for place, one in enumerate(told):
        tell.progress((1 + place) / (len(told) + 2), one.name)
        rest.append(_look(one, device, alone=False))
    some = rest.pop(0) if asked.some else None
    tell.progress(0.9, "prefetch_factor 2 and 4 in turn")
    seen = _prefetch(asked.prefetch, asked.zero.job, device)
    return LoaderSeen(zero, some, tuple(rest), seen, asked.prefetch.workers)


def _look(one: Watched, device: str, alone: bool) -> Looked:
    """Does it wait for data, and how busy is the card meanwhile? ``alone``: time the loader by itself too."""
    from gpuworkshop.instruments import starve
    from gpuworkshop.workloads.train import build

    training = build(one.config, one.job, device)
    training.use_precision()
    plan = ON_CPU if device == "cpu" else ON_CARD
    if not alone:
        plan = msgspec.structs.replace(plan, min_rounds=FEW_ROUNDS, width=1.0)
    step = lambda ready: training.step(*ready)  # noqa: E731
    sizes = one.job.sizes
    seen = starve.measure(
        training.loader, step, training.prepare, device=device, workload=one.job.title, unit=sizes.unit, plan=plan,
        loader_alone=alone,
    )  # fmt: skip
    busy, why = (None, "there is no card here") if device == "cpu" else _busy(training, device)
    return Looked(one.name, msgspec.structs.replace(seen, config=one.config), busy, why)


def _busy(training: Any, device: str) -> tuple[Rate | None, str]:
    """Utilization over some seconds of plain steps, as the driver counts it, in percent; or why it is not known."""
    from gpuworkshop.instruments import arms
    from gpuworkshop.instruments.watch import Watch

    plan = Plan(block_seconds=WATCHED_SECONDS / 2, min_rounds=2, budget_seconds=0.1, max_warm_up_blocks=2)
    with arms.real("now", training) as arm, Watch(what="plain steps") as seen:
        in_turn([arm], clock_for(device), plan)
    card = next((one for one in seen.result.cards if one.label == device or len(seen.result.cards) == 1), None)
    if card is None:
        return None, seen.result.problem or "the card that runs could not be told apart"
    if card.busy is None or card.windows < LEAST_WINDOWS or seen.result.busy_percent is None:
        return None, card.busy_why or f"{card.windows} windows of the driver are too few"
    return seen.result.busy_percent, ""


def _prefetch(config: TrainConfig, job: Job, device: str) -> Comparison:
    """The naive job with so many workers, prefetch_factor 2 against 4 in turn."""
    from gpuworkshop.instruments import arms
    from gpuworkshop.workloads.train import build

    plan = ON_CPU if device == "cpu" else ON_CARD
    with ExitStack() as stack:
        both = [
            stack.enter_context(arms.real(str(ahead), build(config.with_(prefetch_factor=ahead), job, device)))
            for ahead in (2, 4)
        ]
        return in_turn(both, clock_for(device), plan).compare("2", "4")
