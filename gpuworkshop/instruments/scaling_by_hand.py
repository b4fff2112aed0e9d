"""What all-reduce does, by hand: the mean of the ranks' gradients is what DistributedDataParallel leaves in each one.

Two ranks, one weight row of four numbers, other data in each rank. Small enough to be read number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gpuworkshop.child import Progress, Tell
from gpuworkshop.instruments.scaling import launch
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Finding, Origin, Report, Table

WEIGHTS, SAMPLES = 4, 8
CLOSE = 1e-5
"""The same sum in another order differs by rounding; by more than this it is not the same."""


class ByHand(msgspec.Struct, frozen=True):
    """The gradient of the same weights, in four ways: ``WEIGHTS`` numbers each."""

    own: tuple[tuple[float, ...], ...]
    """Of each rank, from its own samples."""
    averaged: tuple[float, ...]
    """Added up by one all-reduce and divided by the number of ranks."""
    ddp: tuple[tuple[float, ...], ...]
    """What DistributedDataParallel leaves, in each rank."""
    together: tuple[float, ...]
    """Of one process that has the samples of all ranks."""
    conditions: Conditions
    origin: Origin

    @property
    def apart(self) -> float:
        """The largest difference between the average by hand and what DDP left in any rank."""
        return max(abs(a - b) for row in self.ddp for a, b in zip(row, self.averaged, strict=True))


def run(ranks: int = 2, *, progress: Callable[[Progress], None] | None = None) -> ByHand:
    """Average the gradients of ``ranks`` gloo ranks on CPUs by hand, and let DDP do it."""
    target = "gpuworkshop.instruments.scaling_by_hand:in_rank"
    return launch(target, {}, ranks, type=ByHand, progress=progress)


def in_rank(request: Any, tell: Tell) -> ByHand | None:
    """One rank: its own gradient, the average by hand, and DDP's."""
    import os
    import time

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from gpuworkshop.instruments.scaling_rank import loopback
    from gpuworkshop.machine.conditions import conditions
    from gpuworkshop.workloads.ranks import joined

    os.environ["GLOO_SOCKET_IFNAME"] = loopback() or os.environ.get("GLOO_SOCKET_IFNAME", "")
    torch.set_num_threads(1)
    with joined("cpu") as rank:
        torch.manual_seed(0)  # the same weights and the same samples everywhere
        model = torch.nn.Linear(WEIGHTS, 1, bias=False)
        x, y = torch.randn(rank.size, SAMPLES, WEIGHTS), torch.randn(rank.size, SAMPLES, 1)

        def gradient(run: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            torch.nn.functional.mse_loss(run(x), y).backward()
            return model.weight.grad.clone().flatten()

        own = gradient(model, x[rank.number], y[rank.number])
        averaged = own.clone()
        dist.all_reduce(averaged)
        averaged /= rank.size
        together = gradient(model, x.flatten(0, 1), y.flatten(0, 1))
        by_ddp = gradient(DistributedDataParallel(model), x[rank.number], y[rank.number])
        rows = [_of_all(mine, rank.size) for mine in (own, by_ddp)]
        here = conditions("cpu")
    while rank.number:
        time.sleep(60)
    return ByHand(rows[0], tuple(averaged.tolist()), rows[1], tuple(together.tolist()), here, here.origin)


def _of_all(mine: Any, size: int) -> tuple[tuple[float, ...], ...]:
    import torch
    import torch.distributed as dist

    every = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(every, mine)
    return tuple(tuple(row.tolist()) for row in every)


def findings(result: ByHand) -> Iterator[Finding]:
    """Whether the average by hand is DDP's."""
    numbers = f"largest difference {result.apart:.1e}" if result.apart else "no bit differs"
    if result.apart <= CLOSE:
        title = "The mean of the ranks' gradients is what DDP leaves in every rank"
        yield Finding("ok", title, f"{numbers}; every rank then makes the same update")
    else:
        yield Finding("fail", "The mean of the ranks' gradients is not what DDP left", numbers)


def report(result: ByHand) -> Report:
    """The numbers, one weight a column."""
    rows = [(f"rank {number}, its own samples", *_written(row)) for number, row in enumerate(result.own)]
    rows.append(("mean of them, by hand", *_written(result.averaged)))
    rows += [(f"rank {number}, by DDP", *_written(row)) for number, row in enumerate(result.ddp)]
    rows.append(("one process with all samples", *_written(result.together)))
    columns = ("gradient", *(f"weight {number}" for number in range(WEIGHTS)))
    caption = f"{len(result.own)} ranks, {SAMPLES} samples each"
    title = "All-reduce by hand"
    return Report(title, result.origin, tuple(findings(result)), (Table(columns, tuple(rows), caption),))


def _written(row: tuple[float, ...]) -> list[str]:
    return [f"{value:.4f}" for value in row]
