"""Predict, then measure: a guess made before the result counts, and stands beside it."""

from __future__ import annotations

import sys

import pytest

from gpuworkshop import state
from gpuworkshop.course import predict
from gpuworkshop.report import Origin
from gpuworkshop.timing import Rate

HERE = Origin("measured here", "a CPU", "2026-12-01")
QUESTION = "Which share of its time will this machine wait for data?"
MEASURED = Rate(83.0, 80.0, 86.0, 8, "%")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_asked", {})


def ask(unit: str = "%", high: float = 100) -> predict.Guess:
    return predict.guess("wait", QUESTION, unit, 0, high)


def test_a_guess_is_kept_and_compared() -> None:
    assert ask().save(40).tone == "right"
    report = predict.compare("wait", MEASURED, HERE)
    assert report.findings[0].title == "Measured 83.0% (80.0 to 86.0)"
    assert "40%" in report.findings[0].evidence
    assert report.origin == HERE and len(report.figures) == 1
    assert "40" in report.figures[0].text and "83" in report.figures[0].text


@pytest.mark.parametrize(
    ("guessed", "measured", "unit", "says"),
    [
        (90, 83, "%", "7.00 points below your guess"),
        (83, 83.2, "%", "inside the measured interval"),
        (100, 350, "images/s", "3.50 times your guess"),
        (700, 350, "images/s", "Your guess is 2.00 times the measured value"),
        (0, 350, "images/s", "350 images/s above your guess"),
    ],
)
def test_the_distance_is_said_in_points_or_as_a_ratio(guessed: int, measured: float, unit: str, says: str) -> None:
    ask(unit, 10000).save(guessed)
    rate = Rate(measured, 0.98 * measured, 1.02 * measured, 8, unit)
    assert says in predict.compare("wait", rate, HERE).findings[0].evidence


def test_without_a_guess_the_measured_value_stands_alone() -> None:
    ask()
    report = predict.compare("wait", MEASURED, HERE)
    assert report.findings[0].title == "Measured 83.0% (80.0 to 86.0)"
    assert "No guess was kept" in report.findings[0].evidence
    assert "n/a" in report.figures[0].text


def test_a_comparison_without_the_question_still_shows_the_measurement() -> None:
    report = predict.compare("never asked", Rate(350.0, 340.0, 360.0, 8, "images/s"), HERE)
    assert report.findings[0].title == "Measured 350 images/s (340 to 360)"


def test_the_last_guess_before_the_result_counts() -> None:
    ask().save(10)
    ask().save(40)
    predict.compare("wait", MEASURED, HERE)
    status = ask().save(83)
    assert "40" in status.says and status.tone != "right"
    assert predict.prediction("wait") == predict.Prediction(40, predict.prediction("wait").when, late=False)


def test_a_guess_made_after_the_result_is_marked() -> None:
    predict.compare("wait", MEASURED, HERE)
    assert "after a result was shown" in ask().save(83).says
    report = predict.compare("wait", MEASURED, HERE)
    assert "after a result had been shown" in report.findings[0].evidence


def test_another_guess_is_another_guess() -> None:
    ask().save(40)
    predict.guess("other", "?", "%", 0, 100).save(7)
    assert predict.prediction("wait").value == 40 and predict.prediction("other").value == 7


@pytest.mark.parametrize("value", [-1, 101, float("nan"), float("inf"), "40", None])
def test_what_is_outside_the_range_is_not_kept(value: object) -> None:
    assert "between 0 and 100" in ask().save(value).says
    assert predict.prediction("wait") is None


def test_an_unwritable_state_folder_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "append", lambda name, record: False)
    assert "could not be kept" in ask().save(40).says


def test_broken_lines_do_not_hide_a_guess() -> None:
    ask().save(40)
    with (state.folder() / predict.FILE).open("ab") as file:
        file.write(b'{"id": "wait", "event": "guess", "value": "many"}\n{"id": "wa')
    assert predict.prediction("wait").value == 40


def test_the_widget_keeps_a_guess_and_shows_it_again() -> None:
    guess = ask()
    guess._repr_mimebundle_()
    field, button, status = guess._box.children[1:]
    button.click()
    assert "Enter a number first." in status.value and predict.prediction("wait") is None
    field.value = 40
    button.click()
    assert "✓ Kept: 40%. Now measure it." in status.value
    again = ask()
    again._repr_mimebundle_()
    field, _, status = again._box.children[1:]
    assert field.value == 40 and "✓ Your guess: 40%" in status.value


def test_zero_is_a_guess_when_it_is_typed() -> None:
    guess = ask()
    guess._repr_mimebundle_()
    field, button, _ = guess._box.children[1:]
    field.value = 1
    field.value = 0
    button.click()
    assert predict.prediction("wait").value == 0


def test_without_ipywidgets_the_static_faces_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    bundle = ask()._repr_mimebundle_()
    assert sorted(bundle) == ["text/html", "text/plain"]
    assert QUESTION in bundle["text/html"] and ".save(number)" in bundle["text/plain"]
