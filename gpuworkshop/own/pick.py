"""A verdict about somebody's own script, and the one change that it picks."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuworkshop.instruments.learning import Numerics
from gpuworkshop.own.result import Place

Limit = Literal[
    "data", "memory", "compute", "launches", "copies", "synchronizing", "communication", "unknown", "nothing"
]
"""What limits a script. "nothing": its device is kept at work, and no change that is known here would pay."""


class Change(msgspec.Struct, frozen=True):
    """What to write: a unified diff of the script's own file, or instructions where it could not be certain."""

    text: str
    certain: bool
    """Whether ``text`` is a diff that ``patch -p1`` applies in the folder of ``file``."""
    file: str = ""
    """The file that a diff changes, with its whole path; "" for instructions."""
    encoding: str = "utf-8"
    """In which a diff must be written, so that it fits the file."""
    values: dict[str, str] = {}
    """The new settings by their names, as the diff or the instructions write them: {"num_workers": "7"}."""


class Pick(msgspec.Struct, frozen=True):
    """The first change to make."""

    remedy: str
    """Id, the loop's own where the remedy is the same."""
    title: str
    touches: tuple[str, ...]
    """The settings that it may change: a difference within them is one change."""
    numerics: Numerics
    reason: str
    """Why, with the measured numbers."""
    at_most: float
    """Upper bound on the gain, new rate over present rate: said as "<="."""
    expected: float
    """What it should bring, by the measured shares; never above ``at_most``."""
    place: Place | None
    """The line to change; None where it is not known."""
    change: Change

    @property
    def certain(self) -> bool:
        """Whether the change is a diff, and not instructions."""
        return self.change.certain


class Verdict(msgspec.Struct, frozen=True):
    """What limits a script, and the one change to try first."""

    limit: Limit
    reason: str
    """With the measured numbers."""
    pick: Pick | None
    """None: nothing is worth changing, or too little was seen (``limit`` is "unknown")."""
    others: tuple[str, ...] = ()
    """Titles of the other changes that could pay, the most promising first."""
