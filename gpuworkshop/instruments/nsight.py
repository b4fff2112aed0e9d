"""Command lines of Nsight Systems and Nsight Compute for a command of yours, and whether counters are allowed here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

PARAMETERS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38
FOLDER = "${SCRATCH:-.}"
"""Where what they write goes: scratch where there is such a variable, else the present folder; it can be gigabytes."""
YOURS = ("python", "train.py")
"""Stands for the learner's own command where none is known."""


def systems(command: Sequence[str], folder: str = FOLDER, seconds: int = 60) -> str:
    """The Nsight Systems line: which kernel, copy and call ran when, on every thread and card."""
    return (
        f"nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas --duration={seconds} "
        f"--output={folder}/timeline {shlex.join(command)}"
    )


def compute(command: Sequence[str], folder: str = FOLDER, kernel: str = "", launches: int = 5) -> str:
    """The Nsight Compute line: one kernel's occupancy, bandwidth and place under the roofline.

    ``kernel`` is a part of its name; the first ``launches`` of it are looked at, after a warm-up of 50 launches.
    """
    named = f"--kernel-name regex:{shlex.quote(re.escape(kernel))} " if kernel else ""
    return (
        f"ncu --set roofline {named}--launch-skip 50 --launch-count {launches} "
        f"--export {folder}/kernel {shlex.join(command)}"
    )


def counters_allowed(parameters: Path = PARAMETERS, status: Path = STATUS) -> bool | None:
    """Whether this process may read the card's counters, as Nsight Compute must; None where nobody can say.

    The driver's RmProfilingAdminOnly says whether only administrators may; CAP_SYS_ADMIN or CAP_PERFMON make one.
    """
    try:
        only_admin = re.search(r"RmProfilingAdminOnly:\s*(\d)", parameters.read_text())
    except OSError:
        return None
    if only_admin is None:
        return None
    return only_admin[1] == "0" or _capable(status)


def _capable(status: Path) -> bool:
    try:
        effective = re.search(r"CapEff:\s*([0-9a-fA-F]+)", status.read_text())
    except OSError:
        return False
    held = int(effective[1], 16) if effective else 0
    return bool(held >> CAP_SYS_ADMIN & 1 or held >> CAP_PERFMON & 1)
