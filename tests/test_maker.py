"""The notebook maker: two notebooks and the solutions from one source, and a clear word about a wrong source."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

pytest.importorskip("jupytext", reason="the notebook maker needs jupytext")

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """solutions/make.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("maker", REPOSITORY / "solutions" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOURCE = '''\
# %% title [markdown] minutes=2
# # A chapter
#
# With *text*.

# %% answer-body
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    y = x + x
    return y
    ### END SOLUTION

# %% answer-name
### BEGIN SOLUTION
mine = double(2)
### END SOLUTION
print("kept")

# %% proof tags=["solution-only"]
assert mine == 4
'''


def made(maker: ModuleType, folder: Path, text: str = SOURCE, name: str = "09_try") -> dict[str, str]:
    """The files made from a source, by their path below the root."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{name}.py").write_text(text)
    root = folder / "out"
    return {str(file.relative_to(root)): file.read_text() for file in maker.make(folder / "in", root)}


def cells(notebook: str) -> dict[str, nbformat.NotebookNode]:
    """The cells of a notebook by id."""
    return {cell.id: cell for cell in nbformat.reads(notebook, as_version=4).cells}


def test_the_learner_gets_stubs(maker: ModuleType, tmp_path: Path) -> None:
    got = cells(made(maker, tmp_path)["notebooks/09_try.ipynb"])
    assert list(got) == ["09-title", "09-answer-body", "09-answer-name"]
    assert got["09-answer-body"].source == 'def double(x):\n    """Twice x."""\n    ...'
    assert got["09-answer-name"].source == 'mine = ...\nprint("kept")'
    assert got["09-title"].source == "# A chapter\n\nWith *text*."


def test_a_table_inside_a_function_stays_inside_it(maker: ModuleType, tmp_path: Path) -> None:
    table = SOURCE.replace("y = x + x\n    return y", 'y = {"a": x}')
    got = cells(made(maker, tmp_path, table)["notebooks/09_try.ipynb"])
    assert got["09-answer-body"].source.endswith('\n    y = {\n        "a": ...,\n    }')


def test_the_solution_has_no_markers(maker: ModuleType, tmp_path: Path) -> None:
    got = cells(made(maker, tmp_path)["solutions/09_try.ipynb"])
    assert list(got) == ["09-title", "09-apart", "09-answer-body", "09-answer-name", "09-proof"]
    body = 'def double(x):\n    """Twice x."""\n    y = x + x\n    return y'
    assert got["09-answer-body"].source == body
    assert got["09-answer-name"].source == 'mine = double(2)\nprint("kept")'


def test_nothing_of_a_solution_reaches_the_learner_s_notebook(maker: ModuleType, tmp_path: Path) -> None:
    text = made(maker, tmp_path)["notebooks/09_try.ipynb"]
    assert not [part for part in ("SOLUTION", "x + x", "double(2)", "mine == 4") if part in text]


def test_notebooks_are_plain(maker: ModuleType, tmp_path: Path) -> None:
    for name, text in made(maker, tmp_path).items():
        if name.endswith(".ipynb"):
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
            assert set(notebook.metadata) == {"kernelspec", "language_info"}
            assert notebook.metadata.kernelspec.name == "python3"
            assert {key for cell in notebook.cells for key in cell.metadata} <= {"minutes", "tags"}
            assert notebook.cells[0].metadata.minutes == 2
            code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
            assert text.endswith("}\n")


def test_the_same_source_makes_the_same_bytes(maker: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert made(maker, tmp_path) == made(maker, tmp_path / "again")


def test_ids_stay_when_cells_come_and_change(maker: ModuleType, tmp_path: Path) -> None:
    before = [id for id in cells(made(maker, tmp_path)["solutions/09_try.ipynb"]) if id != "09-apart"]
    changed = "# %% first\nx = 1\n\n" + SOURCE.replace("x + x", "2 * x")
    assert list(cells(made(maker, tmp_path, changed)["solutions/09_try.ipynb"])) == ["09-apart", "09-first", *before]


def test_the_solutions_file_holds_whole_cells(maker: ModuleType, tmp_path: Path) -> None:
    tricky = SOURCE.replace('"kept"', r'"C:\new \"kept\""')
    files = made(maker, tmp_path, tricky)
    solutions = tomllib.loads(files["gpuworkshop/course/exercises/09_try.solutions.toml"])
    in_notebook = cells(files["solutions/09_try.ipynb"])
    assert {id: text.strip("\n") for id, text in solutions.items()} == {
        id: in_notebook[f"09-answer-{id}"].source for id in ("body", "name")
    }
    assert r'"C:\new \"kept\""' in solutions["name"]


def test_a_chapter_without_exercises_has_no_solutions_file(maker: ModuleType, tmp_path: Path) -> None:
    files = made(maker, tmp_path, "# %% one\nx = 1\n")
    assert list(files) == ["notebooks/09_try.ipynb", "solutions/09_try.ipynb"]


def test_a_solution_with_three_single_quotes_is_refused(maker: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(maker.SourceError, match="three single quotes"):
        made(maker, tmp_path, SOURCE.replace('"kept"', "'''kept'''"))


WRONG = {
    "no end": ("# %% a\n### BEGIN SOLUTION\nx = 1\n", 2, "does not end in its cell"),
    "end in another cell": (
        "# %% a\nx = 1\n### BEGIN SOLUTION\n# %% b\n### END SOLUTION\n", 3, "does not end in its cell",
    ),
    "no begin": ("# %% a\nx = 1\n### END SOLUTION\n", 3, "without having begun"),
    "two begins": (
        "# %% a\n### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION\n", 3, "line 2 has not ended",
    ),
    "two ends": ("# %% a\n### BEGIN SOLUTION\n### END SOLUTION\n### END SOLUTION\n", 4, "without having begun"),
    "a misspelled begin": ("# %% a\n## BEGIN SOLUTION\nx = 1\n### END SOLUTION\n", 2, "not a marker"),
    "a marker with more": ("# %% a\n### BEGIN SOLUTION knobs\nx = 1\n### END SOLUTION\n", 2, "not a marker"),
    "a small marker": ("# %% a\n    # end solution\n", 2, "not a marker"),
    "text before the cells": ("import os\n# %% a\nx = 1\n", 1, "before the first cell"),
    "no name": ("# %% a\nx = 1\n# %% [markdown]\n# text\n", 3, "needs a name"),
    "a name of two words": ("# %% Two words\nx = 1\n", 1, "needs a name"),
    "the same name twice": ("# %% a\nx = 1\n# %% b\ny = 1\n# %% a\nz = 1\n", 5, "another cell called 'a'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_source_is_refused_with_its_line_and_nothing_is_written(
    maker: ModuleType, tmp_path: Path, what: str
) -> None:
    text, line, says = WRONG[what]
    with pytest.raises(maker.SourceError) as refused:
        made(maker, tmp_path, text)
    assert str(refused.value).startswith(f"09_try.py:{line}: ") and says in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_is_wrong_in_one_line(
    maker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "09_try.py").write_text(WRONG["no end"][0])
    monkeypatch.setattr(maker, "HERE", tmp_path)
    assert maker.main([str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == "09_try.py:2: this solution does not end in its cell\n"


STUBS = {
    "mine = 3\n": "mine = ...",
    "    x = 1\n    mine = x\n": "mine = ...",
    "return 3\n": "...",
    "mine = 3\nprint(mine)\n": "...",
    "a, b = 1, 2\n": "...",
    "self.x = 1\n": "...",
    "": "...",
    'mine = {"one": 1, "": f(2), 3: {4: 5}}\n': 'mine = {\n    "one": ...,\n    "": ...,\n    3: ...,\n}',
    "mine = {}\n": "mine = ...",
}


@pytest.mark.parametrize("code", STUBS)
def test_a_stub_keeps_the_name_that_the_solution_gives(maker: ModuleType, code: str) -> None:
    assert maker.stub(code) == STUBS[code]
