"""The checks of the exercises, one module a chapter: plain functions that name what they found.

A check gives a `Found`; the words for it stand with the exercise in exercises/*.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Found(msgspec.Struct, frozen=True):
    """What a check found: `mistake` is "" for a right answer, "stub" for one that is not there yet,
    else the name of the mistake. `facts` fill the braces in its words."""

    mistake: str = ""
    facts: dict[str, Any] = {}


def right(**facts: Any) -> Found:
    """The answer is right."""
    return Found("", facts)


def wrong(mistake: str, **facts: Any) -> Found:
    """The answer has this mistake."""
    return Found(mistake, facts)


def told(error: BaseException) -> str:
    """A learner's error in one line of readable length, whatever its message is."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # its message is an error of its own
        words = ""
    short = words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__


def written(answer: Any) -> str:
    """An answer as Python writes it, whatever it is; its type where it cannot be written."""
    try:
        return repr(answer)
    except Exception:  # a number of too many digits, a repr that fails
        return f"something of type {type(answer).__name__}"


def not_whole(answer: Any, expected: Mapping[str, Any], what: str) -> Found | None:
    """What keeps a table of answers from being judged: no dictionary, a stub, a ``what`` that is missing."""
    if not isinstance(answer, dict):
        return wrong("no-dict", kind=type(answer).__name__)
    if any(value is ... or _holds_a_stub(value) for value in answer.values()):
        return STUB
    missing = [name for name in expected if name not in answer]
    return wrong(f"{what}-missing", **{what: missing[0]}) if missing else None


def _holds_a_stub(value: Any) -> bool:
    return isinstance(value, tuple | list) and any(part is ... for part in value)


def does_nothing(function: Callable) -> bool:
    """Whether a function uses no name at all, as a stub does."""
    code = getattr(function, "__code__", None)
    return code is not None and not (code.co_names or code.co_freevars)


LONGEST = 200
"""Characters of an error's message that are shown."""

STUB = Found("stub")
"""The answer is still the `...` that the notebook came with; this is no try."""
