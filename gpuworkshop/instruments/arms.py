"""The arms that starve and the loop measure in turn: the real run, the same step on resident data, the loader alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch

from gpuworkshop.instruments.feed import Feed
from gpuworkshop.timing import Clock

if TYPE_CHECKING:  # measuring your own loader needs no torchvision
    from gpuworkshop.workloads.train import Training

RESIDENT_BATCHES = 8
WAIT, DATA_WORK = "wait", "data work"


def _nothing() -> None:
    pass


class _Fed:
    """An arm with a loader: its workers run only during its own blocks. As a context it ends them."""

    def __init__(self, name: str, feed: Feed, enter: Callable[[], None] = _nothing):
        self.name, self.feed, self.period, self._enter = name, feed, feed.period, enter

    def resume(self) -> None:
        self._enter()
        self.feed.resume()

    def pause(self) -> None:
        self.feed.pause()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        self.feed.__exit__(*error)


class Real(_Fed):
    """The run as it is: next batch, prepare it on the device, step."""

    def __init__(self, name: str, feed: Feed, prepare: Callable, step: Callable, enter: Callable[[], None] = _nothing):
        super().__init__(name, feed, enter)
        self._prepare, self._step = prepare, step

    def step(self, clock: Clock) -> int:
        with clock.span(WAIT):
            batch = self.feed.next()
        with clock.span(DATA_WORK):
            ready = self._prepare(batch)
        self._step(ready)
        return size(batch)

    def take(self, count: int = RESIDENT_BATCHES) -> list[Any]:
        """``count`` distinct batches, prepared on the device, for a :class:`Resident` arm."""
        self.resume()
        try:
            return [self._prepare(self.feed.next()) for _ in range(count)]
        finally:
            self.pause()


class LoaderAlone(_Fed):
    """The loader with nothing behind it: batches are fetched and dropped."""

    def step(self, clock: Clock) -> int:
        return size(self.feed.next())


class Resident:
    """The same step over batches that lie ready on the device; no loader runs."""

    period = 1

    def __init__(self, name: str, batches: Sequence[Any], step: Callable, enter: Callable[[], None] = _nothing):
        self.name, self.resume, self._batches, self._step, self._turn = name, enter, batches, step, 0
        self._sizes = [size(batch) for batch in batches]

    def pause(self) -> None:
        """Nothing of this arm runs between its blocks."""

    def step(self, clock: Clock) -> int:
        turn = self._turn % len(self._batches)
        batch = self._batches[turn]
        self._turn += 1
        self._step(batch)
        if size(batch) != self._sizes[turn]:
            raise ValueError(
                "step changes its batch: it must leave it as it is, because the data ceiling uses it again"
            )
        return size(batch)


def real(name: str, training: Training) -> Real:
    """A training run of the kit as an arm."""
    step = lambda ready: training.step(*ready)  # noqa: E731
    return Real(name, Feed(training.loader), training.prepare, step, training.use_precision)


def resident(name: str, training: Training, batches: Sequence[Any]) -> Resident:
    """The same run on resident batches."""
    return Resident(name, batches, lambda ready: training.step(*ready), training.use_precision)


def synthetic(training: Training, count: int = 2) -> list[Any]:
    """Random batches on the device, shaped like prepared ones: what benchmarks usually feed a model with."""
    return [training.task.random_batch() for _ in range(count)]


def callable_step(step: Any, call: str = "step(batch)") -> None:
    """TypeError for what cannot be called as ``call``, or does nothing when it is: a generator, a coroutine."""
    name = call.partition("(")[0]
    if not callable(step):
        raise TypeError(f"{name} is {step!r:.60}: hand over a function, {call} does one training step")
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(is_one(step) for is_one in kinds):
        raise TypeError(f"{name} has a yield or an async, so that calling it does nothing: hand over a plain function")


def usable_loss(loss: Any) -> None:
    """TypeError or ValueError for what a loss function gave and no backward pass can start from."""
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"loss gave something of type {type(loss).__name__}: it must return the loss, a tensor")
    if loss.numel() != 1:
        raise ValueError(f"loss gave {loss.numel()} numbers: a backward pass starts from one, such as their mean")
    if not loss.requires_grad:
        raise ValueError("loss gave a number that no trained weight led to: was it detached, or are all frozen?")


def a_model(model: Any) -> None:
    """TypeError for what is no model."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is something of type {type(model).__name__}: hand over a torch.nn.Module")


def size(batch: Any) -> int:
    """Samples in a batch: the length of its first field (a tensor, or a list of samples); 1 if it has none."""
    field = batch
    if isinstance(field, Mapping):
        field = next(iter(field.values()), None)
    elif isinstance(field, list | tuple):
        field = field[0] if field else None
    if isinstance(field, torch.Tensor) and field.dim() == 0:
        return 1
    return len(field) if hasattr(field, "__len__") and not isinstance(field, str | bytes) else 1


def moved(batch: Any, device: str) -> Any:
    """A batch with every tensor in it on ``device``; tuples, lists and dicts are kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [moved(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
