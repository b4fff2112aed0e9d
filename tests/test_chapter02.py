"""Chapter 2: its checks find every typical mistake, and its numbers are the arithmetic of their prompts."""

from __future__ import annotations

import ast
import inspect
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from mistakes import assert_mistake

from gpuworkshop.course import exercise, material, progress, quiz
from gpuworkshop.course.checks import chapter02

CHAPTER = "02_watch"


def right_mean(readings: list) -> float | None:
    known = {window: busy for window, busy in readings if busy is not None}
    return sum(known.values()) / len(known) if known else None


def next_to_each_other(readings: list) -> float | None:
    """Another right way: a window's readings follow each other."""
    seen, last = [], None
    for window, busy in readings:
        if window != last and busy is not None:
            seen.append(busy)
        last = window
    return round(statistics.mean(seen), 1) if seen else None


def own_error(readings: list) -> float:
    raise NameError("name 'reading' is not defined")


def of(change: Callable[[list], list]) -> Callable[[list], float | None]:
    """A learner's function that takes the plain mean of what `change` makes of the readings."""

    def mean_utilization(readings: list) -> float | None:
        kept = change(readings)
        return sum(kept) / len(kept) if kept else None

    return mean_utilization


def known(readings: list) -> dict:
    return {window: busy for window, busy in readings if busy is not None}


AVERAGE_WRONG = {
    "no-function": 50.0,
    "no-number": lambda readings: "50%",
    "raised": own_error,
    "na-added": of(lambda readings: list(dict(readings).values())),
    "nothing-known": lambda readings: sum(known(readings).values()) / len(known(readings)),
    "unknown-as-number": lambda readings: right_mean(readings) or 0.0,
    "as-a-share": lambda readings: right_mean(readings) / 100,
    "na-as-zero": of(lambda readings: [busy or 0 for busy in dict(readings).values()]),
    "windows-twice": of(lambda readings: [busy for _, busy in readings if busy is not None]),
    "zero-left-out": of(lambda readings: [busy for busy in dict(readings).values() if busy]),
    "values-not-windows": of(lambda readings: list({busy for _, busy in readings if busy is not None})),
    "other-number": lambda readings: max(known(readings).values(), default=None),
}


@pytest.mark.parametrize("answer", [right_mean, next_to_each_other])
def test_a_right_mean_is_done(answer: Callable) -> None:
    result = exercise.open(CHAPTER, "average").check(answer)
    assert (result.done, result.mistake, result.hint) == (True, "", "")


@pytest.mark.parametrize("mistake", AVERAGE_WRONG)
def test_a_wrong_mean_gets_its_own_hint(mistake: str) -> None:
    assert_mistake(CHAPTER, "average", mistake, AVERAGE_WRONG[mistake])


def test_the_mean_of_nothing_by_the_standard_library_is_found_too() -> None:
    result = exercise.open(CHAPTER, "average").check(lambda readings: statistics.mean(known(readings).values()))
    assert result.mistake == "nothing-known" and "mean requires" in result.says


def test_the_learner_s_own_error_is_shown_with_the_readings() -> None:
    result = exercise.open(CHAPTER, "average").check(own_error)
    assert "NameError: name 'reading' is not defined" in result.says and "[(1, 20), (2, 40), (3, 90)]" in result.says


def test_an_answer_that_changes_its_readings_spoils_no_case() -> None:
    def emptied(readings: list) -> float | None:
        answer = right_mean(readings)
        readings.clear()
        return answer

    assert exercise.open(CHAPTER, "average").check(emptied).done
    assert exercise.open(CHAPTER, "average").check(right_mean).done


def test_each_case_catches_its_mistake() -> None:
    """A case is there because some slip gives another number for it; none is there for nothing."""
    for place, readings in enumerate(chapter02.CASES):
        caught = {name for name, slip in chapter02.SLIPS.items() if slip(readings) != right_mean(list(readings))}
        assert caught - {"as-a-share"} or place == 0
    for name, slip in chapter02.SLIPS.items():
        assert any(slip(readings) != right_mean(list(readings)) for readings in chapter02.CASES), name


@pytest.mark.parametrize("stub", [..., lambda readings: ..., lambda readings: None])
def test_a_mean_that_is_not_there_yet_is_no_try(stub: Any) -> None:
    assert "Not attempted yet" in str(exercise.open(CHAPTER, "average").check(stub))
    assert progress.tally(CHAPTER, "exercise", "average") == progress.Tally()


