"""The experiments behind the claims: which instrument measures which job, part by part, each in children of its own.

A part is recorded in one go and takes at most some minutes of a card. On a CPU the jobs are the small ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Progress
from gpuworkshop.course import calls, claims_readings, demos
from gpuworkshop.course.claims_child import ON_CARD, Ask, Watched
from gpuworkshop.course.claims_readings import LoaderSeen, Readings, Trained
from gpuworkshop.course.claims_result import Part
from gpuworkshop.instruments import memory, precision, profile, scaling, starve, verify
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.machine import gpus
from gpuworkshop.machine.allocation import cpus, workers_rule
from gpuworkshop.machine.conditions import Conditions, host
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.planted import by_name

MODULES = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "LOADEDMODULES", "_LMFILES_")
"""Variables by which a module brings its CUDA to a process."""
FAST = dict(precision="bf16", memory_format="channels_last")
SHORT, LONG = 20, 50
"""Steps of the two profiles."""
LOOKED_AT = ("a GPT too small", "every sample read in each step")
"""Planted jobs without a slow loader that leave a card waiting."""
SEVERAL = 4
"""Ranks at most."""
RANKS_ON_CPU = Plan(block_seconds=0.2, min_rounds=4, budget_seconds=4.0, max_warm_up_blocks=3)


class Setup(msgspec.Struct, frozen=True):
    """Where parts are measured: its name, on a card or not, behind which launcher, and who hears how it goes."""

    machine: str
    """The card, or the CPUs: the name under which a recording goes."""
    card: bool
    cpus: int
    cards: int
    launcher: tuple[str, ...] = ()
    progress: Callable[[Progress], None] | None = None
    conditions: Conditions | None = None
    """As a child with PyTorch tells them."""

    @property
    def job(self) -> Job:
        """The pictures."""
        return Job("card" if self.card else "tiny")

    @property
    def text(self) -> Job:
        """The GPT."""
        return Job("gpt" if self.card else "gpt-tiny")

    @property
    def how(self) -> dict[str, Any]:
        """Launcher and progress, as every instrument takes them."""
        return {"launcher": self.launcher, "progress": self.progress}


def here(launcher: Sequence[str] = ()) -> Setup:
    """The setup of this machine, or behind a launcher of the one there, as far as the driver says."""
    if not launcher:
        return setup(None, child.Tell())
    found = child.run("gpuworkshop.course.claims_parts:setup", None, type=Setup, launcher=launcher)
    return msgspec.structs.replace(found, launcher=tuple(launcher))


def setup(request: Any, tell: Any) -> Setup:
    """What this process sees. Imports no PyTorch."""
    mine = gpus.cards().mine
    return Setup(mine[0].name if mine else host(), gpus.there_is_one(), cpus().count, len(mine))


def reached(seen: Setup) -> Setup:
    """The same with the name of PyTorch's device. ValueError where the driver shows a card and PyTorch has none."""
    found = _trained(seen, ())
    if seen.card and found.device == "cpu":
        raise ValueError("there is a card, and PyTorch does not reach it: gpuworkshop verify says why")
    return msgspec.structs.replace(seen, machine=found.conditions.machine, conditions=found.conditions)


# ---------------------------------------------------------------- the parts


def _verify(setup: Setup) -> tuple[Readings, Conditions]:
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        verify.run(launcher=setup.launcher, progress=setup.progress)
        seconds.append(time.perf_counter() - began)
    hidden = _trained(setup, ("env", "CUDA_VISIBLE_DEVICES="))
    bare = _trained(setup, ("env", *(word for name in MODULES for word in ("-u", name)))) if setup.card else None
    return claims_readings.verified(seconds, hidden, bare, setup.card), setup.conditions


def _trained(setup: Setup, env: tuple[str, ...]) -> Trained:
    target = "gpuworkshop.course.claims_child:trained"
    front = (*setup.launcher, *env)
    return child.run(target, None, type=Trained, launcher=front, progress=setup.progress)


def _calls(setup: Setup) -> tuple[Readings, Conditions]:
    seen = calls.run(**setup.how)
    return claims_readings.calls(seen), seen.conditions


