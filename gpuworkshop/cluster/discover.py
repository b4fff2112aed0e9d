"""What a live Slurm says about its partitions and cards: two commands with a time limit, and a pure parser.

`sinfo` lists each partition with its groups of equal nodes, the GRES of each group as the scheduler knows it.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.facts import is_name
from gpuworkshop.report import clean

PARTITIONS = ("sinfo", "--noheader", "--exact", "--noconvert", "--format=%P|%a|%l|%D|%T|%c|%m|%G")
EVERY = ("sinfo", "--all", "--noheader", "--format=%R")  # also those that are hidden from this user
CONFIG = ("scontrol", "show", "config")
NAME = "SLURM_CLUSTER_NAME"  # set in every job
NAME_LIMIT = 3.0  # seconds to ask for the cluster's name alone
LIMIT = 15.0  # seconds that a command may take: an unreachable controller is given up after about 9
LARGEST = 2**26
"""Bytes that an answer may have."""
_OUT_OF_USE = ("down", "drain", "fail", "inval", "maint", "unknown", "future", "n/a")
_GPU = re.compile(r"(?:^|,)gpu(?::(?!\d+(?:[(,]|$)|no_consume:)([^:,(]+))?(?::no_consume)?:(\d{1,6})(?!\d)", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_SLICE = re.compile(r"(?:^|[_.-])\d+g\.\d+gb", re.IGNORECASE)


class NoSlurm(RuntimeError):
    """No answer from Slurm, or none that can be read; the message is one line."""


class Gres(msgspec.Struct, frozen=True):
    """Cards of one kind in one node: the type ("" where GRES has none) and how many."""

    type: str
    count: int

    @property
    def name(self) -> str:
        """What a request calls it: gpu:TYPE, or gpu where there is no type."""
        return f"gpu:{self.type}" if self.type else "gpu"

    @property
    def is_slice(self) -> bool:
        """Whether the type names a MIG slice, such as 1g.10gb or a100_1g.5gb."""
        return bool(_SLICE.search(self.type))


class Nodes(msgspec.Struct, frozen=True):
    """A group of equal nodes of one partition: how many, their state, CPUs, memory in MiB and cards of each."""

    count: int
    state: str
    cpus: int
    memory_mb: int
    gres: tuple[Gres, ...]

    @property
    def in_use(self) -> bool:
        """Whether jobs can start there, now or later: not down, drained or unknown."""
        return not self.state.lower().startswith(_OUT_OF_USE)


class LivePartition(msgspec.Struct, frozen=True):
    """One partition as it is: time limit in Slurm's long form, "" if Slurm does not say; up or what else it is."""

    name: str
    default: bool
    state: str
    time_limit: str
    nodes: tuple[Nodes, ...]

    def gres(self) -> tuple[str, ...]:
        """The names of the kinds of cards in it, sorted."""
        return tuple(sorted({gres.name for group in self.nodes for gres in group.gres}))

    def most(self, name: str) -> int:
        """The most cards of this name that one node has; where all have a type, `gpu` counts every kind."""
        every = name == "gpu" and "gpu" not in self.gres()
        counts = (sum(gres.count for gres in group.gres if every or gres.name == name) for group in self.nodes)
        return max(counts, default=0)


class Live(msgspec.Struct, frozen=True):
    """A Slurm as it is: the name of the cluster ("" if not known) and its partitions."""

    cluster: str
    partitions: tuple[LivePartition, ...]
    every: tuple[str, ...] = ()
    """The name of every partition, also of those that this user is not shown; empty where Slurm does not say."""

    def partition(self, name: str) -> LivePartition | None:
        """The partition of this name; None if there is none such."""
        return next((partition for partition in self.partitions if partition.name == name), None)


def ask() -> Live:
    """Ask the Slurm of this machine. Raises NoSlurm when it is missing, silent or not to be understood."""
    text = run(PARTITIONS)
    return parse(text, _if_said(CONFIG), _if_said(EVERY))


def _if_said(command: Sequence[str]) -> str:
    """What a command prints that can be done without; "" where it fails."""
    try:
        return run(command)
    except NoSlurm:
        return ""


def cluster(env: Mapping[str, str] = os.environ) -> str:
    """The name of the Slurm cluster that this machine belongs to; "" where there is none, or it does not answer."""
    try:
        return env.get(NAME) or _cluster(run(CONFIG, NAME_LIMIT))
    except NoSlurm:
        return ""


