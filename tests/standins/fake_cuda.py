"""Stand-in for a machine with cards, over a PyTorch built for the CPU. For tests only: it answers, it computes nothing.

In a child process: put this folder first on PYTHONPATH and name the file: ``FAKE_CUDA=node.json``. Its
``sitecustomize.py`` then puts the stand-in in place when torch is imported, in that process and in its children.

In the test's own process::

    from standins import fake_cuda
    cuda = fake_cuda.install({"devices": [{"name": "NVIDIA H200", "uuid": "…"}]}, monkeypatch)
    cuda.calls["is_available"]      # how often each was asked
    cuda.initialized                # whether something woke CUDA; asking only for facts of a build does not
    cuda.spec["devices"] = []       # answers may be changed in mid-run

Keys, all optional
    devices         [{"name", "total", "free", "major", "minor", "uuid" (without GPU-), "sm", "bus_id", "integrated",
                    "clock_khz", "memory_clock_khz", "bus_bits", "allocated", "reserved"}]. One without "uuid" or
                    "bus_id" lacks the attribute, as properties of an older PyTorch do
    available, count    answers of is_available() and device_count(); else what "devices" says
    initialized     true: CUDA was woken before (a variable that is changed now has no effect)
    built_cuda, built_hip, version, arch_list    what the build says of itself; built_cuda null: no CUDA in it
    driver_cuda     12040: the level that the driver serves, as torch._C says it
    bf16            answer of is_bf16_supported(); else from "major" on, and emulated where that is asked for
    mps             true: an Apple GPU is there
    warn            text of a warning at the first is_available() or device_count()
    hang            {"is_available"|"device_count"|"init"|"use": seconds}; hang_s: short for the first
    alloc_error     {"type": "RuntimeError"|"AcceleratorError"|"OutOfMemoryError", "text"}: what using a card raises
    properties_error    the same, from get_device_properties
    import_error    text: importing torch raises ImportError with it (child process only)
    wrong           a number that is added to what comes back from a card: a card that computes wrongly
    max_elements    a larger tensor on a card raises OutOfMemoryError
    step            seconds that using a card takes
Tensors on "cuda" lie on the CPU and say so. What runs in another thread than the one that called install is not caught.
"""

from __future__ import annotations

import json
import os
import time
import types
import warnings
from collections import Counter


class Cuda:
    """The state of one stand-in."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.calls: Counter[str] = Counter()
        self.initialized = bool(spec.get("initialized"))
        self._warned = False

    @property
    def devices(self) -> list[dict]:
        """The cards that PyTorch sees."""
        return self.spec.get("devices", [])

    def hang(self, what: str) -> None:
        """As long as the node says that this step hangs."""
        seconds = self.spec.get("hang", {}).get(what, self.spec.get("hang_s", 0) if what == "is_available" else 0)
        if seconds:
            time.sleep(seconds)

    def asked(self, what: str) -> None:
        """Count a question, warn once, hang where the node hangs."""
        self.calls[what] += 1
        if self.spec.get("warn") and not self._warned and what in ("is_available", "device_count"):
            self._warned = True
            warnings.warn(self.spec["warn"], stacklevel=3)
        self.hang(what)

    def index(self, device: object = None) -> int:
        """The number of a device however it is written; raises as CUDA does for one that is not there."""
        import torch

        if isinstance(device, str | torch.device):
            device = torch.device(device).index
        number = device or 0
        if not 0 <= number < len(self.devices):
            raise RuntimeError("CUDA error: invalid device ordinal")
        return number

    def wake(self) -> None:
        """What starts CUDA."""
        if not self.initialized:
            if "built_cuda" in self.spec and not (self.spec["built_cuda"] or self.spec.get("built_hip")):
                raise AssertionError("Torch not compiled with CUDA enabled")
            self.hang("init")
        self.initialized = True

    def use(self) -> None:
        """What happens when a card is used."""
        self.calls["use"] += 1
        self.wake()
        self.hang("use")
        time.sleep(self.spec.get("step", 0))
        self.fail("alloc_error")

    def fail(self, key: str) -> None:
        """Raise the error that the node has under this key, if it has one."""
        import torch

        error = self.spec.get(key)
        if error:
            kinds = {"AcceleratorError": getattr(torch, "AcceleratorError", RuntimeError)}
            kinds["OutOfMemoryError"] = torch.OutOfMemoryError
            raise kinds.get(error.get("type"), RuntimeError)(error["text"])

    def properties(self, device: object = None) -> types.SimpleNamespace:
        """What get_device_properties answers."""
        self.calls["properties"] += 1
        self.wake()
        self.fail("properties_error")
        card = self.devices[self.index(device)]
        optional = {
            "uuid": "uuid", "clock_rate": "clock_khz", "memory_clock_rate": "memory_clock_khz",
            "memory_bus_width": "bus_bits",
        }  # fmt: skip
        facts = {name: card[key] for name, key in optional.items() if key in card}
        if "bus_id" in card:
            domain, bus, slot = card["bus_id"].split(":")
            facts |= {"pci_domain_id": int(domain, 16), "pci_bus_id": int(bus, 16)}
            facts["pci_device_id"] = int(slot.split(".")[0], 16)
        return types.SimpleNamespace(
            name=card.get("name", "NVIDIA Test GPU"), total_memory=card.get("total", 0), major=card.get("major", 8),
            minor=card.get("minor", 0), multi_processor_count=card.get("sm", 108),
            is_integrated=int(card.get("integrated", 0)), **facts,
        )  # fmt: skip

    def memory(self, device: object = None) -> tuple[int, int]:
        """What mem_get_info answers: free and in all."""
        self.use()
        card = self.devices[self.index(device)]
        return card.get("free", card.get("total", 0)), card.get("total", 0)


class Event:
    """A CUDA event on the host's clock."""

    def __init__(self, enable_timing: bool = False, **ignored: object) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1000


