"""A loader that can be measured in blocks: endless, pausable, and with its faults named.

A paused loader with workers goes on prefetching and takes CPU time from whatever is measured next; then its next
block starts with batches that cost nothing. So :class:`Feed` stops the worker processes themselves (SIGSTOP) and
lets them go on exactly where they were (SIGCONT): a paused arm really is paused.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import multiprocessing as torch_processes
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpuworkshop.instruments.sendable import line, obstacle

COPIED = ("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "in_order")
ONLY_WITH_WORKERS = ("multiprocessing_context", "prefetch_factor")


PATIENCE = 120
"""Seconds to wait for a batch from workers; PyTorch waits for ever when a worker cannot send what it made."""


class LoaderFault(ValueError):
    """A loader that cannot be measured; the message says what is wrong with it and what to change."""


class Endless:
    """Batches of indices from a sampler, one epoch after the other. LoaderFault if an epoch is empty."""

    def __init__(self, sampler: Iterable, fault: str):
        self.sampler, self.fault = sampler, fault

    def __iter__(self) -> Iterator:
        while True:
            empty = True
            for indices in self.sampler:
                empty = False
                yield indices
            if empty:
                raise LoaderFault(self.fault)
            self.fault = "the sampler of this loader ended and did not start again for the next epoch"


class Tied:
    """A worker's start: first make it end with its parent, even one that is stopped, then the learner's own start."""

    def __init__(self, own: Callable[[int], None] | None):
        self.own = own

    def __call__(self, worker: int) -> None:
        with_parent = getattr(torch_processes, "_prctl_pr_set_pdeathsig", None)  # does nothing but on Linux
        if with_parent:
            with_parent(signal.SIGKILL)
        if self.own:
            self.own(worker)


def rebuilt(loader: DataLoader, *, workers: int | None = None) -> DataLoader:
    """A new, endless loader from the old one's arguments, with other ``workers`` if given; the old one stays untouched.

    Options that PyTorch only accepts with workers are dropped at 0 workers. ``persistent_workers`` is dropped: an
    endless loader never ends an epoch.
    """
    workers = loader.num_workers if workers is None else workers
    options = {name: getattr(loader, name) for name in COPIED} | {"num_workers": workers}
    if workers > 0:
        kept = {name: getattr(loader, name) for name in ONLY_WITH_WORKERS}
        options |= {name: value for name, value in kept.items() if value is not None}
        options["timeout"] = loader.timeout or PATIENCE
    else:
        options["timeout"] = 0
    if isinstance(loader.dataset, IterableDataset):
        return DataLoader(batch_size=loader.batch_size, drop_last=loader.drop_last, **options)
    if loader.batch_sampler is not None:
        return DataLoader(batch_sampler=Endless(loader.batch_sampler, empty(loader)), **options)
    return DataLoader(sampler=Endless(loader.sampler, empty(loader)), batch_size=None, **options)


def ours(loader: Iterable, workers: int | None) -> Iterable:
    """The loader to measure in place of the learner's, with other ``workers`` if given. LoaderFault if it cannot be.

    A DataLoader is rebuilt, also one of a subclass, unless that iterates in its own way; then it is copied, so that
    its worker processes are ours, and keeps its number of workers.
    """
    if why := no_loader(loader):
        raise LoaderFault(why)
    kind = type(loader)
    if isinstance(loader, DataLoader) and _iterates_as_usual(kind):
        return rebuilt(loader, workers=workers)
    own = getattr(loader, "num_workers", 0)
    if workers not in (None, own):
        raise LoaderFault(f"a {kind.__name__} cannot be rebuilt with {workers} workers; it has its own {own}")
    if isinstance(loader, DataLoader):
        loader = copy.copy(loader)
        loader._iterator = None  # where a DataLoader keeps persistent workers
    return loader


def no_loader(thing: Any) -> str:
    """Why something is no loader, in one line; "" for what yields batches.

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


