"""What the learner has done: one line per answer in the state folder, folded when it is read.

Lines are only ever appended, so two open notebooks cannot undo each other's progress.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from gpuworkshop import state
from gpuworkshop.course import material
from gpuworkshop.report import Finding, Report, Table, measured_here

FILE = "progress.jsonl"
Kind = Literal["question", "exercise"]


class Tally(msgspec.Struct, frozen=True):
    """How often something was tried, up to the first right answer, and whether there was one."""

    tries: int = 0
    right: bool = False

    def __str__(self) -> str:
        if not self.tries:
            return "open"
        tries = "1 try" if self.tries == 1 else f"{self.tries} tries"
        return f"{'done' if self.right else 'not yet'}, {tries}"


def record(chapter: str, kind: Kind, id: str, right: bool) -> bool:
    """Keep one answered question or checked exercise. False if it could not be written."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return state.append(FILE, {"when": when, "chapter": chapter, "kind": kind, "id": id, "right": right})


def tally(chapter: str, kind: Kind, id: str) -> Tally:
    """The tries at one question or exercise so far."""
    return _fold(state.read_lines(FILE)[0]).get((chapter, kind, id), Tally())


def chapter(name: str) -> Report:
    """What is done and what is open in a chapter such as "04_starve"."""
    lines, broken = state.read_lines(FILE)
    tallies = _fold(lines)
    asked = [("question", one.id, one.title) for one in material.questions(name).values()]
    set_ = [("exercise", one.id, one.title) for one in material.exercises(name).values()]
    parts = [(kind, text, tallies.get((name, kind, id), Tally())) for kind, id, text in asked + set_]
    table = Table(("", "kind", "state"), tuple((text, kind, str(seen)) for kind, text, seen in parts))
    done = sum(seen.right for _, _, seen in parts)
    level = "ok" if done == len(parts) else "notice"
    findings = [Finding(level, f"{done} of {len(parts)} questions and exercises are done")]
    if broken:
        findings.append(Finding("notice", _skipped(broken)))
    if why := state.problem():
        findings.append(Finding("warning", why))
    title = f"Your progress in chapter {name[:2].lstrip('0')}"
    return Report(title, measured_here("your state folder"), tuple(findings), (table,))


def _skipped(broken: int) -> str:
    lines = "1 broken line was" if broken == 1 else f"{broken} broken lines were"
    return f"{lines} skipped in your progress file"


def _fold(lines: list[dict]) -> dict[tuple[str, str, str], Tally]:
    """Tallies by (chapter, kind, id)."""
    tallies: dict[tuple[str, str, str], Tally] = {}
    for line in lines:
        key = (line.get("chapter"), line.get("kind"), line.get("id"))
        if not all(isinstance(part, str) for part in key):
            continue  # not a line of ours
        before = tallies.get(key, Tally())
        if not before.right:
            tallies[key] = Tally(before.tries + 1, line.get("right") is True)
    return tallies
