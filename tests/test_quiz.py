"""The questions: every answer is judged as its data say, the three faces agree, and tries are kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuworkshop import state
from gpuworkshop.course import faces, material, progress, quiz

CHAPTERS = sorted(path.stem for path in (Path(material.__file__).parent / "questions").glob("*.toml"))
QUESTIONS = [(chapter, id) for chapter in CHAPTERS for id in material.questions(chapter)]
CHOICES = [(c, id) for c, id in QUESTIONS if material.questions(c)[id].kind == "choice"]
NUMBERS = [(c, id) for c, id in QUESTIONS if material.questions(c)[id].kind == "number"]
FIRST = ("04_starve", "what-can-help")


def test_there_are_questions() -> None:
    assert len(QUESTIONS) >= 5 and CHOICES and NUMBERS


@pytest.mark.parametrize(("chapter", "id"), QUESTIONS)
def test_the_right_answer_is_right_and_teaches(chapter: str, id: str) -> None:
    question = quiz.ask(chapter, id)
    feedback = question.check(question.answer)
    assert feedback.right and len(feedback.says) > 20
    assert str(feedback) == f"✓ Right. {feedback.says}"


@pytest.mark.parametrize(("chapter", "id"), CHOICES)
def test_exactly_one_choice_is_right_and_each_says_something_of_its_own(chapter: str, id: str) -> None:
    question = quiz.ask(chapter, id)
    answers = [question.check(letter) for letter in faces.letters(question.data.options)]
    assert [answer.right for answer in answers].count(True) == 1
    assert len({answer.says for answer in answers}) == len(answers) >= 3
    assert not question.check("ab").right


def test_several_answers_need_all_the_right_ones_and_no_other() -> None:
    question = quiz.ask("04_starve", "need-workers")
    assert question.answer == "ac"
    assert question.check({"c", "a"}).right and question.check("A C".split()).right
    assert question.check("a").says.endswith("1 more belongs to it.")
    assert "pin_memory" in question.check("abc").says
    assert "shuffle" in question.check("acd").says


@pytest.mark.parametrize(("chapter", "id"), NUMBERS)
def test_a_number_is_computed_and_typical_slips_are_met(chapter: str, id: str) -> None:
    question = quiz.ask(chapter, id)
    answer, tolerance = question.answer, question.data.tolerance
    assert tolerance > 0
    for value, right in ((answer + tolerance / 2, True), (answer + tolerance * 2, False), (-answer, False)):
        assert question.check(value).right is right
    for slip in question.data.slips:
        assert question.check(slip.value) == quiz.Feedback(False, slip.says)


def test_the_wasted_share_is_the_arithmetic_of_its_prompt() -> None:
    question = quiz.ask("04_starve", "wasted-share")
    assert question.answer == 80
    assert "45 ms" in question.prompt and "9 ms" in question.prompt
    loader, compute = 45, 9
    slips = {compute / loader, (loader - compute) / loader, loader / (loader + compute), loader / compute}
    shares = {100 * slip for slip in slips} - {80}
    for share in shares:
        assert question.check(share).says != question.data.wrong, f"{share} has no words of its own"


@pytest.mark.parametrize("nonsense", ["", "z", "az", None, 3, [], object()])
def test_what_is_no_letter_is_no_try(nonsense: object) -> None:
    feedback = quiz.ask(*FIRST).submit(nonsense)
    assert not feedback.right and "a, b, c, d" in feedback.says
    assert progress.tally(FIRST[0], "question", FIRST[1]) == progress.Tally()


@pytest.mark.parametrize("answer", ["abc", "CAB", "a, b, c", "a b c", ["a", "b", "c"]])
def test_several_letters_may_be_written_in_any_way(answer: object) -> None:
    assert quiz.ask("01_verify", "seen-not-used").check(answer).right


def test_a_question_with_several_right_answers_asks_for_letters() -> None:
    assert "several" in quiz.ask("01_verify", "seen-not-used").check("?").says


@pytest.mark.parametrize("answer", ["180", " 180 minutes ", "180minutes"])
def test_a_number_may_carry_the_unit_that_was_asked_for(answer: str) -> None:
    assert quiz.ask("01_verify", "time-to-ask").check(answer).right


@pytest.mark.parametrize("nonsense", ["many", "", None, float("nan"), float("inf"), [80]])
def test_what_is_no_number_is_no_try(nonsense: object) -> None:
    assert quiz.ask("04_starve", "wasted-share").submit(nonsense).counts is False
    assert state.read_lines(progress.FILE) == ([], 0)


def test_an_unknown_question_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="wasted-share"):
        quiz.ask("04_starve", "missing")


def parts(box: object) -> tuple:
    """Control, button and feedback of a panel."""
    return box.children[1:]


def shown(question: quiz.Question) -> tuple:
    question._repr_mimebundle_()
    return parts(question._box)


def test_the_widget_says_wrong_and_right_in_words_and_marks() -> None:
    question = quiz.ask(*FIRST)
    control, button, feedback = shown(question)
    assert 'role="status"' in feedback.value and "data-correct" not in feedback.value
    button.click()
    assert "Choose an answer first." in feedback.value
    for letter, correct, words in (("b", "false", "✗ Not yet."), ("a", "true", "✓ Right.")):
        control.value = letter
        button.click()
        assert f'data-correct="{correct}"' in feedback.value and words in feedback.value
    assert progress.tally(FIRST[0], "question", FIRST[1]) == progress.Tally(2, True)


def test_the_widgets_of_several_answers_and_of_a_number() -> None:
    control, button, feedback = shown(quiz.ask("04_starve", "need-workers"))
    for place in (0, 2):
        control.children[place].value = True
    button.click()
    assert 'data-correct="true"' in feedback.value
    control, button, feedback = shown(quiz.ask("04_starve", "wasted-share"))
    button.click()
    assert "Enter a number first." in feedback.value
    control.value = 80.2
    button.click()
    assert 'data-correct="true"' in feedback.value


@pytest.mark.parametrize(("chapter", "id"), QUESTIONS)
def test_the_widget_face_holds_no_key(chapter: str, id: str) -> None:
    question = quiz.ask(chapter, id)
    bundle = question._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    state_of_all = repr([widget.get_state() for widget in walk(question._box)])
    for option in question.data.options:
        assert option.says not in state_of_all
    assert question.data.right == "" or question.data.right not in state_of_all


def walk(widget: object) -> list:
    return [widget, *(one for child in getattr(widget, "children", ()) for one in walk(child))]


def test_only_widgets_whose_keys_jupyterlab_leaves_alone() -> None:
    allowed = {"VBox", "HTML", "Button", "ToggleButtons", "Checkbox", "FloatText"}
    for chapter, id in QUESTIONS:
        question = quiz.ask(chapter, id)
        question._repr_mimebundle_()
        assert {type(widget).__name__ for widget in walk(question._box)} <= allowed


def test_progress_comes_back_when_a_question_is_shown_again() -> None:
    for answer in ("b", "c", "a", "d"):
        quiz.ask(*FIRST).submit(answer)
    feedback = shown(quiz.ask(*FIRST))[2]
    assert "Answered right before, 3 tries." in feedback.value
    assert "Answered right before, 3 tries." in quiz.ask(*FIRST)._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize(("chapter", "id"), QUESTIONS)
def test_without_ipywidgets_the_static_faces_remain(chapter: str, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    question = quiz.ask(chapter, id)
    bundle = question._repr_mimebundle_()
    assert sorted(bundle) == ["text/html", "text/plain"]
    before, fold = bundle["text/html"].split("<details>")
    assert "Show the answer" in fold
    for option in question.data.options:
        assert faces.inline(option.text) in before and faces.inline(option.says) in fold
        assert option.says not in bundle["text/plain"] and option.text in bundle["text/plain"]
    assert f'quiz.ask("{chapter}", "{id}").submit(' in bundle["text/plain"]


def test_what_the_learner_reads_is_escaped() -> None:
    note = faces.Note("<b>`x<y`</b>", text=("<script>",), code="a < b", items=("<i>",))
    html = note.html()
    assert "&lt;script&gt;" in html and "<code>x&lt;y</code>" in html and "a &lt; b" in html
    assert "<b>" not in html and "<i>" not in html and "<script>" not in html


def test_two_notebooks_at_once_keep_each_other_s_progress() -> None:
    one, two = quiz.ask(*FIRST), quiz.ask("04_starve", "one-worker")
    controls = [shown(question) for question in (one, two)]
    for (control, button, _), letter in zip(controls, "ab", strict=True):
        control.value = letter
        button.click()
    assert progress.tally(FIRST[0], "question", FIRST[1]).right
    assert progress.tally("04_starve", "question", "one-worker").right


def test_the_chapter_report_says_what_is_done_and_open() -> None:
    quiz.ask(*FIRST).submit("b")
    quiz.ask(*FIRST).submit("a")
    quiz.ask("04_starve", "one-worker").submit("a")
    report = progress.chapter("04_starve")
    rows = {row[0]: row[1:] for row in report.tables[0].rows}
    assert rows["What can help at all"] == ("question", "done, 2 tries")
    assert rows["One worker on two cores"] == ("question", "not yet, 1 try")
    assert rows["Write the DataLoader call"] == ("exercise", "open")
    whole = len(material.questions("04_starve")) + len(material.exercises("04_starve"))
    assert report.findings[0].title == f"1 of {whole} questions and exercises are done"


def test_the_chapter_report_says_that_lines_were_broken() -> None:
    quiz.ask(*FIRST).submit("a")
    with (state.folder() / progress.FILE).open("ab") as file:
        file.write(b'{"half": \n')
    assert "1 broken line" in progress.chapter("04_starve").findings[1].title
