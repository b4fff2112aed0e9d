"""A rule is data: its level and its words. What it looks for is a function in rules_*.py, or a variable that is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpuworkshop.cluster.jobscript.launch import Launch, Reader, side_by_side, trains
from gpuworkshop.cluster.jobscript.request import Request
from gpuworkshop.cluster.jobscript.script import MAGIC, Script
from gpuworkshop.cluster.site import Site
from gpuworkshop.numbers import shortened
from gpuworkshop.report import Level


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule in words; braces are filled by what was seen. `sets` is a variable that the script must not set."""

    level: Level
    title: str
    cause: str = ""
    fix: str = ""
    sets: str = ""


class Seen(msgspec.Struct, frozen=True):
    """What a rule found: its id, the line (0 for the whole file), and what fills its words."""

    rule: str
    line: int
    fields: Mapping[str, Any] = {}
    level: Level | None = None
    """Another level than the rule's."""


class Fault(msgspec.Struct, frozen=True):
    """One fault in words: the rule, how bad it is, the line (0 for the whole file), the cause, the corrected line."""

    rule: str
    level: Level
    line: int
    title: str
    cause: str
    fix: str


class Job(msgspec.Struct, frozen=True):
    """What the rules look at."""

    script: Script
    request: Request
    site: Site
    file: str
    is_folder: Callable[[str], bool | None]
    """Whether there is such a folder for the job; None where that cannot be seen from here."""
    read: Reader
    starts: tuple[Launch, ...] = ()
    """Every start of a program that may train."""

    @property
    def trainings(self) -> list[Launch]:
        """The starts that train, as far as the script says, and are no check of this kit."""
        return [one for one in self.starts if trains(one)]

    def line(self, number: int) -> str:
        """A line of the script, without blanks around it, not too long."""
        lines = self.script.lines
        return shortened(lines[number - 1].strip(), 120) if 0 < number <= len(lines) else ""


Looks = Callable[[Job], Iterator[Seen]]


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by its id."""
    return msgspec.toml.decode(Path(__file__).with_name("rules.toml").read_bytes(), type=dict[str, Rule])


def fault(seen: Seen) -> Fault:
    """What was seen, in the words of its rule."""
    rule = rules()[seen.rule]
    fields = {"line": seen.line, **{name: _shown(value) for name, value in seen.fields.items()}}
    title, cause = (_one_line(part.format_map(fields)) for part in (rule.title, rule.cause))
    return Fault(seen.rule, seen.level or rule.level, seen.line, title, cause, rule.fix.format_map(fields))


def directive(name: str, value: str | int | None = None) -> str:
    """A directive line: #SBATCH --name=value."""
    return f"{MAGIC} --{name}" + ("" if value is None else f"={value}")


def replaced(text: str, old: str, new: str) -> str:
    """A line with one of its words replaced, to be written instead."""
    return text.replace(old, new, 1) if old and old in text else new


def sets(job: Job) -> Iterator[Seen]:
    """The rules that look for a variable: each line that sets it to a value of its own."""
    wanted = {rule.sets: name for name, rule in rules().items() if rule.sets}
    if side_by_side(job.script):
        wanted.pop("CUDA_VISIBLE_DEVICES", None)  # each of several trainings its own share
    for command in job.script.shell.commands:
        if command.argv and command.name not in ("export", "declare", "readonly", "typeset"):
            continue  # for one command alone: a share of the cards, on purpose
        for variable, value in command.assigned.items():
            if variable in wanted and f"${variable}" not in value and f"${{{variable}" not in value:
                yield Seen(wanted[variable], command.line, {"value": value})


def _shown(value: Any) -> Any:
    return shortened(value, 400) if isinstance(value, str) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())
