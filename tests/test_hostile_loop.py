"""Attacks on the loop and chapter 7: limits that leave nothing to do, nonsense for the checks, odd choices."""

import math

import msgspec
import numpy as np
import pytest
import torch
from test_chapter07 import child, looked  # noqa: F401  the fixture
from test_loop import World, climbed, result  # noqa: F401  the fixture
from torch.nn.functional import cross_entropy

from gpuworkshop.course import calls, exercise, rungs
from gpuworkshop.course.checks import chapter03, chapter07
from gpuworkshop.loop import climb
from gpuworkshop.loop.climb_result import NOTHING_PAYS


def said(found: climb.LoopResult) -> dict:
    return {finding.title: finding for finding in climb.findings(found)}


# ---------------------------------------------------------------- a loop that had to stop


@pytest.mark.parametrize(
    ("stopped", "fix"),
    [("the budget of 1 s is used up", "--budget none"), ("0 changes were kept, as many as allowed", "--max-changes")],
)
def test_a_loop_that_measured_no_change_does_not_say_that_none_is_worth_it(climbed, stopped, fix) -> None:  # noqa: F811
    flat = World(decode=1.0, copy=1.0, handing=10.0, bf16=1.0, last=1.0)
    _, whole, heard = climbed(flat)
    found = result(flat, heard, stopped)
    none = said(msgspec.structs.replace(found, records=found.records[:1]))
    assert "Nothing worth changing" not in none and not any("In all" in title for title in none)
    assert none["No change was measured"].level == "unknown" and fix in none["No change was measured"].fix
    some = said(msgspec.structs.replace(found, records=found.records[:3]))
    assert "None of 2 changes was kept; others were not measured" in some and "Nothing worth changing" not in some
    assert whole == NOTHING_PAYS and said(result(flat, heard, whole))["Nothing worth changing"].level == "ok"


# ---------------------------------------------------------------- the checks


@pytest.mark.parametrize("id", ["report", "change", "tables"])
@pytest.mark.parametrize("word", [np.zeros(2), torch.ones(2, 2), None, 3, math.nan, b"batch", "x" * 10**6, object()])
def test_a_word_of_any_type_is_an_unknown_word_and_shown_in_short(id, word) -> None:
    chapter, names = {
        "report": (chapter07.report_card, chapter07.NEXT_TIME),
        "change": (chapter07.first_change, chapter07.FIRST),
        "tables": (chapter03.tables, chapter03.JOBS),
    }[id]
    answer = {name: (word, word) if id == "tables" else word for name in names}
    assert chapter(answer).mistake == "unknown-word"
    shown = exercise.open("03_profile" if id == "tables" else "07_loop", id).check(answer)
    assert shown.mistake == "unknown-word" and len(str(shown)) < 2000


@pytest.mark.parametrize(
    ("turn", "mistake"),
    [(lambda loss: loss.double(), ""), (lambda loss: torch.tensor(2), "other-loss"), (lambda loss: loss[None], "")],
)
def test_a_loss_of_another_type_is_judged_by_its_value(monkeypatch, turn, mistake) -> None:
    monkeypatch.setattr(chapter03, "_wrong_speed", lambda comparison: None)
    monkeypatch.setattr(chapter03._Trial, "compare", lambda self, function: None)
    found = chapter03.batched(lambda model, images, classes: turn(cross_entropy(model(images), classes)))
    assert found.mistake == mistake


# ---------------------------------------------------------------- the hidden job


def test_choices_that_are_none_leave_the_round_as_it_is(child) -> None:  # noqa: F811
    job = looked()
    now = job.now
    assert "Choose a change first." in str(job.choose())
    for odd in ("nonsense", None, 3, ["workers"], ""):
        with pytest.raises(KeyError, match="no change is called .*: there are"):
            job.choose(odd)
    assert job.now == now and job.changes == [] and len(child.asked) == 1


def test_after_the_answer_the_round_can_go_on_and_the_answer_with_it(child) -> None:  # noqa: F811
    job = looked()
    before = str(job.answer())
    first, again = job.choose("workers"), job.choose("workers", "workers")
    assert first.tone == "right" and "nothing to change" in str(again)
    assert "No change was measured yet" in before and "1 change measured, 1 kept" in str(job.answer())


@pytest.mark.parametrize("command", [None, "", "  ", 3])
def test_no_command_has_no_rungs(command) -> None:
    with pytest.raises(ValueError, match="command is .*: your line as you type it"):
        rungs.lines(command)


@pytest.mark.parametrize("samples", [0, -1, "10", 2.5, None])
def test_calls_over_no_number_of_samples_are_refused_before_anything_runs(samples) -> None:
    with pytest.raises(ValueError, match="samples is"):
        calls.measure(pytest.fail, pytest.fail, samples)
