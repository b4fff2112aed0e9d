"""What CUDA_VISIBLE_DEVICES says, read as CUDA reads it. Nothing here asks a driver."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuworkshop.numbers import shortened

VARIABLE = "CUDA_VISIBLE_DEVICES"
BLANKS = " \t\n\v\f\r"
"""What C skips around an entry; a no-break space, say, it does not."""


class Visible(msgspec.Struct, frozen=True):
    """The variable, as it stands and as CUDA takes it.

    ``unset``: every card; ``hidden``: no card; ``numbers``, ``uuids``, ``slices``: the ``entries`` that count.
    ``ignored`` is the rest of the list, from the first entry that CUDA does not take; ``why`` says what was wrong
    with it, or why everything is hidden.
    """

    raw: str | None
    kind: Literal["unset", "hidden", "numbers", "uuids", "slices"]
    entries: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    why: str = ""


def visible(env: Mapping[str, str] = os.environ) -> Visible:
    """The variable as CUDA reads it: up to the first entry that is not one."""
    raw = env.get(VARIABLE)
    if raw is None:
        return Visible(None, "unset")
    written = [entry.strip(BLANKS) for entry in raw.split(",")]
    kind = _kind(written[0])
    if kind is None:
        return Visible(raw, "hidden", ignored=tuple(filter(None, written)), why=_hides(written[0]))
    taken: dict[str, None] = {}
    why = ""
    for entry in written:
        plain = _number(entry) if kind == "numbers" else entry
        if _kind(entry) != kind or plain is None:
            why = f'"{shortened(entry)}" is not one of {kind}'
            break
        if plain in taken:
            return Visible(raw, "hidden", ignored=tuple(written), why=f'"{shortened(entry)}" stands there twice')
        taken[plain] = None
    entries = tuple(taken)
    if kind == "slices" and len(entries) > 1:
        why, entries = "CUDA gives a process one MIG slice, the first of the list", entries[:1]
    return Visible(raw, kind, entries, tuple(written[len(entries) :]), why)


def _kind(entry: str) -> Literal["numbers", "uuids", "slices"] | None:
    if entry.startswith("MIG-"):
        return "slices"
    if entry.startswith("GPU-"):
        return "uuids"
    return "numbers" if _number(entry) is not None else None


def _number(entry: str) -> str | None:
    """The number at the start of an entry, as C reads one ("1a" is 1); None for none and for a negative one."""
    found = re.match(r"\+?(\d+)", entry, re.ASCII)
    return str(int(found[1])) if found and len(found[1]) < 10 else None


def _hides(first: str) -> str:
    if not first:
        return "it is empty"
    if first == "NoDevFiles":
        return "Slurm sets NoDevFiles for a job that asked for no GPU"
    return f'it begins with "{shortened(first)}", which names no card'
