"""How a job script starts its training: through srun or not, by which starter, in how many processes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster.jobscript import options, wrappers
from gpuworkshop.cluster.jobscript.script import Script, read
from gpuworkshop.cluster.jobscript.shell import Command

_PYTHON = re.compile(r"python[\d.]*\Z")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?\Z")
_WHOLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|([A-Za-z_]\w*))")
_OPEN = re.compile(r"\$(?!SLURM_|\{SLURM_)")
_MOST_WORDS = 200
"""Of one command, once its variables are written out."""
_DEEPEST, _DEEPEST_VARIABLE = 8, 3
"""Launchers behind launchers, and variables in variables, that are followed."""
_ALONE = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path")
"""Options of torchrun that take no word, so that a variable behind them is not their value."""
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
    front: tuple[str, ...] = ()
    """The wrappers between srun and the program, such as `uv run`."""

    @property
    def line(self) -> int:
        """The line where it begins."""
        return self.command.line

    @property
    def text(self) -> str:
        """The wrappers, the program and its words, as they are written after srun."""
        return " ".join((*self.front, *self.words))

    def option(self, *names: str) -> str | None:
        """The value of an option of the program, from `--name=value` or `--name value`; None where it is not given."""
        for place, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in names:
                return value if equals else next(iter(self.words[place + 1 : place + 2]), "")
        return None


class _Data(msgspec.Struct, frozen=True):
    starter: tuple[Starter, ...]
    workers: dict[str, tuple[str, ...] | str]
    several: dict[str, tuple[str, ...] | str]
    beside: dict[str, frozenset[str]]


def launches(script: Script) -> list[Launch]:
    """Every start of a Python program or of a starter of ranks, in order."""
    return [found for command in script.shell.commands for found in _launches(command, script)]


def trains(launch: Launch) -> bool:
    """Whether it may train: it runs a Python file or module, and no check of ours or one-line program."""
    return bool(launch.starter or launch.script) and launch.script != "-m gpuworkshop"


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
        return None if _is_open(launch) else known.unless
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


def _launches(command: Command, script: Script) -> Iterator[Launch]:
    """The starts of one command: several where it is a shell's text, `bash -c "prepare; torchrun ..."`."""
    started = list(_started(_written_out(command.argv, script), None))
    known = [found for words, srun, front in started if (found := _launch(command, words, srun, front))]
    yield from known
    if not known and started and started[0][1] is not None:
        words, srun, front = started[0]
        yield Launch(command, srun, "", (*front, *words))


def _started(words: Sequence[str], srun: Mapping[str, str] | None, depth: int = 0):
    """What these words start, without srun and wrappers in front: its words, srun's options, the wrappers behind it."""
    for behind in wrappers.commands(words):
        name = behind[0].rpartition("/")[2] if behind else ""
        if name == "srun" and depth < _DEEPEST:
            options_given, rest = options.srun(behind[1:])
            yield from _started(rest, options_given, depth + 1)
        elif name == "gpuworkshop" and "--" in behind and depth < _DEEPEST:
            yield from _started(behind[behind.index("--") + 1 :], srun, depth + 1)
        elif behind:
            own = behind[1:] if behind[0] not in words else behind  # `uv run train.py` is `uv run` python train.py
            whole = tuple(words[len(words) - len(own) :]) == own
            yield behind, srun, tuple(words[: len(words) - len(own)]) if whole else ()


def _launch(command: Command, words: tuple[str, ...], srun: Mapping[str, str] | None, front: tuple[str, ...]):
    """A start of a starter of ranks or of Python; None for any other program."""
    name = words[0].rpartition("/")[2]
    if starter(name):
        return Launch(command, srun, name, words, _file(words[1:]), front)
    if _PYTHON.match(name):
        module = _module(words)
        if starter(module):
            return Launch(command, srun, module, words, _file(words[3:]), front)
        return Launch(command, srun, "", words, f"-m {module}" if module else _python_file(words), front)
    return None


def _written_out(words: Sequence[str], script: Script, depth: int = 0) -> list[str]:
    """The words with each variable that holds options or a whole command written out, where the script sets it once."""
    found: list[str] = []
    for place, word in enumerate(words):
        variable = _WHOLE.fullmatch(word)
        values = script.shell.settings.get(variable[1] or variable[2], ()) if variable else ()
        parts = _parts(values[0])[:_MOST_WORDS] if len(values) == 1 else []
        options_inside = any(part.startswith("-") for part in parts)
        if (
            parts
            and (place == 0 or len(parts) > 1 or options_inside)
            and depth < _DEEPEST_VARIABLE
            and len(found) < _MOST_WORDS
        ):
            found += _written_out(parts, script, depth + 1)
        else:
            found.append(word)
    return found


def _parts(value: str) -> list[str]:
    """The words of a variable: those of an array, or as the shell splits a text."""
    try:
        return shlex.split(value[1:-1]) if value.startswith("(") and value.endswith(")") else value.split()
    except ValueError:
        return []


def _is_open(launch: Launch) -> bool:
    """Whether a variable among the starter's own words may hold options that are not known here."""
    words = launch.words
    own = words[: words.index(launch.script)] if launch.script in words else words
    values = [
        place for place, word in enumerate(own) if word.startswith("-") and "=" not in word and word not in _ALONE
    ]
    return any(_OPEN.match(word) and place - 1 not in values for place, word in enumerate(own))


def side_by_side(script: Script) -> bool:
    """Whether something that may use a card is put in the background: a program, a function or a block."""
    before: Command | None = None
    for command in script.shell.commands:
        block = command.before == "&" and before is not None and before.then != "&"
        if (block and not _watches(before)) or (command.then == "&" and not _watches(command)):
            return True
        before = command
    return False


def _watches(command: Command) -> bool:
    return command.name in _data().beside["watch"]


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
    """The starts that may train."""
    return filter(trains, launches(script))


@cache
def _data() -> _Data:
    return msgspec.toml.decode(Path(__file__).with_name("launch.toml").read_bytes(), type=_Data)
