"""One number of a recording, the site file, a question or a notebook, by its path and in a given form.

A path names what the result's own fields are called: ``points[workers=4].rate.value``. After a bar stands the form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from deck.piece import Wrong
from gpuworkshop import numbers
from gpuworkshop.timing import Comparison, Rate

_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[(?:([\w.]+)=)?([^\[\]]+)\]")


def _usual(value: Any) -> str:
    if isinstance(value, Comparison):
        return numbers.times(value.ratio, value.low, value.high)
    if isinstance(value, Rate):
        return numbers.with_unit(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "n/a"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return numbers.number(value)
    if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    raise Wrong(f"this is a {type(value).__name__}, not one value")


def _clock(text: str) -> str:
    hours, minutes, _ = text.split(":")
    return f"{int(hours)} h" if minutes == "00" else f"{int(hours)} h {minutes} min"


FORMS: dict[str, Callable[[Any], str]] = {
    "": _usual,
    "x": lambda ratio: f"{numbers.number(ratio)}x",
    "percent": numbers.percent,
    "more": lambda ratio: numbers.percent(ratio - 1),
    "whole": lambda value: f"{value:,.0f}",
    "amount": numbers.amount,
    "as-seconds": lambda minutes: f"{60 * minutes:.0f}",
    "count": lambda several: str(len(several)),
    "hours": _clock,
}
"""Ways to write a value: ``x`` a ratio, ``percent`` a share, ``more`` how much a ratio is above 1, ``amount`` bytes,
``as-seconds`` minutes, ``count`` how many there are, ``hours`` a Slurm time."""


def split(argument: str) -> tuple[str, str]:
    """A path and its form: "headroom.ratio | x"."""
    path, _, form = (part.strip() for part in argument.partition("|"))
    if form not in FORMS:
        raise Wrong(f"no form is called {form!r}: there are {', '.join(filter(None, FORMS))}")
    return path, form


def written(value: Any, argument: str) -> str:
    """What stands at a path of `value`, in the form that is asked for. Raises Wrong."""
    path, form = split(argument)
    found = follow(value, path)
    if found is None and form:
        return "n/a"
    try:
        return FORMS[form](found)
    except (TypeError, ValueError, AttributeError) as problem:
        if isinstance(problem, Wrong):
            raise
        raise Wrong(f"{path} is {found!r}, which has no form {form!r}") from None


def follow(value: Any, path: str) -> Any:
    """What stands at a path: ``.field`` or ``.key``, ``[2]``, ``[field=word]``. Raises Wrong and says what is there."""
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise Wrong(f"not a path: {path!r}")
        name, key, word = step.groups()
        value = _field(value, name) if name else _item(value, key, word)
        at = step.end()
    return value


def _field(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        if name in value:
            return value[name]
        raise Wrong(f"no {name!r} here, but {', '.join(map(str, value))}")
    if isinstance(value, msgspec.Struct) and not name.startswith("_"):
        public = [one for one in dir(type(value)) if isinstance(getattr(type(value), one, None), property)]
        known = [*value.__struct_fields__, *public]
        if name in known:
            return getattr(value, name)
        raise Wrong(f"no {name!r} here, but {', '.join(known)}")
    raise Wrong(f"no {name!r} in a {type(value).__name__}")


def _item(value: Any, key: str | None, word: str) -> Any:
    if not isinstance(value, tuple | list):
        raise Wrong(f"[{word}] asks for one of several, and this is a {type(value).__name__}")
    if key is None:
        if not re.fullmatch(r"-?\d+", word) or not -len(value) <= int(word) < len(value):
            raise Wrong(f"[{word}]: there are {len(value)}")
        return value[int(word)]
    fitting = [one for one in value if str(follow(one, key)) == word]
    if len(fitting) != 1:
        there = ", ".join(str(follow(one, key)) for one in value)
        raise Wrong(f"[{key}={word}] fits {len(fitting)}: there are {there}")
    return fitting[0]
