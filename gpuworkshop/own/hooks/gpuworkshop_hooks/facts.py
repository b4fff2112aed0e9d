"""What the running program has: device, number formats, layout, wrappers and world, asked once between two steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpuworkshop_hooks import places

_DRIVERS = (("transformers", "Trainer"), ("lightning", "Lightning"), ("pytorch_lightning", "Lightning"))
_PARALLEL = {"DistributedDataParallel": "DDP", "FullyShardedDataParallel": "FSDP", "DataParallel": "DataParallel"}


def asked(ask: Callable[[], Any], otherwise: Any) -> Any:
    """What ``ask()`` says; ``otherwise`` where this version of PyTorch does not know the answer."""
    try:
        return ask()
    except Exception:  # older ones raise AttributeError, AssertionError or RuntimeError, each where it likes
        return otherwise


def machine(torch: Any, device: str) -> dict:
    """The process as a place to measure in: threads, and the card where it trains on one."""
    found: dict[str, Any] = {"device": device, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    if device.startswith("cuda"):
        says = torch.cuda.get_device_properties(device)
        for name in ("name", "total_memory", "multi_processor_count", "major", "minor", "clock_rate"):
            found[name] = getattr(says, name, None)
        for name in ("memory_clock_rate", "memory_bus_width"):
            found[name] = getattr(says, name, None)
        found["uuid"] = str(getattr(says, "uuid", "") or "")
    return found


def weights(optimizers: list[Any]) -> list[Any]:
    """All tensors that some optimizers update, each once."""
    found: dict[int, Any] = {}
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            found.update((id(one), one) for one in group["params"])
    return list(found.values())


def device_of(tensors: list[Any]) -> str:
    """Where most of the numbers lie: "cuda:0", "cpu"; "" without any."""
    return _most((str(one.device), one.nelement()) for one in tensors)


def kind_of(tensors: list[Any]) -> str:
    """The type of most of the numbers: "float32"."""
    return _most((str(one.dtype).rpartition(".")[2], one.nelement()) for one in tensors)


def _most(pairs: Any) -> str:
    counts: dict[str, int] = {}
    for name, count in pairs:
        counts[name] = counts.get(name, 0) + count
    return max(counts, key=lambda name: counts[name]) if counts else ""


def tf32(torch: Any, tensors: list[Any]) -> bool:
    """Whether FP32 products of this model use TF32: by the switch of convolutions where they hold most weights."""
    filters = sum(one.nelement() for one in tensors if one.dim() >= 4)
    if filters > sum(one.nelement() for one in tensors) / 2:
        return bool(_switch(torch.backends.cudnn, "conv", "allow_tf32"))
    return bool(_switch(torch.backends.cuda.matmul, "", "allow_tf32"))


def _switch(owner: Any, part: str, older: str) -> bool:
    """The newer switch where it was set, else the older: mixing both makes PyTorch complain."""
    newer = asked(lambda: (getattr(owner, part) if part else owner).fp32_precision, "none")
    if newer in ("tf32", "ieee"):
        return newer == "tf32"
    return asked(lambda: bool(getattr(owner, older)), False)


def channels_last(torch: Any, tensors: list[Any]) -> bool | None:
    """Whether the filters lie channels last; None where no layout can be told apart."""
    telling = [one for one in tensors if one.dim() == 4 and one.shape[1] > 1 and one.shape[2] * one.shape[3] > 1]
    if not telling:
        return None
    last = sum(one.is_contiguous(memory_format=torch.channels_last) for one in telling)
    return last > len(telling) / 2


def parallel(model: Any) -> str:
    """ "DDP", "FSDP", "DataParallel" or "" for a model that is in none."""
    if model is None:
        return ""
    for module in model.modules():
        names = [kind.__name__ for kind in type(module).__mro__]
        for name, short in _PARALLEL.items():
            if name in names:
                return short
        if "FSDPModule" in names:
            return "FSDP"
    return ""


def compiled(model: Any) -> bool:
    """Whether a compiler has the model, or part of it."""
    if model is None:
        return False
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def world(torch: Any) -> tuple[int, int]:
    """This process's rank and how many there are; (0, 1) without a process group."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def framework() -> str:
    """Who drives the steps, by the packages on the stack."""
    names = places.packages()
    return next((title for name, title in _DRIVERS if name in names), "accelerate" if "accelerate" in names else "")


def model_class(model: Any) -> str:
    """The class of a model inside of what wraps it."""
    for _ in range(4):
        inner = getattr(model, "_orig_mod", None) or (getattr(model, "module", None) if parallel_class(model) else None)
        if inner is None:
            break
        model = inner
    return "" if model is None else type(model).__name__


def parallel_class(module: Any) -> bool:
    """Whether a module only wraps another one."""
    return type(module).__name__ in _PARALLEL


def optimizer(one: Any, place: dict | None, steps: int) -> dict:
    """An optimizer as it is recorded."""
    defaults = getattr(one, "defaults", {})
    return {
        "place": place,
        "kind": type(one).__name__,
        "steps": steps,
        "fused": defaults.get("fused"),
        "foreach": defaults.get("foreach"),
        "weights": sum(weight.nelement() for weight in weights([one])),
    }


def visible() -> str | None:
    """CUDA_VISIBLE_DEVICES as it is now."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")
