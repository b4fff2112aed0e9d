"""The Markdown sources: placeholders are taken out and resolved, and no number stands there without a reason.

A placeholder is ``{{ kind: what }}``. In its place goes a mark of letters that pandoc carries along untouched, also
in headings and code; :func:`deck.page.filled` puts the piece there. A number that is written by hand must be one of
``plain.toml``, which says why.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from deck.piece import Piece, Wrong

PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")
MARK = re.compile("\ue000([a-z]+)\ue001")
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,:]\d+)*")
"""A number as a reader sees one; BF16, H200 and cuda.0 are names."""

Resolve = Callable[[str, str], Piece]


class Source(msgspec.Struct, frozen=True):
    """One file: its Markdown with marks, and the piece of each mark."""

    file: str
    markdown: str
    pieces: dict[str, Piece]


def read(path: Path, resolve: Resolve, plain: dict[str, str], first: int = 0) -> Source:
    """The source in `path`. `resolve` takes kind and argument; marks are counted from `first`.

    Raises Wrong with file and line for a placeholder that is not understood and a number without a reason.
    """
    pieces: dict[str, Piece] = {}
    problems: list[str] = []

    def marked(found: re.Match) -> str:
        kind, colon, argument = (part.strip() for part in found[1].partition(":"))
        if not colon:
            raise Wrong(f"a placeholder is {{{{ kind: what }}}}, not {found[0]}")
        name = letters(first + len(pieces))
        pieces[name] = resolve(kind, argument)
        return f"\ue000{name}\ue001"

    lines = []
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            lines.append(PLACEHOLDER.sub(marked, line))
            check_numbers(PLACEHOLDER.sub("", line), plain)
        except Wrong as problem:
            problems.append(f"{path.parent.name}/{path.name}:{place}: {problem}")
    if problems:
        raise Wrong("\n".join(problems))
    return Source(path.name, "\n".join(lines) + "\n", pieces)


def check_numbers(words: str, plain: dict[str, str]) -> None:
    """Raise Wrong for a number in `words` that nobody gave a reason for."""
    for number in numbers(words):
        if number not in plain:
            raise Wrong(f"{number} is written by hand: take it from a recording or the site, or add it to plain.toml")


def numbers(words: str) -> list[str]:
    """The numbers in a text; the one that begins a line of a numbered list is none."""
    return NUMBER.findall(re.sub(r"(?m)^\s*\d+\.\s", "", words))


def plain_numbers(path: Path) -> dict[str, dict[str, str]]:
    """By the stem of a source: each number that may be written there by hand, and why."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def letters(count: int) -> str:
    """A count written in letters, so that no mark looks like a number."""
    head, rest = divmod(count, 26)
    return (letters(head - 1) if head else "") + chr(ord("a") + rest)
