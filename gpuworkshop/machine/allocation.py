"""The CPUs that this process may use: the smallest of what Slurm, the affinity mask and the cgroup allow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

CGROUP = Path("/sys/fs/cgroup")


class Cpus(msgspec.Struct, frozen=True):
    """How many CPUs this process may use, which limit said so, and what each of them says."""

    count: int
    said_by: str
    limits: dict[str, int]


def cpus(env: Mapping[str, str] = os.environ, cgroup: Path = CGROUP) -> Cpus:
    """The CPUs of this process's allocation; never the machine's count when a smaller limit holds."""
    limits = {
        "SLURM_CPUS_PER_TASK": _slurm(env),
        "affinity": _affinity(),
        "cgroup quota": _quota(cgroup),
        "machine": os.cpu_count(),
    }
    known = {name: count for name, count in limits.items() if count}
    said_by = min(known, key=known.get) if known else "assumed"
    return Cpus(known.get(said_by, 1), said_by, known)


def _slurm(env: Mapping[str, str]) -> int | None:
    value = env.get("SLURM_CPUS_PER_TASK", "")
    return int(value) if value.isdigit() and int(value) > 0 else None


def _affinity() -> int | None:
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return None
    return len(os.sched_getaffinity(0))


def _quota(cgroup: Path) -> int | None:
    """CPUs of the cgroup v2 quota of this process, the smallest on the way to the root; None without one."""
    try:
        inside = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].strip("/")
    except OSError:
        return None
    here = cgroup / inside
    found = [_read_quota(folder / "cpu.max") for folder in (here, *here.parents) if folder.is_relative_to(cgroup)]
    return min((count for count in found if count), default=None)


def _read_quota(file: Path) -> int | None:
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None
