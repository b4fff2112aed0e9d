"""The end of a loop: what was reached, held against both ceilings and the best path that still decodes JPEGs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from gpuworkshop.instruments import arms, starve
from gpuworkshop.instruments.starve import CEILING, REAL
from gpuworkshop.loop.look import Eye
from gpuworkshop.loop.remedies import Facts
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.timing import in_turn
from gpuworkshop.workloads.config import TrainConfig

SYNTHETIC = "synthetic"
SHORT = 6.0
"""Seconds for two arms on a CPU: there are four here, and none of them decides anything."""


def final(eye: Eye, config: TrainConfig, facts: Facts) -> dict[str, Any]:
    """The fields of a LoopResult that are measured at the end."""
    eye.clear()
    bench, others = eye.bench, jpeg_paths(config, facts)
    plan = bench.plan if eye.card else msgspec.structs.replace(bench.plan, budget_seconds=SHORT)
    with ExitStack() as stack:
        training = bench.build(config)
        last = [stack.enter_context(arms.real(REAL, training))]
        last.append(arms.resident(CEILING, training, last[0].take()))
        last.append(arms.resident(SYNTHETIC, training, arms.synthetic(training)))
        last += [stack.enter_context(arms.real(name, bench.build(other))) for name, other in others.items()]
        rounds = in_turn(last, bench.clock, plan, pairs=[(SYNTHETIC, REAL)], unit=bench.job.sizes.unit)
        reached = starve.read(rounds, last[0], bench.job.title, conditions(bench.device))
    best = max(others, key=lambda name: rounds.rate(name).value, default=None)
    return dict(
        final=eye.named(reached, config),
        synthetic=rounds.rate(SYNTHETIC),
        of_synthetic=rounds.compare(SYNTHETIC, REAL),
        jpegs=rounds.rate(best) if best else None,
        jpegs_config=others.get(best),
    )


def jpeg_paths(now: TrainConfig, facts: Facts) -> dict[str, TrainConfig]:
    """A config with JPEGs decoded each time, by name: by workers, and on the card if there is one."""
    if now.data_path != "pre-decoded":
        return {}
    workers = max(2, workers_rule(facts.cpus))
    paths = {"by workers": now.with_(data_path="cpu-decode", workers=workers, persistent_workers=True)}
    if facts.card:
        alone = dict(workers=0, persistent_workers=False, prefetch_factor=None)
        paths["on the card"] = now.with_(data_path="card-decode", **alone)
    return paths
