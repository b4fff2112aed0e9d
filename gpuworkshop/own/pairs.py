"""Two versions of a script launched in pairs, in turn and in mirrored order, until the interval is narrow enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpuworkshop.child import Progress, Tell
from gpuworkshop.own.result import Losses, OwnResult
from gpuworkshop.timing import SMALLEST_EFFECT, Comparison, Rate, compare, durations

LEAST = 4
"""Pairs without a budget; two where there is one."""
MOST = 12
USUAL = 120.0
"""Seconds after which no further pairs are begun where no budget is given."""
SHORT, SHORTEST = 60.0, 20.0
"""Seconds after which one launch is cut short: without a budget, and with the smallest one. Its imports count, too, and
on a cluster they alone may take half a minute. It ends by itself as soon as its steps are measured."""
ONLY = ("baseline",)
"""What is measured in each launch."""

Arm = Literal["before", "after"]
ORDER: tuple[tuple[Arm, Arm], ...] = (("after", "before"), ("before", "after"))
"""Of the pairs, in turn. The new script goes first: if it fails, that shows at once."""


class Pairs:
    """The launches of both arms. ``failed`` says in one line why they ended early, "" if they did not."""

    def __init__(
        self,
        budget: float | None,
        least: int | None,
        start: Callable[..., OwnResult],
        tell: Tell,
        most: int = MOST,
    ):
        self.least, self.most = max(2, least or (LEAST if budget is None else 2)), most
        self.budget = USUAL if budget is None else budget
        self.each = SHORT if budget is None else max(SHORTEST, budget / (2 * self.least))
        self._start, self._tell = start, tell
        self.seen: dict[Arm, list[OwnResult]] = {"before": [], "after": []}
        self.failed, self.failed_arm, self.own_words, self.output = "", "", "", ""
        self.launches, self.seconds = 0, 0.0

    def measure(self, before: tuple[Sequence[str], Path], after: tuple[Sequence[str], Path]) -> None:
        """Launch both in turn; the width of the interval decides when to stop, never the effect."""
        arms = {"before": before, "after": after}
        began = time.monotonic()
        while not self._enough(time.monotonic() - began):
            for arm in ORDER[len(self.before) % 2]:
                if not self._launch(arm, *arms[arm]):
                    self.seconds = time.monotonic() - began
                    return
            self.seconds = time.monotonic() - began
            if self.not_comparable:
                return

    def _launch(self, arm: Arm, words: Sequence[str], cwd: Path) -> bool:
        expected = 2 * self.least
        self._tell.progress(min(0.99, self.launches / expected), f"{arm}: launch {self.launches + 1}")
        result = self._start(words, budget_seconds=self.each, only=ONLY, cwd=cwd)
        self.launches += 1
        self.output = result.output if arm == "after" or result.rate is None else self.output
        if result.rate is None:
            self.failed_arm, self.own_words = arm, result.own_words
            self.failed = _why(arm, result)
            return False
        self.seen[arm].append(result)
        return True

    def _enough(self, seconds: float) -> bool:
        done = len(self.before)
        if done < self.least or (done % 2 and done < self.most):
            return False
        found = self.comparison
        narrow = math.isfinite(found.high) and math.log(found.high / found.ratio) <= SMALLEST_EFFECT
        return narrow or done >= self.most or seconds + 4 * seconds / max(1, self.launches) > self.budget

    @property
    def before(self) -> list[OwnResult]:
        """The launches of the script as it was."""
        return self.seen["before"]

    @property
    def after(self) -> list[OwnResult]:
        """The launches of the script as it is."""
        return self.seen["after"]

    @property
    def before_one(self) -> OwnResult | None:
        """The last launch of the script as it was."""
        return self.before[-1] if self.before else None

    @property
    def comparison(self) -> Comparison:
        """Throughput now over then, over the pairs."""
        pairs = zip(self.before, self.after, strict=False)
        return compare([math.log(new.whole_rate.value / old.whole_rate.value) for old, new in pairs])

    @property
    def not_comparable(self) -> str:
        """Why the two arms cannot be compared; "" where they can."""
        if not (self.before and self.after):
            return ""
        old, new = self.before[0], self.after[0]
        if old.conditions and new.conditions and not old.conditions.comparable(new.conditions):
            where = (f"{one.machine} with PyTorch {one.torch}" for one in (old.conditions, new.conditions))
            return "not comparable: the script as it was ran on {}, as it is on {}".format(*where)
        if old.rate.unit != new.rate.unit:
            return f"not comparable: {old.rate.unit} before, {new.rate.unit} now"
        if old.rate.unit == "steps/s" and _batch(old) != _batch(new):
            return "not comparable: steps of another size, and how many samples they hold cannot be seen"
        return ""

    def rate(self, arm: Arm) -> Rate | None:
        """The mean throughput of an arm over its launches, with its interval."""
        seen = [one.whole_rate for one in self.seen[arm]]
        if len(seen) < 2:
            return seen[0] if seen else None
        return msgspec.structs.replace(durations([one.value for one in seen]), unit=seen[0].unit)

    @property
    def losses_before(self) -> list[Losses | None]:
        """Of each launch."""
        return [one.losses for one in self.before]

    @property
    def losses_after(self) -> list[Losses | None]:
        """Of each launch."""
        return [one.losses for one in self.after]


def _batch(result: OwnResult) -> tuple[int | None, ...]:
    return tuple(one.batch_size for one in result.settings.loaders) if result.settings else ()


def _why(arm: Arm, result: OwnResult) -> str:
    """Why a launch gave no rate, in one line."""
    which = "the changed script" if arm == "after" else "the script as it was"
    status = f" with exit code {result.exit_code}" if result.exit_code is not None else ""
    if result.ended == "timed out":
        return f"{which} was not far enough after {result.seconds:.0f} s: give it more time, --budget 5m"
    if result.ended in ("error", "signal"):
        return f"{which} fails{status}"
    return f"{which} ended{status} before it could be measured: {' '.join(result.not_seen[:1]) or 'too few steps'}"


class Telling(Tell):
    """Hands progress to a bar."""

    def __init__(self, show: Callable[[Progress], None]):
        self._show = show

    def progress(self, share: float, text: str = "") -> None:
        """Show it."""
        self._show(Progress(share, text))
