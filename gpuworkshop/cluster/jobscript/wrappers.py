"""What stands in front of a command and starts it: `nohup`, `uv run`, `apptainer exec IMAGE`, `bash -c`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster.jobscript import shell

_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_DEEPEST = 8
"""Wrappers behind wrappers that are followed."""


class Wrapper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a wrapper is read; the keys are told of in wrappers.toml."""

    names: tuple[str, ...]
    verbs: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()
    words: int = 0
    python: bool = False
    shell: str = ""


def commands(words: Sequence[str], depth: int = 0) -> Iterator[tuple[str, ...]]:
    """The commands that these words start, without the wrappers in front; the words themselves where there is none."""
    known = _wrappers().get(words[0].rpartition("/")[2]) if words and depth < _DEEPEST else None
    behind = _behind(words[1:], known) if known else []
    if not behind:
        yield tuple(words)
    for one in behind:
        yield from commands(one, depth + 1)


def _behind(rest: Sequence[str], known: Wrapper) -> list[Sequence[str]]:
    """The commands behind a wrapper: none where it starts none, several where it is a shell's text."""
    if known.shell:
        read = shell.read(_shell_text(rest, known.shell).split("\n"))
        return [one.argv for one in read.commands if one.argv]
    found = _command(list(rest), known)
    return [found] if found else []


def _command(rest: list[str], known: Wrapper) -> list[str]:
    """The command behind the options, the verb and the words of a wrapper; empty where it starts none."""
    rest = _without_options(rest, known)
    if known.verbs:
        if not rest or rest[0] not in known.verbs:
            return []
        rest = _without_options(rest[1:], known)
    rest = rest[known.words :]
    if known.python and rest and (rest[0] in ("-m", "--module") or rest[0].endswith(".py")):
        return ["python", *(["-m", *rest[1:]] if rest[0].startswith("-") else rest)]
    return rest


def _without_options(rest: list[str], known: Wrapper) -> list[str]:
    """The words behind options, their values and assignments."""
    while rest and (rest[0].startswith("-") or _ASSIGNED.match(rest[0])):
        if known.python and rest[0] in ("-m", "--module"):
            break
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        rest = rest[word in known.values :]
    return rest


def _shell_text(words: Sequence[str], letter: str) -> str:
    """The text of `bash -c TEXT`; "" where a shell is given a file."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            break
        if re.fullmatch(rf"-[a-z]*{letter}", word):
            return next(iter(words[place + 1 : place + 2]), "")
    return ""


@cache
def _wrappers() -> dict[str, Wrapper]:
    text = Path(__file__).with_name("wrappers.toml").read_bytes()
    known = msgspec.toml.decode(text, type=dict[str, tuple[Wrapper, ...]])["wrapper"]
    return {name: one for one in known for name in one.names}
