"""Limits that a control group sets for this process, version 1 and 2: the smallest on the way to the root holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cpus(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Whole CPUs of the quota, at least 1; None without a quota."""
    return _smallest(root, membership, "cpu", _quota_2, _quota_1)


def memory(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes of the memory limit; None without one. Version 1 writes a number near 2^63 for "no limit"."""
    found = _smallest(root, membership, "memory", _bytes("memory.max"), _bytes("memory.limit_in_bytes"))
    return found if found and found < 2**60 else None


def _smallest(
    root: Path,
    membership: Path,
    controller: str,
    version_2: Callable[[Path], int | None],
    version_1: Callable[[Path], int | None],
) -> int | None:
    found = [version_2(folder) for folder in _folders(root, membership, "")]
    found += [version_1(folder) for folder in _folders(root, membership, controller)]
    return min((limit for limit in found if limit), default=None)


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """From this process's place up to the root, for a controller of version 1, or for version 2 with ""."""
    try:
        lines = membership.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        names = {"", "unified"} if not controller else {controllers, controller}
        for top in sorted(root / name for name in names):
            here = top / place.lstrip("/")
            yield from (folder for folder in (here, *here.parents) if folder.is_relative_to(top))


def _quota_2(folder: Path) -> int | None:
    """``cpu.max`` of version 2: quota and period, or "max 100000" for no limit."""
    return _whole(*_numbers(folder / "cpu.max", 2))


def _quota_1(folder: Path) -> int | None:
    """The two files of version 1; a quota of -1 is no limit."""
    return _whole(*_numbers(folder / "cpu.cfs_quota_us", 1), *_numbers(folder / "cpu.cfs_period_us", 1))


def _whole(quota: int = 0, period: int = 0) -> int | None:
    return max(1, quota // period) if quota > 0 and period > 0 else None


def _bytes(name: str) -> Callable[[Path], int | None]:
    return lambda folder: next(iter(_numbers(folder / name, 1)), None)


def _numbers(file: Path, count: int) -> list[int]:
    """The numbers in a file; none where there are not exactly so many, or where it cannot be read."""
    try:
        found = [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []
    return found if len(found) == count else []
