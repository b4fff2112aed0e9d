"""Check a job script: what Slurm would refuse, and what it would pass over in silence; each with the corrected line."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpuworkshop.cluster.jobscript import launch, rule, rules_form, rules_launch, rules_request, rules_shell, script
from gpuworkshop.cluster.jobscript import request as requests
from gpuworkshop.cluster.jobscript.request import Request
from gpuworkshop.cluster.jobscript.rule import Fault, Job
from gpuworkshop.cluster.site import Site
from gpuworkshop.numbers import counted
from gpuworkshop.report import Finding, Origin, Report, measured_here

_MOST = 2**20
"""Bytes of a job script at most, and of a file that it starts."""
_EACH = 20
_FIRST = ("empty", "line-ends", "encoding", "null", "interpreter")
_ORDER = ("fail", "warning", "notice", "unknown", "ok")


class NoScript(ValueError):
    """A file that cannot be checked; the message is one line."""


class Checked(msgspec.Struct, frozen=True):
    """What a check found. `faults` is empty for a script that is right as far as can be seen."""

    file: str
    site: str
    request: Request
    faults: tuple[Fault, ...]
    origin: Origin
    understood: bool = True
    """Whether its commands are those of a shell; without that only the directives are checked."""


def check(data: bytes, site: Site, file: str = "job.sbatch", folders: tuple[Path, ...] = ()) -> Checked:
    """Check the bytes of a job script. `folders` are where sbatch may be called; none: nothing outside is looked at."""
    read = script.read(data)
    asked = requests.read(read)

    def is_folder(name: str) -> bool | None:
        return _is_folder(name, folders)

    starts = tuple(launch.launches(read))
    job = Job(read, asked, site, file, is_folder, lambda name: _text(name, folders), starts)
    faults = sorted(map(rule.fault, _first_of_each(_seen(job))), key=_place)
    origin = measured_here(f"by the rules of Slurm and the site file {site.name}")
    return Checked(file, site.name, asked, tuple(faults), origin, read.is_shell or not read.interpreter)


def run(path: str, site: Site) -> Checked:
    """Check a file; its log folders are looked for in the present folder and beside it. Raises NoScript."""
    file = Path(path)
    try:
        kind = file.stat().st_mode
        if not stat.S_ISREG(kind):
            raise NoScript(f"{path}: {'a folder' if stat.S_ISDIR(kind) else 'not a plain file'}")
        with file.open("rb") as opened:
            data = opened.read(_MOST + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, NoScript):
            raise
        raise NoScript(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > _MOST:
        raise NoScript(f"{path}: larger than 1 MiB, that is no job script")
    return check(data, site, path, tuple(dict.fromkeys((Path.cwd(), file.absolute().parent))))


def findings(checked: Checked) -> Iterator[Finding]:
    """The faults, each with its line in front; one ok where there is none."""
    for one in checked.faults:
        where = f"line {one.line}: " if one.line else ""
        yield Finding(one.level, where + one.title, one.cause, one.fix)
    if not checked.faults:
        yield Finding("ok", "no fault found", asked(checked.request))
    if not checked.understood:
        yield Finding("unknown", "the commands are in no shell that is understood: only the directives were checked")


def report(checked: Checked) -> Report:
    """The check as a reader sees it."""
    return Report(f"Job script {checked.file}", checked.origin, tuple(findings(checked)))


def asked(request: Request) -> str:
    """The request in words, as far as the script says it."""
    parts = [counted(request.node_count, "node"), counted(request.task_count, "task")]
    if request.cpus_per_task:
        parts.append(f"{counted(request.cpus_per_task, 'CPU')} a task")
    if request.cards_on_node is not None:
        parts.append(f"{counted(request.cards_on_node, 'card')} a node" if request.cards_on_node else "no card")
    where = f" in {', '.join(request.partitions)}" if request.partitions else ""
    return ", ".join(parts) + where


def _seen(job: Job) -> Iterator[rule.Seen]:
    """What every rule sees. Of a heterogeneous job only the form is looked at."""
    looks = rules_form.LOOKS
    if job.script.text.text.strip() and not job.script.heterogeneous:
        looks = (*looks, *rules_request.LOOKS, *rules_launch.LOOKS, *rules_shell.LOOKS, rule.sets)
    for look in looks:
        yield from look(job)


def _first_of_each(seen: Iterator[rule.Seen]) -> Iterator[rule.Seen]:
    """Of each rule the first few: a file with thousands of one fault is told soon enough."""
    count: dict[str, int] = {}
    for one in seen:
        count[one.rule] = count.get(one.rule, 0) + 1
        if count[one.rule] <= _EACH:
            yield one


def _place(fault: Fault) -> tuple[bool, int, int]:
    """What concerns the whole file first, then the worst first, then by line."""
    return fault.rule not in _FIRST, _ORDER.index(fault.level), fault.line


def _is_folder(name: str, folders: tuple[Path, ...]) -> bool | None:
    """Whether there is such a folder; None where its file system is not here, or nothing was to be looked at."""
    if not folders or "\0" in name:
        return None
    if not name.startswith("/"):
        return any((folder / name).is_dir() for folder in folders)
    if os.path.isdir(name):
        return True
    return False if os.path.isdir("/" + name.strip("/").split("/")[0]) else None


def _text(name: str, folders: tuple[Path, ...]) -> str | None:
    """The text of a file that the script starts; None where it is not here or cannot be read."""
    for folder in folders:
        file = folder / name
        try:
            if file.is_file() and file.stat().st_size <= _MOST:
                return file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
    return None
