"""What is kept of a run of one's own script: its files as they were, its command, its settings, what was measured.

A snapshot is one folder in the learner's state folder. It is written whole or not at all, and the newest of each
script stay.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuworkshop import state
from gpuworkshop.own.code import Code, look, texts
from gpuworkshop.own.result import OwnResult

FOLDER = "snapshots"
KEPT = 10
"""Snapshots of one script; older ones go."""


class CannotCompare(ValueError):
    """There is nothing to compare; the message says what to do, in one line."""


class NoSnapshot(CannotCompare):
    """No run was kept that the script could be compared with."""


class Snapshot(msgspec.Struct, frozen=True):
    """One run as it was."""

    when: str
    """ISO, local time with its zone."""
    run: str
    """All snapshots that follow from one baseline share it, with the records of the ledger."""
    command: tuple[str, ...]
    script: str
    """The file that is run, with its whole path."""
    cwd: str
    root: str
    """The folder of the script; of a module the folder that it is found from."""
    files: dict[str, bytes]
    """By their names below ``root``; one that lies elsewhere by its whole path."""
    result: OwnResult
    counts: bool = True
    """False for a change that was not kept: the next comparison is with the run before it."""

    @property
    def texts(self) -> dict[str, str]:
        """The files to be read by a person; what is no UTF-8 in them is U+FFFD."""
        return texts(self.files)


def of(result: OwnResult, when: str, code: Code, *, run: str, cwd: Path | None = None, counts: bool = True) -> Snapshot:
    """The snapshot of a run that was just measured; ``code`` as it was when the run began."""
    here = cwd or Path.cwd()
    if not code.files:
        code = look(result.command, here, result.script.removeprefix("-m "))
    return Snapshot(when, run, result.command, code.script, str(here), code.root, code.files, result, counts)


def keep(snapshot: Snapshot) -> Path | None:
    """Write a snapshot into the state folder; None where that cannot be written, which ``state`` says once."""
    place = state.folder() / FOLDER
    stamp = snapshot.when.replace(":", "").replace("+", "_")
    with suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=".half-", dir=place))
        (half / "snapshot.json").write_bytes(msgspec.json.encode(snapshot))
        whole = place / f"{stamp}-{os.getpid()}-{len(list(place.iterdir()))}"
        half.rename(whole)
        _sweep(place, snapshot.script)
        return whole
    return None


def read_all() -> list[Snapshot]:
    """All snapshots that can be read, the oldest first."""
    return [one for _, one in _all(state.folder() / FOLDER)]


def _all(place: Path) -> list[tuple[Path, Snapshot]]:
    found = []
    with suppress(OSError):
        for folder in sorted(place.iterdir(), key=lambda one: one.name):
            with suppress(OSError, msgspec.DecodeError, ValueError):
                if not folder.name.startswith("."):
                    data = (folder / "snapshot.json").read_bytes()
                    found.append((folder, msgspec.json.decode(data, type=Snapshot)))
    return sorted(found, key=lambda pair: pair[1].when)


def _sweep(place: Path, script: str) -> None:
    """Keep the newest few of a script, and among them the newest one that counts."""
    mine = [(folder, one) for folder, one in _all(place) if one.script == script]
    counting = [folder for folder, one in mine if one.counts][-1:]
    for folder, _ in mine[:-KEPT]:
        if folder not in counting:
            shutil.rmtree(folder, ignore_errors=True)


def newest(script: str = "") -> Snapshot:
    """The newest run that counts, of any script or of this one. Raises NoSnapshot."""
    every = read_all()
    mine = [one for one in every if one.counts and one.script and (not script or one.script == script)]
    if mine:
        return mine[-1]
    if script and every:
        names = ", ".join(dict.fromkeys(Path(one.script).name for one in reversed(every) if one.script))
        raise NoSnapshot(
            f"{Path(script).name} was not measured yet (there are runs of {names or 'no script'}): run it before the "
            "change, gpuworkshop loop -- COMMAND"
        )
    raise NoSnapshot("no run was kept yet: measure the script before the change, gpuworkshop loop -- COMMAND")
