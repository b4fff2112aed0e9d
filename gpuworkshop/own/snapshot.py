"""What is kept of a run of one's own script: its files as they were, its command, its settings, what was measured.

A snapshot is one folder in the learner's state folder: `snapshot.json`, and the files below `files/`. It is written
whole or not at all, and the newest of each script stay.
"""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuworkshop import state
from gpuworkshop.own.result import OwnResult

FOLDER = "snapshots"
KEPT = 10
"""Snapshots of one script; older ones go."""
LARGEST = 2 * 2**20
"""Bytes of a file that is still kept."""
MOST_FILES = 300


class CannotCompare(ValueError):
    """There is nothing to compare; the message says what to do, in one line."""


class NoSnapshot(CannotCompare):
    """No run was kept that the script could be compared with."""


class Snapshot(msgspec.Struct, frozen=True):
    """One run as it was: ``files`` are texts by their names below ``root``."""

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
    files: dict[str, str]
    result: OwnResult
    counts: bool = True
    """False for a change that was not kept: the next comparison is with the run before it."""


class Code(msgspec.Struct, frozen=True):
    """The script and its own files as they are now: what ``look`` finds."""

    script: str
    """With its whole path; "" where the command names none."""
    root: str
    files: dict[str, str]


def look(command: Sequence[str], cwd: Path | None = None, script: str = "") -> Code:
    """The script that a command runs, with its own files. ``script``: as a run of it was seen to have it."""
    here = cwd or Path.cwd()
    file = _script(command, here)
    if file is None and script:
        file = (here / script).absolute()
    if file is None or not file.is_file():
        return Code(str(file or ""), str(here), {})
    root = here if module_of(command) and file.is_relative_to(here) else file.parent
    return Code(str(file), str(root), own_files(file, root))


def of(result: OwnResult, when: str, code: Code, *, run: str, cwd: Path | None = None, counts: bool = True) -> Snapshot:
    """The snapshot of a run that was just measured; ``code`` as it was when the run began."""
    here = cwd or Path.cwd()
    if not code.files:
        code = look(result.command, here, result.script.removeprefix("-m "))
    return Snapshot(when, run, result.command, code.script, str(here), code.root, code.files, result, counts)


def _script(command: Sequence[str], cwd: Path) -> Path | None:
    """The file that a command runs: its module, or the first word that is a Python file."""
    module = next(iter(_module_files([module_of(command)], cwd, cwd, whole=True)), None)
    words = [word for word in command if word.endswith(".py") and not word.startswith("-")]
    return module or (next(((cwd / word).absolute() for word in words), None))


def split(command: Sequence[str], script: str, cwd: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words before the script, and those after it."""
    module = module_of(command)
    for place, word in enumerate(command):
        if (module and word == module) or _same(word, script, cwd):
            return tuple(command[:place]), tuple(command[place + 1 :])
    return (), tuple(command)


def module_of(command: Sequence[str]) -> str:
    """The module of `-m MODULE`, the last one of several; "" without one."""
    named = [command[place + 1] for place, word in enumerate(command[:-1]) if word in ("-m", "--module")]
    own = [name for name in named if name.partition(".")[0] not in ("torch", "accelerate", "deepspeed")]
    return own[-1] if own else ""


def own_files(script: Path, root: Path) -> dict[str, str]:
    """The script and what it imports from below ``root``, and so on, by names below ``root``."""
    found: dict[str, str] = {}
    todo = [script]
    while todo and len(found) < MOST_FILES:
        file = todo.pop()
        name = _below(file, root)
        text = _text(file) if name not in found else None
        if text is None:
            continue
        found[name] = text
        todo += _imported(text, file, root)
    return found


def _below(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else file.name


def _text(file: Path) -> str | None:
    """A file's text, None where it is none or too large."""
    with suppress(OSError, UnicodeDecodeError):
        if file.stat().st_size <= LARGEST:
            return file.read_bytes().decode("utf-8")
    return None


def _imported(text: str, file: Path, root: Path) -> Iterator[Path]:
    """The files below ``root`` that a text imports, as far as its import lines say."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            names, places = [alias.name for alias in node.names], (root, file.parent)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]
            up = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else None
            places = (up,) if up else (root, file.parent)
        else:
            continue
        for place in dict.fromkeys(places):
            yield from _module_files(names, place, root)


def _module_files(names: Sequence[str], place: Path, root: Path, whole: bool = False) -> Iterator[Path]:
    """The files below ``root`` that importing these names loads; ``whole``: only the one that the whole name is."""
    for name in filter(None, names):
        parts = name.split(".")
        for end in range(len(parts) if whole else 1, len(parts) + 1):
            base = place.joinpath(*parts[:end])
            for file in (base.with_suffix(".py"), base / ("__main__.py" if whole else "__init__.py")):
                if file.is_relative_to(root) and file.is_file():
                    yield file


# Kept and found again


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


# The old script beside the new one


def staged(snapshot: Snapshot, folder: Path) -> tuple[tuple[str, ...], Path]:
    """Lay the old files out in ``folder``, beside links to all else that lies there now; command and folder to run it.

    So a script that reads `Path(__file__).parent / "data"` finds the same data in both arms. Raises NoSnapshot where
    the command does not name the script: the old one could not be started.
    """
    root = Path(snapshot.root)
    _lay(root, folder, {Path(name): text for name, text in snapshot.files.items()})
    new_script = folder / Path(snapshot.script).relative_to(root) if snapshot.script else None
    cwd = Path(snapshot.cwd)
    words = [str(new_script) if _same(word, snapshot.script, cwd) else word for word in snapshot.command]
    as_module = module_of(snapshot.command) and cwd == root
    if not as_module and tuple(words) == snapshot.command:
        raise NoSnapshot("the command does not name the script, so the old one cannot be started: use python SCRIPT")
    return tuple(words), (folder if as_module else cwd)


def _lay(root: Path, folder: Path, files: dict[Path, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inner = {name.parts[0] for name in files}
    with suppress(OSError):
        for entry in root.iterdir():
            if entry.name not in inner and entry.name != "__pycache__":
                (folder / entry.name).symlink_to(entry.absolute())
    for name in inner:
        if Path(name) in files:
            (folder / name).write_bytes(files[Path(name)].encode())
        else:
            deeper = {Path(*one.parts[1:]): text for one, text in files.items() if one.parts[0] == name}
            _lay(root / name, folder / name, deeper)


def _same(word: str, script: str, cwd: Path) -> bool:
    """Whether a word of the command names the script."""
    return bool(script) and not word.startswith("-") and str((cwd / word).absolute()) == script
