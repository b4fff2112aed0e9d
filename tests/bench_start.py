"""Benchmark, not a test: how long `import gpuworkshop` and `gpuworkshop --help` take above bare Python.

Run it with `make bench`. The arms run in turn, so a slow spell of the machine falls on all of them.
Byte code is written, as it is where a kit is installed. Goals: import <= 0.1 s, --help <= 0.2 s.
"""

import os
import statistics
import subprocess
import sys
import time

TURNS = 15
WITH_BYTE_CODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ARMS = {
    "bare Python": ["-c", "pass"],
    "import gpuworkshop": ["-c", "import gpuworkshop"],
    "gpuworkshop --help": ["-m", "gpuworkshop", "--help"],
    "gpuworkshop loop --help": ["-m", "gpuworkshop", "loop", "--help"],
}


def seconds(arguments: list[str]) -> float:
    """Wall time of one fresh interpreter, in seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=WITH_BYTE_CODE, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Print the median of each arm and its median difference to bare Python in the same turn."""
    for arguments in ARMS.values():
        seconds(arguments)  # fills the disk cache and the byte code
    turns = [{name: seconds(arguments) for name, arguments in ARMS.items()} for _ in range(TURNS)]
    print(f"{TURNS} turns, medians, milliseconds")
    for name in ARMS:
        median = statistics.median(turn[name] for turn in turns)
        above = statistics.median(turn[name] - turn["bare Python"] for turn in turns)
        print(f"{name:24s} {median * 1e3:6.0f}   above bare Python {above * 1e3:6.0f}")


if __name__ == "__main__":
    main()
