"""A file of the script's own code: its text as it is on disk, its syntax tree, and where things are in it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

LARGEST = 4 * 2**20
"""Bytes of a file that is still read."""

_BREAK = re.compile(r"\r\n|\r|\n")


class Source:
    """The text of one Python file, kept to the byte: its encoding, its line ends, its tabs.

    Raises SyntaxError for what this Python cannot parse, UnicodeError for bytes that are no text.
    """

    def __init__(self, file: str, data: bytes):
        self.file = file
        self.encoding = _encoding(data)
        self.text = data.decode(self.encoding)
        self._skip = 1 if self.text.startswith("\ufeff") else 0
        self.tree = ast.parse(self.text[self._skip :])
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def starts(self) -> list[int]:
        """Offset at which each line begins, as Python counts lines; lines[0] is line 1."""
        return [self._skip, *(match.end() for match in _BREAK.finditer(self.text, self._skip))]

    @cached_property
    def newline(self) -> str:
        """The line end that the file uses."""
        found = _BREAK.search(self.text)
        return found.group() if found else "\n"

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """All tokens of the file."""
        return list(tokenize.generate_tokens(io.StringIO(self.text[self._skip :], newline="").readline))

    @cached_property
    def stored(self) -> set[str]:
        """The last parts of all names and attributes that something is assigned to."""
        names = (n for n in ast.walk(self.tree) if isinstance(n, ast.Name | ast.Attribute))
        return {last_name(node) for node in names if isinstance(node.ctx, ast.Store)}

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)]

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    def line(self, number: int) -> str:
        """A line with its end, counted from 1."""
        after = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : after]

    def offset(self, line: int, column: int) -> int:
        """The offset in the text of a place in the tree, whose columns count the bytes of UTF-8."""
        return self.starts[line - 1] + len(self.line(line).encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends in the text."""
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def written(self, node: ast.AST) -> str:
        """A node as it is written."""
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, line: int) -> str:
        """What a line begins with before its first word."""
        text = self.line(line)
        return text[: len(text) - len(text.lstrip(" \t"))]

    def outwards(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node lies in, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, line: int) -> ast.stmt | None:
        """The smallest statement on a line."""
        found = [n for n in self._statements if n.lineno <= line <= n.end_lineno]
        return min(found, key=lambda n: (n.end_lineno - n.lineno, -n.col_offset), default=None)

    def calls(self, line: int) -> list[ast.Call]:
        """The calls that a line is part of, the widest first."""
        found = [n for n in self._calls if n.lineno <= line <= n.end_lineno]
        return sorted(found, key=lambda n: (n.lineno, n.col_offset, -n.end_lineno))

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function that a node lies in."""
        return next((n for n in self.outwards(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)), None)


class Sources:
    """The files of a script, each read once; None for one that cannot be read or parsed."""

    def __init__(self, given: dict[str, bytes] | None = None):
        self._given, self._known = given, {}

    def get(self, file: str) -> Source | None:
        """The source of a file."""
        if file not in self._known:
            self._known[file] = self._read(file)
        return self._known[file]

    def _read(self, file: str) -> Source | None:
        try:
            if self._given is not None:
                return Source(file, self._given[file])
            with Path(file).open("rb") as opened:
                data = opened.read(LARGEST + 1)
            return Source(file, data) if len(data) <= LARGEST else None
        except (OSError, SyntaxError, UnicodeError, ValueError, KeyError, RecursionError, tokenize.TokenError):
            return None


def name_of(node: ast.AST) -> str:
    """The dotted name of a name, an attribute or what is called: "torch.optim.AdamW"; "" for anything else."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Attribute):
        before = name_of(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """The last part of :func:`name_of`."""
    return name_of(node).rpartition(".")[2]


def _encoding(data: bytes) -> str:
    """As the file declares it. A mark of UTF-8 stays in the text, so that what is written back has it too."""
    found = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    return "utf-8" if found == "utf-8-sig" else found
