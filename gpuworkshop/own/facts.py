"""What the candidates of a first change are weighed by: shares of the time, the main loader, what lines do."""

from __future__ import annotations

import math

import msgspec

from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.loop.look_result import Look, Shares
from gpuworkshop.own.frame import Kind
from gpuworkshop.own.result import Loader, OwnResult, Place, Settings
from gpuworkshop.own.roles import IN_LOADER, Role, roles
from gpuworkshop.own.source import Sources
from gpuworkshop.timing import Comparison


def look(result: OwnResult) -> Look | None:
    """A run of one's own as the loop looks at its own runs; None where too little was seen."""
    seen = result.starve or _without_loader(result)
    if seen is None:
        return None
    precision = result.settings.precision if result.settings else None
    return Look(seen, result.traced, result.achieved, result.watched, result.memory, precision=precision or "fp32")


def _without_loader(result: OwnResult) -> StarveResult | None:
    """Steps that no loader feeds: nothing is waited for, and nothing is known of a ceiling."""
    rate, here = result.rate, result.conditions
    if rate is None or here is None or not result.step_seconds:
        return None
    return StarveResult(
        workload=result.script, real=rate, ceiling=rate, loader=None,
        headroom=Comparison(1.0, 1.0, 1.0, rate.n, 0.0, "no real difference"),
        wait_name="loader wait" if here.device == "cpu" else "stall", wait_share=0.0, data_work_share=0.0,
        slowed_share=0.0, agrees=True, limit="compute", startup_seconds=0.0, workers=0,
        batch_size=max(1, round(rate.value * result.step_seconds)), config=None, planted="", conditions=here,
        origin=result.origin,
    )  # fmt: skip


class Facts(msgspec.Struct, frozen=True):
    """A run, read once."""

    result: OwnResult
    look: Look
    shares: Shares
    roles: tuple[Role, ...]
    sources: Sources

    @property
    def settings(self) -> Settings:
        """What the program was seen to use."""
        return self.result.settings

    @property
    def card(self) -> bool:
        """Whether it runs on a card."""
        return not self.settings.device.startswith("cpu")

    @property
    def cpus(self) -> int:
        """CPUs that the script may use."""
        return self.result.conditions.cpus if self.result.conditions else 1

    @property
    def step_seconds(self) -> float:
        """Seconds of a plain step, all in all."""
        return self.result.step_seconds or 1e-3

    @property
    def loader(self) -> Loader | None:
        """The loader that feeds most of the steps."""
        return max(self.settings.loaders, key=lambda one: one.batches, default=None)

    def written(self, words: str) -> bool:
        """Whether the script's own file has these words in it; False where it cannot be read."""
        source = self.sources.get(self.result.script)
        return source is not None and words in source.text

    @property
    def idle(self) -> float:
        """Share of a plain step in which the host is what takes the time; all of it on a CPU."""
        if not self.card:
            return 1.0
        hindered = (self.shares.launches, self.shares.synchronizing, self.shares.copies)
        return min(1.0, sum(one or 0.0 for one in hindered) + self.look.starve.wait_share)

    def share(self, *kinds: Kind) -> float:
        """Share of the looks that found one of these at work."""
        return sum(role.share for role in self.roles if role.kind in kinds)

    def of_loader(self, *kinds: Kind) -> float:
        """The part of the loader's own time that goes to these, 0 to 1."""
        whole = self.share(*IN_LOADER)
        return self.share(*kinds) / whole if whole else 0.0

    def with_backward(self, role: Role) -> float:
        """Share of a role with its part of the backward pass, by its part of what lies before that."""
        ahead = sum(one.share for one in self.roles if one.ahead)
        return role.share + (self.share("backward") * role.share / ahead if role.ahead and ahead else 0.0)

    def first(self, *kinds: Kind) -> Role | None:
        """The role of these kinds that takes most of the time."""
        return next((role for role in self.roles if role.kind in kinds), None)


class Candidate(msgspec.Struct, frozen=True):
    """A change that could pay."""

    remedy: str
    expected: float
    """New rate over present rate, by a small model of what the change takes away."""
    at_most: float
    """What it could bring if all that it works against vanished."""
    why: str
    """The measured numbers."""
    place: Place | None = None
    values: dict[str, str] = {}


def of_all(one: Candidate, beside: float) -> Candidate:
    """A change to the steps alone, as a gain of all that the script does: what lies between steps stays as long."""

    def whole(gain: float) -> float:
        left = beside + (1 - beside) / gain
        return 1 / left if left else math.inf

    return msgspec.structs.replace(one, expected=whole(one.expected), at_most=whole(one.at_most))


LOOPS: tuple[Kind, ...] = ("one call", "batch loop", "read loop", "beside", "weights loop")
"""What is done one by one: each call has its price."""

LOOKS = 200
"""A share of the looks is as sure as by so many that know nothing of each other."""


def most(share: float) -> float:
    """The upper end of a share's 95% interval: what was looked at now and then is not known for sure."""
    return min(1.0, share + 2 * math.sqrt(share * (1 - share) / LOOKS)) if 0 < share < 1 else share


def without(share: float) -> float:
    """New rate over present rate when a share of the time vanishes."""
    return 1 / (1 - min(share, 0.99))


def facts(result: OwnResult, sources: Sources) -> Facts | None:
    """What is known of a run; None where too little was seen."""
    seen = look(result)
    if seen is None or result.settings is None:
        return None
    return Facts(result, seen, seen.shares, roles(result, sources), sources)
