"""What 100% utilization does not say: three kinds of work, each on a card for some seconds, watched.

One thread that counts, a training step in FP32, and the same step in BF16. The two steps are also measured in turn,
on batches that lie on the card. It takes about a minute and needs a card. Recorded by

    python -m gpuworkshop.course.demos > gpuworkshop/course/recordings/busy-h200.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Progress, Tell
from gpuworkshop.figures.at_work import Bar, at_work
from gpuworkshop.instruments.watch_findings import FEW_SMS
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.machine import gpus
from gpuworkshop.machine.conditions import Conditions, conditions
from gpuworkshop.numbers import percent, with_unit
from gpuworkshop.report import Finding, Origin, Report, Table, envelope
from gpuworkshop.timing import Arm, Clock, Comparison, Plan, Rate, clock_for, in_turn, plan_for, run_block, warm_up
from gpuworkshop.workloads.config import Job

DEGREE = 1_000_000
"""Terms of the polynomial that one thread works through, one after the other."""
BATCH, SMALL_BATCH = 128, 32
ROOMY = 20 * 2**30
"""Bytes of a card's memory from which on the larger batch fits in FP32."""
SECONDS = 4.0
"""Each kind of work is watched for so long: twenty of the driver's windows."""
ONE_THREAD, FP32, BF16 = "one thread", "FP32", "BF16"


class Seen(msgspec.Struct, frozen=True):
    """One kind of work as the watch saw it: means of shares from 0 to 1, and of W. What is not known is None."""

    name: str
    busy: float | None = None
    sm: float | None = None
    tensor: float | None = None
    power: float | None = None
    windows: int = 0
    """Windows of the driver that `busy` is the mean of."""


class DemoResult(msgspec.Struct, frozen=True):
    """Three kinds of work, and how much faster the same training step is in BF16 than in FP32."""

    workload: str
    seen: tuple[Seen, ...]
    fp32: Rate
    bf16: Rate
    faster: Comparison
    conditions: Conditions
    origin: Origin

    def of(self, name: str) -> Seen:
        """What was seen of one kind of work; nothing is known of one that was not watched."""
        return next((one for one in self.seen if one.name == name), Seen(name))


def run(*, launcher: Sequence[str] = (), progress: Callable[[Progress], None] | None = None) -> DemoResult:
    """Measure on the card of a child process, here or behind ``launcher``; ChildFailed where there is no card."""
    return child.run("gpuworkshop.course.demos:in_child", None, type=DemoResult, launcher=launcher, progress=progress)


def in_child(request: None, tell: Tell) -> DemoResult:
    """What the child does."""
    if gpus.default_device() == "cpu":
        raise ValueError("this needs a GPU, and there is none here")
    return measure(Job("card"), gpus.default_device(), tell)


def measure(job: Job, device: str, tell: Tell, plan: Plan | None = None, seconds: float = SECONDS) -> DemoResult:
    """Watch each kind of work on ``device`` for so many ``seconds``, then measure the two steps in turn."""
    clock, plan = clock_for(device), plan or plan_for(device)
    tell.progress(0.0, "loading PyTorch and the network")
    arms = (OneThread(device), *_steps(job, device))
    seen = []
    for place, arm in enumerate(arms):
        tell.progress(0.2 + 0.15 * place, f"watching: {arm.name}")
        seen.append(watched(arm, clock, plan, seconds))
    rest = tell.part(0.65, 1.0)
    steps = arms[1:]
    rounds = in_turn(
        steps, clock, plan, unit=job.sizes.unit, progress=lambda share: rest.progress(share, "FP32, BF16 in turn")
    )
    here = conditions(device)
    return DemoResult(
        workload=f"{job.title}, batch {_batch(device)}, channels_last, resident",
        seen=tuple(seen),
        fp32=rounds.rate(FP32),
        bf16=rounds.rate(BF16),
        faster=rounds.compare(FP32, BF16),
        conditions=here,
        origin=here.origin,
    )


class OneThread:
    """An arm that keeps one thread of the card busy: each term of the polynomial needs the two before it."""

    name, period = ONE_THREAD, 1

    def __init__(self, device: str):
        import torch

        self._run, self._at = torch.special.legendre_polynomial_p, torch.full((1,), 0.5, device=device)

    def resume(self) -> None:
        """There is nothing to prepare."""

    def pause(self) -> None:
        """Nothing runs between its blocks."""

    def step(self, clock: Clock) -> int:
        self._run(self._at, DEGREE)
        return 1


