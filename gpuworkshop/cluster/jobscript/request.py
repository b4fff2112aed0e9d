"""What a job script asks Slurm for, as numbers; what it does not say is None."""

from __future__ import annotations

import re

import msgspec

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.jobscript.options import Given
from gpuworkshop.cluster.jobscript.script import Script

_EACH = {"gres": "node", "gpus-per-node": "node", "gpus-per-task": "task", "tres-per-task": "task"}
_UNITS = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


class Cards(msgspec.Struct, frozen=True):
    """One way of asking for cards: how many, of which type ("" for any), for each node, each task or the whole job."""

    count: int
    type: str
    each: str
    line: int
    option: str


class Request(msgspec.Struct, frozen=True):
    """The request in numbers. `nodes` is the least number; times are in seconds, memory in MiB."""

    partitions: tuple[str, ...] = ()
    seconds: float | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_card: int | None = None
    cards: tuple[Cards, ...] = ()
    memory: float | None = None
    array: bool = False

    @property
    def node_count(self) -> int:
        """The nodes of the job: what is said, or what the tasks need, at least 1."""
        if self.nodes is not None:
            return max(1, self.nodes)
        if self.tasks and self.tasks_per_node:
            return -(-self.tasks // self.tasks_per_node)
        return 1

    @property
    def task_count(self) -> int:
        """The tasks of the job."""
        return self.tasks or self.node_count * (self.tasks_per_node or 1)

    @property
    def tasks_on_node(self) -> int:
        """The most tasks on one node."""
        return self.tasks_per_node or -(-self.task_count // self.node_count)

    @property
    def cards_on_node(self) -> int | None:
        """The cards that one node gives; 0 where none is asked for, None where it depends on Slurm."""
        if not self.cards:
            return 0
        for each in ("node", "task", "job"):
            counts = [one.count for one in self.cards if one.each == each]
            if counts:
                total = sum(counts)
                return {"node": total, "task": total * self.tasks_on_node, "job": -(-total // self.node_count)}[each]
        return None

    @property
    def cpus_on_node(self) -> int | None:
        """The CPUs that one node gives; None where nothing is said about them."""
        if self.cpus_per_task:
            return self.cpus_per_task * self.tasks_on_node
        if self.cpus_per_card and self.cards_on_node:
            return self.cpus_per_card * self.cards_on_node
        return None


def read(script: Script) -> Request:
    """The request of a script: of each option the last setting, as sbatch takes it; values of a wrong form are None."""

    def value(name: str) -> str:
        found = script.last(name)
        return found.value if found else ""

    return Request(
        partitions=tuple(filter(None, value("partition").split(","))),
        seconds=seconds(value("time")),
        nodes=whole(re.split(r"[-,:]", value("nodes"))[0]),
        tasks=whole(value("ntasks")),
        tasks_per_node=whole(value("ntasks-per-node")),
        cpus_per_task=whole(value("cpus-per-task")),
        cpus_per_card=whole(value("cpus-per-gpu")),
        cards=tuple(_cards(script)),
        memory=megabytes(value("mem")),
        array=script.last("array") is not None,
    )


def whole(text: str) -> int | None:
    """A whole number of at most nine digits; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def megabytes(text: str) -> float | None:
    """What --mem takes, in MiB; None for anything else."""
    found = re.fullmatch(r"(\d{1,12})([KMGTP]?)B?", text.upper(), re.ASCII)
    return int(found[1]) * _UNITS[found[2]] if found else None


def cards_of(option: str, value: str, line: int = 0) -> list[Cards] | None:
    """The cards of one option's value; None where Slurm would not take it as a request for cards."""
    each = _EACH.get(option, "job")
    found = []
    for part in value.split(","):
        if option in ("gres", "tres-per-task"):
            part = re.sub(r"^gres[:/]", "", part)
            if not re.match(r"gpu(?![\w-])", part):
                continue
            part = part[3:].lstrip(":/=") or "1"
        kind, _, count = part.replace("=", ":").rpartition(":")
        if kind == "" and whole(count) is None and option == "gres":
            kind, count = count, "1"
        if (number := whole(count)) is None:
            return None
        found.append(Cards(number, kind, each, line, option))
    return found


def seconds(text: str) -> float | None:
    """Seconds of --time; 0 means no limit, to Slurm too."""
    try:
        return slurm_time.seconds(text) or float("inf")
    except ValueError:
        return None


def _cards(script: Script):
    for option in ("gres", "gpus", "gpus-per-node", "gpus-per-task", "tres-per-task"):
        given: Given | None = script.last(option)
        if given:
            yield from (one for one in cards_of(option, given.value, given.line) or () if one.count)
