"""The CPUs that this process may use: the smallest of what Slurm, the affinity mask and the cgroup allow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


class Cpus(msgspec.Struct, frozen=True):
    """How many CPUs this process may use, which limit said so, and what each of them says."""

    count: int
    said_by: str
    limits: dict[str, int]


def cpus(env: Mapping[str, str] = os.environ, cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> Cpus:
    """The CPUs of this process's allocation; never the machine's count when a smaller limit holds.

    ``cgroup`` is the root of the cgroup v2 tree, and the line ``0::/path`` of ``membership`` the place in it.
    """
    limits = {
        "SLURM_CPUS_PER_TASK": _slurm(env),
        "affinity": _affinity(),
        "cgroup quota": _quota(cgroup, membership),
        "machine": os.cpu_count(),
    }
    known = {name: count for name, count in limits.items() if count}
    said_by = min(known, key=known.get) if known else "assumed"
    return Cpus(known.get(said_by, 1), said_by, known)


def workers_rule(cpus: int) -> int:
    """The workshop's rule for ``num_workers``: CPUs - 1, and never 0."""
    return max(1, cpus - 1)


def _slurm(env: Mapping[str, str]) -> int | None:
    value = env.get("SLURM_CPUS_PER_TASK", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def _affinity() -> int | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return None
    return len(os.sched_getaffinity(0))


def _quota(cgroup: Path, membership: Path) -> int | None:
    """CPUs of the cgroup v2 quota of this process, the smallest on the way to the root; None without one."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    inside = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    here = cgroup / inside
    found = [_read_quota(folder / "cpu.max") for folder in (here, *here.parents) if folder.is_relative_to(cgroup)]
    return min((count for count in found if count), default=None)


def _read_quota(file: Path) -> int | None:
    """Whole CPUs of one ``cpu.max``, at least 1; None when it sets no limit or cannot be read."""
    try:
        quota, period = map(int, file.read_text().split())  # "max 100000" is no limit
    except (OSError, ValueError):
        return None
    return max(1, quota // period) if quota > 0 and period > 0 else None
