"""The shell part of a job script as simple commands: enough of the shell's grammar to know where each begins and ends.

Quotes, continued lines, comments, here-documents and operators are understood; nothing is expanded or run. What is no
proper shell is read as far as it goes, without an error.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

import msgspec

_OPERATOR = re.compile(r"\|\||&&|\|&|;;&?|;&|[|;&()]")
_REDIRECT = re.compile(r"(?:\d*(?:<<<|<>|>\||>>|>&|<&|[<>](?!\())|&>>?)")
_HEREDOC = re.compile(r"\d*<<(?!<)(-?)[ \t]*")
_BROKEN = re.compile(r"\\[ \t]+(#.*)?$", re.MULTILINE)
_PLAIN = re.compile(r"""[^\s'"`\\$;&|<>()]+""")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_KEYWORDS = {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!", "time"}
_DEEPEST = 50
"""Quotes in substitutions in quotes that are followed."""


class Command(msgspec.Struct, frozen=True):
    """One simple command: its line, its words without quotes, and the operator after it ("" at the end of a line)."""

    line: int
    words: tuple[str, ...]
    then: str = ""
    before: str = ""
    """The operator in front of it."""
    inside: str = ""
    """The block that it is in: "if", "for", "function" ...; "" for the script itself."""
    continued: bool = False
    """Whether it goes over several lines."""

    @property
    def argv(self) -> tuple[str, ...]:
        """Its words without the assignments in front."""
        for place, word in enumerate(self.words):
            if not _ASSIGNED.fullmatch(word):
                return self.words[place:]
        return ()

    @property
    def name(self) -> str:
        """Its first word that is no assignment, without a folder; "" if there is none."""
        return self.argv[0].rpartition("/")[2] if self.argv else ""

    @property
    def assigned(self) -> dict[str, str]:
        """What it sets: assignments in front, and those of `export` and its like."""
        words = self.words[: len(self.words) - len(self.argv)]
        if self.name in ("export", "declare", "readonly", "typeset"):
            words += self.argv[1:]
        return {found[1]: found[2] for word in words if (found := _ASSIGNED.fullmatch(word))}


class Comment(msgspec.Struct, frozen=True):
    """A comment: its line, its text from # on, whether it begins its line, and whether a `\\` continued into it."""

    line: int
    text: str
    at_start: bool
    continued: bool = False


class Broken(msgspec.Struct, frozen=True):
    """A `\\` that continues nothing, because blanks or a comment stand after it."""

    line: int
    after: Literal["blanks", "a comment"]


class Shell(msgspec.Struct, frozen=True):
    """What was read of the shell part."""

    commands: tuple[Command, ...] = ()
    comments: tuple[Comment, ...] = ()
    broken: tuple[Broken, ...] = ()
    settings: dict[str, tuple[str, ...]] = {}
    """The values that the commands set each variable to, each once."""


def read(lines: Sequence[str], first: int = 1) -> Shell:
    """The commands of these lines, of which the first has the number `first`."""
    reader = _Reader("\n".join(lines), first)
    while reader.at < len(reader.text):
        reader.step()
    reader.end_command("")
    settings: dict[str, tuple[str, ...]] = {}
    for command in reader.commands:
        for name, value in command.assigned.items():
            if value not in settings.get(name, ())[:2]:
                settings[name] = (*settings.get(name, ())[:2], value)
    return Shell(tuple(reader.commands), tuple(reader.comments), tuple(reader.broken), settings)


class _Reader:
    """One pass over the text. A word begins with its first piece; a command with its first word."""

    def __init__(self, text: str, first: int):
        self.text, self.at, self.first = text, 0, first
        self.ends = [place for place, char in enumerate(text) if char == "\n"]
        self.commands: list[Command] = []
        self.comments: list[Comment] = []
        self.broken: list[Broken] = []
        self.words: list[str] = []
        self.pieces: list[str] | None = None  # of the present word; None between words
        self.began = self.line
        self.before = ""
        self.skip = False  # the next word says where a redirection leads
        self.joined = False  # a backslash ended the line before, and only blanks came since
        self.blocks: list[str] = []
        self.documents: list[tuple[str, bool]] = []  # they begin after this line: the word that ends each, tabs cut

    @property
    def line(self) -> int:
        return self.first + bisect_left(self.ends, self.at)

    def step(self) -> None:
        """Read one token, or one piece of a word."""
        text, at = self.text, self.at
        char = text[at]
        if char == "\n":
            self.at += 1
            self.end_command("")
            self.joined = False
            self._documents()
        elif char.isspace():
            self._end_word()
            self.at += 1
        elif char == "#" and self.pieces is None:
            self._comment()
        elif char == "\\":
            self._backslash()
        elif self.pieces is None and (found := _HEREDOC.match(text, at)):
            self.at = found.end()
            self.documents.append((_plain(self._raw_word()), bool(found[1])))
        elif (self.pieces is None or char in "<>") and (found := _REDIRECT.match(text, at)):
            self._end_word()
            self.at, self.skip = found.end(), True
        elif char == "(" and self.pieces is not None and _ARRAY.fullmatch("".join(self.pieces)):
            self._array()
        elif found := _OPERATOR.match(text, at):
            self._operator(found[0])
        else:
            line = self.line
            self._put(self._piece(), line)

    def end_command(self, operator: str) -> None:
        """What was read since the last one is a command."""
        self._end_word()
        while self.words and self.words[0] in _KEYWORDS:
            self._block(self.words.pop(0))
        if self.words and self.words[0] in ("for", "case", "select", "function", "in", "esac"):
            self._block(self.words[0])
            self.words.clear()
        if self.words:
            inside = self.blocks[-1] if self.blocks else ""
            continued = self.line > self.began + (operator == "" and self.text[self.at - 1 : self.at] == "\n")
            self.commands.append(Command(self.began, tuple(self.words), operator, self.before, inside, continued))
            self.before = operator
        elif operator:
            self.before = operator
        self.words, self.skip = [], False

    def _block(self, word: str) -> None:
        if word in ("if", "while", "until", "for", "case", "select", "{", "function"):
            self.blocks.append({"{": "function"}.get(word, word))
        elif word in ("fi", "done", "}", "esac") and self.blocks:
            self.blocks.pop()

    def _end_word(self) -> None:
        if self.pieces is not None:
            if not self.skip:
                self.words.append("".join(self.pieces))
            self.pieces, self.skip = None, False

    def _put(self, piece: str, line: int) -> None:
        """A piece of a word that began in this line."""
        if self.pieces is None:
            self.pieces = []
            if not self.words:
                self.began = line
        self.pieces.append(piece)
        self.joined = False

    def _comment(self) -> None:
        end = _find(self.text, "\n", self.at)
        at_start = self.at == 0 or self.text[self.at - 1] == "\n"
        self.comments.append(Comment(self.line, self.text[self.at : end], at_start, self.joined))
        self.at = end

    def _backslash(self) -> None:
        if self.text.startswith("\n", self.at + 1):  # it continues the line
            self.joined = self.joined or self.pieces is not None or bool(self.words)
            self.at += 2
            return
        if self.pieces is None and (found := _BROKEN.match(self.text, self.at)):
            self.broken.append(Broken(self.line, "a comment" if found[1] else "blanks"))
        self._put(self.text[self.at + 1 : self.at + 2], self.line)
        self.at += 2

    def _operator(self, operator: str) -> None:
        self._end_word()
        self.at += len(operator)
        if operator == "(" and len(self.words) == 1:  # a function's name
            self.words.clear()
        self.end_command(operator)

    def _array(self) -> None:
        """The words between the brackets of NAME=( ), as one piece of text; it may go over several lines."""
        line, inner = self.line, _Reader("", self.first)
        inner.text, inner.ends, inner.at = self.text, self.ends, self.at + 1
        while inner.at < len(inner.text) and inner.text[inner.at] != ")":
            if inner.text[inner.at] in "\n(|&;":  # between its words, or nothing that an array can hold
                inner._end_word()
                inner.at += 1
            else:
                inner.step()
        inner._end_word()
        self.comments += inner.comments
        self.at = inner.at + 1
        self._put(f"({shlex.join(inner.words)})", line)

    def _piece(self) -> str:
        """The next quoted text, substitution or plain character; `at` moves behind it."""
        text, at = self.text, self.at
        if found := _PLAIN.match(text, at):
            self.at = found.end()
            return found[0]
        if text[at] == "'":
            self.at = _find(text, "'", at + 1) + 1
            return text[at + 1 : self.at - 1]
        if text[at] == '"':
            self.at = _quote_end(text, at + 1) + 1
            return text[at + 1 : self.at - 1].replace("\\\n", "")
        if text[at] == "`":
            self.at = _find(text, "`", at + 1) + 1
        elif text.startswith(("$(", "${", "<(", ">("), at):
            self.at = _bracket_end(text, at + 1) + 1
        else:
            self.at += 1
        return text[at : self.at]

    def _raw_word(self) -> str:
        found = re.compile(r"""(?:'[^'\n]*'|"[^"\n]*"|\\.|[^\s;&|<>()'"\\])*""").match(self.text, self.at)
        self.at = found.end()
        return found[0]

    def _documents(self) -> None:
        """Pass over the here-documents that begin here."""
        for ending, tabs in self.documents:
            while self.at < len(self.text):
                end = _find(self.text, "\n", self.at)
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == ending:
                    break
        self.documents.clear()


def _plain(word: str) -> str:
    return re.sub(r"""['"\\]""", "", word)


def _find(text: str, what: str, at: int) -> int:
    """Where `what` comes next; the end of the text if it does not."""
    found = text.find(what, at)
    return len(text) if found < 0 else found


def _quote_end(text: str, at: int, depth: int = 0) -> int:
    """Where the double quote that began before `at` ends; a $( ) in it may hold quotes of its own."""
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 2
        elif text.startswith("$(", at) and depth < _DEEPEST:
            at = _bracket_end(text, at + 1, depth + 1) + 1
        else:
            at += 1
    return min(at, len(text))


def _bracket_end(text: str, at: int, depth: int = 0) -> int:
    """Where the bracket at `at` closes."""
    opening = text[at]
    closing = {"(": ")", "{": "}"}[opening]
    still_open = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'":
            at = _find(text, "'", at + 1)
        elif char == '"':
            at = _quote_end(text, at + 1, depth)
        elif char in (opening, closing):
            still_open += 1 if char == opening else -1
            if not still_open:
                return at
        at += 1
    return len(text)
