"""The card that a measurement runs on, by UUID."""

from __future__ import annotations

import os

import msgspec


class Card(msgspec.Struct, frozen=True):
    """One GPU as PyTorch sees it: name, UUID, memory in bytes, multiprocessors, and the driver's version."""

    name: str
    uuid: str
    memory_bytes: int
    multiprocessors: int
    driver: str = ""


def card(device: str = "cuda:0") -> Card | None:
    """The card behind a PyTorch device; None when there is none. Imports torch."""
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    seen = torch.cuda.get_device_properties(device)
    uuid = str(getattr(seen, "uuid", ""))
    return Card(seen.name, f"GPU-{uuid}" if uuid else "", seen.total_memory, seen.multi_processor_count, _driver())


def default_device() -> str:
    """The first card that PyTorch sees, else "cpu". Imports torch."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def there_is_one() -> bool:
    """Whether the driver shows this process a card; asks NVML, which needs no PyTorch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount() > 0
    except pynvml.NVMLError:
        return False


def _driver() -> str:
    """The driver's version from NVML; "" when NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else version
    except Exception:  # no library, no driver, a broken node: the measurement itself does not need it
        return ""