def run(command: Sequence[str], limit: float = LIMIT) -> str:
    """What a Slurm command prints; `limit` in seconds. Raises NoSlurm."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SINFO_")} | {"LC_ALL": "C"}
    try:
        done = _done(command, env, limit)
    except FileNotFoundError as error:
        raise NoSlurm(f"{command[0]}: not found: there is no Slurm on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise NoSlurm(f"{command[0]}: no answer within {limit:g} s") from error
    except OSError as error:
        raise NoSlurm(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        said = " ".join(clean(done.stderr).split())[:300]
        raise NoSlurm(f"{command[0]} failed with exit code {done.returncode}: {said}")
    return done.stdout


def _done(command: Sequence[str], env: Mapping[str, str], limit: float) -> subprocess.CompletedProcess[str]:
    """As subprocess.run, but at a timeout, an interrupt or an endless answer all that the command started ends."""
    pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    try:
        out, err = _answer(process, time.monotonic() + limit, limit)
    except BaseException:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        process.stdout.close()
        process.stderr.close()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _answer(process: subprocess.Popen[bytes], ends: float, limit: float) -> tuple[str, str]:
    """What it prints on stdout and on stderr, at most LARGEST bytes of each, until it has ended."""
    held = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as waiting:
        for pipe in held:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            if time.monotonic() >= ends:
                raise subprocess.TimeoutExpired(process.args, limit)
            for key, _ in waiting.select(ends - time.monotonic()):
                piece = os.read(key.fd, 2**16)
                held[key.fileobj] += piece
                if not piece:
                    waiting.unregister(key.fileobj)
                if len(held[key.fileobj]) > LARGEST:
                    raise NoSlurm(f"{process.args[0]}: its answer does not end: more than {LARGEST >> 20} MiB")
    process.wait(max(0.0, ends - time.monotonic()))
    out, err = (data.decode("utf-8", "replace") for data in held.values())
    return out, err


def parse(partitions: str, config: str = "", every: str = "") -> Live:
    """Read the answers of PARTITIONS, of CONFIG for the cluster's name, and of EVERY. Raises NoSlurm for no answer."""
    found: dict[str, list[LivePartition]] = {}
    for line in filter(str.strip, partitions.splitlines()):
        one = _partition(line)
        found.setdefault(one.name, []).append(one)
    if not found:
        raise NoSlurm("sinfo lists no partition")
    return Live(_cluster(config), tuple(_together(lines) for lines in found.values()), _every(every, found))


def _together(lines: Sequence[LivePartition]) -> LivePartition:
    """One partition, of which each line has a group of nodes."""
    return msgspec.structs.replace(lines[0], nodes=tuple(group for line in lines for group in line.nodes))


def _every(text: str, shown: Iterable[str]) -> tuple[str, ...]:
    """The names of EVERY, sorted; none where they are not all names, or one that is shown is not among them."""
    names = {line.strip() for line in text.splitlines()} - {""}
    return tuple(sorted(names)) if names.issuperset(shown) and all(map(is_name, names)) else ()


def _cluster(config: str) -> str:
    found = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
    return found[1] if found else ""


def cards(gres: str) -> tuple[Gres, ...]:
    """The cards of one node's GRES as Slurm writes it; shards, MPS and other resources are none.

    `gpu:b200:8(S:0-1)`, `gpu:4`, `gpu:a100:4,gpu:a100_1g.5gb:14`, `(null)`.
    """
    return tuple(Gres(kind, int(count)) for kind, count in _GPU.findall(gres) if int(count))


def _partition(line: str) -> LivePartition:
    """One line of sinfo: a partition with one group of nodes, or with none."""
    fields = line.strip().split("|")
    if len(fields) != 8 or not all(_NUMBER.fullmatch(fields[place]) for place in (3, 5, 6)):
        raise NoSlurm(f"sinfo: not understood: {clean(line.strip())[:80]!r}")
    name, state, limit, count, node_state, cpus, memory, gres = fields
    group = Nodes(int(count), node_state, int(cpus), int(memory), cards(gres))
    return LivePartition(name.rstrip("*"), name.endswith("*"), state, _limit(limit), (group,) if group.count else ())


def _limit(text: str) -> str:
    """A time limit in Slurm's long form; "" for none, such as n/a or 0."""
    try:
        seconds = slurm_time.seconds(text)
    except ValueError:
        return ""
    return slurm_time.text(seconds) if seconds else ""
