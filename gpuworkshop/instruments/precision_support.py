"""Which number formats a device has units for: by the table of cards and its compute capability, not by emulation."""

from __future__ import annotations

from pathlib import Path

from gpuworkshop.instruments.flops import Format
from gpuworkshop.instruments.precision_result import Support

SINCE: dict[Format, tuple[int, int]] = {"bf16": (8, 0), "tf32": (8, 0), "fp16": (7, 0)}
"""Compute capability of the first NVIDIA cards whose tensor units multiply a format."""

CPU_FLAGS = {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}
"""Flags in /proc/cpuinfo of processors that multiply BF16: x86, and ARM's own."""


def support(device: str) -> Support:
    """What the device here has. Imports torch."""
    from gpuworkshop.machine import gpus

    if not device.startswith("cuda"):
        return of_cpu()
    import torch

    card = gpus.card(device)
    seen = next((one for one in gpus.seen_by_torch() if card and one.cuda == card.cuda), None)
    name = card.name if card else device
    if torch.version.hip:
        return Support(name, True, said_by="compute capability says nothing on an AMD card")
    return of_card(name, seen.capability if seen else None, says_pytorch(torch))


def of_card(name: str, capability: tuple[int, int] | None, pytorch_says: bool | None = None) -> Support:
    """What a card of this compute capability has."""
    if capability is None:
        return Support(name, True, said_by="the compute capability is not known", pytorch_says=pytorch_says)
    has = {format: capability >= since for format, since in SINCE.items()}
    return Support(
        name, True, **has, capability=capability, pytorch_says=pytorch_says,
        said_by=f"compute capability {capability[0]}.{capability[1]}",
    )  # fmt: skip


def of_cpu(info: Path = Path("/proc/cpuinfo")) -> Support:
    """What the processor has; it multiplies no TF32. BF16 is None where the system does not tell."""
    from gpuworkshop.machine.conditions import processor

    try:
        lines = info.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    told = next((line for line in lines if line.partition(":")[0].strip() in ("flags", "Features")), None)
    if told is None:
        return Support(processor(), False, tf32=False, said_by="this system does not list what its processor has")
    found = sorted(CPU_FLAGS & set(told.partition(":")[2].split()))
    says = f"the processor lists {', '.join(found)}" if found else "the processor lists no BF16 instructions"
    return Support(processor(), False, bf16=bool(found), tf32=False, said_by=says)


def says_pytorch(torch) -> bool | None:
    """PyTorch's own answer about BF16, which is also yes where it is emulated; None where it gives none."""
    try:
        return bool(torch.cuda.is_bf16_supported())
    except Exception:  # a lost card, an old build: its answer decides nothing
        return None
