"""Which Python this is, and whether it is the one that the shell's environment names."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec

import msgspec

from gpuworkshop.report import Finding

VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")


class Interpreter(msgspec.Struct, frozen=True):
    """The running Python, the environments that the shell says are active, and whether PyTorch can be found.

    `torch` only says that a package of this name is installed here; it may still be broken.
    """

    executable: str
    prefix: str
    active: dict[str, str]
    torch: bool

    @property
    def is_active(self) -> bool:
        """Whether this Python is of an environment that the shell names; True where it names none."""
        here = os.path.realpath(self.prefix)
        return not self.active or any(os.path.realpath(one) == here for one in self.active.values())


def here(env: Mapping[str, str] = os.environ) -> Interpreter:
    """The interpreter of this process. Imports nothing."""
    active = {name: env[name] for name in VARIABLES if env.get(name)}
    return Interpreter(sys.executable or "", sys.prefix, active, _is_there("torch"))


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # half an installation
        return False


def findings(python: Interpreter) -> tuple[Finding, ...]:
    """Whether this is the environment that the learner thinks; a fail where PyTorch is missing from it."""
    named = ", ".join(f"{name}={place}" for name, place in python.active.items()) or "no environment is active"
    evidence = f"this Python is {python.executable}; {named}"
    if python.torch and python.is_active:
        return (Finding("ok", "This Python is the one of the active environment", evidence),) if python.active else ()
    if python.torch:
        return (Finding("notice", "Another environment is active than the one of this Python", evidence),)
    if python.is_active:
        fix = f"{shlex.quote(python.executable)} -m pip install torch"
        return (Finding("fail", "PyTorch is not installed in the environment of this Python", evidence, fix),)
    return (
        Finding(
            "fail", "This Python has no PyTorch, and it is not the active environment's", evidence, _kernel(python)
        ),
    )


def _kernel(python: Interpreter) -> str:
    """How the active environment becomes a kernel that a notebook can choose."""
    place = next(iter(python.active.values()))
    return (
        f"{shlex.quote(os.path.join(place, 'bin', 'python'))} -m ipykernel install --user "
        "--name gpuworkshop --display-name 'GPU workshop'\n"
        "# then choose the kernel 'GPU workshop' in the notebook"
    )
