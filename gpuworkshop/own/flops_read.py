"""FLOP/s of somebody's own script: what was counted in one of its steps, a product on its device, its card's peak."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuworkshop.instruments.flops import FLOP_RATE, OPERATORS, Achieved, Flops, Format, Peak, achieved
from gpuworkshop.machine import rated
from gpuworkshop.machine.device import Card, Seen
from gpuworkshop.machine.nvml import in_time
from gpuworkshop.own.records import Process
from gpuworkshop.timing import Block, Rate, Rounds

FORMATS: dict[str, Format] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class _Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    multiply: tuple[str, ...]
    harmless: tuple[str, ...]


def achieved_by(main: Process, rate: Rate | None) -> Achieved | None:
    """What a run achieved; None where no step was counted. Without sizes of batches a step is the sample."""
    said = main.one("flops")
    samples = said.get("samples") if rate and rate.unit == "samples/s" else 1
    if not said or rate is None or not samples:
        return None
    names = _uncounted(said["uncounted"])
    counted = Flops(
        total=said["total"],
        samples=samples,
        recomputed=said["recomputed"],
        by_operator=said["by_operator"],
        by_format=said["by_format"],
        uncounted=names,
        uncounted_share=1.0 if names else 0.0,  # nobody knows how much of the time
    )
    return achieved(counted, rate, product(main), peak(main.one("settings"), main.one("product")))


def _uncounted(calls: dict[str, int]) -> tuple[str, ...]:
    """Operators that multiply, and added nothing."""
    known = msgspec.toml.decode(OPERATORS.read_bytes(), type=_Operators)
    return tuple(name for name in calls if _multiplies(name, known))


def _multiplies(name: str, known: _Operators) -> bool:
    family, _, short = name.partition("::")
    if family != "aten":
        return family not in known.harmless
    return any(short == one or (one.endswith("*") and short.startswith(one[:-1])) for one in known.multiply)


def product(main: Process) -> Rate | None:
    """The measured matrix product in the script's format."""
    said = main.one("product")
    if not said:
        return None
    rounds = Rounds(["product"], FLOP_RATE)
    done = said["products"] * said["flop"]
    rounds.blocks["product"] = [Block(seconds, said["products"], done, {}) for seconds in said["seconds"]]
    return rounds.rate("product")


def peak(said: dict[str, Any], measured: dict[str, Any]) -> Peak:
    """The published peak of the script's card in its format, as the table has it."""
    if not str(said.get("device", "")).startswith("cuda"):
        return Peak(None, "a CPU has no published peak here")
    kind = FORMATS.get(said["autocast"] or said["weights_kind"])
    if kind is None:
        return Peak(None, f"no peak is known for {said['weights_kind']}")
    card, seen = cards(said)
    with in_time() as nvml:
        found = rated.rated(nvml, card, seen)
    if found.peak is None:
        return Peak(None, found.why or f"this card contradicts its entry: {found.disagreements[0]}")
    form = "tf32" if kind == "fp32" and said["tf32"] else kind
    most = getattr(found.peak.peaks, form)
    return Peak(most * 1e12 if most else None, found.peak.title if most else f"{found.peak.title}: no {form.upper()}")


def cards(said: dict[str, Any]) -> tuple[Card, Seen]:
    """The card that a script trains on, as its own PyTorch reports it."""
    uuid = str(said.get("uuid") or "")
    uuid = uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    name, memory = str(said.get("name") or "a card"), said.get("total_memory")
    capability = (said["major"], said["minor"]) if said.get("major") is not None else None
    processors = said.get("multi_processor_count")
    card = Card(name, uuid, memory_bytes=memory, multiprocessors=processors, mig=uuid.startswith("MIG-"))
    seen = Seen(
        cuda=int(str(said["device"]).partition(":")[2] or 0),
        name=name,
        uuid=uuid,
        memory_bytes=memory,
        multiprocessors=processors,
        capability=capability,
        clock_khz=said.get("clock_rate"),
        memory_clock_khz=said.get("memory_clock_rate"),
        bus_bits=said.get("memory_bus_width"),
    )
    return card, seen
