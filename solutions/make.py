"""Write the notebooks from their sources: one percent script for each chapter, NN_name.py, beside this file.

    python solutions/make.py [ROOT]     # `make notebooks`; without ROOT they go into this repository

For each chapter:

- notebooks/NN_name.ipynb, the learner's: a stub for each solution, no cell that is tagged `solution-only`;
- solutions/NN_name.ipynb: with the solutions, and a cell before all others that keeps what they count as apart
  from the learner's own progress;
- gpuworkshop/course/exercises/NN_name.solutions.toml: for each exercise the solved cell `answer-ID`, which
  the exercise shows on request.

A solution stands in one cell between the lines `### BEGIN SOLUTION` and `### END SOLUTION`. Its stub is
`...`, or `name = ...` if it ends by giving that name; of a dict its keys stay, so that the learner fills in a
table. Every cell has a name of its own, in its line `# %% name`. The cell's id is made from it, so it stays when
other cells come and go, and when the cell changes.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SOLUTION = re.compile(rf"^(?P<indent> *){BEGIN}\n(?P<code>.*?)^ *{END}(?:\n|\Z)", re.MULTILINE | re.DOTALL)
NEARLY = re.compile(r"#+\s*(begin|end)\b.*\bsolution", re.IGNORECASE)
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SOLUTION_ONLY = "solution-only"
APART = """\
# The answers in this notebook are the course's. They do not count as your own progress.
from gpuworkshop import state

state.set_apart("solutions")"""
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class SourceError(ValueError):
    """What is wrong in a source, as ``file:line: what``."""


def read(source: Path) -> list[NotebookNode]:
    """The cells of a source, solutions and markers in them. SourceError names the line of what is wrong."""
    text = source.read_text(encoding="utf-8")
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line.startswith("# %%")]
    _check_markers(source, lines)
    cells = jupytext.reads(text, fmt="py:percent").cells
    if len(cells) != len(starts):
        raise SourceError(f"{source.name}:1: there is text before the first cell")
    taken: set[str] = set()
    for cell, line in zip(cells, starts, strict=True):
        name = cell.metadata.get("title", "")
        if not NAME.fullmatch(name):
            raise SourceError(f"{source.name}:{line}: a cell needs a name, `# %% two-words`, not {name!r}")
        if name in taken:
            raise SourceError(f"{source.name}:{line}: there is another cell called {name!r}")
        taken.add(name)
    return cells


def _check_markers(source: Path, lines: Sequence[str]) -> None:
    """Every BEGIN has its END in the same cell, and nothing looks like a marker without being one."""
    begun = 0
    for number, line in [*enumerate(lines, 1), (len(lines) + 1, "# %%")]:
        marker = line.strip()
        if marker not in (BEGIN, END) and NEARLY.match(marker):
            raise SourceError(f"{source.name}:{number}: not a marker: {marker!r}; write {BEGIN!r} or {END!r}")
        if marker == END and not begun:
            raise SourceError(f"{source.name}:{number}: this solution ends without having begun")
        if marker == BEGIN and begun:
            raise SourceError(f"{source.name}:{number}: the solution of line {begun} has not ended yet")
        if line.startswith("# %%") and begun:
            raise SourceError(f"{source.name}:{begun}: this solution does not end in its cell")
        begun = {BEGIN: number, END: 0}.get(marker, begun)


def solved(code: str) -> str:
    """Code with its solutions, without the markers."""
    return SOLUTION.sub(lambda found: found["code"], code).rstrip("\n")


def unsolved(code: str) -> str:
    """Code with a stub for every solution."""
    return SOLUTION.sub(lambda found: textwrap.indent(stub(found["code"]), found["indent"]) + "\n", code).rstrip("\n")


def stub(code: str) -> str:
    """What stands for a solution: ``...``, under the name that the solution ends in giving, if it does.

    Of a dict every key stays, with ``...`` for its value.
    """
    statements = ast.parse(textwrap.dedent(code)).body
    match statements[-1:]:
        case [ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=[ast.Constant(), *_] as keys))]:
            rows = (f"    {ast.get_source_segment(textwrap.dedent(code), key)}: ...,\n" for key in keys)
            return f"{name} = {{\n{''.join(rows)}}}"
        case [ast.Assign(targets=[ast.Name(id=name)])]:
            return f"{name} = ..."
    return "..."


def notebook(chapter: str, cells: Sequence[NotebookNode], *, solution: bool) -> str:
    """A notebook as the text of its file: no outputs, no counts; of the metadata only tags and minutes."""
    kept = [cell for cell in cells if solution or SOLUTION_ONLY not in cell.metadata.get("tags", [])]
    made = nbformat.v4.new_notebook(metadata=METADATA)
    made.cells = [_cell(chapter, cell, solution) for cell in kept]
    if solution:
        first = next((place for place, cell in enumerate(made.cells) if cell.cell_type == "code"), len(made.cells))
        made.cells.insert(first, nbformat.v4.new_code_cell(APART, id=f"{chapter[:2]}-apart"))
    nbformat.validate(made)
    return nbformat.writes(made).rstrip("\n") + "\n"


def _cell(chapter: str, cell: NotebookNode, solution: bool) -> NotebookNode:
    metadata = {key: cell.metadata[key] for key in ("tags", "minutes") if key in cell.metadata}
    known = {"id": f"{chapter[:2]}-{cell.metadata['title']}", "metadata": metadata}
    if cell.cell_type == "markdown":
        return nbformat.v4.new_markdown_cell(cell.source, **known)
    return nbformat.v4.new_code_cell((solved if solution else unsolved)(cell.source), **known)


def answers(cells: Sequence[NotebookNode]) -> dict[str, str]:
    """The solved answer of each exercise: the cells that are called ``answer-ID``, by ID."""
    named = ((cell.metadata["title"].partition("answer-"), cell) for cell in cells)
    return {id: solved(cell.source) for (before, prefix, id), cell in named if prefix and not before}


def solutions_file(chapter: str, cells: Sequence[NotebookNode]) -> str:
    """The chapter's solutions as a TOML file."""
    head = f"# Written by `make notebooks` from solutions/{chapter}.py. Do not edit.\n"
    return head + "".join(f"\n{id} = {_toml(code)}\n" for id, code in answers(cells).items())


def _toml(code: str) -> str:
    if "'''" in code:
        raise SourceError(f"a solution cannot hold three single quotes: {code.splitlines()[0]!r}")
    return f"'''\n{code}\n'''"


def files(source: Path) -> Iterator[tuple[str, str]]:
    """Everything that is written for one source: path below the root, and text."""
    chapter, cells = source.stem, read(source)
    yield f"notebooks/{chapter}.ipynb", notebook(chapter, cells, solution=False)
    yield f"solutions/{chapter}.ipynb", notebook(chapter, cells, solution=True)
    if answers(cells):
        yield f"gpuworkshop/course/exercises/{chapter}.solutions.toml", solutions_file(chapter, cells)


def make(sources: Path, root: Path) -> list[Path]:
    """Write the files of every chapter in ``sources`` below ``root``; none if a source is wrong."""
    texts = dict(pair for source in sorted(sources.glob("[0-9][0-9]_*.py")) for pair in files(source))
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return [root / name for name in texts]


def main(arguments: Sequence[str]) -> int:
    """The command line: an optional root."""
    try:
        written = make(HERE, Path(arguments[0]) if arguments else HERE.parent)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
