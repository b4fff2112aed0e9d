"""Is the verdict honest? Thousands of simulated comparisons of a config with itself, and some live ones."""

import math
import random
import statistics

import pytest

from gpuworkshop.timing import CPU_PLAN, Clock, Comparison, Plan, in_turn

RUNS = 4000
NOISES = (0.02, 0.03, 0.05, 0.08)
"""Standard deviation of a block's log time: an idle machine, and launch-bound steps."""
STEP_SECONDS = CPU_PLAN.block_seconds / 2


class Machine:
    """A simulated machine: its clock, the noise of each block, and how much slower each block is than the last."""

    def __init__(self, seed: int, noise: float, drift: float):
        self.random, self.noise, self.drift = random.Random(seed), noise, drift
        self.now, self.blocks = 0.0, 0

    def next_block(self) -> float:
        """Factor on the time of every step of the next block."""
        self.blocks += 1
        return math.exp(self.random.gauss(0, self.noise)) * (1 + self.drift) ** self.blocks


class Work:
    """An arm on a simulated machine, whose steps take ``seconds``."""

    period = 1

    def __init__(self, name: str, machine: Machine, seconds: float):
        self.name, self.machine, self.seconds, self.factor = name, machine, seconds, 1.0

    def resume(self) -> None:
        self.factor = self.machine.next_block()

    def pause(self) -> None:
        pass

    def step(self, clock: Clock) -> int:
        self.machine.now += self.seconds * self.factor
        return 32


def comparison(seed: int, drift: float, effect: float = 0.0) -> Comparison:
    """Compare a simulated config with one that is really faster by ``effect``, as a share, through the real loop."""
    machine = Machine(seed, NOISES[seed % len(NOISES)], drift)
    arms = [Work("a", machine, STEP_SECONDS), Work("b", machine, STEP_SECONDS / (1 + effect))]
    return in_turn(arms, Clock(now=lambda: machine.now), CPU_PLAN).compare("a", "b")


@pytest.fixture(scope="module", params=[0.0, 0.01], ids=["steady", "drift of 1% a block"])
def with_itself(request) -> tuple[float, list[Comparison]]:
    """The drift, and so many comparisons of a config with itself."""
    return request.param, [comparison(seed, request.param) for seed in range(RUNS)]


def test_a_config_differs_from_itself_in_seven_of_a_hundred_at_most(with_itself) -> None:
    _, made = with_itself
    different = sum(c.verdict != "no real difference" for c in made)
    assert different <= 0.07 * RUNS
    assert different > 0, "noise of 8% that never misleads anybody is no noise"


def test_a_drift_does_not_favor_an_arm(with_itself) -> None:
    _, made = with_itself
    assert abs(statistics.fmean(math.log(c.ratio) for c in made)) < 0.003


def test_an_effect_twice_the_smallest_visible_one_is_found(with_itself) -> None:
    drift, made = with_itself
    again = [comparison(RUNS + seed, drift, 2 * c.smallest) for seed, c in enumerate(made)]
    assert sum(c.verdict == "faster" for c in again) >= 0.9 * RUNS


def test_the_interval_holds_the_truth(with_itself) -> None:
    """95% intervals that stop on their own width may miss a little more often, not much."""
    _, made = with_itself
    assert sum(c.low <= 1 <= c.high for c in made) >= 0.91 * RUNS


class Sum:
    """A live arm: a little work that needs nothing but Python."""

    period = 1

    def __init__(self, name: str):
        self.name = name

    def resume(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def step(self, clock: Clock) -> int:
        sum(range(20_000))
        return 1


@pytest.mark.alone
def test_live_a_workload_seldom_differs_from_itself() -> None:
    """At 5% each, four or more of ten happen once in a thousand runs."""
    plan = Plan(block_seconds=0.02, budget_seconds=0.8)
    made = [in_turn([Sum("a"), Sum("b")], Clock(), plan).compare("a", "b") for _ in range(10)]
    assert sum(c.verdict in ("faster", "slower") for c in made) <= 3, list(map(str, made))
    assert all(c.pairs >= plan.min_rounds and c.pairs % 2 == 0 for c in made)
