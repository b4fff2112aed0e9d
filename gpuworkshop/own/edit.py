"""Small exact changes to a source file: an argument of a call, a line put in, a block indented; and their diff."""

from __future__ import annotations

import ast
import difflib
import re
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gpuworkshop.own.source import Source


class NotCertain(Exception):
    """A change could not be made for sure; the words say what to look at."""


class Edit(NamedTuple):
    """Replace ``text[start:end]`` by ``new``."""

    start: int
    end: int
    new: str


def edited(source: Source, edits: Iterable[Edit]) -> str:
    """The file's text with the edits made; raises NotCertain where it would no longer parse, or nothing changed."""
    text = source.text
    for edit in sorted(set(edits), reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    if text == source.text:
        raise NotCertain("nothing is left to change there")
    try:
        ast.parse(text.removeprefix("\ufeff"))
    except SyntaxError as fault:
        raise NotCertain("the changed file could not be parsed") from fault
    return text


def unified(source: Source, new: str) -> str:
    """The unified diff that ``patch -p1`` applies in the folder of the file; raises NotCertain where no diff can."""
    name = Path(source.file).name
    if not re.fullmatch(r"[\w.+-]+", name, re.ASCII):
        raise NotCertain(f"a diff cannot safely name the file {name!r}")
    if re.search(r"\r(?!\n)", source.text):
        raise NotCertain("the file has line ends that a diff cannot show")
    before, after = _lines(source.text), _lines(new)
    return "".join(map(_whole, difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")))


def _lines(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _whole(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


# An argument of a call


def argument(call: ast.Call, name: str, order: Sequence[str] = ()) -> ast.expr | None:
    """The value that a call gives for a parameter, by name or by its place in ``order``; None where it gives none."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if name not in order or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    at = order.index(name)
    return call.args[at] if at < len(call.args) else None


def add_keywords(source: Source, call: ast.Call, values: dict[str, str]) -> list[Edit]:
    """Edits that add keywords at the end of a call, in the way in which it is laid out."""
    if any(keyword.arg is None for keyword in call.keywords):
        spread = next(keyword for keyword in call.keywords if keyword.arg is None)
        raise NotCertain(f"its settings come from **{source.written(spread.value)}: add {_as_keywords(values)} there")
    if any(isinstance(one, ast.Starred) for one in call.args):
        raise NotCertain(f"its arguments come from a list: add {_as_keywords(values)}")
    start, end = source.span(call)
    inside = [t for t in _tokens_between(source, start, end) if t.type not in _SPACE]
    last, closing = inside[-2], inside[-1]
    at = source.starts[last.end[0] - 1] + last.end[1]
    empty, comma = last.string == "(" and not (call.args or call.keywords), last.string == ","
    added = _as_keywords(values)
    if last.end[0] == closing.start[0] or empty:
        return [Edit(at, at, added if empty else f" {added}" if comma else f", {added}")]
    after = source.starts[last.end[0]]
    edits = [] if comma else [Edit(at, at, ",")]
    return [*edits, Edit(after, after, f"{_hanging(source, call, last)}{added},{source.newline}")]


_SPACE = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}


def _tokens_between(source: Source, start: int, end: int) -> list[tokenize.TokenInfo]:
    def at(where: tuple[int, int]) -> int:
        return source.starts[where[0] - 1] + where[1]

    return [t for t in source.tokens if t.string and start <= at(t.start) and at(t.end) <= end]


def _hanging(source: Source, call: ast.Call, last: tokenize.TokenInfo) -> str:
    """The indentation of the line on which the last argument begins."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    lines = [getattr(k, "lineno", last.start[0]) for k in call.keywords] + [one.lineno for one in arguments]
    line = max(lines, default=last.start[0])
    return source.indent(line) if line > call.lineno else source.indent(last.start[0]) + "    "


def _as_keywords(values: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def replace(source: Source, node: ast.AST, new: str) -> Edit:
    """An edit that writes something else for a node."""
    return Edit(*source.span(node), new)


# Whole statements


def simple(source: Source, line: int) -> ast.stmt:
    """The statement of a line that stands alone on its lines; raises NotCertain for anything else."""
    found = source.statement(line)
    if found is None or isinstance(found, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        raise NotCertain("the line is not a statement by itself")
    alone(source, found, found)
    return found


def alone(source: Source, first: ast.stmt, last: ast.stmt) -> None:
    """Raises NotCertain unless nothing else stands on the lines of these statements."""
    start, end = source.span(first)[0], source.span(last)[1]
    before = source.text[source.starts[first.lineno - 1] : start]
    rest = source.line(last.end_lineno)[len(source.text[source.starts[last.end_lineno - 1] : end]) :]
    if before.strip() or (rest.strip() and not rest.strip().startswith("#")):
        raise NotCertain("other statements stand on the same line")


def after_line(source: Source, line: int, new: Sequence[str]) -> Edit:
    """An edit that puts lines in after a line, indented as that line's statement is."""
    statement = source.statement(line)
    indent = source.indent(statement.lineno if statement else line)
    whole = source.line(line)
    at = source.starts[line - 1] + len(whole)
    text = "".join(f"{indent}{one}{source.newline}" for one in new)
    if not whole.endswith(("\n", "\r")):
        text = source.newline + text.removesuffix(source.newline)
    return Edit(at, at, text)


def remove(source: Source, statement: ast.stmt) -> Edit:
    """An edit that takes a statement away with its lines; it must not be the only one of its block."""
    parent = source.parents[statement]
    block = next(b for b in blocks(parent) if statement in b)
    alone(source, statement, statement)
    start = source.starts[statement.lineno - 1]
    end = source.starts[statement.end_lineno - 1] + len(source.line(statement.end_lineno))
    return Edit(start, end, f"{source.indent(statement.lineno)}pass{source.newline}" if len(block) == 1 else "")


def under(source: Source, first: ast.stmt, last: ast.stmt, head: str) -> list[Edit]:
    """Edits that put ``head`` before statements of one block, and indent them below it."""
    alone(source, first, last)
    spanning = [t for t in source.tokens if t.type in _TEXTS and t.start[0] < t.end[0]]
    if any(first.lineno <= t.end[0] and t.start[0] <= last.end_lineno for t in spanning):
        raise NotCertain("a text over several lines stands there, which must not be indented")
    indent = source.indent(first.lineno)
    deeper = "\t" if indent.endswith("\t") else _step(source)
    at = source.starts[first.lineno - 1]
    edits = [Edit(at, at, f"{indent}{head}{source.newline}{deeper}")]
    for line in range(first.lineno + 1, last.end_lineno + 1):
        if source.line(line).strip():
            edits.append(Edit(source.starts[line - 1], source.starts[line - 1], deeper))
    return edits


_TEXTS = {tokenize.STRING} | {getattr(tokenize, n) for n in ("FSTRING_MIDDLE", "FSTRING_START") if hasattr(tokenize, n)}


def _step(source: Source) -> str:
    """One level of indentation as the file has it."""
    found = next((t.string for t in source.tokens if t.type == tokenize.INDENT), "    ")
    return found


def blocks(node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks of statements that a node holds."""
    fields = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
    return [field for field in fields if isinstance(field, list)]