def _loader(setup: Setup) -> tuple[Readings, Conditions]:
    job, rule = setup.job, workers_rule(setup.cpus)
    start = job.sizes.start
    workers = sorted({1, rule, *({4} if setup.cpus >= 4 else {})})
    swept = starve.run_sweep(start, job, workers=workers, plan=ON_CARD if setup.card else None, **setup.how)
    some = start.with_(workers=4, persistent_workers=True) if setup.cpus >= 4 else None
    others = tuple(Watched(one.name, one.job, one.start) for one in map(by_name, LOOKED_AT)) if setup.card else ()
    asked = Ask(
        Watched("0 workers", job, start),
        some and Watched("4 workers", job, some),
        others,
        start.with_(workers=rule, persistent_workers=True),
    )
    seen = child.run("gpuworkshop.course.claims_child:loaders", asked, type=LoaderSeen, **setup.how)
    readings = claims_readings.looked(seen) | claims_readings.swept(swept, seen.zero.starve)
    return readings, swept.conditions


def _batch(setup: Setup) -> tuple[Readings, Conditions]:
    config = setup.job.sizes.start.with_(**FAST) if setup.card else setup.job.sizes.start
    sizes = (8, 16, 32, 64, 128, 512) if setup.card else (8, 16, 32)
    seen = memory.run_sweep(config, setup.job, sizes=sizes, **setup.how)
    return claims_readings.batches(seen), seen.conditions


def _memory(setup: Setup) -> tuple[Readings, Conditions]:
    start = setup.text.sizes.start
    seen = memory.run(start, setup.text, **setup.how)
    found = memory.run_ceiling(start.with_(precision="bf16"), setup.text, **setup.how) if setup.card else None
    return claims_readings.life(seen) | claims_readings.ceiling(found), seen.conditions


def _precision(setup: Setup) -> tuple[Readings, Conditions]:
    seen = precision.run(setup.text.sizes.start.with_(reads_loss="rarely"), setup.text, **setup.how)
    types = child.run("gpuworkshop.course.claims_child:types", None, type=dict[str, str], **setup.how)
    return claims_readings.precision(seen) | claims_readings.types(types), seen.conditions


def _busy(setup: Setup) -> tuple[Readings, Conditions]:
    idle = (
        child.run("gpuworkshop.course.claims_child:idle", None, type=WatchResult, **setup.how) if setup.card else None
    )
    seen = demos.run(**setup.how) if setup.card else None
    readings = claims_readings.watched(idle) | claims_readings.busy(seen)
    return readings, seen.conditions if seen else setup.conditions


def _profile(setup: Setup) -> tuple[Readings, Conditions]:
    job = setup.job if setup.card else setup.text
    config = job.sizes.start
    if setup.card:
        config = config.with_(workers=workers_rule(setup.cpus), persistent_workers=True)
    short, long = (profile.run(config, job, steps=steps, **setup.how) for steps in (SHORT, LONG))
    return claims_readings.profiles(short, long), long.conditions


def _scale(setup: Setup) -> tuple[Readings, Conditions]:
    ranks = min(SEVERAL, setup.cards if setup.card else setup.cpus)
    if ranks < 2:
        why = "it needs two cards, and this job has one" if setup.card else "it needs two CPUs, and this job has one"
        return claims_readings.scaled(None, None, why), setup.conditions
    full = Job("gpt" if setup.card else "gpt-small")
    plan = None if setup.card else RANKS_ON_CPU
    fast = full.sizes.start.with_(precision="bf16", reads_loss="rarely") if setup.card else full.sizes.start
    seen = [
        scaling.run(config, job, ranks, setup.launcher, progress=setup.progress, plan=plan)
        for config, job in ((fast, full), (TrainConfig(), setup.job))
    ]
    return claims_readings.scaled(*seen), seen[0].conditions


PARTS: dict[str, Callable[[Setup], tuple[Readings, Conditions]]] = {
    "verify": _verify,
    "calls": _calls,
    "loader": _loader,
    "batch": _batch,
    "memory": _memory,
    "precision": _precision,
    "busy": _busy,
    "profile": _profile,
    "scale": _scale,
}
"""What can be recorded, in this order: the experiment of each part."""


def measure(name: str, setup: Setup) -> Part:
    """Record one part. KeyError for one that there is none of; ChildFailed where an instrument fails."""
    began = time.perf_counter()
    readings, conditions = PARTS[name](setup)
    return Part(name, readings, time.perf_counter() - began, conditions, conditions.origin)
