"""Look at one run: stall and headroom, a profile of 20 steps, achieved FLOP/s, and what the driver says meanwhile."""

from __future__ import annotations

import gc
import math
import os
import tempfile
from pathlib import Path

import msgspec
import torch

from gpuworkshop.instruments import arms, flops, profile, starve
from gpuworkshop.instruments.flops import Format
from gpuworkshop.instruments.watch import Watch
from gpuworkshop.instruments.watch_findings import LEAST_WINDOWS
from gpuworkshop.loop.look_result import Look, Watched, traced
from gpuworkshop.loop.trial import Bench
from gpuworkshop.timing import Plan, Rate, in_turn
from gpuworkshop.workloads.config import TrainConfig
from gpuworkshop.workloads.train import Training

FEWEST, MOST = 5, profile.STEPS
"""Steps that are profiled; fewer than the most only where a step is slow."""
FASTEST: Format = "bf16"
"""The format in which every card of the table computes fastest; a CPU without units for it is not asked."""


class Eye:
    """Looks at runs of one bench; what belongs to the device and not to a run is measured once."""

    def __init__(self, bench: Bench):
        self.bench, self.card = bench, bench.device != "cpu"
        self._products: dict[str, Rate | None] = {}
        self._peaks: dict[str, flops.Peak] = {}

    def look(self, config: TrainConfig, *, quick: bool = False) -> Look:
        """Now against the data ceiling, a profile, FLOP/s; quick: only as long as it takes to see what limits."""
        self.clear()
        for format in {config.precision, FASTEST} if self.card else {config.precision}:
            self._product(format)  # before the run takes its memory
        training = self.bench.build(config)
        training.use_precision()
        seen = self._starve(training, quick)
        watched = self._watch(training, seen.real.value / seen.batch_size) if self.card else None
        steps = self._steps(seen, quick)
        self._peak_from_here()
        profiled = self._profile(training, steps)
        memory = self._memory()
        done, product, most = self._achieved(training, seen.real)
        return Look(seen, profiled, done, watched, memory, product, config.precision, most)

    def _starve(self, training: Training, quick: bool) -> starve.StarveResult:
        job, pace = self.bench.job, self.bench.pace
        seen = starve.measure(
            training.loader,
            lambda ready: training.step(*ready),
            training.prepare,
            device=training.device,
            workload=job.title,
            unit=job.sizes.unit,
            plan=pace.quick if quick else pace.baseline,
            loader_alone=not quick,
        )
        return self.named(seen, training.config)

    def named(self, seen: starve.StarveResult, config: TrainConfig) -> starve.StarveResult:
        """A result with what only the loop knows: the config and anything planted."""
        return msgspec.structs.replace(seen, config=config, planted=self.bench.job.planted)

    def _steps(self, seen: starve.StarveResult, quick: bool) -> int:
        pace = self.bench.pace
        seconds = pace.quick_profile_seconds if quick else pace.profile_seconds
        return max(FEWEST, round(min(MOST, seconds * seen.real.value / seen.batch_size)))

    def _profile(self, training: Training, steps: int):
        """What a profile of so many steps adds up to; None where the profiler is refused."""
        short = Plan(block_seconds=0.1, min_rounds=2, budget_seconds=0.1, max_warm_up_blocks=1)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = profile.measure(
                    training.loader,
                    lambda ready: training.step(*ready),
                    training.prepare,
                    steps=steps,
                    trace_file=Path(folder) / "trace.json.gz",
                    device=training.device,
                    plan=short,
                )
            except profile.CannotProfile:
                return None
        return traced(result.sums)

    def _watch(self, training: Training, steps_a_second: float) -> Watched:
        """Utilization over some seconds of plain steps, as the driver counts it: three blocks, warming up included."""
        steps = max(1, math.ceil(self.bench.pace.watch_seconds / 3 * steps_a_second))
        plan = Plan(block_seconds=0.0, min_steps=steps, min_rounds=2, budget_seconds=0.1, max_warm_up_blocks=1)
        with arms.real("now", training) as arm, Watch(what="the loop's plain steps", env=os.environ) as seen:
            in_turn([arm], self.bench.clock, plan)
        cards = seen.result.cards
        card = next((one for one in cards if one.label == training.device or len(cards) == 1), None)
        if card is None:
            return Watched(None, why=seen.result.problem or "the card that runs could not be told apart")
        if card.busy is None or card.windows < LEAST_WINDOWS:
            return Watched(None, card.windows, card.busy_why or f"{card.windows} windows of the driver are too few")
        return Watched(card.busy, card.windows)

    def _achieved(self, training: Training, rate: Rate):
        """FLOP/s of this run, the measured product in its format, and that of the fastest format if it is another."""
        own = training.config.precision
        flop = flops.count(training)
        product, peak = self._product(own), self._peak(own)
        most = self._product(FASTEST) if self.card and own != FASTEST else None
        return flops.achieved(flop, rate, product, peak), product, most

    def _product(self, format: str) -> Rate | None:
        if format not in self._products:
            try:
                self._products[format] = flops.matrix_product(
                    self.bench.device, format, self.bench.pace.product_seconds
                )
            except torch.OutOfMemoryError:
                return None
        return self._products[format]

    def _peak(self, format: str) -> flops.Peak:
        if format not in self._peaks:
            self._peaks[format] = flops.peak(self.bench.device, format)
        return self._peaks[format]

    # Memory of the card

    def clear(self) -> None:
        """Nothing of an earlier trial may stay on the card."""
        gc.collect()
        if self.card:
            torch.cuda.empty_cache()

    def _peak_from_here(self) -> None:
        if self.card:
            self.clear()
            torch.cuda.reset_peak_memory_stats(self.bench.device)

    def _memory(self) -> float | None:
        """The most memory since :meth:`_peak_from_here`, as a share of what this job may use."""
        if not self.card:
            return None
        device, limit = self.bench.device, self.bench.job.memory_gib
        room = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        room = min(room, limit * 2**30) if limit else room
        return min(1.0, torch.cuda.max_memory_reserved(device) / room)
