"""The course's data files, read and typed: questions, exercises and the exercises' solutions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

_HERE = Path(__file__).parent


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One option of a question, with what its choice says about the learner's picture."""

    text: str
    says: str
    right: bool = False


class Slip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number that comes from a typical mistake, and what to say to it."""

    value: float
    says: str


class QuestionData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question. A choice or many has options. A number has a unit, a tolerance in that unit,
    and `computed`, the function of `quiz.COMPUTED` that makes its answer from `given`."""

    id: str
    title: str
    kind: Literal["choice", "many", "number"]
    prompt: str
    options: tuple[Option, ...] = ()
    computed: str = ""
    given: dict[str, float] = {}
    unit: str = ""
    tolerance: float = 0.0
    slips: tuple[Slip, ...] = ()
    right: str = ""
    wrong: str = ""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said to one outcome of a check, and the hint for it. Braces are filled by the check."""

    says: str
    hint: str = ""


class ExerciseData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One exercise: its card, its hints from faint to plain, the name of its check, and the words
    for what the check may find: `done`, `stub`, and each mistake by name."""

    id: str
    title: str
    goal: str
    difficulty: Literal[1, 2, 3]
    minutes: int
    done_when: str
    hints: tuple[str, ...]
    check: str
    done: str
    stub: str
    mistakes: dict[str, Words]


class _Questions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    question: tuple[QuestionData, ...]


class _Exercises(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exercise: tuple[ExerciseData, ...]


@cache
def questions(chapter: str) -> dict[str, QuestionData]:
    """The questions of a chapter such as "04_starve", by id; empty if it has none."""
    file = _HERE / "questions" / f"{chapter}.toml"
    if not file.exists():
        return {}
    return {one.id: one for one in msgspec.toml.decode(file.read_bytes(), type=_Questions).question}


@cache
def exercises(chapter: str) -> dict[str, ExerciseData]:
    """The exercises of a chapter, by id; empty if it has none."""
    file = _HERE / "exercises" / f"{chapter}.toml"
    if not file.exists():
        return {}
    return {one.id: one for one in msgspec.toml.decode(file.read_bytes(), type=_Exercises).exercise}


def solution(chapter: str, exercise: str) -> str:
    """The code that solves an exercise, as the solution notebook has it; "" if there is none.

    The file is generated with the notebooks, so that a solution is written in one place only.
    """
    file = _HERE / "exercises" / f"{chapter}.solutions.toml"
    if not file.exists():
        return ""
    return msgspec.toml.decode(file.read_bytes(), type=dict[str, str]).get(exercise, "").strip("\n")
