"""What the card here can do at most: its entry in the table, and whether the card itself agrees with it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuworkshop.machine import specs
from gpuworkshop.machine.device import Card, Seen
from gpuworkshop.machine.nvml import Nvml
from gpuworkshop.machine.specs import Spec

_VGPU = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
Why = Literal["", "MIG slice", "virtual GPU", "not in the table"]


class Rated(msgspec.Struct, frozen=True):
    """The entry, or ``why`` there is none; and each way in which the card contradicts the entry, in words."""

    spec: Spec | None
    why: Why = ""
    disagreements: tuple[str, ...] = ()

    @property
    def peak(self) -> Spec | None:
        """The entry where the card does not contradict it: only then may a share of its peak be told."""
        return None if self.disagreements else self.spec


def rated(nvml: Nvml, card: Card, seen: Seen | None = None) -> Rated:
    """Look a card up and hold it to its entry. ``seen`` is what PyTorch reports of it; without it less is checked.

    A MIG slice, a virtual GPU and an unknown card have no peak: never another card's, and none scaled down.
    """
    if card.mig:
        return Rated(None, "MIG slice")
    if card.virtual or nvml.ask("nvmlDeviceGetVirtualizationMode", nvml.handle(card.uuid)) == _VGPU:
        return Rated(None, "virtual GPU")
    facts = {
        "memory_bytes": card.memory_bytes,
        "multiprocessors": seen.multiprocessors if seen else card.multiprocessors,
        "clock_khz": seen.clock_khz if seen else None,
        "memory_clock_khz": seen.memory_clock_khz if seen else None,
    }
    spec = specs.find(card.name, **facts, power_limit=_default_power_limit(nvml, card))
    if spec is None:
        return Rated(None, "not in the table")
    return Rated(spec, "", specs.disagreements(spec, **facts, bus_bits=seen.bus_bits if seen else None))


def _default_power_limit(nvml: Nvml, card: Card) -> float | None:
    """Watts as delivered; the present limit may have been lowered."""
    milliwatts = nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", nvml.handle(card.uuid))
    return milliwatts / 1000 if milliwatts else None
