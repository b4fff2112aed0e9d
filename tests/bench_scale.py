"""Benchmark, not a test: what the scaling instrument costs the training that it measures, over train.py under torchrun.

    python tests/bench_scale.py                  # two ranks, in turn in one launch
    python tests/bench_scale.py --ranks 1        # on one card: NCCL with one rank
    python tests/bench_scale.py --launches 6     # whole launches of bare torchrun and of the instrument, in turn

In one launch each rank has the same DDP training twice: one runs the lines of train.py, the other is an arm of the
instrument, with its endless loader and its spans. Blocks of both run in turn, so a machine that drifts slows both.
Whole launches compare what a user would: bare ``torchrun train.py`` and what the instrument prints; they differ by
several percent from one launch to the next. Goal: at most 2%.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

STEPS, SKIPPED = 400, 100
"""Steps of a bare launch, and those before its rate counts."""


def arguments() -> argparse.Namespace:
    """The command line; the ranks get the same."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--ranks", type=int, default=2)
    ask.add_argument("--preset", default="tiny")
    ask.add_argument("--data-path", default="cpu-decode")
    ask.add_argument("--seconds", type=float, default=60.0, help="time for the blocks (60)")
    ask.add_argument("--launches", type=int, default=0, help="compare so many pairs of whole launches instead")
    return ask.parse_args()


def main() -> None:
    """Measure and print."""
    asked = arguments()
    if "RANK" in os.environ:
        in_rank(asked)
    elif asked.launches:
        whole_launches(asked)
    else:
        from gpuworkshop.instruments.scaling import torchrun

        subprocess.run([*torchrun(asked.ranks), sys.executable, __file__, *sys.argv[1:]], check=True)


def in_rank(asked: argparse.Namespace) -> None:
    """One rank: both arms, block by block, as rank 0 says."""
    import torch

    from gpuworkshop.instruments.arms import Real, real
    from gpuworkshop.instruments.feed import Feed
    from gpuworkshop.instruments.scaling_rank import Team, loopback
    from gpuworkshop.timing import Plan, clock_for, compare, in_turn
    from gpuworkshop.workloads.config import Job
    from gpuworkshop.workloads.ranks import joined, own_device
    from gpuworkshop.workloads.train import build, endless

    class Bare(Real):
        """The lines of train.py: the loader as it is, no spans."""

        def __init__(self, name: str, training):
            super().__init__(name, Feed(training.loader), training.prepare, training.step, training.use_precision)
            self._training, self._batches = training, endless(training.loader)

        def step(self, clock) -> int:
            x, y = self._training.prepare(next(self._batches))
            self._training.step(x, y)
            return len(y)

    os.environ["GLOO_SOCKET_IFNAME"] = loopback()
    torch.set_num_threads(1)
    job, device = Job(asked.preset), own_device()
    config = job.sizes.start.with_(data_path=asked.data_path)
    with joined(device) as rank:
        team, clock = Team(rank), clock_for(device)
        if rank.number:
            team.meet()  # rank 0 writes the pictures
        bare = Bare(
            "bare", build(config, job, device, rank) if rank.number else _first(team, config, job, device, rank)
        )
        arms = [bare, real("instrument", build(config, job, device, rank))]
        if rank.number:
            team.follow(arms, clock)
            return
        names = [arm.name for arm in arms]
        block = 0.5 if device == "cpu" else 1.0
        plan = Plan(block_seconds=block, min_rounds=30, width=0.004, budget_seconds=asked.seconds)
        cpu: dict[str, list[float]] = {name: [] for name in names}

        def lead(arm, clock, steps):
            before = time.process_time()
            block = team.lead(names.index(arm.name), arm, clock, steps)
            cpu[arm.name].append((time.process_time() - before) / steps)
            return block

        rounds = in_turn(arms, clock, plan, unit=job.sizes.unit, run=lead)
        team.dismiss()
    tell(rounds.compare("bare", "instrument"), f"{asked.ranks} ranks on {device}, bare {rounds.rate('bare')}")
    both = zip(*(times[-len(rounds) :] for times in cpu.values()), strict=True)
    used = compare([math.log(instrument / bare) for bare, instrument in both])
    words = "CPU time a step in rank 0, which other work on this machine hardly changes: instrument / bare"
    print(f"{words} {used.ratio:.4f} ({used.low:.4f} to {used.high:.4f})")


def _first(team, config, job, device, rank):
    """Rank 0: write what has to be written, then build with the others."""
    from gpuworkshop.workloads.train import build

    build(config, job, device)
    team.meet()
    return build(config, job, device, rank)


def whole_launches(asked: argparse.Namespace) -> None:
    """Bare torchrun and the instrument, launch by launch, in mirrored order."""
    from gpuworkshop.instruments import scaling
    from gpuworkshop.timing import Plan, compare
    from gpuworkshop.workloads.config import Job

    job = Job(asked.preset)
    config = job.sizes.start.with_(data_path=asked.data_path)
    plan = Plan(min_rounds=12, width=0.0, budget_seconds=10.0)

    def instrument() -> float:
        return scaling.run(config, job, asked.ranks, plan=plan, only_weak=True).world("weak").rate.value

    def bare() -> float:
        words = ["-m", "gpuworkshop.workloads.train", "--preset", asked.preset, "--data-path", asked.data_path]
        command = [*scaling.torchrun(asked.ranks), sys.executable, *words, "--steps", str(STEPS)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines = [
            (int(step), float(rate.replace(",", ""))) for step, rate in re.findall(r"step +(\d+) .*? ([\d,]+) ", out)
        ]
        (first, early), (last, late) = next(line for line in lines if line[0] >= SKIPPED), lines[-1]
        return (last - first) / (last / late - first / early)  # samples/s: both times are samples / rate

    began, logs = time.monotonic(), []
    for pair in range(asked.launches):
        order = (bare, instrument) if pair % 2 == 0 else (instrument, bare)
        got = {do.__name__: do() for do in order}
        logs.append(math.log(got["instrument"] / got["bare"]))
        print(f"bare {got['bare']:,.0f}, instrument {got['instrument']:,.0f} {job.sizes.unit}", flush=True)
    tell(compare(logs), f"{asked.ranks} ranks, {asked.launches} pairs of launches, {time.monotonic() - began:.0f} s")


def tell(compared, where: str) -> None:
    """Print what came out."""
    cost, low, high = (100 * (1 / ratio - 1) for ratio in (compared.ratio, compared.high, compared.low))
    print(f"{where}; {compared.pairs} pairs in turn")
    print(f"instrument / bare: {compared.ratio:.4f} ({compared.low:.4f} to {compared.high:.4f})")
    print(f"cost of the instrument: {cost:+.2f}% ({low:+.2f}% to {high:+.2f}%); the goal is at most 2%")


if __name__ == "__main__":
    main()
