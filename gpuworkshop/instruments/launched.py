"""What a command begins with: the environment that ``env`` gives it, and a launcher that may give it other cards.

Only the first words are read. What a script or a shell does after that is not known from here.
"""

from __future__ import annotations

import getopt
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath

import msgspec

from gpuworkshop.machine.visible import VARIABLE
from gpuworkshop.report import Finding

NAMES_CARDS = (VARIABLE, "CUDA_DEVICE_ORDER")
"""Variables that decide which cards a process has, and in which order."""


class Launched(msgspec.Struct, frozen=True):
    """How the first words of a command bear on its cards. ``by`` is the launcher, "" for none."""

    by: str = ""
    may: str = ""
    """What it may do: completes "srun may ..."."""
    fix: str = ""
    variables: tuple[str, ...] = ()
    """What ``env`` changes of the variables that name cards: "CUDA_VISIBLE_DEVICES=1", or "... is unset"."""


class _Launcher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...]
    may: str
    fix: str


def read(command: Sequence[str], env: Mapping[str, str]) -> tuple[Launched | None, Mapping[str, str]]:
    """What begins ``command``, None for nothing that bears on its cards; and the environment that it then has.

    The environment is ``env`` itself, the same object, where the command leaves the variables that name cards alone.
    """
    own, rest = dict(env), list(command)
    while rest and PurePath(rest[0]).name == "env":
        rest = _env(rest[1:], own)
    changed = tuple(name for name in NAMES_CARDS if own.get(name) != env.get(name))
    variables = tuple(f"{name}={own[name]}" if name in own else f"{name} is unset" for name in changed)
    name = PurePath(rest[0]).name if rest else ""
    found = _launchers().get(name)
    if found is None and not changed:
        return None, env
    said = Launched(variables=variables)
    if found is not None:
        said = Launched(name, found.may, found.fix.replace("NAME", name), variables)
    return said, own if changed else env


def finding(launched: Launched) -> Finding:
    """Which cards were watched, where that is not plain."""
    own = f"watched were the cards that its own environment names: {', '.join(launched.variables)}"
    if not launched.by:
        return Finding("ok", f"The command begins with env: {own}")
    here = own if launched.variables else "watched were the cards that this process's environment names here"
    return Finding("notice", f"The command begins with {launched.by}: {here}", f"it may {launched.may}", launched.fix)


def _env(words: list[str], env: dict[str, str]) -> list[str]:
    """Do to ``env`` what the words after ``env`` say; the words of what it starts."""
    long = ("ignore-environment", "unset=", "null", "chdir=", "split-string=", "debug", "argv0=")
    try:
        options, rest = getopt.getopt(words, "iu:0C:S:va:", long)
    except getopt.GetoptError:  # it will say so itself
        return []
    if rest[:1] == ["-"]:
        options, rest = [*options, ("-i", "")], rest[1:]
    if any(name in ("-i", "--ignore-environment") for name, _ in options):
        env.clear()
    for name, value in options:
        if name in ("-u", "--unset"):
            env.pop(value, None)
        elif name in ("-S", "--split-string"):
            rest = [*_words(value), *rest]
    while rest and "=" in rest[0]:
        name, _, value = rest.pop(0).partition("=")
        env[name] = value
    return rest


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


@cache
def _launchers() -> dict[str, _Launcher]:
    """The launchers by name."""
    text = Path(__file__).with_name("launchers.toml").read_bytes()
    known = msgspec.toml.decode(text, type=dict[str, tuple[_Launcher, ...]])["launcher"]
    return {name: one for one in known for name in one.names}
