"""What a placeholder becomes: a piece of HTML that says where its numbers come from."""

from __future__ import annotations

import msgspec

from gpuworkshop.report import Origin


class Piece(msgspec.Struct, frozen=True):
    """A piece of a slide. `comes_from` names the file of its numbers, `origins` are their marks.

    `shows_origin` is True where the piece has its mark in itself, as a figure has. A `block` stands alone in its
    paragraph.
    """

    html: str
    comes_from: str
    origins: tuple[Origin, ...] = ()
    shows_origin: bool = False
    block: bool = False


class Wrong(ValueError):
    """A source that cannot be made into slides; the message is one line, with file and line where they are known."""
