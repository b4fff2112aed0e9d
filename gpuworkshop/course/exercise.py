"""Exercises: a card, hints from faint to plain, a check, and a solution when it is time for one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from gpuworkshop.course import material, progress
from gpuworkshop.course.checks import STUB, Found, told, wrong
from gpuworkshop.course.faces import Fold, Note
from gpuworkshop.course.material import ExerciseData
from gpuworkshop.numbers import shortened

TRIES_BEFORE_SOLUTION = 2
LONGEST_FACT = 300
"""Characters shown of what an answer holds."""


class CheckResult(msgspec.Struct, frozen=True):
    """The outcome of one check. `attempted` is False while the answer is still a stub. `mistake` is
    its name in the exercise's file. `solution` is filled once there were tries enough to show it."""

    done: bool
    says: str
    hint: str = ""
    attempted: bool = True
    mistake: str = ""
    solution: str = ""

    def note(self) -> Note:
        """The outcome as the learner sees it."""
        if not self.attempted:
            title, tone = "Not attempted yet", "plain"
        else:
            title, tone = ("Done", "right") if self.done else ("Not done yet", "wrong")
        hint = (f"Hint: {self.hint}",) if self.hint else ()
        plain = "`.solution()` shows one way to solve it."
        fold = Fold("Show one way to solve it", code=self.solution, plain=plain) if self.solution else None
        return Note(title, tone, text=(self.says, *hint), fold=fold)

    def __str__(self) -> str:
        return str(self.note())

    def __rich__(self) -> Any:
        return self.note().__rich__()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.note()._repr_mimebundle_()


def open(chapter: str, id: str) -> Exercise:
    """The exercise `id` of a chapter such as "04_starve". KeyError names the ones there are."""
    known = material.exercises(chapter)
    if id not in known:
        raise KeyError(f"chapter {chapter} has no exercise {id!r}, but: {', '.join(known)}")
    return Exercise(chapter, known[id])


class Exercise:
    """One exercise: shows its card, gives hints, checks answers, keeps the tries."""

    def __init__(self, chapter: str, data: ExerciseData):
        self.chapter = chapter
        self.data = data
        self._hints_given = 0

    def hint(self) -> Note:
        """The next hint, each one plainer than the one before."""
        if self._hints_given == len(self.data.hints):
            return Note(
                f"That was the last hint: {self.data.title}", "hint", text=("`.solution()` shows one way to solve it.",)
            )
        self._hints_given += 1
        title = f"Hint {self._hints_given} of {len(self.data.hints)}: {self.data.title}"
        return Note(title, "hint", text=(self.data.hints[self._hints_given - 1],))

    def check(self, *answer: Any) -> CheckResult:
        """Judge an answer and keep the try. A stub (`...`) is "not attempted yet"; nothing is raised."""
        result = self._worded(self._find(answer))
        if not result.attempted:
            return result
        progress.record(self.chapter, "exercise", self.data.id, result.done)
        seen = progress.tally(self.chapter, "exercise", self.data.id)
        if result.done or seen.tries < TRIES_BEFORE_SOLUTION:
            return result
        return msgspec.structs.replace(result, solution=material.solution(self.chapter, self.data.id))

    def solution(self) -> Note:
        """One way to solve it."""
        code = material.solution(self.chapter, self.data.id)
        where = () if code else (f"It is in solutions/{self.chapter}.ipynb.",)
        return Note(f"One way to solve it: {self.data.title}", text=where, code=code)

    def _find(self, answer: tuple[Any, ...]) -> Found:
        if any(part is ... for part in answer):
            return STUB
        checks = import_module(f"{__package__}.checks.chapter{self.chapter[:2]}").CHECKS
        try:
            return checks[self.data.check](*answer)
        except (Exception, SystemExit) as error:  # an answer of a kind that the check did not foresee
            return wrong("unforeseen", error=told(error))

    def _worded(self, found: Found) -> CheckResult:
        """The words of the exercise for what its check found."""
        data = self.data
        if found == STUB:
            return CheckResult(False, data.stub, attempted=False, mistake=found.mistake)
        nameless = material.Words(f"This answer has the mistake {found.mistake!r}.")
        words = data.mistakes.get(found.mistake, nameless) if found.mistake else material.Words(data.done)
        says, hint = _filled(words.says, found.facts), _filled(words.hint, found.facts)
        return CheckResult(not found.mistake, says, hint, mistake=found.mistake)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._note()._repr_mimebundle_()

    def __rich__(self) -> Any:
        return self._note().__rich__()

    def __str__(self) -> str:
        return str(self._note())

    def _note(self) -> Note:
        data = self.data
        seen = progress.tally(self.chapter, "exercise", data.id)
        dots = "●" * data.difficulty + "○" * (3 - data.difficulty)
        facts = (
            ("Goal", data.goal),
            ("Done when", data.done_when),
            ("Difficulty", f"{dots} {data.difficulty} of 3, about {data.minutes} minutes"),
            ("Yours", str(seen)),
        )
        return Note(f"Exercise: {data.title}", facts=facts, text=("Stuck? Ask for a hint with `.hint()`.",))


class _Facts(dict):
    """Facts of a check; a brace that it does not fill stays as it stands."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"


def _filled(words: str, facts: dict[str, Any]) -> str:
    told = {name: shortened(fact, LONGEST_FACT) if isinstance(fact, str) else fact for name, fact in facts.items()}
    try:
        return words.format_map(_Facts(told))
    except (ValueError, TypeError, AttributeError, IndexError):  # braces that are none of ours
        return words
