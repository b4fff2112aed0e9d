"""Say what is wrong in a TOML file for the person who wrote it: the place, what was expected, what was found."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from gpuworkshop.numbers import shortened


def explain(error: msgspec.ValidationError, kind: type[msgspec.Struct], data: dict[str, Any]) -> str:
    """Why `data` is no `kind`, in the words of the file: where, what was expected, what was found."""
    what, found, path = str(error).rpartition(" - at ")
    what = what if found else str(error)
    try:
        where, hint, value = _walk(path if found else "", kind, data)
    except (KeyError, IndexError, TypeError):  # a key of the file that itself reads like a path
        where, hint, value = "", kind, data
    if stray := re.search(r"unknown field `(.*)`", what):
        return where + unknown("such key", stray[1], _keys(hint)).replace("no such", "unknown", 1)
    if missing := re.search(r"missing required field `(.*)`", what):
        return f"{where}{missing[1]} is missing: expected {_expected(_keys(hint)[missing[1]])}"
    if what.startswith(("Expected", "Invalid")):
        return f"{where}expected {_expected(hint)}, found {_shown(value)}"
    return where + what  # a table's own check speaks for itself


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """A name that leads nowhere, and the known one that is nearest."""
    near = get_close_matches(name, list(known), 1)
    return f"no {kind} {shortened(name, 60)!r}" + (f"; did you mean {near[0]}?" if near else "")


def _walk(path: str, hint: Any, data: Any) -> tuple[str, Any, Any]:
    """The place that msgspec calls `$.partition[0].name`: its name for a reader, the type there, the value there."""
    places, value = [], data
    for key, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        if key:
            hint, value = _keys(hint)[key], value[key]
            places.append(key)
        elif index == "...":  # some value of a table of texts
            hint, (key, value) = str, next(pair for pair in value.items() if not isinstance(pair[1], str))
            places.append(key)
        else:
            hint, value = get_args(hint)[0], value[int(index)]
            table = value if isinstance(value, dict) else {}
            label = table.get("name", table.get("path"))
            places[-1] += f' "{shortened(label, 60)}"' if isinstance(label, str) else f" {int(index) + 1}"
    return "".join(f"{place}: " for place in places), hint, value


def _keys(table: Any) -> dict[str, Any]:
    """The keys that a table may have in the file, with their types."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(table)}


def _expected(hint: Any) -> str:
    """A type in the words of somebody who writes TOML."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(meta.description for meta in inner[1:] if isinstance(meta, msgspec.Meta))
    if origin in (Union, types.UnionType):
        return _expected(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return " or ".join(inner)
    if origin is tuple:
        return f"a list, each {_expected(inner[0])}"
    return {str: "text in quotes", bool: "true or false"}.get(hint, "a table")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
