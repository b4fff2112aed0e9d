"""The learner's own copy of the notebooks: made, renewed, and never at the price of the learner's work.

The course itself may be read-only and shared by many. What was written last is kept as a checksum beside the copies;
so a copy that nobody touched is renewed with the course, and one that somebody changed stays, with the fresh one
beside it under another name.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

RECORD = ".gpuworkshop.json"
HERE = Path(__file__).parent

What = Literal["new", "same", "renewed", "kept"]


class Copy(msgspec.Struct, frozen=True):
    """One notebook of the course and its copy: just made, as it should be, renewed, or kept as the learner's.

    `beside` is the name of the fresh one where the learner's was kept.
    """

    name: str
    what: What
    beside: str = ""


def source() -> Path:
    """The folder of the course's notebooks: inside an installed package, or beside the package in a clone.

    Raises FileNotFoundError where neither is there.
    """
    clone = HERE.parents[1]
    places = (HERE / "notebooks", *([clone / "notebooks"] if (clone / "pyproject.toml").is_file() else []))
    for place in places:
        if any(place.glob("*.ipynb")):
            return place
    raise FileNotFoundError(f"the notebooks are not there: looked in {' and '.join(map(str, places))}")


def make(course: Path, folder: Path, kernel: tuple[str, str] | None = None) -> tuple[Copy, ...]:
    """Copy every notebook of `course` into `folder`; `kernel` (name, display name) is what the copies then ask for.

    Raises ValueError when both are the same folder, and OSError when `folder` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.samefile(course):
        raise ValueError(f"{folder} is the course's own folder: name another one")
    written = _read_record(folder)
    copies = tuple(_copy(file, folder, kernel, written) for file in sorted(course.glob("*.ipynb")))
    _write(folder / RECORD, json.dumps(written, indent=1).encode())
    return copies


def _copy(file: Path, folder: Path, kernel: tuple[str, str] | None, written: dict[str, str]) -> Copy:
    """One notebook; under the first name that is free, or that holds nothing but what was written there last."""
    data = file.read_bytes() if kernel is None else _asking_for(kernel, file.read_bytes())
    first: What | None = None
    for name in _names(file):
        what = _put(folder / name, data, written)
        first = first or what
        if what != "kept":
            return Copy(file.name, first, name if first == "kept" else "")
    raise AssertionError("there is always another name")


def _names(file: Path) -> Iterator[str]:
    yield file.name
    yield f"{file.stem}-new{file.suffix}"
    number = 2
    while True:
        yield f"{file.stem}-new-{number}{file.suffix}"
        number += 1


def _put(path: Path, data: bytes, written: dict[str, str]) -> What:
    """Write one file if nothing of the learner's is there."""
    mark, there = sha256(data).hexdigest(), os.path.lexists(path)
    if there:
        mine = _checksum(path)
        if mine == mark:
            written[path.name] = mark
            return "same"
        if mine is None or mine != written.get(path.name):
            return "kept"
    _write(path, data)
    written[path.name] = mark
    return "renewed" if there else "new"


def _asking_for(kernel: tuple[str, str], data: bytes) -> bytes:
    """A notebook that asks for this kernel."""
    notebook = json.loads(data)
    name, display_name = kernel
    notebook["metadata"]["kernelspec"] = {"display_name": display_name, "language": "python", "name": name}
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _checksum(path: Path) -> str | None:
    """The checksum of a plain file; None for anything else, which is then the learner's."""
    if path.is_symlink() or not path.is_file():
        return None
    with suppress(OSError):
        return sha256(path.read_bytes()).hexdigest()
    return None


def _read_record(folder: Path) -> dict[str, str]:
    """What was written last, by name; nothing where that is not known."""
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=dict[str, str])
    return {}


def _write(path: Path, data: bytes) -> None:
    """A whole file or none, with the rights that a new file of this user has."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
