"""Files that a verb writes for its user: whole, or not at all."""

from __future__ import annotations

from pathlib import Path


def new_file(file: Path, text: str) -> None:
    """Write a new file. Raises FileExistsError where something is there already, and OSError where it cannot be
    written whole, as on a full disk; then no part of it is left, which somebody could take for all of it."""
    with file.open("x", encoding="utf-8", newline="\n") as new:
        try:
            new.write(text)
            new.flush()
        except BaseException:
            file.unlink(missing_ok=True)
            raise
