"""How a job script starts its training: through srun or not, by which starter, in how many processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster.jobscript import options
from gpuworkshop.cluster.jobscript.script import Script, read
from gpuworkshop.cluster.jobscript.shell import Command

_PYTHON = re.compile(r"python[\d.]*\Z")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?\Z")
ALL_CARDS = ("gpu", "auto", "cuda", "$SLURM_GPUS_ON_NODE", "${SLURM_GPUS_ON_NODE}", "$SLURM_GPUS_PER_NODE")
"""What a starter is given for as many processes as there are cards."""

Reader = Callable[[str], str | None]
"""The text of a file that the script names; None where it cannot be read."""


class Starter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that makes ranks. `processes` are its options for their number, `unless` their number without."""

    names: tuple[str, ...]
    processes: tuple[str, ...] = ()
    unless: int | None = None
    ends: str = ""


class Launch(msgspec.Struct, frozen=True):
    """One start of a program that may train."""

    command: Command
    srun: Mapping[str, str] | None
    """The options of the srun in front; None without srun."""
    starter: str
    """The program that makes ranks, such as torchrun; "" for none."""
    words: tuple[str, ...]
    """The program and its words, behind srun and wrappers."""
    script: str = ""
    """The Python file that it runs, or -m and a module; "" where there is none."""

    @property
    def line(self) -> int:
        """The line where it begins."""
        return self.command.line

    def option(self, *names: str) -> str | None:
        """The value of an option of the program, from `--name=value` or `--name value`; None where it is not given."""
        for place, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else next(iter(self.words[place + 1 : place + 2]), "")
        return None


class _Data(msgspec.Struct, frozen=True):
    wrappers: dict[str, tuple[str, ...]]
    starter: tuple[Starter, ...]
    workers: dict[str, tuple[str, ...] | str]
    several: dict[str, tuple[str, ...] | str]


def launches(script: Script) -> list[Launch]:
    """Every start of a Python program or of a starter of ranks, in order."""
    return [found for command in script.shell.commands if (found := _launch(command))]


def trains(launch: Launch) -> bool:
    """Whether it may train: it runs a Python file or module, and no check of ours or one-line program."""
    return bool(launch.starter or launch.script)


def starter(name: str) -> Starter | None:
    """What is known about a starter of ranks."""
    return next((one for one in _data().starter if name in one.names), None)


def processes(launch: Launch, script: Script, cards: int | None) -> int | None:
    """The processes that one run of the starter makes on a node; None where the script does not say."""
    known = starter(launch.starter)
    if known is None or not known.processes:
        return None
    value = launch.option(*known.processes)
    if value is None:
        return known.unless
    return cards if value in ALL_CARDS else number(value, script)


def number(value: str, script: Script) -> int | None:
    """A number as it stands, or as the script sets the variable that stands for it; None for anything else."""
    if found := _VARIABLE.match(value):
        settings = script.shell.settings.get(found[1], ())
        value = settings[0] if len(settings) == 1 else ""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 7 else None


def workers(launch: Launch, script: Script) -> tuple[int, str] | None:
    """The loader workers of one rank and the words that say so; None where the command does not say."""
    data = _data().workers
    for place, word in enumerate(launch.words):
        name, equals, value = word.partition("=")
        if name in data["options"] and (place or equals):
            value = value if equals else next(iter(launch.words[place + 1 : place + 2]), "")
            found = number(value, script)
            return None if found is None else (found, f"{name}{equals or ' '}{value}")
        if found := re.fullmatch(data["key"], word):
            return int(found[1]) if len(found[1]) < 7 else 0, word
    return None


def workers_of(words: Sequence[str]) -> tuple[int, str] | None:
    """The loader workers that the words of a command ask for, and those words; None where they do not say."""
    return workers(Launch(Command(1, tuple(words)), None, "", tuple(words)), read(b"")) if words else None


def several_cards(launch: Launch, read: Reader) -> bool | None:
    """Whether a program that is started once uses several cards by itself; None where that cannot be seen from here."""
    data = _data().several
    for word in launch.words[1:]:
        if word.partition("=")[0] in data["options"] or re.match(data["key"], word):
            return True
    text = read(launch.script) if launch.script and not launch.script.startswith("-m ") else None
    return None if text is None else _calls(text, frozenset(data["calls"]))


def _calls(text: str, names: frozenset[str]) -> bool | None:
    """Whether Python code calls any of these names; it is parsed, never run. None for what is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(getattr(one, "attr", getattr(one, "id", "")) in names for one in called)


def _launch(command: Command) -> Launch | None:
    words, srun = list(command.argv), None
    while words:
        name = words[0].rpartition("/")[2]
        if name == "srun":
            srun, rest = options.srun(words[1:])
            words = list(rest)
        elif name == "gpuworkshop" and "--" in words:
            words = words[words.index("--") + 1 :]
        elif name in _data().wrappers["plain"]:
            words = _unwrapped(words[1:])
        else:
            break
    if not words:
        return None
    name = words[0].rpartition("/")[2]
    if starter(name):
        return Launch(command, srun, name, tuple(words), _file(words[1:]))
    if _PYTHON.match(name):
        module = _module(words)
        if starter(module):
            return Launch(command, srun, module, tuple(words), _file(words[3:]))
        return Launch(command, srun, "", tuple(words), f"-m {module}" if module else _python_file(words))
    return None if srun is None else Launch(command, srun, "", tuple(words), "")


def _unwrapped(words: list[str]) -> list[str]:
    """The command behind a wrapper: its options, assignments and numbers are passed over."""
    while words and (words[0].startswith("-") or "=" in words[0] or words[0].isdecimal()):
        words = words[1:]
    return words


def _module(words: Sequence[str]) -> str:
    for place, word in enumerate(words[1:], 1):
        if word == "-m":
            return next(iter(words[place + 1 : place + 2]), "")
        if not word.startswith("-"):
            return ""
    return ""


def _python_file(words: Sequence[str]) -> str:
    """The file that `python` runs; "" for a module, for -c and for what comes from stdin."""
    for word in words[1:]:
        if word in ("-c", "-m", "-"):
            return ""
        if not word.startswith("-"):
            return word
    return ""


def _file(words: Sequence[str]) -> str:
    return next((word for word in words if word.endswith(".py")), "")


def commands_that_train(script: Script) -> Iterator[Launch]:
    """The starts that may train and are no check of this kit."""
    return (one for one in launches(script) if trains(one) and one.script != "-m gpuworkshop")


@cache
def _data() -> _Data:
    return msgspec.toml.decode(Path(__file__).with_name("launch.toml").read_bytes(), type=_Data)
