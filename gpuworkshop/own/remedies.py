"""The changes that can be picked for a script of one's own: those of the loop, and what only a script can have."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.instruments.learning import Numerics
from gpuworkshop.loop import remedies as loop


class Remedy(msgspec.Struct, frozen=True):
    """One change, in words and in the code to write."""

    id: str
    title: str
    touches: tuple[str, ...]
    numerics: Numerics
    reason: str
    code: str
    effect: float = 1.0
    """The part of the time it works against that it usually takes away; it only orders the remedies."""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    code: str
    loop: bool = False
    title: str = ""
    touches: tuple[str, ...] = ()
    numerics: Numerics = "same"
    reason: str = ""
    effect: float = 1.0


class _File(msgspec.Struct, frozen=True):
    remedy: tuple[_Row, ...]
    framework: dict[str, dict[str, str | dict[str, str]]]


@cache
def _file() -> _File:
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_File)


@cache
def remedies() -> dict[str, Remedy]:
    """All of them, by id, in the order of the file."""
    return {row.id: _made(row) for row in _file().remedy}


def _made(row: _Row) -> Remedy:
    words = loop.by_id(row.id) if row.loop else row
    return Remedy(row.id, words.title, words.touches, words.numerics, words.reason, row.code.strip("\n"), row.effect)


def in_framework(framework: str, remedy: str) -> tuple[str, dict[str, str]]:
    """How a framework takes a remedy's settings: the call that takes them, and their names there; "" if it does not."""
    known = _file().framework.get(framework, {})
    names = known.get(remedy)
    return (str(known["call"]), dict(names)) if isinstance(names, dict) else ("", {})
