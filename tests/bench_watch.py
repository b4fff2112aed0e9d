"""Benchmark, not a test: what a watch costs the step that it watches, on the card, or on the CPU where there is none.

    python tests/bench_watch.py              # needs torch, nvidia-ml-py, msgspec, numpy
    python tests/bench_watch.py --nobody     # as an ordinary user (uid 65534), when started by root
    python tests/bench_watch.py --seconds 60 # less time, a wider interval

The step is launch-bound, hundreds of tiny operations: it needs the interpreter all the time, which the sampler's thread
takes from it. Watched and not watched run in turn in one process. Goal: the upper end of the cost's 95% interval <= 1%.
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

OPERATIONS = 400
"""A step: on a card about 2 to 4 ms of launches."""

PAIRS = 30
WIDTH = 0.004
"""Half-width of the interval at which the bench ends before its time."""


class Step:
    """An arm: tiny operations, one after the other; with a sampler, it looks during the arm's blocks only."""

    period = 1

    def __init__(self, name: str, device: str, sampler=None):
        import torch

        self.name, self._sampler = name, sampler
        self._at = torch.ones(64, 64, device=device)

    def resume(self) -> None:
        if self._sampler:
            self._sampler.resume()

    def pause(self) -> None:
        if self._sampler:
            self._sampler.pause()

    def step(self, clock) -> int:
        at = self._at
        for _ in range(OPERATIONS):
            at.mul_(1.0)
        return 1


def become_nobody() -> None:
    """Go on as an ordinary user, with a home that can be written."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.environ["HOME"] = "/tmp"


def main() -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--nobody", action="store_true", help="give up root first")
    ask.add_argument("--seconds", type=float, default=180.0, help="time for the pairs (180)")
    asked = ask.parse_args()

    import pynvml  # noqa: F401  read while root still can: Python may lie where nobody else may look
    import torch

    from gpuworkshop.instruments import watch
    from gpuworkshop.timing import Plan, clock_for, in_turn

    if asked.nobody:
        become_nobody()  # neither CUDA nor NVML is open yet

    torch.set_num_threads(1)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    torch.ones(1, device=device)  # the card is open before the watch looks for it
    # One look a block, in its middle; short blocks, because a launch-bound step drifts.
    plan = Plan(block_seconds=0.2, min_rounds=PAIRS, width=WIDTH, budget_seconds=asked.seconds)
    with watch.Watch() as seen:
        seen.sampler.wait_for_first()
        seen.sampler.pause()
        looks, took, began = len(seen.samples), seen.sampler.cpu_seconds, time.monotonic()
        if hasattr(
            os, "sched_setaffinity"
        ):  # this thread stays on one CPU: its moves would be noise; the watch is free
            os.sched_setaffinity(threading.get_native_id(), {min(os.sched_getaffinity(0))})
        plain, watched = Step("plain", device), Step("watched", device, seen.sampler)
        rounds = in_turn([plain, watched], clock_for(device), plan, unit="steps/s")
        seconds, looks, took = rounds.seconds("watched"), len(seen.samples) - looks, seen.sampler.cpu_seconds - took
    tell(seen.result, rounds, looks, took, seconds, time.monotonic() - began)


def tell(result, rounds, looks: int, took: float, seconds: float, whole: float) -> None:
    """Print what came out."""
    compared = rounds.compare("plain", "watched")
    cost, low, high = (100 * (1 / ratio - 1) for ratio in (compared.ratio, compared.high, compared.low))
    print(f"{result.conditions.machine}, uid {os.getuid()}, torch {result.conditions.torch}")
    print(f"step {1e3 / rounds.rate('plain').value:.2f} ms, {compared.pairs} pairs in turn, {whole:.0f} s in all")
    print(f"watched / plain: {compared.ratio:.4f} ({compared.low:.4f} to {compared.high:.4f})")
    print(f"cost of the watch: {cost:+.2f}% ({low:+.2f}% to {high:+.2f}%); the goal is an upper end of at most 1%")
    print(f"sampler: {looks} looks, {1e3 * took / max(1, looks):.2f} ms of CPU a look, {took / seconds:.2%} of one CPU")
    for card in result.cards:
        gpm = card.gpm_why or "read"
        print(f"{card.card.place}: busy {card.busy}, SM {card.sm}, source {card.source or 'none'}, GPM: {gpm}")
    if not result.cards:
        print(f"no card: {result.problem}; CPUs in use {result.cpu}")
    for note in result.notes:
        print("note:", note)


if __name__ == "__main__":
    main()
