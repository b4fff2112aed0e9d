"""What answers at once, before PyTorch is there: the driver's monitoring library, the environment, Slurm, the CPUs.

NVML never wakes CUDA, and a driver that hangs is given up after `NVML_SECONDS`.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpuworkshop.machine import allocation, gpus, job, processes, rated
from gpuworkshop.machine.allocation import Cpus
from gpuworkshop.machine.gpus import Card, Cards, Seen
from gpuworkshop.machine.job import Job
from gpuworkshop.machine.nvml import Nvml, Refusal, in_time
from gpuworkshop.machine.processes import OnCard
from gpuworkshop.machine.rated import Rated

NVML_SECONDS = 5.0
DEV, PROC = Path("/dev"), processes.PROC
_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}


class State(msgspec.Struct, frozen=True):
    """How one card is, as the driver says it before PyTorch is asked. None: it does not say."""

    used: int | None = None
    total: int | None = None
    mode: Literal["default", "exclusive", "prohibited", ""] = ""
    """Compute mode: who may use the card."""
    uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    rows_failed: bool = False
    """A bad row of memory that could not be replaced."""
    on_card: OnCard = OnCard(None)
    rated: Rated | None = None
    """What the table has for it, once PyTorch has said what it is."""


class First(msgspec.Struct, frozen=True):
    """All that is known before PyTorch. ``serves`` is the CUDA level of the driver, such as 12040 for 12.4."""

    host: str
    python: str
    """Version of the Python that was asked."""
    system: str
    wsl: bool
    device_files: bool
    """Whether the system shows a card of NVIDIA in /dev."""
    driver: str
    serves: int | None
    refusal: Refusal | None
    """Why NVML does not answer at all."""
    cards: Cards
    """As the environment names them; as PyTorch sees them once it has answered."""
    states: dict[str, State]
    """By UUID, of this job's cards."""
    slurm: bool
    """Whether there is a Slurm at all."""
    job: Job | None
    cpus: Cpus

    @property
    def node(self) -> str:
        """The name of this machine, as the scheduler has it where there is one."""
        return (self.job and self.job.this_node) or self.host


def open_driver() -> Nvml:
    """A session with the driver that gives up on one that hangs."""
    return in_time(NVML_SECONDS)


def look(nvml: Nvml, env: Mapping[str, str] = os.environ) -> First:
    """Everything that can be said at once."""
    mine = gpus.cards(env, nvml=nvml)
    release = platform.release().lower()
    here = job.job(env)
    return First(
        host=platform.node(),
        python=platform.python_version(),
        system=platform.system(),
        wsl="microsoft" in release or "wsl" in release,
        device_files=any(DEV.glob("nvidia[0-9]*")),
        driver=gpus.driver_version(nvml),
        serves=nvml.ask("nvmlSystemGetCudaDriverVersion"),
        refusal=nvml.problem,
        cards=mine,
        states={card.uuid: state(nvml, card, env) for card in mine.mine},
        slurm=bool(here or env.get("SLURM_CONF") or shutil.which("sbatch", path=env.get("PATH", ""))),
        job=here,
        cpus=allocation.cpus(env),
    )


def joined(nvml: Nvml, first: First, seen: Sequence[Seen], env: Mapping[str, str] = os.environ) -> First:
    """The same with the cards as PyTorch sees them, held to the table of what such cards can do."""
    found = gpus.cards(env, seen, nvml)
    states = dict(first.states)
    for card in found.mine:
        as_seen = next((device for device in seen if device.cuda == card.cuda), None)
        known = states.get(card.uuid) or state(nvml, card, env)
        states[card.uuid] = msgspec.structs.replace(known, rated=rated.rated(nvml, card, as_seen))
    return msgspec.structs.replace(first, cards=found, states=states)


def state(nvml: Nvml, card: Card, env: Mapping[str, str] = os.environ) -> State:
    """How a card is now; what NVML does not say of it is None."""
    handle = nvml.handle(card.uuid)
    whole = nvml.handle(card.parent) if card.mig else handle
    memory = nvml.memory(handle)
    kind, counter = nvml.constant("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"), nvml.constant("NVML_VOLATILE_ECC")
    rows = nvml.ask("nvmlDeviceGetRemappedRows", whole)
    return State(
        used=memory[0] if memory else None,
        total=memory[1] if memory else None,
        mode=_MODES.get(nvml.ask("nvmlDeviceGetComputeMode", whole), ""),
        uncorrected=nvml.ask("nvmlDeviceGetTotalEccErrors", whole, kind, counter),
        rows_failed=bool(rows and rows[3]),
        on_card=processes.processes(nvml, card, env, PROC),
    )
