"""What of this machine the process may use: the smallest of what Slurm, the affinity mask and the cgroup allow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpuworkshop.machine import cgroup as limits_of
from gpuworkshop.machine.cgroup import MEMBERSHIP
from gpuworkshop.machine.cgroup import ROOT as CGROUP

MIB = 2**20


class Cpus(msgspec.Struct, frozen=True):
    """How many CPUs this process may use, which limit said so, and what each of them says."""

    count: int
    said_by: str
    limits: dict[str, int]


class Memory(msgspec.Struct, frozen=True):
    """Bytes of main memory that this process may use, which limit said so, and what each of them says.

    ``bytes`` is None, and ``said_by`` "", where nothing says.
    """

    bytes: int | None
    said_by: str
    limits: dict[str, int]


def cpus(env: Mapping[str, str] = os.environ, cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> Cpus:
    """The CPUs of this process's allocation; never the machine's count when a smaller limit holds.

    ``cgroup`` is the root of the cgroup tree, and ``membership`` the file with this process's places in it.
    """
    limits = {
        "SLURM_CPUS_PER_TASK": whole(env, "SLURM_CPUS_PER_TASK"),
        "affinity": _affinity(),
        "cgroup quota": limits_of.cpus(cgroup, membership),
        "machine": os.cpu_count(),
    }
    known = {name: count for name, count in limits.items() if count}
    said_by = min(known, key=known.get) if known else "assumed"
    return Cpus(known.get(said_by, 1), said_by, known)


def memory(env: Mapping[str, str] = os.environ, cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> Memory:
    """The main memory of this process's allocation on this node; never the machine's when a smaller limit holds."""
    limits = {
        "SLURM_MEM_PER_NODE": _times(env, "SLURM_MEM_PER_NODE"),
        "SLURM_MEM_PER_CPU": _times(env, "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
        or _times(env, "SLURM_MEM_PER_CPU", "SLURM_CPUS_PER_TASK"),
        "SLURM_MEM_PER_GPU": _times(env, "SLURM_MEM_PER_GPU", "SLURM_GPUS_ON_NODE"),
        "cgroup limit": limits_of.memory(cgroup, membership),
        "machine": _machine(),
    }
    known = {name: size for name, size in limits.items() if size}
    said_by = min(known, key=known.get) if known else ""
    return Memory(known.get(said_by), said_by, known)


def workers_rule(cpus: int) -> int:
    """The workshop's rule for ``num_workers``: CPUs - 1, and never 0."""
    return max(1, cpus - 1)


def whole(env: Mapping[str, str], name: str) -> int | None:
    """A variable of Slurm that is a whole number above 0; None for every other value."""
    value = env.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 and int(value) > 0 else None


def _times(env: Mapping[str, str], name: str, count: str = "") -> int | None:
    """Bytes of a Slurm variable in MiB, times what another one counts. Slurm's 0 is the whole node: no limit."""
    size = whole(env, name)
    many = whole(env, count) if count else 1
    return size * MIB * many if size and many else None


def _affinity() -> int | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return None
    return len(os.sched_getaffinity(0))


def _machine() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows, and systems that do not know the names
        return None
