"""Writes INDEX.md: each public case with its tests, as pytest finds them.

``python tests/cases/index.py`` writes it anew. A test belongs to a case by its name, such as `test_v04_...`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
TESTS = HERE.parent
INDEX = HERE / "INDEX.md"
AREAS = {
    "V": "Verify",
    "W": "Watch",
    "P": "Profile",
    "D": "Loader",
    "M": "Memory and precision",
    "R": "Ranks",
    "S": "Job scripts",
    "J": "Jupyter",
    "B": "jobstats",
    "L": "Loop",
}


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One public case."""

    title: str
    sources: tuple[str, ...]


class Test(msgspec.Struct, frozen=True, order=True):
    """A test function: its file under tests/, its name, and what its docstring says."""

    file: str
    name: str
    says: str

    @property
    def cases(self) -> tuple[str, ...]:
        """The ids that its name begins with."""
        found = re.match(r"test_((?:[a-z]\d\d_)+)", self.name)
        return tuple(found[1].upper().split("_")[:-1]) if found else ()


def cases() -> dict[str, Case]:
    """Every case by its id."""
    return msgspec.toml.decode((HERE / "cases.toml").read_bytes(), type=dict[str, Case])


def tests(folder: Path = TESTS) -> Iterator[Test]:
    """The test functions below a folder, by pytest's rules for names; the files are parsed, not imported."""
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield Test(file.relative_to(folder).as_posix(), node.name, ast.get_docstring(node) or "")


def of_case(identity: str, among: list[Test]) -> list[Test]:
    """The tests that carry this id in their names."""
    return [test for test in among if identity in test.cases]


def index() -> str:
    """The text of INDEX.md."""
    found, known = list(tests()), cases()
    lines = [
        "# Public cases",
        "",
        f"{len(known)} reports of people who do this work, each with the tests that hold the kit to the right answer.",
        "Written by `tests/cases/index.py` from `cases.toml` and the tests' names; a test compares.",
    ]
    for letter, area in AREAS.items():
        lines += ["", f"## {area}", "", "| case | stands for | reported in | tests |", "|---|---|---|---|"]
        for identity, case in sorted(known.items()):
            if identity.startswith(letter):
                names = "<br>".join(f"`{test.file}::{test.name}`" for test in of_case(identity, found))
                lines.append(f"| {identity} | {case.title} | {', '.join(case.sources)} | {names} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
