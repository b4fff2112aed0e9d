"""What a card can do at most: dense peaks, memory and bandwidth, and what the card reports when they hold.

The figures and their sources are data (``specs.toml``). A card is known by its name; what it reports about itself is
held against the table by ``disagreements``. Nothing here asks a driver or imports torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

GIB = 2**30
TOLERANCE = 0.10
"""How far a computed peak may be from the table: NVIDIA's own figures hold at clocks that differ by 8%."""


class Peaks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dense peaks in TFLOP/s, with FP32 accumulate; None where the card has no such unit. ``fp16`` is always there."""

    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float
    fp8: float | None


class Sources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who says so, in words, for each group of figures; ``hardware``: SMs, clocks and bus."""

    peaks: tuple[str, ...]
    bandwidth: tuple[str, ...]
    memory: tuple[str, ...]
    power: tuple[str, ...]
    hardware: tuple[str, ...]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One card: what it can do at most, how it reports itself, who says so, and what was derived and how."""

    id: str
    title: str
    names: tuple[str, ...]
    """As the driver prints them, without "NVIDIA " or "Tesla "."""
    peaks: Peaks
    bandwidth: float
    """Of the memory, GB/s."""
    memory: tuple[float, float]
    """GiB, the smallest and the largest total that CUDA or NVML report."""
    power: float
    """Board power limit as delivered, W."""
    multiprocessors: int
    clock: float
    """MHz, the rated boost clock as CUDA reports it; NVML's maximum clock may be far above."""
    flop_per_clock: int
    """Dense 16-bit FLOP per SM and clock."""
    bus: int
    """Bits."""
    memory_clock: tuple[float, float]
    """MHz, the range in which CUDA and NVML report it."""
    sources: Sources
    peak_clock: float | None = None
    """MHz, the clock at which the 16-bit peak holds; None: ``clock``."""
    derived: dict[str, str] = {}
    """Figures that nobody prints, or prints only rounded, and how they were made."""
    note: str = ""


@cache
def known() -> tuple[Spec, ...]:
    """All cards of the table."""
    raw = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    return tuple(msgspec.convert(_resolved(card, raw["documents"]), Spec) for card in raw["card"])


def _resolved(card: dict[str, Any], documents: dict[str, str]) -> dict[str, Any]:
    """One card of the file: None for "none", the documents' words for their ids; KeyError for an unknown document."""
    peaks = {name: None if value == "none" else value for name, value in card["peaks"].items()}
    sources = {group: [documents[key] for key in keys] for group, keys in card["sources"].items()}
    return card | {"peaks": peaks, "sources": sources}


def find(
    name: str,
    *,
    memory_bytes: int | None = None,
    multiprocessors: int | None = None,
    clock_khz: int | None = None,
    memory_clock_khz: int | None = None,
    power_limit: float | None = None,
) -> Spec | None:
    """The card with this name as the driver prints it; None when it is not in the table or could be several.

    The whole name must fit, with or without "NVIDIA ": an L40S is no L4 and a GH200 no H200. A MIG slice ("NVIDIA
    A100-SXM4-40GB MIG 1g.5gb") and a virtual GPU ("GRID A100-10C") are None: a slice does not reach its card's peak,
    and a peak scaled down to it would be nobody's figure.

    The other facts only choose between cards that share a name ("RTX PRO 6000"). They are what CUDA reports;
    ``power_limit`` is the default limit in W, since the present one may have been lowered. A fact that is None or 0
    is not known.
    """
    named = [spec for spec in known() if _plain(name) in map(_plain, spec.names)]
    if len(named) > 1:
        facts = (memory_bytes, multiprocessors, clock_khz, memory_clock_khz, power_limit)
        named = [spec for spec in named if _fits(spec, *facts)]
    return named[0] if len(named) == 1 else None


def _plain(name: str) -> str:
    return " ".join(name.lower().split()).removeprefix("nvidia ").removeprefix("tesla ")


def _fits(
    spec: Spec,
    memory_bytes: int | None,
    multiprocessors: int | None,
    clock_khz: int | None,
    memory_clock_khz: int | None,
    power_limit: float | None,
) -> bool:
    """Whether no known fact speaks against this card. Cards of one name differ by 6% in clock at least."""
    return (
        (not memory_bytes or _within(memory_bytes / GIB, spec.memory))
        and (not multiprocessors or multiprocessors == spec.multiprocessors)
        and (not clock_khz or abs(clock_khz / 1e3 / spec.clock - 1) <= 0.03)
        and (not memory_clock_khz or _within(memory_clock_khz / 1e3, spec.memory_clock))
        and (not power_limit or abs(power_limit / spec.power - 1) <= 0.1)
    )


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def computed_peak(spec: Spec, multiprocessors: int, clock_khz: float) -> float:
    """The 16-bit peak in TFLOP/s of a card of this kind with so many SMs and this rated clock."""
    share = (spec.peak_clock or spec.clock) / spec.clock
    return multiprocessors * clock_khz * 1e3 * share * spec.flop_per_clock / 1e12


def computed_bandwidth(bus_bits: int, memory_clock_khz: float) -> float:
    """The memory bandwidth in GB/s: two transfers per clock over the whole bus."""
    return bus_bits / 8 * memory_clock_khz * 1e3 * 2 / 1e9


def disagreements(
    spec: Spec,
    *,
    multiprocessors: int | None = None,
    clock_khz: int | None = None,
    memory_clock_khz: int | None = None,
    bus_bits: int | None = None,
    memory_bytes: int | None = None,
) -> tuple[str, ...]:
    """Where the live card contradicts its spec, one line each: computed peaks over 10% away, memory out of its range.

    The facts are what CUDA reports (PyTorch: ``multi_processor_count``, ``clock_rate``, ``memory_clock_rate``,
    ``memory_bus_width``, ``total_memory``). A check of which a fact is None or 0 is left out.
    """
    found = []
    if multiprocessors and clock_khz:
        facts = f"{multiprocessors} SMs at {clock_khz / 1e3:.0f} MHz"
        found += _off("16-bit peak", facts, computed_peak(spec, multiprocessors, clock_khz), spec.peaks.fp16, "TFLOP/s")
    if bus_bits and memory_clock_khz:
        facts = f"{bus_bits} bits at {memory_clock_khz / 1e3:.0f} MHz"
        found += _off("bandwidth", facts, computed_bandwidth(bus_bits, memory_clock_khz), spec.bandwidth, "GB/s")
    if memory_bytes and not _within(memory_bytes / GIB, spec.memory):
        low, high = spec.memory
        found.append(f"memory: {memory_bytes / GIB:.1f} GiB, and {spec.title} reports {low:g} to {high:g} GiB")
    return tuple(found)


def _off(what: str, facts: str, computed: float, stated: float, unit: str) -> list[str]:
    """One line when the computed figure is too far from the stated one, else nothing."""
    share = computed / stated - 1
    if abs(share) <= TOLERANCE:
        return []
    side = "above" if share > 0 else "below"
    return [f"{what}: {facts} make {computed:.0f} {unit}, {abs(share):.0%} {side} the table's {stated:g}"]
