"""The checks of chapter 2: a mean over the driver's windows, and four jobs on the map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gpuworkshop.course.checks import STUB, Found, not_whole, right, written, wrong

Readings = Sequence[tuple[int, float | None]]
"""What a poller kept: the number of the driver's window, and the utilization in it in percent, None for n/a."""

CASES: tuple[Readings, ...] = (  # one trap in each, so that the first one that fails names the mistake
    [(1, 20), (2, 40), (3, 90)],
    [(1, 80), (2, None), (3, 40)],
    [(1, 0), (2, 90), (2, 90), (2, 90)],
    [(1, 0), (2, 60), (3, 30)],
    [(1, 50), (2, 50), (3, 20)],
)
UNKNOWN: tuple[Readings, ...] = ([(1, None), (2, None)], [])
EXACT = 0.05  # percent


def mean(values: Iterable[float]) -> float | None:
    """The plain mean; None of nothing."""
    kept = list(values)
    return sum(kept) / len(kept) if kept else None


def windows_mean(readings: Readings) -> float | None:
    """Mean utilization in percent: every window once, n/a left out; None if nothing is known."""
    return mean({window: busy for window, busy in readings if busy is not None}.values())


SLIPS: dict[str, Callable[[Readings], float | None]] = {
    "as-a-share": lambda readings: windows_mean(readings) / 100,
    "na-as-zero": lambda readings: mean(busy or 0 for busy in dict(readings).values()),
    "windows-twice": lambda readings: mean(busy for _, busy in readings if busy is not None),
    "zero-left-out": lambda readings: mean(busy for busy in dict(readings).values() if busy),
    "values-not-windows": lambda readings: mean({busy for _, busy in readings if busy is not None}),
}
"""What typical mistakes make of the same readings, by the mistake."""


def average(mean_utilization: Any) -> Found:
    """Judge `mean_utilization(readings)`: percent over the windows that are known, None if none is."""
    if not callable(mean_utilization):
        return wrong("no-function", kind=type(mean_utilization).__name__)
    for readings in (*CASES, *UNKNOWN):
        try:
            got = mean_utilization(list(readings))
        except Exception as error:
            return _raised(error, readings)
        if got is ... or (got is None and readings == CASES[0]):  # the stub gives None for what is known, too
            return STUB
        if found := _wrong_mean(got, readings):
            return found
    return right()


def _raised(error: Exception, readings: Readings) -> Found:
    """The learner's own error; what None does to a sum, and nothing to a division, have words of their own."""
    mistake = "raised"
    if readings in UNKNOWN and isinstance(error, ZeroDivisionError | ValueError):
        mistake = "nothing-known"  # also statistics.mean of nothing, a ValueError
    elif isinstance(error, TypeError) and any(busy is None for _, busy in readings):
        mistake = "na-added"
    return wrong(mistake, readings=list(readings), error=f"{type(error).__name__}: {error}")


def _wrong_mean(got: Any, readings: Readings) -> Found | None:
    """What is wrong with this answer for these readings; None if it is right."""
    expected = windows_mean(readings)
    facts = {"readings": list(readings), "got": got, "expected": expected}
    if expected is None:
        return None if got is None else wrong("unknown-as-number", **facts)
    if not isinstance(got, int | float):
        return wrong("no-number", **facts)
    if _same(got, expected):
        return None
    fitting = (mistake for mistake, slip in SLIPS.items() if _same(got, slip(readings)))
    return wrong(next(fitting, "other-number"), **facts)


def _same(one: float, other: float | None) -> bool:
    return other is not None and math.isclose(one, other, abs_tol=EXACT, rel_tol=0)


class Place(msgspec.Struct, frozen=True):
    """Where a job of the exercise belongs on the map, and the fix that helps it."""

    place: str
    fix: str


PLACES = ("top left", "bottom left", "bottom right", "top right")
FIXES = ("feed", "grow", "give back", "leave")
JOBS = {
    "pictures": Place("top left", "feed"),
    "notebook": Place("bottom left", "give back"),
    "small_batch": Place("bottom right", "grow"),
    "night_run": Place("top right", "leave"),
}
ACROSS = {"top left": "bottom right", "bottom right": "top left"}
"""Where a job lands whose two numbers are taken for each other."""

WRONG_FIX = {
    ("pictures", "grow"): "grow-while-waiting",
    ("small_batch", "feed"): "feed-while-busy",
    ("notebook", "leave"): "idle-is-left",
}


def quadrants(mine: Any) -> Found:
    """Judge a pair for each job: a place on the map and a fix, as ``{"pictures": ("top left", "feed"), ...}``."""
    if found := not_whole(mine, JOBS, "job"):
        return found
    steps = (_not_a_pair, _wrong_place, _wrong_fix)  # all places first: a fix follows from its place
    return next((found for step in steps for job in JOBS if (found := step(job, mine[job]))), right())


def _not_a_pair(job: str, answer: Any) -> Found | None:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return wrong("no-pair", job=job, got=written(answer))
    for word, known in zip(answer, (PLACES, FIXES), strict=True):
        if not isinstance(word, str) or word not in known:
            return wrong("unknown-word", job=job, got=written(word), known=", ".join(known))
    return None


def _wrong_place(job: str, answer: tuple[str, str]) -> Found | None:
    expected, place = JOBS[job].place, answer[0]
    if place == expected:
        return None
    return wrong("axes-swapped" if ACROSS.get(expected) == place else "wrong-place", job=job, got=place)


def _wrong_fix(job: str, answer: tuple[str, str]) -> Found | None:
    expected, fix = JOBS[job].fix, answer[1]
    if fix == expected:
        return None
    usual = "target-touched" if expected == "leave" else "wrong-fix"
    return wrong(WRONG_FIX.get((job, fix), usual), job=job, place=JOBS[job].place, got=fix)


CHECKS: dict[str, Callable[..., Found]] = {"average": average, "quadrants": quadrants}
