"""What a program is seen to use in its first steps: calls and their places. Taken off before anything is timed."""

from __future__ import annotations

import functools
import sys
from typing import Any

from gpuworkshop_hooks import patches, places, records
from gpuworkshop_hooks.session import BY_HAND

WAITS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__repr__", "__format__")
"""Methods of a tensor at which the host waits for its device."""
_WORDS = {"__bool__": "bool", "__float__": "float", "__int__": "int", "__repr__": "print", "__format__": "print"}
LOSSES, TOLD = 2000, 200
"""Losses that are noted at most, and about how many of them are told."""


class Notes:
    """Places and settings; the wait list counts only between :meth:`watch_waits` and :meth:`end`."""

    def __init__(self, session: Any):
        self.session, self.torch = session, session.torch
        self.model: Any = None
        self.model_place = self.backward_place = self.step_place = self.autocast_place = None
        self.autocast = ""
        self.saved = self.scaler = self.checkpointing = self.compiled = self.devices_set = False
        self.framework = ""
        self.waits: dict[tuple, int] = {}
        self.backwards = 0
        self.losses: list[tuple[int, Any]] = []
        self._unscaled: Any = None
        self._inside, self._wants_losses = False, True
        self.loss_device = ""

    def begin(self) -> None:
        """Put on what is needed until the model, its precision and its places are known."""
        torch = self.torch
        patches.put_on(torch.nn.Module, "__call__", self._module_call)
        patches.put_on(torch.Tensor, "backward", self._backward)
        patches.put_on(torch.autocast, "__enter__", self._autocast)
        patches.put_on(torch, "compile", self._flag("compiled"))
        self._note_saves()
        patches.put_on(torch.cuda, "set_device", self._own_flag("devices_set"))
        try:
            from torch.utils import checkpoint
        except ImportError:
            return
        hook, function = getattr(checkpoint, "_checkpoint_hook", None), getattr(checkpoint, "CheckpointFunction", None)
        if hook is not None:
            patches.put_on(hook, "__init__", self._flag("checkpointing"))
        if function is not None:
            patches.put_on(function, "apply", self._flag("checkpointing"))

    def _note_saves(self) -> None:
        """A file that is written is between two steps, not part of one; where it is written is told."""
        original, session = self.torch.save, self.session

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if not session.off:
                session.interrupted(None, None)
                if not self.saved:
                    self.saved = True
                    file = args[1] if len(args) > 1 else kwargs.get("f")
                    records.note("saved", file=str(file)[:300], place=places.here(sys._getframe(1)))
            return original(*args, **kwargs)

        self.torch.save = save

    def watch_waits(self) -> None:
        """Count the calls at which the host waits, line by line."""
        self.waits = {}
        for name in WAITS:
            patches.put_on(self.torch.Tensor, name, functools.partial(self._wait, _WORDS.get(name, name)))
        for name in ("synchronize", "empty_cache"):
            patches.put_on(self.torch.cuda, name, functools.partial(self._wait, name))

    def end(self) -> None:
        """Take everything off but the loss at backward."""
        patches.take_off()
        patches.put_on(self.torch.Tensor, "backward", self._loss_only)

    def end_losses(self) -> None:
        """No loss is noted any more."""
        self._wants_losses = False
        if not self.session.by_backward:
            patches.take_off(self.torch.Tensor, "backward")

    # What is put on

    def _flag(self, name: str) -> Any:
        def made(original: Any) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                setattr(self, name, True)
                return original(*args, **kwargs)

            return call

        return made

    def _own_flag(self, name: str) -> Any:
        def made(original: Any) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                if places.is_own(sys._getframe(1).f_code.co_filename):
                    setattr(self, name, True)
                return original(*args, **kwargs)

            return call

        return made

    def _module_call(self, original: Any) -> Any:
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_the_model(module):  # given back first: a compiler must see the class as it is
                patches.take_off(self.torch.nn.Module, "__call__")
                self.session.model = self.model = module
                self.model_place = places.here(sys._getframe(1))
            return original(module, *args, **kwargs)

        return __call__

    def _is_the_model(self, module: Any) -> bool:
        if not self.torch.is_grad_enabled():
            return False
        if not self.session.trained:  # no optimizer was made: after some backward passes any weights will do
            return self.backwards > 2 and any(weight.requires_grad for weight in module.parameters())
        return any(id(weight) in self.session.trained for weight in module.parameters())

    def _backward(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self.backward_place is None:
                self.backward_place = places.here(sys._getframe(1))
            self.backwards += 1
            self.loss_device = str(tensor.device)
            self._loss(tensor)
            out = original(tensor, *args, **kwargs)
            self.session.went_back()
            return out

        return backward

    def _loss_only(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._wants_losses:
                self._loss(tensor)
            out = original(tensor, *args, **kwargs)
            if self.session.by_backward:
                self.session.stepped(BY_HAND)
            return out

        return backward

    def _loss(self, tensor: Any) -> None:
        loss, self._unscaled = (tensor if self._unscaled is None else self._unscaled), None
        if len(self.losses) < LOSSES and getattr(loss, "nelement", lambda: 0)() == 1:
            self.losses.append((self.session.samples, loss.detach()))

    def scaling(self, scaler: Any, outputs: Any) -> None:
        """A gradient scaler multiplies the loss: the loss itself is noted."""
        if scaler.is_enabled():
            self.scaler = True
            self._unscaled = outputs if hasattr(outputs, "detach") else None

    def _autocast(self, original: Any) -> Any:
        @functools.wraps(original)
        def __enter__(context: Any) -> Any:
            if getattr(context, "_enabled", False) and not self.autocast:
                kind = getattr(context, "fast_dtype", None)
                self.autocast = str(kind).rpartition(".")[2]
                self.autocast_place = places.here(sys._getframe(1))
            return original(context)

        return __enter__

    def _wait(self, call: str, original: Any) -> Any:
        @functools.wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._inside = True
            try:
                self._count(call, args, sys._getframe(1))
                return original(*args, **kwargs)
            finally:
                self._inside = False

        return wait

    def _count(self, call: str, args: tuple, frame: Any) -> None:
        where = args[0].device.type if args and hasattr(args[0], "device") else "cuda"
        direct = places.is_own(frame.f_code.co_filename)
        while frame is not None and not places.is_own(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            key = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, call, where, direct)
            self.waits[key] = self.waits.get(key, 0) + 1

    def waits_seen(self, rounds: int) -> list[dict]:
        """The lines at which the host waits, with calls a round and the device of what was asked."""
        return [
            {
                "place": places.at(file, line, name),
                "call": call,
                "device": where,
                "direct": direct,
                "a_step": count / max(1, rounds),
            }
            for (file, line, name, call, where, direct), count in self.waits.items()
        ]

    def losses_seen(self) -> dict:
        """The losses as numbers; read once, after the steps that they belong to were timed."""
        if not self.losses:
            return {"samples": [], "values": []}
        some = self.losses[:: 1 + len(self.losses) // TOLD]
        values, samples = [float(loss) for _, loss in some], [count for count, _ in some]
        self.losses = []
        return {"samples": samples, "values": values}
