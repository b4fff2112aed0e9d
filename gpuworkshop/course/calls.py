"""One call over many samples against one call for each: the same work, measured in turn.

Recorded by

    python -m gpuworkshop.course.calls > calls-h200.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Tell
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import interval, number
from gpuworkshop.report import Finding, Origin, Report, Table, envelope
from gpuworkshop.timing import Clock, Comparison, Plan, Rate, clock_for, in_turn, plan_for

SAMPLES = 10_000
ON_CPU = Plan(block_seconds=0.1, min_steps=1, min_rounds=6, budget_seconds=3.0, max_warm_up_blocks=2)
CLAIM = Origin("claimed by", "the AICR Training Workshop 2, for an H200")
CLAIMED_TIMES = 300
EACH, TOGETHER = "one call a sample", "one call"


class CallsResult(msgspec.Struct, frozen=True):
    """Throughput of both ways over the same ``samples``, and how many times faster the one call is."""

    samples: int
    each: Rate
    together: Rate
    faster: Comparison
    conditions: Conditions
    origin: Origin

    @property
    def times(self) -> Rate:
        """How many times as long the many calls take, with its interval."""
        return Rate(self.faster.ratio, self.faster.low, self.faster.high, self.faster.pairs, "times")


class _Way:
    """An arm: one pass over all samples, without gradients."""

    period = 1

    def __init__(self, name: str, run: Callable[[], Any], samples: int):
        self.name, self._run, self._samples = name, run, samples

    def resume(self) -> None:
        """There is nothing to prepare."""

    def pause(self) -> None:
        """Nothing runs between its blocks."""

    def step(self, clock: Clock) -> int:
        import torch

        with torch.no_grad():
            self._run()
        return self._samples


def measure(
    each: Callable[[], Any],
    together: Callable[[], Any],
    samples: int = SAMPLES,
    *,
    device: str | None = None,
    plan: Plan | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> CallsResult:
    """Run two functions in turn in this process, each doing the same work over ``samples`` samples."""
    from gpuworkshop.machine.conditions import conditions
    from gpuworkshop.machine.gpus import default_device

    if not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples is {samples!r:.60}: how many samples each function works on, 1 or more")
    device = device or default_device()
    plan = plan or (ON_CPU if device == "cpu" else plan_for(device))
    arms = (_Way(EACH, each, samples), _Way(TOGETHER, together, samples))
    rounds = in_turn(arms, clock_for(device), plan, progress=progress)
    here = conditions(device)
    return CallsResult(
        samples, rounds.rate(EACH), rounds.rate(TOGETHER), rounds.compare(EACH, TOGETHER), here, here.origin
    )


def findings(result: CallsResult) -> tuple[Finding, ...]:
    """The measured ratio, and whether it could be told from none."""
    title = f"One call over {result.samples:,} samples is {_times(result)} times as fast as {result.samples:,} calls"
    return (Finding("notice", title, f"{result.faster.verdict}, from {result.faster.pairs} pairs in turn"),)


def report(result: CallsResult) -> Report:
    """The ratio, the times of both ways, and the claim beside it with its mark."""
    ways = ((f"{result.samples:,} calls", result.each), ("one call", result.together))
    spent = tuple((name, _milliseconds(rate, result.samples), _each(rate)) for name, rate in ways)
    beside = (("measured", _times(result), str(result.origin)), ("claimed", str(CLAIMED_TIMES), str(CLAIM)))
    tables = (
        Table(("way", f"ms for {result.samples:,} samples", "us a sample"), spent),
        Table(("", "times as fast", "mark"), beside),
    )
    return Report("One call, or one for each sample", result.origin, findings(result), tables)


def _times(result: CallsResult) -> str:
    return f"{number(result.faster.ratio)} {interval(result.faster.low, result.faster.high)}"


def _milliseconds(rate: Rate, samples: int) -> str:
    longest, shortest = (1e3 * samples / end for end in (rate.low, rate.high))
    return f"{number(1e3 * samples / rate.value)} {interval(shortest, longest)}"


def _each(rate: Rate) -> str:
    return number(1e6 / rate.value)


# ---------------------------------------------------------------- in a child, and as a recording


def run(*, launcher: Sequence[str] = (), progress: Callable[[child.Progress], None] | None = None) -> CallsResult:
    """Measure on the device of a child process, here or behind ``launcher``: the network of the chapter's lines."""
    return child.run("gpuworkshop.course.calls:in_child", None, type=CallsResult, launcher=launcher, progress=progress)


def in_child(request: None, tell: Tell) -> CallsResult:
    """What the child does: the lines of chapter 3."""
    import torch
    from torch import nn

    from gpuworkshop.machine.gpus import default_device

    device = default_device()
    model = nn.Linear(64, 64).to(device)
    samples = torch.randn(SAMPLES, 64, device=device)
    return measure(
        lambda: [model(sample) for sample in samples],
        lambda: model(samples),
        device=device,
        progress=lambda share: tell.progress(share, "in turn"),
    )


def main() -> None:
    """Measure here and print the envelope, which is what a recording is."""
    result = run()
    sys.stdout.buffer.write(envelope(result, result.origin, findings(result)) + b"\n")


if __name__ == "__main__":
    main()
