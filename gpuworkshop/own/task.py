"""One change that is wanted at one place of a file."""

from __future__ import annotations

import msgspec

from gpuworkshop.own.result import OwnResult, Place
from gpuworkshop.own.source import Source

RARELY = 100
"""What is done in each step is done again only in every so many."""


class Task(msgspec.Struct, frozen=True):
    """One change that is wanted at one place of a file."""

    remedy: str
    source: Source
    place: Place
    values: dict[str, str]
    result: OwnResult

    @property
    def command(self) -> tuple[str, ...]:
        """How the script was started."""
        return self.result.command
