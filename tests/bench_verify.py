"""Benchmark, not a test: how long `gpuworkshop verify` takes against the shortest line that uses the card, in turn.

Run it with `make bench`. Goals: on a card the whole report within 1.15 times the line, without a card within the line
and 1 s; what the driver says on screen within 0.5 s.
"""

import statistics
import subprocess
import sys
import time

TURNS = 7
ON_A_CARD = "import torch; torch.ones(3).cuda().cpu()"
WITHOUT = "import torch; torch.ones(3)"
VERIFY = ["-m", "gpuworkshop", "verify"]


def seconds(arguments: list[str]) -> tuple[float, float]:
    """Wall time of one fresh interpreter until the first line of its output, and until its end, in seconds."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        first = time.perf_counter() - start
        process.stdout.read()
    return first, time.perf_counter() - start


def main() -> None:
    """Print the median of each arm, and the ratio and the difference of the arms within a turn."""
    card = subprocess.run([sys.executable, "-c", ON_A_CARD], stderr=subprocess.DEVNULL).returncode == 0
    line = ["-c", ON_A_CARD if card else WITHOUT]
    for arguments in (line, VERIFY):
        seconds(arguments)  # fills the disk cache and the byte code
    turns = []
    for turn in range(TURNS):
        arms = [line, VERIFY] if turn % 2 else [VERIFY, line]
        taken = {arguments[0]: seconds(arguments) for arguments in arms}
        turns.append((taken["-c"][1], *taken["-m"]))
    ratios = sorted(whole / plain for plain, _, whole in turns)
    middle = [statistics.median(column) for column in zip(*turns, strict=True)]
    more = statistics.median(whole - plain for plain, _, whole in turns)
    print(f"{TURNS} turns, medians, {'on a card' if card else 'no card'}: python -c {line[1]!r} {middle[0]:.2f} s")
    print(f"verify: first line {middle[1]:.2f} s, whole {middle[2]:.2f} s, {more:+.2f} s")
    print(f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
