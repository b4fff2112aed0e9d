"""How many cards CUDA gives for a value of CUDA_VISIBLE_DEVICES, asked of the driver itself, without PyTorch.

CUDA reads the variable once, when it starts, so every value gets a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

from gpuworkshop.course.faces import Note
from gpuworkshop.machine import gpus
from gpuworkshop.machine.visible import VARIABLE
from gpuworkshop.report import Finding, Report, Table, measured_here

SECONDS = 30
ASK = """\
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
print(count.value)
"""
"""A driver that finds no card answers with an error, and the count stays 0."""


def with_value(value: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which the variable has this value; None: it is unset."""
    rest = {name: kept for name, kept in env.items() if name != VARIABLE}
    return rest if value is None else {**rest, VARIABLE: value}


def count(value: str | None) -> int | None:
    """The cards that CUDA gives a new process with this value; None where there is no CUDA driver or no answer."""
    try:
        done = subprocess.run(
            (sys.executable, "-c", ASK), env=with_value(value), capture_output=True, text=True, timeout=SECONDS
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def report(values: Iterable[str | None]) -> Report | Note:
    """Each value as CUDA takes it on this machine, beside how the kit reads it; a note where there is no card."""
    mine = gpus.cards().mine
    if not mine or not (count(None) or 0):
        text = ("With a card, each value would be set for a process of its own, which then asks CUDA for its cards.",)
        return Note("There is no card here to try it on", text=text)
    rows = [(value, len(gpus.cards(with_value(value)).mine), count(value)) for value in values]
    differ = [value for value, read, given in rows if read != given]
    shown = tuple((_shown(value), str(read), "n/a" if given is None else str(given)) for value, read, given in rows)
    table = Table((VARIABLE, "cards, as the kit reads it", "cards that CUDA gives"), shown)
    return Report(
        "The same values on this machine", measured_here(mine[0].name), (_found(differ, len(rows)),), (table,)
    )


def _shown(value: str | None) -> str:
    return "unset" if value is None else f'"{value}"'


def _found(differ: list[str | None], asked: int) -> Finding:
    if differ:
        return Finding("warning", f"CUDA gives another number of cards for {', '.join(map(_shown, differ))}")
    return Finding("ok", f"CUDA and the kit agree on all {asked} values")
