"""What a card is here: as a report names it, as PyTorch reports it, and what a process may use of a machine."""

from __future__ import annotations

import re

import msgspec

from gpuworkshop.machine.visible import Visible

_VIRTUAL = re.compile(r"^(nvidia )?grid |-\d+[abcq]$", re.IGNORECASE)


class Card(msgspec.Struct, frozen=True):
    """One GPU, or one MIG slice of one, that this process may use.

    What nobody could say is None, or "" for a text.
    """

    name: str
    uuid: str
    memory_bytes: int | None = None
    """Of the card; of the machine, where the GPU has no memory of its own (``integrated``)."""
    multiprocessors: int | None = None
    driver: str = ""
    bus: str = ""
    """PCI address as NVML writes it, such as 00000000:1B:00.0."""
    mig: bool = False
    parent: str = ""
    """UUID of the card that a slice belongs to."""
    physical: int | None = None
    """Its number in NVML and nvidia-smi."""
    cuda: int | None = None
    """Its number in PyTorch."""
    capability: tuple[int, int] | None = None
    integrated: bool | None = None
    """Whether it shares the machine's memory, as GB10 and Jetson do."""

    @property
    def label(self) -> str:
        """Its short name: ``cuda:0``, or the card's own."""
        return f"cuda:{self.cuda}" if self.cuda is not None else self.name

    @property
    def place(self) -> str:
        """How the card is named in a report: ``cuda:0 (physical card 1, bus 00000000:1B:00.0)``."""
        numbers = [
            f"physical card {self.physical}" if self.physical is not None else "",
            self.bus and f"bus {self.bus}",
        ]
        inside = ", ".join(filter(None, numbers))
        return " ".join(filter(None, [self.label, inside and f"({inside})"]))

    @property
    def virtual(self) -> bool:
        """Whether its name is that of a virtual GPU, such as "NVIDIA A40-48C" or "GRID A100-10C"."""
        return bool(_VIRTUAL.search(self.name))


class Seen(msgspec.Struct, frozen=True):
    """One device as PyTorch reports it: its number, and what its properties say."""

    cuda: int
    name: str
    uuid: str = ""
    """As PyTorch gives it, without a prefix."""
    bus: str = ""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    capability: tuple[int, int] | None = None
    clock_khz: int | None = None
    memory_clock_khz: int | None = None
    bus_bits: int | None = None
    integrated: bool | None = None


class Lost(msgspec.Struct, frozen=True):
    """A card that the driver counts and that does not answer."""

    physical: int
    words: str


class Cards(msgspec.Struct, frozen=True):
    """What this process may use, and how sure that is.

    ``mine`` is in PyTorch's order. ``unknown`` are entries of the variable, or devices, that could not be matched with
    a card or have no UUID. ``others`` counts cards and slices that NVML shows and that are not known to be this job's:
    nothing else is said of them.
    """

    visible: Visible
    mine: tuple[Card, ...] = ()
    unknown: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    others: int = 0
    split_without_slice: tuple[Card, ...] = ()
    """Cards in MIG mode that were named as a whole, or that have no slice: CUDA cannot use them."""

    @property
    def another_order(self) -> bool:
        """Whether PyTorch numbers these cards in another order than NVML and nvidia-smi."""
        numbers = [card.physical for card in self.mine if card.physical is not None and not card.mig]
        return numbers != sorted(numbers)
