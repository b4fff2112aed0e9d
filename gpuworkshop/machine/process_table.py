"""Whose a process is, from the table that Linux keeps in a folder. What is not certain is not visible, never guessed.

NVML gives the numbers of processes as the host counts them. In a container those mean something else, or nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Literal

from gpuworkshop.machine.process_stat import PROC, stat

FIRST_NAMESPACE = "pid:[4026531836]"
"""What Linux calls the namespace of process numbers that the host itself has."""

Whose = Literal["mine", "this step's", "this job's", "my other work", "another's", "not visible"]
"""Whose a process is.

"mine": of what is looked at, a process with all that it started; "this step's": another task of the same Slurm step;
"this job's": the rest of the same Slurm job; "my other work": the same user's, such as a forgotten kernel; "another's":
another user's; "not visible": it cannot be seen from here, and may be any of these.
"""


class Table:
    """The table of processes, as this process sees it.

    ``watched``: the processes that are looked at; None for this process, and then those that it was started by too.
    """

    def __init__(self, env: Mapping[str, str] = os.environ, proc: Path = PROC, watched: Set[int] | None = None) -> None:
        self._proc, self._watched = proc, watched
        self._me = os.getpid()
        self._host = _link(proc / "self" / "ns" / "pid") == FIRST_NAMESPACE
        self._job = env.get("SLURM_JOB_ID", "")
        self._step = [f"{name}={env[name]}" for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if env.get(name)]

    def whose(self, pid: int) -> Whose:
        """Whose this process is, as far as can be seen."""
        if not (self._proc / str(pid)).is_dir() or not (self._host or self._holds_a_card(pid)):
            return "not visible"
        if self._is_mine(pid):
            return "mine"
        variables = self._read(pid, "environ").split("\0")
        if len(self._step) == 2 and all(entry in variables for entry in self._step):
            return "this step's"
        if self._job and (f"SLURM_JOB_ID={self._job}" in variables or self._in_cgroup_of_job(pid)):
            return "this job's"
        uid = self._uid(pid)
        if uid is None:
            return "not visible"
        return "my other work" if uid == os.getuid() else "another's"

    def user(self, pid: int) -> str:
        """The user's name, or number where the name is not known."""
        import pwd

        uid = self._uid(pid)
        if uid is None:
            return ""
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return str(uid)

    def name(self, pid: int) -> str:
        """The program."""
        return _printable(self._read(pid, "comm").strip())

    def command(self, pid: int) -> str:
        """The command line of one's own process, the program of another's."""
        words = self._read(pid, "cmdline").replace("\0", " ").strip() if self._uid(pid) == os.getuid() else ""
        return _printable(words) or self.name(pid)

    def _is_mine(self, pid: int) -> bool:
        line = self._line(pid)
        if self._watched is not None:
            return any(one in self._watched for one in line)
        return self._me in line or pid in self._line(self._me)

    def _line(self, pid: int) -> list[int]:
        """A process, its parent, and so on up to the first."""
        line: list[int] = []
        while pid > 1 and pid not in line:
            line.append(pid)
            found = stat(pid, self._proc)
            pid = found.parent if found else 0
        return line

    def _holds_a_card(self, pid: int) -> bool:
        """Whether it has a device file of the driver open. In a container, a number alone may mean another process."""
        try:
            return any(_link(file).startswith("/dev/nvidia") for file in (self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False

    def _in_cgroup_of_job(self, pid: int) -> bool:
        return bool(re.search(rf"(?<!\d){re.escape(self._job)}(?!\d)", self._read(pid, "cgroup")))

    def _uid(self, pid: int) -> int | None:
        """The user's number. Where others' processes are closed to us (hidepid=1), their folder still says whose."""
        for line in self._read(pid, "status").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
        try:
            owner = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        return None if owner == os.getuid() else owner  # one's own is never closed: it has just ended

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)[:1000]


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
