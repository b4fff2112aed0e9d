"""The Jupyter kernel of this environment: installed for the user, with the environment that its cells need.

It is what `python -m ipykernel install --user` does. A server of another environment starts it, and its variables
would reach the kernel: a PYTHONPATH of the server's modules breaks imports, a PATH without this environment makes
`!gpuworkshop` another command or none. So those are set in the kernel's own description.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuworkshop.report import clean

NAME, DISPLAY_NAME = "gpuworkshop", "GPU workshop"
CARRIED = ("GPUWORKSHOP_SITE", "GPUWORKSHOP_STATE", "GPUWORKSHOP_CACHE")
SHIELDED = ("PYTHONPATH", "PYTHONHOME")


class Kernel(msgspec.Struct, frozen=True):
    """An installed kernel: where its description lies, which Python it runs, and what its environment sets.

    `replaced` is the Python that a kernel of the same name ran until now, "" if there was none.
    """

    name: str
    display_name: str
    folder: str
    python: str
    env: dict[str, str]
    replaced: str = ""


class NoIpykernel(RuntimeError):
    """This environment has no ipykernel; the message is one line."""


def install(name: str = NAME, display_name: str = DISPLAY_NAME, env: Mapping[str, str] = os.environ) -> Kernel:
    """Install the kernel for this user. Raises NoIpykernel, ValueError for a name that Jupyter refuses, or OSError."""
    try:
        from ipykernel import kernelspec
        from jupyter_core.paths import jupyter_data_dir
    except ImportError as error:
        raise NoIpykernel(f"this environment ({sys.prefix}) has no ipykernel") from error
    if not name:  # Jupyter would take it for its own kernel python3
        raise ValueError("the kernel's name is empty")
    display_name = clean(display_name)
    before = _python(Path(jupyter_data_dir()) / "kernels" / name.lower() / "kernel.json")
    own = environment(env)
    place = kernelspec.install(user=True, kernel_name=name, display_name=display_name, env=dict(own))
    return Kernel(name, display_name, place, sys.executable, own, before)


def environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the kernel: this environment first in PATH, its name, what shields it from the server's Python,
    and the kit's own settings as they are now. Jupyter puts the server's value in place of ${PATH}."""
    programs = os.path.dirname(sys.executable)
    found = {"PATH": f"{_literal(programs)}{os.pathsep}${{PATH}}"}
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
        found["CONDA_PREFIX"] = _literal(sys.prefix)
    elif sys.prefix != sys.base_prefix:
        found["VIRTUAL_ENV"] = _literal(sys.prefix)
    found |= {name: _literal(env.get(name, "")) for name in SHIELDED}
    return found | {name: _literal(env[name]) for name in CARRIED if env.get(name)}


def _literal(text: str) -> str:
    return text.replace("$", "$$")


def _python(file: Path) -> str:
    """The first word of an installed kernel's command; "" if there is none."""
    with suppress(OSError, msgspec.DecodeError, AttributeError, IndexError):
        return str(msgspec.json.decode(file.read_bytes()).get("argv", [""])[0])
    return ""
