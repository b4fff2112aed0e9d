"""Time limits as Slurm writes and reads them; a time without an end is math.inf seconds."""

from __future__ import annotations

import math
import re

UNLIMITED = "unlimited"
_WORDS = {UNLIMITED, "infinite", "-1"}
_DAYS = re.compile(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})|(\d{1,9})", re.ASCII)


def seconds(text: str) -> float:
    """The seconds of a Slurm time: minutes, minutes:seconds, hours:minutes:seconds, or days- before hours.

    `unlimited` and `infinite` are math.inf. Raises ValueError for anything else, in one line.
    """
    words = text.strip().lower()
    if words in _WORDS:
        return math.inf
    if found := _DAYS.fullmatch(words):
        days, hours, minutes, rest = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if found := _CLOCK.fullmatch(words):
        hours, minutes, rest, alone = (int(part or 0) for part in found.groups())
        return (hours * 60 + minutes + alone) * 60 + rest
    raise ValueError(f"{text[:40]!r} is no Slurm time, such as 30, 04:00:00 or 1-12:00:00")


def text(seconds: float) -> str:
    """The same time in Slurm's long form, [days-]hours:minutes:seconds; `unlimited` for math.inf."""
    if math.isinf(seconds):
        return UNLIMITED
    minutes, rest = divmod(int(seconds), 60)
    days, minutes = divmod(minutes, 24 * 60)
    return (f"{days}-" if days else "") + f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
