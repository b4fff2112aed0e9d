"""The old script laid out to be started beside the new one, with everything else where it is now."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gpuworkshop.own.code import module_of, names_script, settings_file
from gpuworkshop.own.snapshot import NoSnapshot, Snapshot


def staged(snapshot: Snapshot, folder: Path) -> tuple[tuple[str, ...], Path]:
    """Lay the old files out in ``folder``, beside links to all else that lies there now; command and folder to run it.

    So a script that reads `Path(__file__).parent / "data"` finds the same data in both arms. Raises NoSnapshot where
    the command does not name the script: the old one could not be started.
    """
    root, cwd = Path(snapshot.root), Path(snapshot.cwd)
    _lay(root, folder, {Path(name): data for name, data in snapshot.files.items() if not Path(name).is_absolute()})
    moved = {str(root / name): str(folder / name) for name in snapshot.files if not Path(name).is_absolute()}
    elsewhere = [name for name in snapshot.files if Path(name).is_absolute()]
    for number, name in enumerate(elsewhere):
        moved[name] = str(folder.with_name(f"{folder.name}-{number}") / Path(name).name)
        Path(moved[name]).parent.mkdir(parents=True)
        Path(moved[name]).write_bytes(snapshot.files[name])
    words = [_moved(word, snapshot.script, moved, cwd) for word in snapshot.command]
    as_module = module_of(snapshot.command) and cwd == root
    if not as_module and moved.get(snapshot.script) not in words:
        raise NoSnapshot("the command does not name the script, so the old one cannot be started: use python SCRIPT")
    return tuple(words), (folder if as_module else cwd)


def _moved(word: str, script: str, moved: dict[str, str], cwd: Path) -> str:
    """A word of the command with the old file in the place of the new one, where it names one."""
    if names_script(word, script, cwd):
        return moved.get(script, word)
    file = settings_file(word, cwd)
    if file is None or str(file) not in moved:
        return word
    option, equals, _ = word.rpartition("=")
    return f"{option}{equals}{moved[str(file)]}" if word.startswith("-") else moved[str(file)]


def _lay(root: Path, folder: Path, files: dict[Path, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inner = {name.parts[0] for name in files}
    with suppress(OSError):
        for entry in root.iterdir():
            if entry.name not in inner and entry.name != "__pycache__":
                (folder / entry.name).symlink_to(entry.absolute())
    for name in inner:
        if Path(name) in files:
            (folder / name).write_bytes(files[Path(name)])
        else:
            deeper = {Path(*one.parts[1:]): data for one, data in files.items() if one.parts[0] == name}
            _lay(root / name, folder / name, deeper)
