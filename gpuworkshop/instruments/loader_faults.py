"""What is wrong with a loader, in one line for whoever wrote it: no loader, no batches, workers that died or hang."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpuworkshop.instruments import shared_memory
from gpuworkshop.instruments.sendable import line
from gpuworkshop.machine import allocation
from gpuworkshop.numbers import gib

_FAILED = re.compile(r"Caught (\w+) in DataLoader worker process (\d+)")
_DIED = re.compile(r"DataLoader worker .* (exited unexpectedly|is killed by signal)")
_ON_CARD = "Cannot re-initialize CUDA in forked subprocess"


class LoaderFault(ValueError):
    """A loader that cannot be measured; the message says what is wrong with it and what to change."""


def no_loader(thing: Any) -> str:
    """Why something is no loader; "" for what yields batches.

    A data set can be iterated as well, and would be measured as if each sample were a batch.
    """
    kind = f"the {thing.__name__} itself" if isinstance(thing, type) else f"something of type {type(thing).__name__}"
    if isinstance(thing, Dataset) and not isinstance(thing, IterableDataset):
        return f"{kind} is no loader but a data set: hand over DataLoader(dataset, batch_size=...)"
    if isinstance(thing, str | bytes | Mapping | type) or not hasattr(thing, "__iter__") and not _indexed(thing):
        return f"{kind} is no loader: hand over a DataLoader, or anything that yields batches"
    return ""


def _indexed(thing: Any) -> bool:
    return hasattr(thing, "__getitem__") and hasattr(thing, "__len__")


def empty(loader: Iterable) -> str:
    """Why a loader yields no batch."""
    if isinstance(loader, Iterator):
        return "this iterator has ended and cannot start again: hand over the loader itself, not iter(loader)"
    if not isinstance(loader, DataLoader):
        return "this loader yields no batch"
    try:
        count = len(loader.dataset)
    except TypeError:
        return "this loader yields no batch: its data set ended at once"
    if loader.batch_size and count < loader.batch_size and loader.drop_last:
        return f"this loader yields no batch: {count} samples < batch size {loader.batch_size} with drop_last=True"
    return f"this loader yields no batch from a data set of {count} samples"


def explained(error: BaseException, loader: Iterable, iterator: Iterator | None) -> str:
    """What an error says about the workers of ``loader``, of which ``iterator`` is in use; "" for any other error.

    PyTorch reports a dead worker wherever the training process happens to be, also in the middle of a step.
    """
    if isinstance(error, LoaderFault):
        return ""  # told already
    text, workers = str(error), getattr(loader, "num_workers", 0)
    if _ON_CARD in text:
        return "the data set uses the card inside a worker: move .to(device) out of the data set, into the step"
    if failed := _FAILED.match(text):
        return f"the data set failed in worker {failed[2]}: {text.strip().splitlines()[-1]}"
    if workers and "DataLoader timed out" in text:
        return f"no batch came from {workers} workers within {loader.timeout:g} s"
    return _how_one_died(error, iterator) if workers and _DIED.search(text) else ""


def _how_one_died(error: BaseException, iterator: Iterator | None) -> str:
    ends = [worker.exitcode for worker in getattr(iterator, "_workers", ())]
    left = [status for status in ends if status is not None]
    if left and min(left) >= 0:
        return f"a worker ended itself with status {max(left)}: does the data set, or something it uses, call exit?"
    why = _shared_memory() if "Bus error" in str(error) else _host_memory()
    return f"a worker died ({why}): {line(error).split('. ')[0]}"


def _shared_memory() -> str:
    """The suspicion that batches on their way did not fit, with the room that there is."""
    free = shared_memory.free()
    return f"shared memory ({shared_memory.PLACE}) full?" + ("" if free is None else f" {gib(free)} free now")


def _host_memory() -> str:
    """The suspicion that the workers' copies did not fit, with the limit that holds."""
    most = allocation.memory()
    return "host memory used up?" + (f" {gib(most.bytes)} at most, said by {most.said_by}" if most.bytes else "")
