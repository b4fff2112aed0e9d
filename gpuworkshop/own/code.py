"""The script that a command runs, with the files that belong to it: what it imports from its folder, and settings."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

LARGEST = 2 * 2**20
"""Bytes of a file that is still kept."""
MOST_FILES = 300
SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")
"""Ends of names of files with settings."""


class Code(msgspec.Struct, frozen=True):
    """The script and its own files as they are now: what ``look`` finds."""

    script: str
    """With its whole path; "" where the command names none."""
    root: str
    files: dict[str, bytes]


def texts(files: dict[str, bytes]) -> dict[str, str]:
    """Files to be read by a person; what is no UTF-8 in them is U+FFFD."""
    return {name: data.decode("utf-8", "replace") for name, data in files.items()}


def look(command: Sequence[str], cwd: Path | None = None, script: str = "") -> Code:
    """The script that a command runs, with its own files. ``script``: as a run of it was seen to have it."""
    here = cwd or Path.cwd()
    file = _script(command, here)
    if file is None and script:
        file = (here / script).absolute()
    if file is None or not file.is_file():
        return Code(str(file or ""), str(here), {})
    root = here if module_of(command) and file.is_relative_to(here) else file.parent
    return Code(str(file), str(root), {**own_files(file, root), **_settings_files(command, root, here)})


def _script(command: Sequence[str], cwd: Path) -> Path | None:
    """The file that a command runs: its module, or the first word that is a Python file."""
    module = next(iter(_module_files([module_of(command)], cwd, cwd, whole=True)), None)
    words = [word for word in command if word.endswith(".py") and not word.startswith("-")]
    return module or (next(((cwd / word).absolute() for word in words), None))


def split(command: Sequence[str], script: str, cwd: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words before the script, and those after it."""
    module = module_of(command)
    for place, word in enumerate(command):
        if (module and word == module) or names_script(word, script, cwd):
            return tuple(command[:place]), tuple(command[place + 1 :])
    return (), tuple(command)


def module_of(command: Sequence[str]) -> str:
    """The module of `-m MODULE`, the last one of several; "" without one."""
    named = [command[place + 1] for place, word in enumerate(command[:-1]) if word in ("-m", "--module")]
    own = [name for name in named if name.partition(".")[0] not in ("torch", "accelerate", "deepspeed")]
    return own[-1] if own else ""


def _settings_files(command: Sequence[str], root: Path, cwd: Path) -> dict[str, bytes]:
    """Files with settings that the command names, such as `--config run.yaml`: they are part of what can change."""
    found = {}
    for word in command:
        file = settings_file(word, cwd)
        data = _data(file) if file else None
        if data is not None:
            found[_below(file, root)] = data
    return found


def settings_file(word: str, cwd: Path) -> Path | None:
    """The file with settings that a word names, also as `--config=run.yaml`; None for another word."""
    name = word.partition("=")[2] if word.startswith("-") else word
    file = (cwd / name).absolute() if name.endswith(SETTINGS) else None
    return file if file and file.is_file() else None


def own_files(script: Path, root: Path) -> dict[str, bytes]:
    """The script and what it imports from below ``root``, and so on, by names below ``root``."""
    found: dict[str, bytes] = {}
    todo = [script]
    while todo and len(found) < MOST_FILES:
        file = todo.pop()
        name = _below(file, root)
        data = _data(file) if name not in found else None
        if data is None:
            continue
        found[name] = data
        todo += _imported(data, file, root)
    return found


def _below(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


def _data(file: Path) -> bytes | None:
    """What is in a file; None where it cannot be read or is too large."""
    with suppress(OSError):
        if file.stat().st_size <= LARGEST:
            return file.read_bytes()
    return None


def _imported(data: bytes, file: Path, root: Path) -> Iterator[Path]:
    """The files below ``root`` that a Python file imports, as far as its import lines say."""
    try:
        nodes = list(ast.walk(ast.parse(data)))
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


def names_script(word: str, script: str, cwd: Path) -> bool:
    """Whether a word of the command names the script."""
    return bool(script) and not word.startswith("-") and str((cwd / word).absolute()) == script
