"""The learner's state folder: progress, predictions and the ledger live here.

A record is appended whole, and a home that is full, read-only or missing never breaks a
lesson: what cannot be written there goes to a temporary folder, which is said once, and
readers look in both places.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 1.0  # a lock that somebody holds longer than this is ignored
PROBE_BYTES = 4096  # one block: an empty file can be created on a full disk

_problems: dict[Path, str] = {}  # folder -> "" if it can be used, else why not


def folder() -> Path:
    """The folder that is written to: `$GPUWORKSHOP_STATE`, else `$XDG_STATE_HOME/gpuworkshop`,
    else `~/.local/state/gpuworkshop`. If that one cannot be written, a temporary folder,
    which is said once on stderr. Never raises."""
    meant = chosen()
    if meant not in _problems:
        _problems[meant] = ""
        if meant == spare_folder():
            _say(f"There is no home folder; your progress is kept in {meant}.")
        else:
            _try(meant)
    used = spare_folder() if _problems[meant] else meant
    with suppress(OSError):
        used.mkdir(mode=0o700, parents=True, exist_ok=True)
    return used


def set_apart(name: str) -> None:
    """From here on this process, and what it starts, keeps its state in a folder of that name inside the learner's:
    what it does is not the learner's own. To be called again without harm."""
    if chosen().name != name:
        os.environ["GPUWORKSHOP_STATE"] = str(folder() / name)


def problem() -> str:
    """One line on why the chosen folder cannot be used, or "" if it can."""
    folder()
    return _problems[chosen()]


def append(name: str, record: Any) -> bool:
    """Append `record` to the file `name` as one whole JSON line; many processes may do so at
    once. False if it could not be written anywhere."""
    line = _encode(record) + b"\n"
    return any(_written(_append, place / name, line) for place in _places_to_write())


def read_lines(name: str) -> tuple[list[dict[str, Any]], int]:
    """All records of the file `name`, oldest first, and how many broken lines were skipped
    (a writer that was killed leaves half a line)."""
    records: list[dict[str, Any]] = []
    broken = 0
    for place in _places_to_read():
        with suppress(OSError):
            for line in (place / name).read_bytes().splitlines():
                record = _decode_record(line)
                if record is not None:
                    records.append(record)
                elif line.strip():
                    broken += 1
    return records, broken


def chosen() -> Path:
    """The folder that is meant, whether or not it can be written. Touches no disk."""
    with suppress(RuntimeError, OSError):  # no home, or a current folder that is gone
        if own := os.environ.get("GPUWORKSHOP_STATE"):
            return Path(own).expanduser().absolute()
        base = Path(os.environ.get("XDG_STATE_HOME", ""))
        if not base.is_absolute():  # the XDG rule: a relative path counts as unset
            base = Path.home() / ".local" / "state"
        return base / "gpuworkshop"
    return spare_folder()


def chosen_cache() -> Path:
    """The folder that is meant for what can be made again: `$GPUWORKSHOP_CACHE`, else `$XDG_CACHE_HOME/gpuworkshop`,
    else `~/.cache/gpuworkshop`. Touches no disk. Raises RuntimeError where there is no such home."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuworkshop"
    return Path(os.environ.get("GPUWORKSHOP_CACHE") or usual).expanduser()


def spare_folder() -> Path:
    """A folder under the temporary folder, one a user, so that it outlives this process."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    spare = Path(tempfile.gettempdir()) / f"gpuworkshop-{user}"
    with suppress(OSError):  # nothing there yet
        if spare.is_symlink() or spare.lstat().st_uid != user:  # somebody else took the name
            return spare.with_name(f"{spare.name}-{os.getpid()}")
    return spare


def _places_to_read() -> list[Path]:
    return list(dict.fromkeys((chosen(), spare_folder())))


def _places_to_write() -> Iterator[Path]:
    first = folder()
    yield first
    if first != spare_folder():  # reached only when the first one failed just now
        yield spare_folder()


def _try(place: Path) -> None:
    """Write a block and remove it again, so that a full disk shows before it matters."""
    probe = place / f".probe-{os.getpid()}"
    _written(_block, probe, bytes(PROBE_BYTES))
    with suppress(OSError):
        probe.unlink()


def _written(write: Callable[[Path, bytes], None], path: Path, data: bytes) -> bool:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(path, data)
    except OSError as error:
        _note(error)
        return False
    return True


def _note(error: OSError) -> None:
    meant = chosen()
    if not _problems.get(meant):
        reason = error.strerror or type(error).__name__
        _say(f"{meant} cannot be written ({reason}); your progress is kept in {spare_folder()} instead.")


def _say(why: str) -> None:
    _problems[chosen()] = why
    with suppress(Exception):  # no stderr, or a closed one
        print(why, file=sys.stderr)


def _block(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _append(path: Path, line: bytes) -> None:
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        with locked(handle):
            if _torn(handle):
                line = b"\n" + line
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def _torn(handle: int) -> bool:
    """Whether the file ends in half a line."""
    size = os.fstat(handle).st_size
    if size == 0:
        return False
    os.lseek(handle, size - 1, os.SEEK_SET)
    return os.read(handle, 1) != b"\n"


@contextmanager
def locked(handle: int) -> Iterator[None]:
    """Hold the file's lock if it can be had in time; many shared file systems have none."""
    end = time.monotonic() + LOCK_SECONDS
    while fcntl and time.monotonic() < end:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            break
    yield  # closing the file gives the lock back


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """NumPy numbers and paths as JSON knows them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


def _decode_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):  # not JSON, or nested without end
        return None
    return record if isinstance(record, dict) else None