def _steps(job: Job, device: str) -> Iterator[Arm]:
    """The same training step in FP32 and in BF16, on batches that lie on the device."""
    from gpuworkshop.instruments import arms
    from gpuworkshop.workloads import train

    start = job.sizes.start.with_(batch_size=_batch(device), memory_format="channels_last")
    for name, precision in ((FP32, "fp32"), (BF16, "bf16")):
        training = train.build(start.with_(precision=precision), job, device)
        yield arms.resident(name, training, arms.synthetic(training))


def _batch(device: str) -> int:
    """The batch of both steps: a large one where there is a card with room for it."""
    card = gpus.card(device)
    return BATCH if card and (card.memory_bytes or 0) >= ROOMY else SMALL_BATCH


def watched(arm: Arm, clock: Clock, plan: Plan, seconds: float) -> Seen:
    """Run an arm for so many ``seconds`` after its warm-up, and watch the card meanwhile."""
    from gpuworkshop.instruments.watch import Watch

    steps = warm_up(arm, clock, plan)
    with Watch(what=arm.name) as watch:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            run_block(arm, clock, steps)
    return seen_of(arm.name, watch.result)


def seen_of(name: str, result: WatchResult) -> Seen:
    """What a watch of one card says of one kind of work; nothing is known where no card was watched."""
    if not result.cards:
        return Seen(name)
    card = result.cards[0]
    return Seen(name, card.busy, card.sm, card.tensor, card.power, card.windows)


# What it means


def findings(result: DemoResult) -> tuple[Finding, ...]:
    """What utilization said of three kinds of work, and what it did not say."""
    return _thread(result), _precision(result)


def _thread(result: DemoResult) -> Finding:
    thread, step = result.of(ONE_THREAD), result.of(FP32)
    title = f"One thread at work: GPU utilization {percent(thread.busy)}, SM activity {percent(thread.sm)}"
    power = f"power {_watts(thread.power)}, in the FP32 step {_watts(step.power)}"
    if thread.busy is None or thread.sm is None:
        return Finding("unknown", title, f"this driver does not tell both; {power}")
    idle = "a kernel was there, and nearly all of the card had no part in it" if thread.sm < FEW_SMS else ""
    return Finding("notice", title, "; ".join(filter(None, (idle, power))))


def _precision(result: DemoResult) -> Finding:
    fp32, bf16 = result.of(FP32), result.of(BF16)
    busy = f"GPU utilization {percent(fp32.busy)} in FP32 and {percent(bf16.busy)} in BF16"
    tensor = f"tensor activity {percent(fp32.tensor)} and {percent(bf16.tensor)}"
    level = "unknown" if fp32.busy is None or bf16.busy is None else "notice"
    return Finding(level, f"The same training step in BF16: {result.faster}", f"{busy}; {tensor}")


def report(result: DemoResult) -> Report:
    """The findings, a table of everything that was seen, and the picture of it."""
    rates = {FP32: with_unit(result.fp32), BF16: with_unit(result.bf16)}
    rows = tuple(
        (one.name, rates.get(one.name, ""), *map(percent, (one.busy, one.sm, one.tensor)), _watts(one.power))
        for one in result.seen
    )
    columns = ("work", "throughput", "GPU utilization", "SM activity", "tensor activity", "power")
    bars = [Bar(one.name, _briefly(result, one.name), one.busy, one.sm) for one in result.seen]
    title = f"What 100% does not say: {result.workload}"
    return Report(title, result.origin, findings(result), (Table(columns, rows),), (at_work(bars, result.origin),))


def _briefly(result: DemoResult, name: str) -> str:
    rates = {FP32: result.fp32, BF16: result.bf16}
    return f"training step, {rates[name].value:,.0f} {rates[name].unit}" if name in rates else "a polynomial"


def _watts(power: float | None) -> str:
    return "n/a" if power is None else f"{power:.0f} W"


def main() -> None:
    """Measure here and print the envelope, which is what a recording is."""
    try:
        with closing(child.Bar("demos", sys.stderr)) as bar:
            result = run(progress=bar)
    except child.ChildFailed as failed:
        sys.exit(str(failed))
    sys.stdout.buffer.write(envelope(result, result.origin, findings(result)) + b"\n")


if __name__ == "__main__":
    main()