RIGHT = {
    "pictures": ("top left", "feed"),
    "notebook": ("bottom left", "give back"),
    "small_batch": ("bottom right", "grow"),
    "night_run": ("top right", "leave"),
}
QUADRANTS_WRONG = {
    "no-dict": ("top left", "feed"),
    "job-missing": {job: pair for job, pair in RIGHT.items() if job != "night_run"},
    "no-pair": RIGHT | {"pictures": "top left"},
    "unknown-word": RIGHT | {"pictures": ("upper left", "feed")},
    "axes-swapped": RIGHT | {"pictures": ("bottom right", "feed")},
    "wrong-place": RIGHT | {"notebook": ("top left", "give back")},
    "grow-while-waiting": RIGHT | {"pictures": ("top left", "grow")},
    "feed-while-busy": RIGHT | {"small_batch": ("bottom right", "feed")},
    "idle-is-left": RIGHT | {"notebook": ("bottom left", "leave")},
    "target-touched": RIGHT | {"night_run": ("top right", "grow")},
    "wrong-fix": RIGHT | {"notebook": ("bottom left", "feed")},
}


def test_four_right_pairs_are_done() -> None:
    assert exercise.open(CHAPTER, "quadrants").check(RIGHT).done
    assert exercise.open(CHAPTER, "quadrants").check({job: list(pair) for job, pair in RIGHT.items()}).done


@pytest.mark.parametrize("mistake", QUADRANTS_WRONG)
def test_a_wrong_pair_gets_its_own_hint(mistake: str) -> None:
    assert_mistake(CHAPTER, "quadrants", mistake, QUADRANTS_WRONG[mistake])


@pytest.mark.parametrize("job", RIGHT)
def test_the_job_that_is_wrong_is_named(job: str) -> None:
    places = [place for place, _ in RIGHT.values() if place != RIGHT[job][0]]
    for pair in [(place, RIGHT[job][1]) for place in places] + [(RIGHT[job][0], "nonsense")]:
        result = exercise.open(CHAPTER, "quadrants").check(RIGHT | {job: pair})
        assert not result.done and result.says.startswith(f"`{job}`")


def test_a_half_filled_table_is_no_try() -> None:
    for stub in (dict.fromkeys(RIGHT, ...), RIGHT | {"night_run": ...}, RIGHT | {"night_run": ("top right", ...)}):
        assert not exercise.open(CHAPTER, "quadrants").check(stub).attempted
    assert progress.tally(CHAPTER, "exercise", "quadrants") == progress.Tally()


TESTED = {"average": AVERAGE_WRONG, "quadrants": QUADRANTS_WRONG}


@pytest.mark.parametrize("id", TESTED)
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str) -> None:
    assert {*TESTED[id], "unforeseen"} == set(material.exercises(CHAPTER)[id].mistakes)


def test_every_mistake_that_the_code_names_is_tested() -> None:
    tree = ast.parse(inspect.getsource(chapter02))
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "wrong")
    named = {n.value for call in calls for n in ast.walk(call.args[0]) if isinstance(n, ast.Constant)}
    named -= {*RIGHT, "leave", "give back", "grow", "feed"}
    assert named and named | {*chapter02.SLIPS, *chapter02.WRONG_FIX.values()} <= {*AVERAGE_WRONG, *QUADRANTS_WRONG}


def test_the_words_of_the_exercise_are_those_of_the_check() -> None:
    assert {place.place for place in chapter02.JOBS.values()} == set(chapter02.PLACES)
    assert {place.fix for place in chapter02.JOBS.values()} == set(chapter02.FIXES)
    assert {job: (right.place, right.fix) for job, right in chapter02.JOBS.items()} == RIGHT


def test_the_wasted_card_minutes_are_the_arithmetic_of_their_prompt() -> None:
    question = quiz.ask(CHAPTER, "card-minutes")
    cards, minutes, share = 2, 90, 0.35
    assert f"{cards} cards" in question.prompt and f"{minutes} minutes" in question.prompt and "35%" in question.prompt
    assert question.answer == pytest.approx(cards * minutes * (1 - share))
    slips = {cards * minutes * share, minutes * (1 - share), minutes * share, 100 * (1 - share), cards * minutes}
    for slip in slips:
        assert question.check(slip).says != question.data.wrong, f"{slip} has no words of its own"


def test_several_that_are_missing_are_counted() -> None:
    assert quiz.ask(CHAPTER, "whose-memory").check("a").says.endswith("2 more belong to it.")
    assert quiz.ask(CHAPTER, "whose-memory").check("ab").says.endswith("1 more belongs to it.")
