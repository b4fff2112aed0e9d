"""Ends all that a watched command started, in whatever session it went to. Python's own library only.

torchrun gives its ranks sessions of their own, and a script may start what it likes. All of it has the variable that
names the run's folder in its environment, and every Python of it has left its number in that folder. As a program,
``python -I -S ending.py GROUP FOLDER`` stands beside the command: when its stdin closes without a byte, whoever
started the command is gone, and everything is ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "GPUWORKSHOP_OWN"
PATIENCE = 1.0
"""Seconds between asking to end and ending; stopped processes are let go on first, or they would hear nothing."""


def end(group: int, folder: str, *, asked: int = signal.SIGTERM, patience: float = PATIENCE) -> None:
    """End the process group and everything else that belongs to the run in ``folder``; safe to call twice."""
    for number in (asked, signal.SIGKILL):
        _send(group, folder, number)
        until = time.monotonic() + (patience if number != signal.SIGKILL else 3.0)
        while _alive(group, folder) and time.monotonic() < until:
            time.sleep(0.05)
        if not _alive(group, folder):
            return


def _send(group: int, folder: str, number: int) -> None:
    for one in (number, signal.SIGCONT):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, one)
        for pid in members(folder):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, one)


def _alive(group: int, folder: str) -> bool:
    return any(True for _ in members(folder)) or _group_alive(group)


def _group_alive(group: int) -> bool:
    if not os.path.isdir(
        "/proc"
    ):  # macOS: an ended leader that nobody waited for counts too, which only costs patience
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            return True
        return False
    for pid in _pids():
        with suppress(OSError, IndexError, ValueError):
            words = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
            if int(words[2]) == group and words[0] not in (b"Z", b"X"):
                return True
    return False


def members(folder: str) -> Iterator[int]:
    """Processes that have the run's folder in their environment, without this one and without ended ones."""
    sign = f"{VARIABLE}={folder}".encode() + b"\0"
    for pid in _pids():
        if pid == os.getpid():
            continue
        with suppress(OSError, IndexError):
            if sign in Path("/proc", str(pid), "environ").read_bytes() + b"\0":
                state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in (b"Z", b"X"):
                    yield pid


def _pids() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


if __name__ == "__main__":
    if not os.read(0, 1):
        end(int(sys.argv[1]), sys.argv[2])
