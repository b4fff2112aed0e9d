"""Understands how a command starts Python, and puts what the hooks need where that Python will find it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import msgspec

from gpuworkshop.own.ending import VARIABLE

PYTHON = re.compile(r"python(\d+(\.\d+)*)?t?$")
STARTERS = ("torchrun", "accelerate", "deepspeed", "torchx", "composer", "lightning", "fabric", "ipython")
"""Commands that are Python themselves."""
PREFIXES = (
    "env",
    "srun",
    "apptainer",
    "singularity",
    "numactl",
    "taskset",
    "nice",
    "time",
    "timeout",
    "mpirun",
    "mpiexec",
)
"""Words that start something else, perhaps without the environment: it is given again right before Python."""
CONTAINERS = ("apptainer", "singularity")
BINDS = ("APPTAINER_BIND", "SINGULARITY_BIND")


class Understood(msgspec.Struct, frozen=True):
    """A command with the hooks in it, as it will be started."""

    words: tuple[str, ...]
    env: dict[str, str]
    script: str
    """The script, or "-m module"; "" where it cannot be told from the words."""
    launcher: str
    """The first word that is not Python itself, such as "srun"; ""."""
    isolated: bool = False
    """Whether Python was told not to look at PYTHONPATH."""


def understand(command: Sequence[str], folder: str, hooks: str, env: Mapping[str, str]) -> Understood:
    """``command`` as it is to be started, and with which environment. ValueError for no command."""
    words = [str(word) for word in command]
    if not words:
        raise ValueError("no command: what comes after -- starts your script, such as: python train.py")
    own = dict(env)
    path = own.get("PYTHONPATH", "")
    own["PYTHONPATH"] = f"{hooks}:{path}" if path else hooks
    own[VARIABLE] = folder
    own.setdefault("PYTHONUNBUFFERED", "1")  # what a script that is ended has printed is not lost
    at = _python(words)
    first = PurePath(words[0]).name
    if at and (first in PREFIXES or any(PurePath(word).name in CONTAINERS for word in words[:at])):
        words[at:at] = ["env", f"PYTHONPATH={_given(words[:at], own['PYTHONPATH'], hooks)}", f"{VARIABLE}={folder}"]
        _bind(own, folder)
    rest = words[_python(words) or 0 :]
    return Understood(tuple(words), own, _script(rest), "" if _is_python(first) else first, _isolated(rest))


def _given(before: Sequence[str], usual: str, hooks: str) -> str:
    """PYTHONPATH for the innermost Python: with what ``env`` in the command itself sets."""
    said = [word.partition("=")[2] for word in before if word.startswith("PYTHONPATH=")]
    return f"{hooks}:{said[-1]}" if said else usual


def _bind(env: dict[str, str], folder: str) -> None:
    """Containers see the run's folder, where the hooks are, too."""
    for name in BINDS:
        env[name] = f"{env[name]},{folder}" if env.get(name) else folder


def _is_python(word: str) -> bool:
    name = PurePath(word).name
    return bool(PYTHON.match(name)) or name in STARTERS


def _python(words: Sequence[str]) -> int | None:
    """The first word that starts Python; None where none does."""
    return next((at for at, word in enumerate(words) if _is_python(word) or word.endswith(".py")), None)


def _script(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words) and words[at + 1] != "torch.distributed.run":
            return f"-m {words[at + 1]}"
        if word.endswith(".py"):
            return word
        if word == "-c":
            return ""
    return ""


def _isolated(words: Sequence[str]) -> bool:
    """Whether Python's own options, before the script, keep it from reading PYTHONPATH or `sitecustomize`."""
    for word in words[1:]:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            return False
        if not word.startswith("--") and set(word[1:]) & set("IES"):
            return True
    return False
