"""What each of torchrun's ranks does: it measures its part of every arm when rank 0 says so.

All worlds live in one launch. A world of two among four ranks is a process group of the first two, and the others wait
in a gloo call that takes no CPU time. So worlds of different sizes, and one rank alone, are measured in turn, block by
block, on the same cards in the same minute; nothing starts between them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from gpuworkshop.child import Tell
from gpuworkshop.instruments.arms import DATA_WORK, WAIT, Real
from gpuworkshop.instruments.feed import Feed
from gpuworkshop.instruments.scaling_faults import is_echo
from gpuworkshop.instruments.scaling_plan import Request, arm_names, refusal, sizes
from gpuworkshop.instruments.scaling_plan import strong as strong_name
from gpuworkshop.instruments.scaling_plan import weak as weak_name
from gpuworkshop.instruments.scaling_read import Measured, read
from gpuworkshop.instruments.scaling_result import ALONE, FLOOR, REDUCE, ScalingResult
from gpuworkshop.machine import gpus
from gpuworkshop.machine.allocation import cpus
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import Arm, Block, Clock, clock_for, in_turn, plan_for, run_block
from gpuworkshop.workloads.ranks import Rank, joined, own_device
from gpuworkshop.workloads.train import Training, build, need_card

LONG = timedelta(hours=1)
"""The ranks wait for each other's words so long: rank 0 may have to write the pictures first."""

GRACE = 5.0
"""Seconds in which torchrun may say first which rank died, before another one says that it misses it."""

LONGEST_NAME = 256


def in_rank(request: Any, tell: Tell) -> ScalingResult | None:
    """One rank of a launched measurement; rank 0 has the result, the others wait until they are ended."""
    asked = msgspec.convert(request, Request)
    if interface := loopback():
        os.environ["GLOO_SOCKET_IFNAME"] = interface  # the ranks are all here; a name for other nodes would not do
    torch.set_num_threads(1)
    device = own_device()
    rank_number = int(os.environ["RANK"])
    tell = tell if rank_number == 0 else Tell()
    try:
        if why := refusal(asked.ranks, torch.cuda.device_count() if device != "cpu" else 0, cpus().count):
            raise ValueError(why)
        need_card(asked.config, asked.job, device)
        with joined(device) as rank:
            result = measure(asked, rank, device, tell)
    except RuntimeError as error:
        if is_echo(str(error)):
            time.sleep(GRACE)
        raise
    while result is None:
        time.sleep(60)
    return result


def measure(asked: Request, rank: Rank, device: str, tell: Tell) -> ScalingResult | None:
    """Build this rank's arms and run their blocks: rank 0 leads and gets the result, the others follow it."""
    team = Team(rank)
    names = check_cards(team.all_words(card_name(device)), device)
    with ExitStack() as stack:
        tell.progress(0.05, "loading the data")
        arms, gradient = build_arms(asked, team, device, stack)
        clock = clock_for(device)
        everything = arm_names(asked)
        if rank.number:
            team.follow([arms.get(name) for name in everything], clock)
            return None
        pairs = [(ALONE, name) for name in everything if name not in (ALONE, FLOOR, REDUCE)]
        rounds = in_turn(
            [arms[name] for name in everything],
            clock,
            asked.plan or plan_for(device),
            pairs=[*pairs, (FLOOR, weak_name(asked.ranks))],
            unit=asked.job.sizes.unit,
            progress=lambda share: tell.progress(0.15 + 0.85 * share, "worlds in turn"),
            run=lambda arm, clock, steps: team.lead(everything.index(arm.name), arm, clock, steps),
        )
        team.dismiss()
    seconds = {
        name: times[-len(rounds) :] for name, times in zip(everything, team.seconds(len(everything)), strict=True)
    }
    return read(asked, Measured(rounds, seconds, gradient, names), conditions(device))


