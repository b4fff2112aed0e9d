"""One own line of a look at the training thread's stack, with what it is part of in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from gpuworkshop.own.result import Place
from gpuworkshop.own.source import Source, last_name

Kind = Literal[
    "decode", "item loop", "item", "collate", "validation", "empty_cache", "collect", "saving", "one call",
    "batch loop", "read loop", "weights loop", "optimizer", "backward", "forward", "copy", "read", "step", "beside",
]  # fmt: skip
"""What a line is for. The first four are in the loader, the others in the training thread outside of it;
"step" belongs to every step, or is the line that a framework trains in."""

COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


class _Names(msgspec.Struct, frozen=True):
    decode: frozenset[str]
    saving: frozenset[str]
    reading: frozenset[str]
    random: frozenset[str]
    validation: frozenset[str]


@cache
def names() -> _Names:
    """The names of calls by which lines are known."""
    return msgspec.toml.decode(Path(__file__).with_name("roles.toml").read_bytes(), type=_Names)


class Frame:
    """One own frame of a look, with what its line is part of."""

    def __init__(self, place: Place, source: Source | None):
        self.place, self.source = place, source
        self.statement = source.statement(place.line) if source else None
        self.function = source.function(self.statement) if self.statement else None

    @property
    def calls(self) -> set[str]:
        """Names of what the line calls."""
        if self.source is None:
            return set(re.findall(r"(\w+)\(", self.place.code))
        return {last_name(call) for call in self.source.calls(self.place.line) if self._on_line(call)}

    def _on_line(self, call: ast.Call) -> bool:
        """Whether a call belongs to the line's statement, and is no block around it."""
        start = self.statement.lineno if self.statement else self.place.line
        return call.lineno >= start

    @property
    def function_name(self) -> str:
        """The function's name; "" at the top of the file."""
        return self.function.name if self.function else ""

    def loops(self) -> Iterator[ast.AST]:
        """The loops and comprehensions of the same function around this line, the innermost first."""
        if self.statement is None:
            return
        line = self.place.line
        inside = [n for n in ast.walk(self.statement) if isinstance(n, COMPREHENSIONS)]
        yield from (n for n in reversed(inside) if n.lineno <= line <= n.end_lineno)
        for node in (self.statement, *self.source.outwards(self.statement)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return
            if isinstance(node, ast.For | ast.While):
                yield node

    def at(self, line: int) -> Place:
        """Another line of the same function."""
        text = self.source.line(line).strip() if self.source else ""
        return Place(self.place.file, line, text, self.place.function)
