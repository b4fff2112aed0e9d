"""The course's data files, read and typed: questions, exercises and the exercises' solutions."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
    """The questions of a chapter such as "04_starve", by id; empty if it has none.

    ValueError names the file and the key, or the question, that is wrong.
    """
    whole = _read("questions", chapter, _Questions)
    return _by_id("questions", chapter, whole.question if whole else ())


@cache
def exercises(chapter: str) -> dict[str, ExerciseData]:
    """The exercises of a chapter, by id; empty if it has none. Errors as in :func:`questions`."""
    whole = _read("exercises", chapter, _Exercises)
    return _by_id("exercises", chapter, whole.exercise if whole else ())


def _read(room: str, chapter: str, type: type) -> Any:
    """One file as its type; None if there is none."""
    file = _HERE / room / f"{chapter}.toml"
    try:
        return msgspec.toml.decode(file.read_bytes(), type=type)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"{room}/{file.name}: {' '.join(str(error).split())}") from None


def _by_id(room: str, chapter: str, parts: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in parts:
        why = "there twice" if one.id in found else _slip(one) if isinstance(one, QuestionData) else ""
        if why:
            raise ValueError(f"{room}/{chapter}.toml: {one.id!r} {why}")
        found[one.id] = one
    return found


def _slip(question: QuestionData) -> str:
    """What makes a question one that nobody can answer; "" if nothing does."""
    if question.kind != "number" and not question.options:
        return "has no options"
    if question.options and not any(option.right for option in question.options):
        return "has no right option"
    braces = {name for _, name, _, _ in string.Formatter().parse(question.prompt) if name is not None}
    if unknown := braces - question.given.keys():
        return f"has {{{min(unknown)}}} in its prompt, which is not given"
    return ""


def solution(chapter: str, exercise: str) -> str:
    """The code that solves an exercise, as the solution notebook has it; "" if there is none.

    The file is generated with the notebooks, so that a solution is written in one place only.
    """
    file = _HERE / "exercises" / f"{chapter}.solutions.toml"
    if not file.exists():
        return ""
    return msgspec.toml.decode(file.read_bytes(), type=dict[str, str]).get(exercise, "").strip("\n")