def _iterates_as_usual(kind: type) -> bool:
    return all(getattr(kind, name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator"))


def empty(loader: DataLoader) -> str:
    """Why a loader yields no batch, in one line."""
    try:
        count = len(loader.dataset)
    except TypeError:
        return "this loader yields no batch: its data set ended at once"
    if loader.batch_size and count < loader.batch_size and loader.drop_last:
        return f"this loader yields no batch: {count} samples < batch size {loader.batch_size} with drop_last=True"
    return f"this loader yields no batch from a data set of {count} samples"


class Feed:
    """The batches of a loader, without end, with its worker processes under control.

    ``startup_seconds`` is the time from asking for an iterator to its first batch, of the newest start. Raises
    LoaderFault for a loader that cannot be measured, at the latest when it is left as a context.
    """

    def __init__(self, loader: Iterable, *, workers: int | None = None):
        self.loader = ours(loader, workers)
        self.workers = getattr(self.loader, "num_workers", 0)
        self.period = max(1, self.workers)
        self.startup_seconds = 0.0
        self._iterator: Iterator | None = None
        self._first: list = []
        self._processes: list[multiprocessing.Process] = []
        if isinstance(self.loader, DataLoader) and self.workers:
            if why := obstacle(self.loader):
                raise LoaderFault(why)
            self.loader.worker_init_fn = Tied(self.loader.worker_init_fn)

    def start(self) -> None:
        """Start the workers and wait for the first batch; it is not lost."""
        others = set(multiprocessing.active_children())
        began = time.perf_counter()
        try:
            self._iterator = self._explained(iter, self.loader)
            self._first = [self._explained(next, self._iterator)]
        except StopIteration:
            self.close()
            raise LoaderFault(self._empty()) from None
        self.startup_seconds = time.perf_counter() - began
        new = [process for process in multiprocessing.active_children() if process not in others]
        self._processes = new or self._processes  # persistent workers are started once

    def next(self) -> Any:
        """The next batch; begins another epoch when a loader without samplers has ended."""
        if self._iterator is None:
            self.start()
        if self._first:
            return self._first.pop()
        try:
            return self._explained(next, self._iterator)
        except StopIteration:
            self.start()
            return self._first.pop()

    def _explained(self, ask: Callable, subject: Any) -> Any:
        """``ask(subject)``, with errors of workers in the learner's terms; any other error passes."""
        try:
            return ask(subject)
        except StopIteration:
            raise
        except Exception as error:
            why = self.fault(error)
            self.close()
            if why:
                raise LoaderFault(why) from error
            raise

    def _empty(self) -> str:
        if isinstance(self.loader, DataLoader):
            return empty(self.loader)
        if isinstance(self.loader, Iterator):
            return "this iterator has ended and cannot start again: hand over the loader itself, not iter(loader)"
        return "this loader yields no batch"

    def fault(self, error: BaseException) -> str:
        """What an error says about this loader's workers, in one line; "" for an error of another kind.

        PyTorch reports a dead worker wherever the training process happens to be, also in the middle of a step.
        """
        if isinstance(error, LoaderFault):
            return ""  # told already
        text = str(error)
        if "Cannot re-initialize CUDA in forked subprocess" in text:
            return "the data set uses the card inside a worker: move .to(device) out of the data set, into the step"
        if failed := re.match(r"Caught (\w+) in DataLoader worker process (\d+)", text):
            return f"the data set failed in worker {failed[2]}: {text.strip().splitlines()[-1]}"
        if self.workers and "DataLoader timed out" in text:
            return f"no batch came from {self.workers} workers within {self.loader.timeout:g} s"
        if self.workers and re.search(r"DataLoader worker .* (exited unexpectedly|is killed by signal)", text):
            return self._how_a_worker_died(error)
        return ""

    def _how_a_worker_died(self, error: BaseException) -> str:
        ends = [worker.exitcode for worker in getattr(self._iterator, "_workers", ())]
        left = [status for status in ends if status is not None]
        if left and min(left) >= 0:
            return f"a worker ended itself with status {max(left)}: does the data set, or something it uses, call exit?"
        why = "shared memory (/dev/shm) full?" if "Bus error" in str(error) else "host memory used up?"
        return f"a worker died ({why}): {line(error).split('. ')[0]}"

    def pause(self) -> None:
        """Stop the worker processes where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the worker processes go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for process in self._processes:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                pass  # a dead worker is reported by the loader itself at the next batch

    def close(self) -> None:
        """End the worker processes. An error on its way up may still hold the iterator, so it is told to."""
        self.resume()
        iterator, self._iterator, self._first, self._processes = self._iterator, None, [], []
        getattr(iterator, "_shutdown_workers", lambda: None)()
        if isinstance(self.loader, DataLoader):
            self.loader._iterator = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        why = self.fault(error) if error else ""
        self.close()
        if why:
            raise LoaderFault(why) from error
