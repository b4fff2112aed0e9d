"""The committed notebooks: as their sources make them, without outputs, within their minutes, and solvable.

That the notebooks run as they stand is nbval's part of `make test`. One test here runs a solved copy, which takes
about a minute on two cores.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from gpuworkshop.course import material, progress

for needed in ("jupytext", "nbclient"):
    pytest.importorskip(needed, reason=f"the notebooks' tests need {needed}")

REPOSITORY = Path(__file__).parents[1]
CHAPTERS = sorted(path.stem for path in (REPOSITORY / "solutions").glob("[0-9][0-9]_*.py"))
WRITTEN = (
    "notebooks/*.ipynb",
    "solutions/*.ipynb",
    "gpuworkshop/course/exercises/*.solutions.toml",
)
MINUTES = 20
SECONDS_OF_A_CELL = 240


def test_there_are_chapters() -> None:
    assert "04_starve" in CHAPTERS


def test_what_is_committed_is_what_the_sources_make(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "solutions" / "make.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert written(REPOSITORY) == written(tmp_path), "run `make notebooks` and commit what it writes"


def written(root: Path) -> dict[str, bytes]:
    """All files of the kinds that the maker writes, by path."""
    found = (file for pattern in WRITTEN for file in root.glob(pattern))
    return {str(file.relative_to(root)): file.read_bytes() for file in found}


def read(folder: str, chapter: str) -> nbformat.NotebookNode:
    return nbformat.read(REPOSITORY / folder / f"{chapter}.ipynb", as_version=4)


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_notebook_has_no_outputs(chapter: str, folder: str) -> None:
    code = [cell for cell in read(folder, chapter).cells if cell.cell_type == "code"]
    assert code
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_fits_its_minutes(chapter: str) -> None:
    minutes = {cell.id: cell.metadata.get("minutes", 0) for cell in read("notebooks", chapter).cells}
    assert 0 < sum(minutes.values()) <= MINUTES
    for id, one in material.exercises(chapter).items():
        assert minutes[f"{chapter[:2]}-exercise-{id}"] == one.minutes, f"{id}: the card says {one.minutes}"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_an_exercise_has_a_card_hints_and_wrong_answers(chapter: str) -> None:
    exercises = material.exercises(chapter)
    assert exercises
    for one in exercises.values():
        assert all((one.title, one.goal, one.done_when, one.difficulty, one.minutes, one.done, one.stub))
        assert len(one.hints) >= 2
        assert len([words for words in one.mistakes.values() if words.says and words.hint]) >= 2


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_question_and_exercise_of_a_chapter_is_in_its_notebook(chapter: str) -> None:
    code = "\n".join(cell.source for cell in read("notebooks", chapter).cells if cell.cell_type == "code")
    assert len(material.questions(chapter)) >= 3
    for id in material.questions(chapter):
        assert f'quiz.ask("{chapter}", "{id}")' in code
    for id in material.exercises(chapter):
        assert f'exercise.open("{chapter}", "{id}")' in code and f"{id}.check(" in code


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_exercise_has_a_solution_to_show(chapter: str) -> None:
    ids = {cell.id: cell.source for cell in read("notebooks", chapter).cells}
    for id in material.exercises(chapter):
        shown = material.solution(chapter, id)
        assert shown and "..." not in shown
        assert "..." in ids[f"{chapter[:2]}-answer-{id}"], "the learner's cell has no stub"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_answers_of_the_course_do_not_count_as_the_learners(chapter: str) -> None:
    """Before anything else the solution notebook sets its state apart; the learner's own notebook never does."""
    first = next(cell.source for cell in read("solutions", chapter).cells if cell.cell_type == "code")
    assert 'state.set_apart("solutions")' in first
    assert not any("set_apart" in cell.source for cell in read("notebooks", chapter).cells)


def solved(chapter: str) -> nbformat.NotebookNode:
    """The learner's notebook with the shown solutions in place of its stubs."""
    file = REPOSITORY / "gpuworkshop" / "course" / "exercises" / f"{chapter}.solutions.toml"
    answers = {f"{chapter[:2]}-answer-{id}": code for id, code in tomllib.loads(file.read_text()).items()}
    notebook = read("notebooks", chapter)
    for cell in notebook.cells:
        cell.source = answers.pop(cell.id, cell.source)
    assert not answers, f"no cell of the notebook takes {', '.join(answers)}"
    return notebook


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_solved_copy_is_the_solution_notebook(chapter: str) -> None:
    """What a learner has after all shown solutions are taken is what nbval runs to its end in solutions/."""
    copy = {cell.id: cell.source.rstrip("\n") for cell in solved(chapter).cells if cell.cell_type == "code"}
    ran = {cell.id: cell.source for cell in read("solutions", chapter).cells if cell.cell_type == "code"}
    only = {id for id in ran if id not in copy}
    assert only <= {f"{chapter[:2]}-apart", f"{chapter[:2]}-assert-both"} and copy.items() <= ran.items()


def test_a_solved_copy_passes_every_check_and_counts(tmp_path: Path) -> None:
    """One chapter as a learner runs it: the checks say Done, and the learner's progress holds them."""
    from nbclient import NotebookClient

    chapter = CHAPTERS[0]
    notebook = solved(chapter)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=SECONDS_OF_A_CELL, kernel_name="python3", resources=where).execute()
    shown = {cell.id: "".join(texts(cell)) for cell in notebook.cells}
    for id in material.exercises(chapter):
        assert "✓ Done" in shown[f"{chapter[:2]}-check-{id}"], shown[f"{chapter[:2]}-check-{id}"]
        assert progress.tally(chapter, "exercise", id) == progress.Tally(1, True)


def texts(cell: nbformat.NotebookNode) -> Iterator[str]:
    """What a cell shows, as plain text."""
    for output in cell.get("outputs", []):
        yield output.get("text", "") or output.get("data", {}).get("text/plain", "")
