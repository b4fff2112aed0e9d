"""The conditions of a measurement: what must be equal before two numbers may be compared."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import msgspec

from gpuworkshop import __version__
from gpuworkshop.machine import allocation, gpus
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
    kit: str
    date: str

    @property
    def origin(self) -> Origin:
        """The mark for numbers measured in this process."""
        return Origin("measured here", self.machine, self.date, self.kit)

    def comparable(self, other: Conditions) -> bool:
        """Whether numbers made under both may be compared: same machine or card, driver and torch."""
        return all(getattr(self, n) == getattr(other, n) for n in ("device", "machine", "uuid", "driver", "torch"))


def conditions(device: str = "cpu") -> Conditions:
    """The conditions of this process on ``device`` ("cpu" or "cuda:0"). Imports torch."""
    import torch

    card = gpus.card(device)
    cores = allocation.cpus()
    return Conditions(
        device=device,
        machine=card.name if card else f"{cores.count} CPU cores, {processor()}",
        uuid=card.uuid if card else "",
        driver=card.driver if card else "",
        cpus=cores.count,
        cpus_said_by=cores.said_by,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        kit=__version__,
        date=datetime.date.today().isoformat(),
    )


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