def install(spec: dict, monkeypatch=None) -> Cuda:
    """Put the stand-in over ``torch.cuda``, until ``monkeypatch`` undoes it."""
    import torch

    cuda = Cuda(spec)
    for owner, name, value in _replacements(torch, cuda):
        if monkeypatch:
            monkeypatch.setattr(owner, name, value, raising=False)
        else:
            setattr(owner, name, value)
    if monkeypatch:
        monkeypatch.setattr(_slot, "mode", _redirect(cuda))
    else:
        _slot.mode = _redirect(cuda)
    return cuda


def before_import() -> None:
    """What the environment's file says about importing torch itself."""
    spec = _environment()
    if "import_error" in spec:
        raise ImportError(spec["import_error"])


def from_environment() -> None:
    """Install what FAKE_CUDA names."""
    install(_environment())


def _environment() -> dict:
    with open(os.environ["FAKE_CUDA"], encoding="utf-8") as file:
        return json.load(file)


def _replacements(torch, cuda: Cuda) -> list[tuple[object, str, object]]:
    """What of torch is replaced: owner, name, and the stand-in."""
    spec = cuda.spec

    def is_available() -> bool:
        cuda.asked("is_available")
        return bool(spec.get("available", bool(cuda.devices)))

    def device_count() -> int:
        cuda.asked("device_count")
        return spec.get("count", len(cuda.devices))

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        if not cuda.devices:
            return False
        return bool(spec.get("bf16", cuda.properties(0).major >= 8 or including_emulation))

    def bytes_of(key: str):
        return lambda device=None: cuda.devices[cuda.index(device)].get(key, 0)

    answers = {
        "is_available": is_available,
        "device_count": device_count,
        "is_initialized": lambda: cuda.initialized,
        "init": cuda.wake,
        "get_device_properties": cuda.properties,
        "get_device_name": lambda device=None: cuda.properties(device).name,
        "get_device_capability": lambda device=None: (cuda.properties(device).major, cuda.properties(device).minor),
        "get_arch_list": lambda: list(spec.get("arch_list", [])),
        "mem_get_info": cuda.memory,
        "is_bf16_supported": is_bf16_supported,
        "current_device": lambda: cuda.index(0),
        "set_device": cuda.index,
        "synchronize": lambda device=None: cuda.use(),
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device=None: None,
        "Event": Event,
        "_is_compiled": lambda: bool(spec.get("built_cuda") or spec.get("built_hip")),
    }
    for name in ("allocated", "reserved"):
        answers[f"memory_{name}"] = answers[f"max_memory_{name}"] = bytes_of(name)
    found = [(torch.cuda, name, value) for name, value in answers.items()]
    found += [(torch.version, name, spec[f"built_{name}"]) for name in ("cuda", "hip") if f"built_{name}" in spec]
    if "version" in spec:
        found.append((torch, "__version__", spec["version"]))
    if "driver_cuda" in spec:
        found.append((torch._C, "_cuda_getDriverVersion", lambda: spec["driver_cuda"]))
    if "mps" in spec:
        found.append((torch.backends.mps, "is_available", lambda: bool(spec["mps"])))
    return found


def _is_card(argument: object) -> bool:
    kind = getattr(argument, "type", argument)
    return isinstance(kind, str) and kind.split(":")[0] == "cuda"


def _redirect(cuda: Cuda):
    """The mode under which tensors for a card are made on the CPU, and every use of a card is seen."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function, kinds, arguments=(), named=None):
            named = dict(named or {})
            name = getattr(function, "__name__", "")
            here = name == "cuda" or _is_card(named.get("device")) or name == "to" and any(map(_is_card, arguments[1:]))
            if not here:
                result = function(*arguments, **named)
                return result + cuda.spec["wrong"] if name == "cpu" and "wrong" in cuda.spec else result
            cuda.use()
            if name == "cuda":
                return arguments[0]
            if "device" in named:
                named["device"] = "cpu"
            result = function(*(torch.device("cpu") if _is_card(one) else one for one in arguments), **named)
            most = cuda.spec.get("max_elements")
            if most and isinstance(result, torch.Tensor) and result.numel() > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than this card has.")
            return result

    return OnTheCpu()


class _Slot:
    """Holds the mode that is on; another value put here ends it."""

    _mode = None

    @property
    def mode(self):
        """The mode that is on, or None."""
        return self._mode

    @mode.setter
    def mode(self, mode) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        self._mode = mode
        if mode is not None:
            mode.__enter__()


_slot = _Slot()
