"""The conditions of a measurement: what must be equal before two numbers may be compared."""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuworkshop import __version__
from gpuworkshop.machine import allocation, gpus
from gpuworkshop.machine.allocation import Cpus
from gpuworkshop.machine.device import Card
from gpuworkshop.numbers import counted
from gpuworkshop.report import Origin


class Conditions(msgspec.Struct, frozen=True):
    """Where and with what a measurement was made."""

    device: str
    machine: str
    uuid: str
    driver: str
    cpus: int
    cpus_said_by: str
    threads: int | None
    """Of PyTorch; None where it does not run in the measuring process."""
    python: str
    torch: str
    """Version of PyTorch; "" where it does not run in the measuring process."""
    kit: str
    date: str
    cpus_asked: int | None = None
    """What the job asked of Slurm for each task; None outside of a job, and where it did not say."""

    @property
    def origin(self) -> Origin:
        """The mark for numbers measured in this process."""
        return Origin("measured here", self.machine, self.date, self.kit)

    def comparable(self, other: Conditions) -> bool:
        """Whether numbers made under both may be compared: same machine or card, driver and torch."""
        return all(getattr(self, n) == getattr(other, n) for n in ("device", "machine", "uuid", "driver", "torch"))


def conditions(device: str = "cpu") -> Conditions:
    """The conditions of this process on ``device`` ("cpu" or "cuda:0"). Imports torch."""
    import torch  # noqa: F401  its version and its threads belong to the conditions

    card = gpus.card(device)
    return known(device, [card] if card else [], allocation.cpus(), card.driver if card else "")


def known(device: str, cards: Sequence[Card], cores: Cpus, driver: str) -> Conditions:
    """The same from what is known already; asks nothing of a driver, and of PyTorch only where it runs here."""
    torch = sys.modules.get("torch")
    return Conditions(
        device=device,
        machine=_title(cards) or host(cores),
        uuid=cards[0].uuid if cards else "",
        driver=driver,
        cpus=cores.count,
        cpus_said_by=cores.said_by,
        threads=torch.get_num_threads() if torch else None,
        python=platform.python_version(),
        torch=str(torch.__version__) if torch else "",
        kit=__version__,
        date=datetime.date.today().isoformat(),
        cpus_asked=cores.limits.get("SLURM_CPUS_PER_TASK"),
    )


def _title(cards: Sequence[Card]) -> str:
    """The kinds of cards, each with its number where there are several; "" for none."""
    names = sorted(card.name for card in cards)
    return ", ".join(
        name if names.count(name) == 1 else f"{names.count(name)} x {name}" for name in dict.fromkeys(names)
    )


def host(cores: Cpus | None = None) -> str:
    """What a number was measured on where no card was: the CPUs of the allocation and their processor."""
    cores = cores or allocation.cpus()
    return f"{counted(cores.count, 'CPU core')}, {processor()}"


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
