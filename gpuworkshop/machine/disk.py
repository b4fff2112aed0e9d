"""How much room there is: free space, who may write, and the user's quota, for the places that the course writes to.

A file server that is gone blocks whoever touches it, so this process touches no disk: `disk_child.py` does, in a child
that is given up after a time limit. A place that did not answer says so; it is never shown as full or empty.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import msgspec

from gpuworkshop import state

CHILD = Path(__file__).with_name("disk_child.py")
SECONDS = 3.0  # what a healthy file server needs, with an automounter before it


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One place for files. Bytes and counts of files are None where they are not known; `free` is what this user can
    still write if no quota is nearer.

    `problem` is why nothing is known: what the system said, or that there was no answer in time. A place that does not
    exist yet is answered for by the nearest folder above it. Some file systems do not count files.
    """

    place: str
    path: str
    exists: bool | None = None
    writable: bool | None = None
    total: int | None = None
    free: int | None = None
    files: int | None = None
    files_free: int | None = None
    mount: str = ""
    filesystem: str = ""
    problem: str = ""

    @property
    def answered(self) -> bool:
        """Whether the place said how much room it has."""
        return self.free is not None


class Quota(msgspec.Struct, frozen=True):
    """What one user may keep on one file system, in bytes and files: the nearer of soft and hard limit.

    A limit that is None is none. `said_by` is the command.
    """

    filesystem: str
    used: int
    limit: int | None
    files: int
    files_limit: int | None
    said_by: str


class Disk(msgspec.Struct, frozen=True):
    """All places in the order that they were asked for, and all quotas that a command told."""

    places: tuple[Place, ...]
    quotas: tuple[Quota, ...] = ()

    def place(self, name: str) -> Place | None:
        """The place of this name; None if it was not asked for."""
        return next((place for place in self.places if place.place == name), None)


def places(**more: str | Path) -> dict[str, str]:
    """The usual places by name: home, state, cache, tmp, shm (Linux), here; and more, such as course=FOLDER."""
    found: dict[str, str | Path] = {"state": state.chosen(), "tmp": temporary(), **more}
    with suppress(RuntimeError):  # there is no home
        found = {"home": Path.home(), **found}
    with suppress(RuntimeError):
        found["cache"] = state.chosen_cache()
    if sys.platform == "linux":
        found["shm"] = "/dev/shm"
    with suppress(OSError):  # the current folder is gone
        found["here"] = os.getcwd()
    return {name: os.path.abspath(path) if name != "here" else str(path) for name, path in found.items()}


def temporary(env: Mapping[str, str] = os.environ) -> str:
    """The folder for temporary files, as the environment names it. Touches no disk, unlike tempfile's own."""
    return tempfile.tempdir or next((env[name] for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)), "/tmp")


def look(asked: Mapping[str, str] | None = None, seconds: float = SECONDS) -> Disk:
    """The room at these places (not given: the usual ones), after `seconds` at most."""
    return Asking(asked, seconds).answer()


class Asking:
    """A question on its way: made at once, so that other work can be done until `answer` is called."""

    def __init__(self, asked: Mapping[str, str] | None = None, seconds: float = SECONDS):
        self._asked = dict(places() if asked is None else asked)
        self._seconds, self._end = seconds, time.monotonic() + seconds + 0.5  # the child's own start
        request = msgspec.json.encode({"places": self._asked, "seconds": seconds}).decode()
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            self._child = subprocess.Popen(
                (sys.executable, "-I", "-S", str(CHILD), request),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._child = None
            return
        threading.Thread(target=_read, args=(self._child.stdout, self._lines), daemon=True).start()

    def answer(self) -> Disk:
        """What was answered until now or until the time is over. To be called once; ends the child."""
        found: dict[str, Place] = {}
        quotas: list[Quota] = []
        try:
            while self._child and (line := self._next()) is not None:
                if "place" in line:
                    found[line["place"]] = msgspec.convert(line, Place)
                else:
                    quotas += parse_quota(line["text"], line["quota"], line["path"])
        finally:
            self._give_up()
        silent = f"no answer within {self._seconds:g} s"
        missing = (Place(place=name, path=path, problem=silent) for name, path in self._asked.items())
        return Disk(tuple(found.get(one.place, one) for one in missing), tuple(dict.fromkeys(quotas)))

    def _next(self) -> dict[str, Any] | None:
        """The next answer; None when there is no more."""
        try:
            line = self._lines.get(timeout=max(0.0, self._end - time.monotonic()))
            return msgspec.json.decode(line) if line else None
        except (Empty, msgspec.DecodeError):
            return None

    def _give_up(self) -> None:
        """End the child without waiting for it: one that hangs in a dead file server cannot be ended now."""
        if self._child and self._child.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(0.2)


def _read(pipe: IO[bytes], lines: SimpleQueue[bytes | None]) -> None:
    with pipe:
        for line in pipe:
            lines.put(line)
    lines.put(None)


def parse_quota(text: str, said_by: str, path: str = "") -> tuple[Quota, ...]:
    """The quotas in what `quota -w -p` or `lfs quota -q` prints; lines that are none are left out.

    Each is a file system, then used, soft and hard limit in KiB, perhaps a grace time, then the same in files. `lfs`
    breaks a line after a long name; its answer is for one path.
    """
    lines = [text.replace("\n", " ")] if said_by == "lfs" else text.splitlines()
    found = (_quota(line.split(), said_by) for line in lines)
    return tuple(one for one in found if one)


def _quota(words: list[str], said_by: str) -> Quota | None:
    if len(words) < 7 or not _are_numbers(words[1:4]):
        return None
    rest = words[4:] if len(words) == 7 or (len(words) == 8 and _are_numbers(words[4:5])) else words[5:]
    if len(rest) < 3 or not _are_numbers(rest[:3]):
        return None
    used, soft, hard = map(_number, words[1:4])
    files, few, many = map(_number, rest[:3])
    return Quota(words[0], used * 1024, _nearer(soft * 1024, hard * 1024), files, _nearer(few, many), said_by)


def _are_numbers(words: list[str]) -> bool:
    return all(re.fullmatch(r"\[?\d{1,18}\]?\*?", word) for word in words)


def _number(word: str) -> int:
    return int(word.strip("[]*"))


def _nearer(*limits: int) -> int | None:
    """The smaller of the limits that are set; 0 stands for none."""
    return min((limit for limit in limits if limit), default=None)
