"""The checks of chapter 7: a report card of a finished job, and the first change for three measured jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuworkshop.course.checks import Found, not_whole, right, written, wrong

WORDS = ("stays", "larger batch", "smaller batch", "more CPUs", "fewer CPUs", "more time", "less time")
NEXT_TIME = {
    "gpu_utilization": "stays",
    "gpu_memory": "larger batch",
    "cpu_utilization": "fewer CPUs",
    "time_used": "less time",
}
"""What each line of the report card asks for."""

MISREAD = {
    ("gpu_memory", "stays"): "room-left-unused",
    ("gpu_memory", "smaller batch"): "smaller-batch",
    ("cpu_utilization", "more CPUs"): "more-cpus",
    ("cpu_utilization", "stays"): "idle-cpus-kept",
    ("time_used", "stays"): "time-kept",
    ("time_used", "more time"): "more-time",
}
"""What a typical wrong word is a sign of."""


def report_card(next_time: Any) -> Found:
    """Judge a word for each line of the report, as ``{"gpu_utilization": "stays", ...}``."""
    if found := _not_whole(next_time, NEXT_TIME, "line", WORDS):
        return found
    return next((found for line in NEXT_TIME if (found := _wrong_word(line, next_time[line]))), right())


def _not_whole(answer: Any, expected: dict[str, str], what: str, known: tuple[str, ...]) -> Found | None:
    """What keeps an answer from being judged: a table that is not whole, or a word of no list."""
    if found := not_whole(answer, expected, what):
        return found
    for name in expected:
        if isinstance(answer[name], list | tuple | set):
            several = ", ".join(map(str, answer[name]))
            return wrong("two-at-once" if what == "job" else "unknown-word", **_named(what, name, several, known))
        if not isinstance(answer[name], str) or answer[name] not in known:
            return wrong("unknown-word", **_named(what, name, written(answer[name]), known))
    return None


def _named(what: str, name: str, got: str, known: tuple[str, ...]) -> dict[str, str]:
    return {what: name, "got": got, "known": ", ".join(known)}


def _wrong_word(line: str, got: str) -> Found | None:
    if got == NEXT_TIME[line]:
        return None
    usual = "healthy-touched" if line == "gpu_utilization" else "wrong-line"
    return wrong(MISREAD.get((line, got), usual), line=line, got=got)


CHANGES = ("workers", "larger batch", "pinned memory", "BF16", "second card")
FIRST = {"vision": "workers", "tokens": "larger batch", "volumes": "pinned memory"}
"""The first change for each job: against waiting, against launches, against copies."""

STALL = {"vision": "70%", "tokens": "1%", "volumes": "2%"}
"""What the exercise gives as each job's stall."""

AGAINST = {
    ("vision", "larger batch"): "grow-while-waiting",
    ("vision", "BF16"): "faster-step-while-waiting",
    ("vision", "pinned memory"): "pin-while-waiting",
    ("tokens", "workers"): "workers-while-fed",
    ("volumes", "workers"): "workers-while-fed",
    ("tokens", "BF16"): "not-the-launches",
    ("tokens", "pinned memory"): "not-the-launches",
    ("volumes", "BF16"): "not-the-copies",
    ("volumes", "larger batch"): "not-the-copies",
}
"""What a wrong first change is a sign of."""


def first_change(first: Any) -> Found:
    """Judge one change for each job, as ``{"vision": "workers", ...}``."""
    if found := _not_whole(first, FIRST, "job", CHANGES):
        return found
    return next((found for job in FIRST if (found := _wrong_change(job, first[job]))), right())


def _wrong_change(job: str, got: str) -> Found | None:
    if got == FIRST[job]:
        return None
    return wrong(AGAINST.get((job, got), "more-cards"), job=job, got=got, stall=STALL[job])


CHECKS: dict[str, Callable[..., Found]] = {"report": report_card, "change": first_change}
