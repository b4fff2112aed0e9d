"""What answers at once, before PyTorch is there: the driver's monitoring library, the environment, Slurm, the CPUs.

NVML never wakes CUDA, and a driver that hangs is given up after `NVML_SECONDS`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop.instruments.cpu_use import PROC
from gpuworkshop.instruments.on_card import OnCard, Processes
from gpuworkshop.machine import allocation, gpus
from gpuworkshop.machine.allocation import Cpus
from gpuworkshop.machine.gpus import Card, Cards, Seen
from gpuworkshop.machine.nvml import Nvml, Refusal, in_time

NVML_SECONDS = 5.0
DEV = Path("/dev")
LEFT_OVER = "mine, left over"
_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}


class State(msgspec.Struct, frozen=True):
    """How one card is now, as the driver says it. None: it does not say."""

    used: int | None = None
    total: int | None = None
    mode: Literal["default", "exclusive", "prohibited", ""] = ""
    """Compute mode: who may use the card."""
    uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    rows_failed: bool = False
    """A bad row of memory that could not be replaced."""
    processes: tuple[OnCard, ...] = ()
    """Before PyTorch is asked; those that only draw a screen are left out."""
    kernels: tuple[int, ...] = ()
    """Those of this user's processes that are kernels of notebooks."""


class Job(msgspec.Struct, frozen=True):
    """What Slurm says of this job; "" for what it does not say. ``id`` "" outside a job."""

    here: bool
    """Whether there is a Slurm at all."""
    id: str = ""
    partition: str = ""
    node: str = ""
    cards: str = ""
    """Cards of the job on this node, as Slurm counts them."""
    numbers: str = ""
    """Their numbers on the node: never those of CUDA."""


class First(msgspec.Struct, frozen=True, tag="first"):
    """All that is known before PyTorch. ``serves`` is the CUDA level of the driver, such as 12040 for 12.4."""

    host: str
    system: str
    wsl: bool
    device_files: bool
    """Whether the kernel's driver shows a card in /dev."""
    driver: str
    serves: int | None
    refusal: Refusal | None
    """Why NVML does not answer at all."""
    cards: Cards
    """As the environment names them."""
    states: dict[str, State]
    """By UUID, of this job's cards."""
    order: str
    """CUDA_DEVICE_ORDER."""
    job: Job
    cpus: Cpus


def open_driver() -> Nvml:
    """A session with the driver that gives up on one that hangs."""
    return in_time(NVML_SECONDS)


def look(nvml: Nvml, env: Mapping[str, str] = os.environ) -> First:
    """Everything that can be said at once."""
    mine = gpus.cards(env, nvml=nvml)
    release = platform.release().lower()
    return First(
        host=platform.node(),
        system=platform.system(),
        wsl="microsoft" in release or "wsl" in release,
        device_files=any(re.fullmatch(r"nvidia\d+", file.name) for file in _entries(DEV)),
        driver=gpus.driver_version(nvml),
        serves=nvml.ask("nvmlSystemGetCudaDriverVersion"),
        refusal=nvml.problem,
        cards=mine,
        states=states(nvml, mine.mine),
        order=env.get("CUDA_DEVICE_ORDER", ""),
        job=_job(env),
        cpus=allocation.cpus(env),
    )


def joined(nvml: Nvml, first: First, seen: Sequence[Seen], env: Mapping[str, str] = os.environ) -> First:
    """The same with the cards as PyTorch sees them."""
    found = gpus.cards(env, seen, nvml)
    new = [card for card in found.mine if card.uuid not in first.states]
    return msgspec.structs.replace(first, cards=found, states=first.states | states(nvml, new))


def states(nvml: Nvml, cards: Sequence[Card]) -> dict[str, State]:
    """How each of these cards is, by UUID; those that NVML does not know are left out."""
    handles = ((card, nvml.handle(card.uuid)) for card in cards)
    return {card.uuid: _state(nvml, card, handle) for card, handle in handles if handle is not None}


def _state(nvml: Nvml, card: Card, handle: Any) -> State:
    whole = nvml.handle(card.parent) if card.mig else handle
    found = _processes(nvml, handle)
    memory = nvml.memory(handle)
    kind, counter = nvml.constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"), nvml.constant("NVML_VOLATILE_ECC")
    rows = nvml.ask("nvmlDeviceGetRemappedRows", whole)
    return State(
        used=memory[0] if memory else None,
        total=memory[1] if memory else None,
        mode=_MODES.get(nvml.ask("nvmlDeviceGetComputeMode", whole), ""),
        uncorrected=nvml.ask("nvmlDeviceGetTotalEccErrors", whole, kind, counter),
        rows_failed=bool(rows and rows[3]),
        processes=found,
        kernels=tuple(one.pid for one in found if one.who == LEFT_OVER and _is_kernel(one.pid)),
    )


def _processes(nvml: Nvml, handle: Any) -> tuple[OnCard, ...]:
    """Who holds the card; "mine" is this process and what it started."""
    listed = Processes(nvml, handle, PROC)
    listed.look({os.getpid()})
    return tuple(_sure(one) for one in listed.seen or () if one.who != "display")


def _sure(one: OnCard) -> OnCard:
    """In a container a number of the host can be that of another process in here: then it is not to be seen."""
    if one.who != LEFT_OVER or _holds_a_card(one.pid):
        return one
    return msgspec.structs.replace(one, who="not visible", name="")


def _holds_a_card(pid: int) -> bool:
    for file in _entries(PROC / str(pid) / "fd"):
        try:
            if "/dev/nvidia" in os.readlink(file):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def _is_kernel(pid: int) -> bool:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return b"ipykernel" in command or b"colab_kernel" in command


def _job(env: Mapping[str, str]) -> Job:
    number = env.get("SLURM_JOB_ID", "")
    return Job(
        here=bool(number or env.get("SLURM_CONF") or shutil.which("sbatch", path=env.get("PATH"))),
        id=number,
        partition=env.get("SLURM_JOB_PARTITION", ""),
        node=env.get("SLURMD_NODENAME", ""),
        cards=env.get("SLURM_GPUS_ON_NODE", ""),
        numbers=env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS", ""),
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
