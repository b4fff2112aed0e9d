"""One step under PyTorch's flop counter, operator by operator: for the measuring process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from gpuworkshop.instruments.flops import OPERATORS, Flops
from gpuworkshop.timing import Clock


class _Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    multiply: tuple[str, ...]
    harmless: tuple[str, ...]


@cache
def _operators() -> _Operators:
    return msgspec.toml.decode(OPERATORS.read_bytes(), type=_Operators)


def counter() -> flop_counter.FlopCounterMode:
    """PyTorch's counter, which also knows the attention that a CPU uses: by the formulas of a card's."""
    aten, on_card = torch.ops.aten, "_scaled_dot_product_flash_attention"
    known = {
        getattr(aten, f"{on_card}_for_cpu{end}"): _as_it_is(flop_counter.flop_registry[getattr(aten, on_card + end)])
        for end in ("", "_backward")
    }
    return flop_counter.FlopCounterMode(display=False, custom_mapping=known)


def _as_it_is(formula: Callable[..., int]) -> Callable[..., int]:
    """A formula of PyTorch's own registry, marked so that it is not wrapped a second time."""

    def count(*args: Any, **kwargs: Any) -> int:
        return formula(*args, **kwargs)

    count._get_raw = True
    return count


class Looking(TorchDispatchMode):
    """Sees every operator of a step inside a counter: what it added, its time, its type, and whether it is a repeat."""

    supports_higher_order_operators = True

    def __init__(self, counted: flop_counter.FlopCounterMode, clock: Clock):
        super().__init__()
        self._counted, self._clock = counted, clock
        self._by_operator: Counter[str] = Counter()
        self._by_format: Counter[str] = Counter()
        self._recomputed = 0
        self._spans: list[tuple[str, object, object]] = []
        """Of operators that multiply: the name where it was not counted, else "", and the two marks."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        before, start = self._counted.get_total_flops(), self._clock.mark()
        out = func(*args, **(kwargs or {}))
        self._note(func, self._counted.get_total_flops() - before, out, start)
        return out

    def _note(self, func: Any, added: int, out: Any, start: object) -> None:
        name = operator_name(func)
        if not added and not multiplies(name):
            return
        self._spans.append(("" if added else name, start, self._clock.mark()))
        self._by_operator[name] += added
        self._by_format[result_format(out)] += added
        self._recomputed += added if again() else 0

    def flops(self, samples: int) -> Flops:
        """What was seen; valid once the clock has finished."""
        spent: Counter[str] = Counter()
        for name, start, end in self._spans:
            spent[name] += self._clock.seconds(start, end)
        unknown = sorted((name for name in spent if name), key=spent.__getitem__, reverse=True)
        everything = sum(spent.values())
        return Flops(
            total=sum(self._by_operator.values()) - self._recomputed,
            samples=samples,
            recomputed=self._recomputed,
            by_operator={name: flop for name, flop in self._by_operator.most_common() if flop},
            by_format={name: flop for name, flop in self._by_format.most_common() if flop},
            uncounted=tuple(unknown),
            uncounted_share=sum(spent[name] for name in unknown) / everything if everything else 0.0,
        )


def operator_name(func: Any) -> str:
    """Family and name without the overload: "aten::mm"."""
    name = func.name() if callable(getattr(func, "name", None)) else str(func)
    family, _, rest = name.partition("::")
    return f"{family}::{rest.partition('.')[0]}" if rest else f"{getattr(func, 'namespace', 'unknown')}::{family}"


def multiplies(name: str) -> bool:
    """Whether an operator that nobody counted may do products; one of an unknown family may."""
    family, _, short = name.partition("::")
    known = _operators()
    if family != "aten":
        return family not in known.harmless
    return any(short == one or (one.endswith("*") and short.startswith(one[:-1])) for one in known.multiply)


def result_format(out: Any) -> str:
    """The type of an operator's first result that has one: "float32", "bfloat16"; "" if none has."""
    for one in out if isinstance(out, tuple | list) else (out,):
        if isinstance(one, torch.Tensor):
            return str(one.dtype).removeprefix("torch.")
    return ""


def again() -> bool:
    """Whether PyTorch is in a forward pass inside a backward pass: checkpointing computes activations once more."""
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1
