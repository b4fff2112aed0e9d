"""How far from the best does the loop end? A loop from a bad start, then a grid of settings in turn with its end.

    python tests/bench_regret.py [--start NAME] [--budget SECONDS]

The grid is every sensible combination of the settings that matter for a start; its best is measured once more against
the loop's end, in turn, so that a lucky block wins nothing. Regret = best / the loop's end; the goal is 1.10.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from gpuworkshop.child import Tell
from gpuworkshop.instruments import arms
from gpuworkshop.loop import climb, climb_result
from gpuworkshop.loop.climb import Request
from gpuworkshop.loop.climber import Climb
from gpuworkshop.loop.trial import CANNOT, Bench
from gpuworkshop.machine import allocation
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.report import envelope
from gpuworkshop.timing import Plan, in_turn
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.planted import by_name

GOAL = 1.10
AT_ONCE = 6
"""Arms that are alive together: more would need the memory of as many runs."""


def start(name: str, card: bool) -> tuple[Job, TrainConfig]:
    """The job and the bad start of this name."""
    if name == "pictures":
        job = Job("card" if card else "tiny")
    elif name == "launches":
        job = Job("gpt-tiny")
    elif name == "compute":
        job = Job("gpt" if card else "gpt-small")
    elif card:
        planted = by_name("outputs copied in each step")
        return planted.job, planted.start
    else:  # without a card no copy can be seen: work on the batch by the host stands in for it
        planted = by_name("pictures cropped on the host")
        return planted.job, planted.start
    return job, job.sizes.start


def grid(job: Job, now: TrainConfig, end: TrainConfig, card: bool) -> Iterator[TrainConfig]:
    """Settings worth a look for this job: where the loop began, where it ended, and what lies around."""
    few = {
        "precision": ["fp32", "tf32", "bf16"] if card else ["fp32", "bf16"],
        "batch_size": sorted({now.batch_size, end.batch_size, 4 * now.batch_size, 16 * now.batch_size}),
    }
    if job.sizes.pictures:
        few["data_path"] = ["cpu-decode", "pre-decoded", *(["card-decode"] if card else [])]
        few["workers"] = sorted({0, max(2, workers_rule(allocation.cpus().count))})
        few["memory_format"] = ["contiguous", "channels_last"]
    elif card:
        few["compiled"] = [False, True]
        few["fused"] = [False, True]
    settings = dict(reads_loss="rarely", calls="a batch", transform="device")
    for values in itertools.product(*few.values()):
        chosen = dict(zip(few, values, strict=True))
        if chosen.get("data_path") == "card-decode" and chosen["workers"]:
            continue
        if card and chosen["precision"] == "fp32" and chosen.get("compiled"):
            continue  # compiling each format is minutes, and FP32 is never the best
        workers = dict(workers=0, persistent_workers=False, prefetch_factor=None)
        if chosen.get("workers"):
            workers |= dict(persistent_workers=True)
        yield TrainConfig(**{**settings, **workers, "pin_memory": card, **chosen})


def rates(bench: Bench, configs: list[TrainConfig], until: float) -> dict[TrainConfig, float]:
    """The throughput of each config that can run, relative to the first, a few at a time, in turn; until time is up."""
    base, others, found = configs[0], configs[1:], {configs[0]: 1.0}
    short = Plan(block_seconds=0.3 if bench.device != "cpu" else 0.1, min_rounds=2, budget_seconds=0.5, width=1.0)
    size = AT_ONCE if bench.device == "cpu" else 3
    for at in range(0, len(others), size):
        if time.monotonic() > until:
            print(f"grid: {len(found)} of {len(configs)} settings measured, then time was up")
            break
        group = [base]
        with ExitStack() as stack:
            alive = [stack.enter_context(arms.real("base", bench.build(base)))]
            for number, config in enumerate(others[at : at + size]):
                try:
                    alive.append(stack.enter_context(arms.real(str(number), bench.build(config))))
                    group.append(config)
                except (*CANNOT, ValueError) as fault:
                    print(f"not possible: {fault}")
            try:
                rounds = in_turn(alive, bench.clock, short)
            except CANNOT as fault:
                print(f"not possible together: {fault}")
                continue
            seen = [rounds.rate(arm.name).value for arm in alive]
        found |= {config: value / seen[0] for config, value in zip(group[1:], seen[1:], strict=True)}
        if bench.device != "cpu":
            torch.cuda.empty_cache()
    return found


def regret(name: str, budget: float | None, grid_seconds: float, keep: Path | None) -> float:
    """Run the loop from a start, keep its result, measure the grid, print both; best over the loop's end."""
    device = default_device()
    job, now = start(name, device != "cpu")
    began = time.monotonic()
    result = Climb(Request(job, now, max_changes=10, budget_seconds=budget, device=device), Tell()).climb()
    end = result.final.config
    if keep:
        (keep / f"loop-{name}.json").write_bytes(envelope(result, result.origin, tuple(climb_result.findings(result))))
    print(f"{name}: {job.title}; loop {time.monotonic() - began:.0f} s, {result.gain:.2f}x, {result.stopped}")
    for record in result.kept:
        print(
            f"    kept {climb.change_words(record)}: {record.comparison}; {record.limit_before} -> {record.limit_after}"
        )
    bench = Bench(job, end, device)
    others = [config for config in dict.fromkeys(grid(job, now, end, device != "cpu")) if config != end]
    measured = rates(bench, [end, *others], time.monotonic() + grid_seconds)
    best = max(measured, key=measured.__getitem__)
    value = 1.0
    if best != end:
        plan = msgspec.structs.replace(bench.plan, budget_seconds=bench.plan.budget_seconds / 2)
        with ExitStack() as stack:
            both = [stack.enter_context(arms.real(n, bench.build(c))) for n, c in (("loop", end), ("best", best))]
            again = in_turn(both, bench.clock, plan).compare("loop", "best")
        value = max(1.0, again.ratio)
        print(f"    best of {len(measured)}: {again}")
        for field in TrainConfig.__struct_fields__:
            if getattr(best, field) != getattr(end, field):
                print(f"        {field}: loop {getattr(end, field)}, best {getattr(best, field)}")
    print(
        f"{name}: regret {value:.2f} {'ok' if value <= GOAL else 'ABOVE THE GOAL'}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return value


def main() -> int:
    """Measure each start that is asked for."""
    starts = ("pictures", "launches", "copies", "compute")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", choices=starts, action="append")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for the loop; 0: as long as it takes")
    parser.add_argument("--grid", type=float, default=75.0, help="seconds for the grid")
    parser.add_argument("--keep", type=Path, help="folder for the loops' results, as recordings")
    asked = parser.parse_args()
    found = [regret(name, asked.budget or None, asked.grid, asked.keep) for name in asked.start or starts]
    return int(max(found) > GOAL)


if __name__ == "__main__":
    sys.exit(main())
