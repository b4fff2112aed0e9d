"""Does the diagnosis name what was planted? Each planted job that shows here is looked at once, as the loop does it.

python tests/bench_planted.py [NAME ...]
"""

import sys
import time

from gpuworkshop.loop import guide
from gpuworkshop.loop.diagnose import diagnose
from gpuworkshop.loop.look import Eye
from gpuworkshop.loop.trial import Bench
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.workloads.planted import by_name, that_show_on


def main(names: list[str]) -> int:
    """Print planted and named for each job; the number of misses."""
    device, missed = default_device(), 0
    for one in [by_name(name) for name in names] or that_show_on(device):
        began = time.perf_counter()
        look = Eye(Bench(one.job, one.start, device)).look(one.start, quick=True)
        found = diagnose(look)
        missed += found.limit != one.limit
        said = "" if found.limit == one.limit else "   MISSED"
        print(f"{one.name}: planted {one.limit}, named {found.limit}{said}  [{time.perf_counter() - began:.0f} s]")
        print(f"    {found.reason}")
        advice = guide.beside(look, found.limit)
        print(f"    guide: {advice.title} ({advice.evidence})")
        print(f"    {look.shares}")
        print(f"    {look.traced}  memory {look.memory}  {look.achieved}", flush=True)
    print(f"{missed} missed")
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