class Team:
    """The ranks of one launch: rank 0 says which arm runs how many steps, all run them, rank 0 gets their times."""

    def __init__(self, rank: Rank):
        self.rank = rank
        self._words = dist.new_group(backend="gloo", timeout=LONG)
        self._seconds: list[tuple[int, list[float]]] = []

    def lead(self, number: int, arm: Arm, clock: Clock, steps: int) -> Block:
        """Run one block of an arm on all ranks that are in it. The slowest rank's time is the block's."""
        self._say(number, steps)
        blocks = self._together(arm, clock, steps)
        self._seconds.append((number, [block.seconds for block in blocks]))
        spans = {name: sum(b.spans[name] / b.seconds for b in blocks) / len(blocks) for name in (WAIT, DATA_WORK)}
        longest = max(block.seconds for block in blocks)
        return Block(
            longest, steps, sum(b.samples for b in blocks), {name: share * longest for name, share in spans.items()}
        )

    def follow(self, arms: Sequence[Arm | None], clock: Clock) -> None:
        """Run blocks as rank 0 says, until it has enough."""
        while (order := self._say(0, 0))[1]:
            self._together(arms[order[0]], clock, order[1])

    def dismiss(self) -> None:
        """Rank 0 has enough."""
        self._say(0, 0)

    def seconds(self, count: int) -> list[list[list[float]]]:
        """For each of ``count`` arms its blocks, and for each block the seconds of every rank that was in it."""
        return [[times for number, times in self._seconds if number == arm] for arm in range(count)]

    def meet(self) -> None:
        """Wait until all ranks are here."""
        dist.barrier(group=self._words)

    def all_words(self, words: str) -> list[str]:
        """One short text of each rank, in their order."""
        data = words.encode()[:LONGEST_NAME].ljust(LONGEST_NAME, b"\0")
        own = torch.tensor(list(data), dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.rank.size)]
        dist.all_gather(every, own, group=self._words)
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in every]

    def _say(self, number: int, steps: int) -> tuple[int, int]:
        order = torch.tensor([number, steps])
        dist.broadcast(order, 0, group=self._words)
        return int(order[0]), int(order[1])

    def _together(self, arm: Arm | None, clock: Clock, steps: int) -> list[Block]:
        self.meet()
        own = torch.zeros(4, dtype=torch.float64)
        if arm is not None:
            block = run_block(arm, clock, steps)
            spans = (block.spans.get(WAIT, 0.0), block.spans.get(DATA_WORK, 0.0))
            own = torch.tensor([block.seconds, block.samples, *spans], dtype=torch.float64)
        every = [torch.empty_like(own) for _ in range(self.rank.size)]
        dist.all_gather(every, own, group=self._words)
        rows = [row.tolist() for row in every]
        return [Block(row[0], steps, int(row[1]), {WAIT: row[2], DATA_WORK: row[3]}) for row in rows if row[0]]


class AllReduce:
    """An arm: add up tensors as large as the gradient over all ranks, and nothing else. Its samples are bytes."""

    period = 1

    def __init__(self, name: str, gradient: torch.Tensor):
        self.name, self._gradient = name, gradient

    def resume(self) -> None:
        """Nothing has to start."""

    def pause(self) -> None:
        """Nothing goes on."""

    def step(self, clock: Clock) -> int:
        dist.all_reduce(self._gradient)
        return self._gradient.nbytes


def build_arms(asked: Request, team: Team, device: str, stack: ExitStack) -> tuple[dict[str, Arm], int]:
    """The arms that this rank is in, by name, and the bytes of the gradient."""
    arms: dict[str, Arm] = {}
    rank = team.rank
    late = asked.straggler_ms / 1000 if rank.number == rank.size - 1 else 0.0

    def arm(name: str, training: Training, feed: Feed, within: Callable[[], Any] = nullcontext) -> None:
        arms[name] = Real(name, feed, training.prepare, _step(training, late, within), training.use_precision)

    def fed(training: Training) -> Feed:
        return stack.enter_context(Feed(training.loader))

    if rank.number == 0:
        alone = build(asked.config, asked.job, device)
        arm(ALONE, alone, fed(alone))
    team.meet()  # what rank 0 had to write, pictures for instance, the others find
    for size in sizes(asked.ranks):
        group = dist.new_group(list(range(size)))  # every rank must ask for every group
        if rank.number >= size:
            continue
        own = Rank(rank.number, size, group)
        whole = build(asked.config, asked.job, device, own)
        feed = fed(whole)
        arm(weak_name(size), whole, feed)
        if size == rank.size:
            arm(FLOOR, whole, feed, whole.run.no_sync)
        if strong_name(size) in arm_names(asked):
            part = build(asked.config.with_(batch_size=asked.config.batch_size // size), asked.job, device, own)
            arm(strong_name(size), part, fed(part))
    weights = [weight for weight in whole.model.parameters() if weight.requires_grad]
    if REDUCE in arm_names(asked):
        arms[REDUCE] = AllReduce(REDUCE, torch.zeros(sum(w.numel() for w in weights), device=device))
    return arms, sum(weight.nbytes for weight in weights)


def _step(training: Training, late: float, within: Callable[[], Any]) -> Callable[[Any], None]:
    def step(ready: Any) -> None:
        if late:
            time.sleep(late)
        with within():
            training.step(*ready)

    return step


def card_name(device: str) -> str:
    """What tells this rank's card from every other: its UUID, or where that is not known its name and number."""
    if device == "cpu":
        return "CPU"
    card = gpus.card(device)
    return (card.uuid or f"{card.name} {device}") if card else device


def check_cards(names: Sequence[str], device: str) -> list[str]:
    """The ranks' cards again; ValueError if two ranks have the same one."""
    for number, name in enumerate(names):
        if device != "cpu" and (first := list(names).index(name)) != number:
            raise ValueError(f"ranks {first} and {number} have the same card ({name}): each rank needs one of its own")
    return list(names)


def loopback(interfaces: Callable[[], list[tuple[int, str]]] = socket.if_nameindex) -> str:
    """The name of the loopback interface: lo on Linux, lo0 on macOS; "" where nothing is called so."""
    try:
        return next((name for _, name in interfaces() if name in ("lo", "lo0")), "")
    except OSError:
        return ""
