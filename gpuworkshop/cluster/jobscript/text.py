"""The bytes of a job script as text: which encoding, which line ends, and what of that sbatch refuses."""

from __future__ import annotations

import codecs
import re
from typing import Literal

import msgspec

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class Text(msgspec.Struct, frozen=True):
    """A script as its author meant it, one `\\n` after each line, and how its bytes differ from that."""

    text: str
    lines: tuple[str, ...]
    """The lines, without their ends."""
    encoding: str = "utf-8"
    mark: bool = False
    """Whether a byte order mark stands in front of the first line."""
    ends: Literal["", "CRLF", "CR"] = ""
    """Line ends that are not Linux's."""
    first_end: int = 0
    """The first line with such an end; 0 for none."""
    null: int = 0
    """The first line with a NUL character; 0 for none."""


def read(data: bytes) -> Text:
    """Bytes in any encoding as text; what is not UTF-8 or UTF-16 is read as Latin-1, letter by letter."""
    mark, encoding, data = _encoding(data)
    text = data.decode(encoding, errors="replace")
    ends: Literal["", "CRLF", "CR"] = ""
    first = 0
    if "\r\n" in text:
        ends, first = "CRLF", text[: text.index("\r\n")].count("\n") + 1
        text = text.replace("\r\n", "\n")
    elif "\r" in text and "\n" not in text:
        ends, first = "CR", 1
        text = text.replace("\r", "\n")
    null = text[: text.index("\0")].count("\n") + 1 if "\0" in text else 0
    text = text.replace("\0", "")
    return Text(text, tuple(text.removesuffix("\n").split("\n")), encoding, mark, ends, first, null)


def _encoding(data: bytes) -> tuple[bool, str, bytes]:
    for mark, name in _MARKS:
        if data.startswith(mark):
            return True, name, data[len(mark) :]
    if re.match(rb"#\0!\0", data):
        return False, "utf-16-le", data
    if re.match(rb"\0#\0!", data):
        return False, "utf-16-be", data
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False, "latin-1", data
    return False, "utf-8", data
