"""The checks of chapter 8: what three answers to the prompt did, and the size of a cache of keys and values."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any

from gpuworkshop.course import serving
from gpuworkshop.course.answers import answers, compared
from gpuworkshop.course.checks import STUB, Found, does_nothing, right, told, wrong
from gpuworkshop.course.serving import Model

WORDS = {
    (True, True): "passes",
    (False, True): "does not ask",
    (True, False): "several changes",
    (False, False): "fails both",
}
"""The word for an answer, by whether it asks to measure first and whether its change is one."""

TYPICAL = {
    ("first", "passes"): "counted-lines",
    ("second", "fails both"): "counted-settings",
    ("second", "several changes"): "counted-settings",
    ("second", "passes"): "did-not-ask",
    ("third", "several changes"): "counted-lines-too",
    ("third", "fails both"): "counted-lines-too",
    ("third", "does not ask"): "it-asks",
    ("first", "does not ask"): "it-asks",
    ("first", "fails both"): "it-asks",
}
"""What a typical wrong word is a sign of."""


def truth(name: str) -> str:
    """The word for one answer: its first check as it is written, its second by the comparison of `loop --again`."""
    one = answers()[name]
    return WORDS[one.asks, one.attribution.one]


def two_checks(found: Any) -> Found:
    """Judge a word for each answer, as ``{"first": "passes", ...}``."""
    if not isinstance(found, dict):
        return wrong("no-dict", kind=type(found).__name__)
    if any(value is ... for value in found.values()):
        return STUB
    known = ", ".join(WORDS.values())
    for name in answers():
        if name not in found:
            return wrong("answer-missing", answer=name)
        if found[name] not in WORDS.values():
            return wrong("unknown-word", answer=name, got=repr(found[name]), known=known)
    for name in answers():
        if found[name] != truth(name):
            mistake = TYPICAL.get((name, found[name]), "other")
            return wrong(mistake, answer=name, got=found[name], compared=compared(name))
    return right(third=compared("third"))


SHAPES = (
    (Model("a", 1.0, 32, 8, 128), 4096, 3, 2),
    (Model("b", 1.0, 5, 7, 11), 13, 17, 1),
)
"""Models, tokens, sequences and bytes of a number that a function is tried with."""

FORGOT = {
    "keys-only": lambda model, tokens, sequences, size: 0.5,
    "no-tokens": lambda model, tokens, sequences, size: 1 / tokens,
    "one-sequence": lambda model, tokens, sequences, size: 1 / sequences,
    "no-layers": lambda model, tokens, sequences, size: 1 / model.layers,
    "one-head": lambda model, tokens, sequences, size: 1 / model.kv_heads,
    "no-head-dim": lambda model, tokens, sequences, size: 1 / model.head_dim,
    "numbers-not-bytes": lambda model, tokens, sequences, size: 1 / size,
    "in-gib": lambda model, tokens, sequences, size: 1 / 2**30,
    "in-bits": lambda model, tokens, sequences, size: 8.0,
}
"""What an answer is as a share of the right one, by what it forgot."""


def cache_size(function: Any) -> Found:
    """Judge ``kv_cache(layers, kv_heads, head_dim, tokens, sequences, bytes_each)``, in bytes."""
    if not callable(function):
        return wrong("no-function", kind=type(function).__name__)
    shares = []
    for model, tokens, sequences, size in SHAPES:
        shape = (model.layers, model.kv_heads, model.head_dim, tokens, sequences, size)
        try:
            got = function(*shape)
        except Exception as error:
            return wrong("raises", error=told(error))
        if got is None and _is_stub(function):
            return STUB
        if isinstance(got, bool) or not isinstance(got, int | float):
            return wrong("no-number", got=repr(got))
        shares.append(got / serving.kv_cache(model, tokens, sequences, size))
    if all(abs(share - 1) < 1e-9 for share in shares):
        return right()
    for mistake, share in FORGOT.items():
        if all(abs(seen / share(*shape) - 1) < 1e-6 for seen, shape in zip(shares, SHAPES, strict=True)):
            return wrong(mistake)
    return wrong("other-size", share=f"{shares[0]:.3g}")


def _is_stub(function: Any) -> bool:
    """Whether a function reads none of its arguments: it is still the ``...`` that the notebook came with."""
    code = getattr(function, "__code__", None)
    return does_nothing(function) and not any(one.opname.startswith("LOAD_FAST") for one in dis.get_instructions(code))


CHECKS: dict[str, Callable[..., Found]] = {"checks": two_checks, "cache": cache_size}
