"""The Jupyter server behind a notebook's kernel: which program it is, from which environment, and what it can show.

The server decides what a page can show, and on a cluster its environment is often another one than the kernel's. It is
the process that started the kernel; what it runs is read from the process table, what it has from its files. Nothing
is imported from it, and nothing is asked over the network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

PROC = Path("/proc")
SYSTEM = (Path("/usr/local"), Path("/usr"))
MANAGER = "@jupyter-widgets/jupyterlab-manager"
CLASSIC = Path("nbextensions", "jupyter-js-widgets", "extension.js")
PS_SECONDS = 2.0
_PROGRAM = re.compile(
    r"jupyter-?(lab(hub)?|notebook|server|nbconvert|execute|nbclient|hub-singleuser|console|qtconsole)"
    r"|nbconvert|papermill|nbclient|notebook|pytest|py\.test|quarto|voila"
)
_SERVERS = ("lab", "labhub", "notebook", "server", "hub-singleuser")


class Server(msgspec.Struct, frozen=True):
    """The program that started this kernel; "" stands for what is not known or not there.

    `prefix` is the folder of its Python environment. `lab`, `notebook` and `manager` are the versions of JupyterLab,
    of Jupyter Notebook and of the widget manager (`@jupyter-widgets/jupyterlab-manager`) that it can show pages with;
    `classic` says whether it has the widget manager of Notebook 6, `disabled` whether the one of JupyterLab is switched
    off by configuration. `base_url` is the path that it answers under.
    """

    pid: int
    program: str
    prefix: str = ""
    lab: str = ""
    notebook: str = ""
    manager: str = ""
    classic: bool = False
    disabled: bool = False
    base_url: str = ""

    @property
    def serves_pages(self) -> bool:
        """Whether it is a server with pages; nbconvert and pytest start kernels too."""
        return self.program.removeprefix("jupyter").removeprefix("-") in _SERVERS

    @property
    def is_notebook_6(self) -> bool:
        """Whether it shows the pages of the classic Notebook, which has extensions of another kind."""
        return self.program.endswith("notebook") and 0 < major(self.notebook) < 7

    @property
    def behind_ondemand(self) -> bool:
        """Whether its address is one that the proxy of Open OnDemand gives."""
        return bool(re.match(r"/r?node/", self.base_url))


def major(version: str) -> int:
    """The first number of a version; 0 if there is none."""
    found = re.match(r"\d{1,6}", version)
    return int(found[0]) if found else 0


def behind_this_kernel(env: Mapping[str, str] = os.environ, proc: Path = PROC) -> Server | None:
    """The program that started this kernel; None when the kernel does not say or the program cannot be seen."""
    pid = env.get("JPY_PARENT_PID", "")
    if not pid.isdecimal() or not (words := _command(int(pid), proc)):
        return None
    prefix = _prefix(words[0], int(pid), proc)
    share = tuple(_data_folders(env, prefix))
    return Server(
        pid=int(pid),
        program=_program(words),
        prefix=str(prefix or ""),
        lab=_installed("jupyterlab", prefix),
        notebook=_installed("notebook", prefix),
        manager=next(filter(None, (_manager(folder) for folder in share)), ""),
        classic=any((folder / CLASSIC).is_file() for folder in share),
        disabled=any(map(_disabled, _config_folders(env, prefix))),
        base_url=_base_url(int(pid)),
    )


def _command(pid: int, proc: Path) -> list[str]:
    """The words of a process's command line; none when it cannot be read."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return [word for word in words if word]
    except OSError:
        return [] if proc.is_dir() else _command_by_ps(pid)


def _command_by_ps(pid: int) -> list[str]:
    """The same where there is no /proc, as on macOS."""
    try:
        done = subprocess.run(
            ("ps", "-ww", "-o", "command=", "-p", str(pid)), capture_output=True, text=True, timeout=PS_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()


def _program(words: list[str]) -> str:
    """The name of the program among the first words of a command: a script, a module, or the command itself."""
    for word in words[:4]:
        if found := _PROGRAM.fullmatch(word.rpartition("/")[2]):
            return found[0]
    return words[0].rpartition("/")[2]


def _prefix(python: str, pid: int, proc: Path) -> Path | None:
    """The environment of the interpreter that a process runs, as it was called: links are not followed."""
    place = proc / str(pid)
    try:
        if "/" not in python:
            python = shutil.which(python, path=_variable(place / "environ", "PATH")) or ""
        elif not python.startswith("/"):
            python = os.path.normpath(os.path.join(os.readlink(place / "cwd"), python))
    except OSError:
        return None
    folder = Path(python).parent
    return folder.parent if python and folder.name == "bin" else None


def _variable(environ: Path, name: str) -> str | None:
    start = f"{name}=".encode()
    found = (one.removeprefix(start) for one in environ.read_bytes().split(b"\0") if one.startswith(start))
    return next((one.decode(errors="replace") for one in found), None)


def data_home(env: Mapping[str, str] = os.environ) -> Path:
    """The learner's own Jupyter folder, in which every server of theirs looks too."""
    if own := env.get("JUPYTER_DATA_DIR"):
        return Path(own)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Jupyter"
    return Path(env.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "jupyter"


def _data_folders(env: Mapping[str, str], prefix: Path | None) -> Iterator[Path]:
    """Where a server with this environment looks for what it can show, first found wins."""
    yield from (Path(one) for one in env.get("JUPYTER_PATH", "").split(os.pathsep) if one)
    try:
        yield data_home(env)
    except RuntimeError:  # no home
        pass
    yield from (root / "share" / "jupyter" for root in ((prefix,) if prefix else ()) + SYSTEM)


def _config_folders(env: Mapping[str, str], prefix: Path | None) -> Iterator[Path]:
    """Where a server with this environment looks for what is switched off."""
    try:
        yield Path(env.get("JUPYTER_CONFIG_DIR") or Path.home() / ".jupyter")
    except RuntimeError:  # no home
        pass
    roots = ((prefix,) if prefix else ()) + (SYSTEM[0], Path("/"))
    yield from (root / "etc" / "jupyter" for root in roots)


def _manager(folder: Path) -> str:
    """The version of the widget manager in one Jupyter folder; "" if it is not there."""
    version = _json(folder / "labextensions" / MANAGER / "package.json").get("version")
    return version if isinstance(version, str) else ""


def _disabled(folder: Path) -> bool:
    """Whether one configuration folder switches the widget manager off."""
    listed = _json(folder / "labconfig" / "page_config.json").get("disabledExtensions")
    return bool(listed.get(MANAGER)) if isinstance(listed, dict) else isinstance(listed, list) and MANAGER in listed


def _base_url(pid: int) -> str:
    """The path under which the server answers, from the file that it leaves beside the kernel's connection file."""
    file = next((word for word in sys.argv if re.search(r"kernel-[^/]*\.json$", word)), "")
    value = _json(Path(file).parent / f"jpserver-{pid}.json").get("base_url") if file else ""
    return value if isinstance(value, str) else ""


def _json(file: Path) -> dict[str, Any]:
    """An object from a file; empty when there is none."""
    try:
        value = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _installed(name: str, prefix: Path | None) -> str:
    """The version of a package in another environment, from the name of its metadata folder."""
    if prefix is None:
        return ""
    places = (f"lib/python3*/{where}/{name}-*-info" for where in ("site-packages", "dist-packages"))
    found = [entry.name for place in places for entry in prefix.glob(place)]
    versions = [one.removeprefix(f"{name}-").rpartition(".")[0] for one in found]
    return max(versions, key=major, default="")
