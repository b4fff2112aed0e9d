"""Benchmark, not a test: a trace read by the kit against the profiler's own table, and against traceinsight.

    python tests/bench_profile.py                 # on a card: 20 steps of ResNet-50, table and trace of the same run
    python tests/bench_profile.py --keep t.json   # and keep that trace
    python tests/bench_profile.py t.json          # a kept trace against traceinsight, where that is installed

Goals: the summary of a trace takes at most 1 s, 3 times less than key_averages().table() with the export counted, and
5 times less than traceinsight; top rows agree with key_averages within 1%, shares with traceinsight within 1 point.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

STEPS, WARM_UP, ROWS = 20, 3, 8
PRESET = {"cpu": "tiny", "cuda": "card"}


def against_key_averages(keep: str | None) -> None:
    """One run, its trace by the kit and its table by the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, schedule
    from torch.profiler import profile as profiler

    from gpuworkshop.instruments import arms, trace, trace_sums
    from gpuworkshop.workloads.config import Job
    from gpuworkshop.workloads.train import build

    device = "cuda" if torch.cuda.is_available() else "cpu"
    job = Job(PRESET[device])
    training = build(job.sizes.start, job)
    training.use_precision()
    batches = arms.synthetic(training)
    for _ in range(10):
        training.step(*batches[0])
    with profiler(
        activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda"),
        schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
    ) as run:
        for turn in range(WARM_UP + STEPS):
            training.step(*batches[turn % 2])
            run.step()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(keep or Path(folder) / "trace.json")
        export = timed(lambda: run.export_chrome_trace(str(file)))[0]
        reading, whole = timed(lambda: trace.read(file))
        adding, sums = timed(lambda: trace_sums.sums(whole))
    table, averages = timed(lambda: table_of(run))
    ours = export + reading + adding
    print(f"torch {torch.__version__}, {device}, {sums.events:,} events, {whole.text_bytes / 1e6:.0f} MB")
    print(f"export {export:.2f} s + read {reading:.2f} s + add up {adding:.2f} s = {ours:.2f} s")
    print(f"key_averages().table() {table:.2f} s: {table / ours:.1f}x as long; summary alone {reading + adding:.2f} s")
    rows_against(averages, sums, device)


def table_of(run):
    """The profiler's table, as a learner asks for it; and the averages it is made of."""
    averages = run.key_averages()
    averages.table(sort_by="self_device_time_total", row_limit=10)
    return averages


def rows_against(averages, sums, device: str) -> None:
    """The top rows of both, side by side."""
    from torch.autograd import DeviceType

    mine = {row.name: row for row in sums.operators}
    by = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = [row for row in averages if row.device_type == DeviceType.CPU and row.key in mine]
    for row in sorted(rows, key=lambda row: -getattr(row, by))[:ROWS]:
        ours = mine[row.key].device_self if device == "cuda" else mine[row.key].cpu_self
        theirs = getattr(row, by)
        print(f"{row.key:45} calls {row.count}/{mine[row.key].calls}  {theirs:12.0f} us {ours:12.0f} us", end="")
        print(f"  {ours / theirs - 1:+.2%}" if theirs else "")


def against_traceinsight(file: str) -> None:
    """A kept trace by both, in turn."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # it would shorten each kernel by a microsecond, to whole ones

    from gpuworkshop.instruments import trace, trace_sums

    importing, theirs = timed(lambda: __import__("hta.trace_analysis", fromlist=["TraceAnalysis"]))
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    print(f"traceinsight takes {importing:.1f} s to import")
    for _ in range(3):
        reading, sums = timed(lambda: trace_sums.sums(trace.read(file)))
        loading, loaded = timed(lambda: theirs.TraceAnalysis(trace_files={0: file}))
        events = loaded.t.traces[0]
        asking, (idle, span) = timed(
            lambda events=events: BreakdownAnalysis._get_idle_time_for_kernels(events[events["stream"].ne(-1)].copy())
        )
        print(f"ours {reading:.2f} s, theirs {loading + asking:.2f} s: {(loading + asking) / reading:.1f}x as long")
    print(f"idle: ours {sums.main.idle:.2%} of {sums.main.span:.0f} us, theirs {idle / span:.2%} of {span:.0f} us")
    print("(theirs leaves the last profiled step out)")


def timed(call):
    """Seconds, and what the call returned."""
    began = time.perf_counter()
    answer = call()
    return time.perf_counter() - began, answer


def main() -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("trace", nargs="?", help="a kept trace to read with both")
    ask.add_argument("--keep", help="where to keep the trace of this run")
    asked = ask.parse_args()
    if asked.trace:
        against_traceinsight(asked.trace)
    else:
        against_key_averages(asked.keep)


if __name__ == "__main__":
    main()
