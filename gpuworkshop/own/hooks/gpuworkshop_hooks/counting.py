"""The floating-point operations of one eager step, operator by operator: the last step of all."""

from __future__ import annotations

from typing import Any

from gpuworkshop_hooks import records


def allowed(planner: Any) -> bool:
    """Whether a step can be counted without changing what it does: not under a compiler, nor in shards."""
    if planner.compiled or planner.parallel in ("FSDP", "DataParallel"):
        records.note("flops", why="compiled" if planner.compiled else planner.parallel)
        return False
    try:
        import torch.utils.flop_counter  # noqa: F401
    except ImportError:
        records.note("flops", why="old")
        return False
    return True


class Count:
    """Counts between :meth:`begin` and :meth:`end`."""

    def __init__(self, torch: Any):
        self.torch = torch
        self.by_operator: dict[str, int] = {}
        self.by_format: dict[str, int] = {}
        self.uncounted: dict[str, int] = {}
        self.recomputed = 0

    def begin(self) -> None:
        """From here on every operator is seen."""
        self.counter = self._counter()
        self.counter.__enter__()
        self.looking = self._looking()
        self.looking.__enter__()

    def end(self) -> dict:
        """What was seen, as it is recorded. ``uncounted``: calls of operators that added nothing."""
        self.looking.__exit__(None, None, None)
        self.counter.__exit__(None, None, None)
        return {
            "total": int(self.counter.get_total_flops()) - self.recomputed,
            "recomputed": self.recomputed,
            "by_operator": self.by_operator,
            "by_format": self.by_format,
            "uncounted": self.uncounted,
        }

    def _counter(self) -> Any:
        from torch.utils import flop_counter

        known, registry = {}, getattr(flop_counter, "flop_registry", {})
        on_card = "_scaled_dot_product_flash_attention"
        for end in ("", "_backward"):  # the attention of a CPU, by the formulas of a card's
            packet = getattr(self.torch.ops.aten, f"{on_card}_for_cpu{end}", None)
            formula = registry.get(getattr(self.torch.ops.aten, on_card + end, None))
            if packet is not None and formula is not None:
                known[packet] = _as_it_is(formula)
        return flop_counter.FlopCounterMode(display=False, custom_mapping=known)

    def _looking(self) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode

        counted, note = self.counter, self._note

        class Looking(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
                before = counted.get_total_flops()
                out = func(*args, **(kwargs or {}))
                note(func, counted.get_total_flops() - before, out)
                return out

        return Looking()

    def _note(self, func: Any, added: int, out: Any) -> None:
        name = func.name().partition(".")[0] if hasattr(func, "name") else str(func)
        if not added:
            self.uncounted[name] = self.uncounted.get(name, 0) + 1
            return
        self.by_operator[name] = self.by_operator.get(name, 0) + added
        kind = next((str(one.dtype).rpartition(".")[2] for one in _several(out) if hasattr(one, "dtype")), "")
        self.by_format[kind] = self.by_format.get(kind, 0) + added
        if self.torch.is_grad_enabled() and self.torch._C._current_graph_task_id() != -1:
            self.recomputed += added  # a forward pass inside a backward pass: checkpointing


def _several(out: Any) -> Any:
    return out if isinstance(out, (tuple, list)) else (out,)


def _as_it_is(formula: Any) -> Any:
    def count(*args: Any, **kwargs: Any) -> int:
        return formula(*args, **kwargs)

    count._get_raw = True
    return count
