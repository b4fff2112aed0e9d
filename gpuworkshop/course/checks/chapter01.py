"""The checks of chapter 1: what CUDA sees for odd values of its variable, and the faults of a job script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuworkshop.course import madeup, place
from gpuworkshop.course.ask_cuda import with_value
from gpuworkshop.course.checks import STUB, Found, right, written, wrong
from gpuworkshop.course.script import FAULTS, Script, faulty

UNSET = "unset"
VALUES = (UNSET, "", "-1", "2,0", "0,7,1", "1,1", "NoDevFiles")
"""The values in question, in the order of the exercise."""

TYPICAL = {
    UNSET: {"": "unset-hides"},
    "": {"ABCD": "empty-is-unset", "A": "empty-is-unset"},
    "-1": {"D": "minus-is-last", "ABC": "minus-is-last", "ABCD": "minus-is-all"},
    "2,0": {"AC": "order", "BA": "from-one", "B": "from-one"},
    "0,7,1": {"AB": "goes-on", "": "all-or-nothing"},
    "1,1": {"B": "twice", "BB": "twice"},
    "NoDevFiles": {"ABCD": "word", "A": "word"},
}
"""Typical wrong answers to a value, each with its mistake."""


def visible(table: Any) -> Found:
    """Judge a dict from each of VALUES to the letters of the cards that CUDA gives on the made-up machine, in order."""
    if not isinstance(table, Mapping):
        return wrong("no-table", kind=type(table).__name__)
    if all(table.get(value, ...) is ... for value in VALUES):
        return STUB
    if missing := [value for value in VALUES if table.get(value, ...) is ...]:
        return wrong("unfinished", left=len(missing), all=len(VALUES), first=_quoted(missing[0]))
    for value in VALUES:
        if found := _wrong_cards(value, table[value]):
            return found
    return right(all=len(VALUES))


def _wrong_cards(value: str, answer: Any) -> Found | None:
    given, truth = _letters(answer), madeup.letters(with_value(None if value == UNSET else value, {}))
    shown = _quoted(value)
    if given is None:
        return wrong("no-letters", value=shown, answer=written(answer))
    if given == truth:
        return None
    return wrong(TYPICAL[value].get(given, "other"), value=shown, given=_cards(given))


def _letters(answer: Any) -> str | None:
    """An answer as letters, "AC" for ["a", "c"] too; None if it is something else."""
    parts = [answer] if isinstance(answer, str) else answer
    if not isinstance(parts, Iterable) or not all(isinstance(part, str) for part in parts):
        return None
    given = "".join(char for part in parts for char in part.upper() if char not in " ,")
    return given if set(given) <= set(madeup.CARDS) else None


def _cards(given: str) -> str:
    return " and ".join(given) if given else "no card"


def _quoted(value: str) -> str:
    return UNSET if value == UNSET else f'"{value}"'


SOUND = {"--mem": "memory", "--time": "time", "--gres": "gres"}
"""Lines that look wrong to somebody who has not read the sentence above the script, and what to say then."""


def faults(lines: Any) -> Found:
    """Judge the three faulty lines of `course.script.faulty`, each given by its number or by words in it."""
    shown = faulty(place.site())
    if isinstance(lines, str | int) or not isinstance(lines, Iterable):
        return wrong("no-list", kind=type(lines).__name__)
    said = [_number_or_words(line) for line in lines]
    if any(line is ... for line in said):
        return STUB
    for line in said:
        if found := _wrong_line(shown, line):
            return found
    places = [shown.places(line)[0] for line in said]
    if twice := [place for index, place in enumerate(places) if place in places[:index]]:
        return wrong("line-twice", line=twice[0])
    found = {_fault(shown, line): line for line in said}
    if len(found) < len(said):
        return wrong("same-fault", lines=_listed(line for line in said if found[_fault(shown, line)] != line))
    missing = [name for name in FAULTS if name not in found]
    return wrong(f"missing-{missing[0]}", found=len(found), all=len(FAULTS)) if missing else right()


def _number_or_words(line: Any) -> Any:
    """A line as it was named, with "6" as the number that it is."""
    return int(line) if isinstance(line, str) and line.strip().isdecimal() else line


def _wrong_line(shown: Script, line: Any) -> Found | None:
    """Why a line that was named is no fault of the script; None if it is one."""
    places = shown.places(line) if isinstance(line, int | str) and line != "" else []
    if len(places) != 1:
        return wrong("no-line" if not places else "several-lines", line=written(line), places=_listed(places))
    if _fault(shown, line):
        return None
    text = shown.lines[places[0] - 1]
    mistake = next((mistake for words, mistake in SOUND.items() if words in text), "sound")
    return wrong(mistake, line=places[0], text=text or "(empty)")


def _fault(shown: Script, line: int | str) -> str:
    """The name of the fault that shows in a line; "" for none."""
    text = shown.lines[shown.places(line)[0] - 1]
    return next((name for name, words in FAULTS.items() if any(word in text for word in words)), "")


def _listed(things: Iterable[Any]) -> str:
    return ", ".join(map(str, things))


CHECKS: dict[str, Callable[..., Found]] = {"visible": visible, "faulty": faults}
