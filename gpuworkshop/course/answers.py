"""Three answers to the prompt of chapter 8, and what the comparison of `loop --again` says of each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.course.faces import Note
from gpuworkshop.course.your_turn import SUPPLIED, diff_of
from gpuworkshop.own.changes import Attribution, Changes, Differs, attribute


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an assistant wrote, and what its change makes of the course's script."""

    title: str
    asks: bool
    """Whether it asks to measure before anything is changed."""
    says: tuple[str, ...]
    old: str
    new: str
    settings: dict[str, tuple[str, str]]
    """What the changed script was seen to run with otherwise: before and after."""

    @property
    def changed(self) -> str:
        """The course's script after it."""
        return SUPPLIED.read_text(encoding="utf-8").replace(self.old, self.new)

    @property
    def diff(self) -> str:
        """Its change as a unified diff."""
        return diff_of(SUPPLIED.read_text(encoding="utf-8"), self.changed)

    @property
    def attribution(self) -> Attribution:
        """Whether it is one change, by the same comparison as for a script of one's own."""
        seen = tuple(Differs(name, *values) for name, values in self.settings.items())
        return attribute(Changes((self.diff,), (), seen))


@cache
def answers() -> dict[str, Answer]:
    """All of them, by name."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, Answer])


def show(name: str) -> Note:
    """One answer as it was written, with its change."""
    one = answers()[name]
    return Note(f"{one.title}: `{name}`", text=one.says, code=one.diff)


def compared(name: str) -> str:
    """What the comparison says of an answer's change, in one line."""
    one = answers()[name]
    settings = ", ".join(f"{key} {before} -> {after}" for key, (before, after) in one.settings.items())
    found = one.attribution
    return f"{settings}: " + (f"one change, {found.title}" if found.one else f"{found.why}")
