"""A loader that can be measured in blocks: endless, pausable, and with its faults named.

A paused loader with workers goes on prefetching and takes CPU time from whatever is measured next; then its next
block starts with batches that cost nothing. So :class:`Feed` stops the worker processes themselves (SIGSTOP) and
lets them go on exactly where they were (SIGCONT): a paused arm really is paused.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

COPIED = ("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
ONLY_WITH_WORKERS = ("multiprocessing_context", "prefetch_factor")


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


def rebuilt(loader: DataLoader, *, workers: int | None = None, endless: bool = True) -> DataLoader:
    """A new loader from the old one's arguments, with other ``workers`` if given; the learner's stays untouched.

    Options that PyTorch only accepts with workers are dropped at 0 workers. ``persistent_workers`` is dropped: an
    endless loader never ends an epoch.
    """
    workers = loader.num_workers if workers is None else workers
    options = {name: getattr(loader, name) for name in COPIED} | {"num_workers": workers}
    if workers > 0:
        kept = {name: getattr(loader, name) for name in ONLY_WITH_WORKERS}
        options |= {name: value for name, value in kept.items() if value is not None}
    else:
        options["timeout"] = 0
    if isinstance(loader.dataset, IterableDataset):
        return DataLoader(batch_size=loader.batch_size, drop_last=loader.drop_last, **options)
    again = (lambda sampler: Endless(sampler, empty(loader))) if endless else (lambda sampler: sampler)
    if loader.batch_sampler is not None:
        return DataLoader(batch_sampler=again(loader.batch_sampler), **options)
    return DataLoader(sampler=again(loader.sampler), batch_size=None, **options)


def empty(loader: DataLoader) -> str:
    """Why a loader yields no batch, in one line."""
    try:
        count = len(loader.dataset)
    except TypeError:
        return "this loader yields no batch: its data set ended at once"
    if loader.batch_size and count < loader.batch_size and loader.drop_last:
        return f"this loader yields no batch: {count} samples < batch size {loader.batch_size} with drop_last=True"
    return f"this loader yields no batch from a data set of {count} samples"


def check(loader: DataLoader) -> None:
    """Find out before workers are started whether they could start. LoaderFault names what cannot be sent to them."""
    if loader.num_workers == 0:
        return
    context = loader.multiprocessing_context or multiprocessing
    method = context.get_start_method()
    if method == "fork":
        return
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        part = getattr(loader, name)
        home = getattr(type(part) if name == "dataset" else part, "__module__", "")
        if home == "__main__" and part is not None and _in_notebook():
            raise LoaderFault(
                f"{name} is defined in the notebook, and workers are started by {method}: they cannot import it. "
                "Move it to a .py file, or use num_workers=0"
            )
        try:
            pickle.dumps(part)
        except Exception as error:
            raise LoaderFault(
                f"{name} cannot be sent to a worker started by {method}: {_culprit(part, error)}"
            ) from None


def _in_notebook() -> bool:
    import __main__

    return not hasattr(__main__, "__file__")


def _culprit(part: Any, error: Exception) -> str:
    """The attribute that cannot be pickled, if one can be found."""
    for name, value in vars(part).items() if hasattr(part, "__dict__") else ():
        try:
            pickle.dumps(value)
        except Exception as inner:
            return f"its attribute {name!r}: {_line(inner)}"
    return _line(error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Feed:
    """The batches of a loader, without end, with its worker processes under control.

    ``startup_seconds`` is the time from asking for an iterator to its first batch, of the newest start.
    """

    def __init__(self, loader: Iterable, *, workers: int | None = None):
        if type(loader) is DataLoader:
            loader = rebuilt(loader, workers=workers)
            check(loader)
        self.loader = loader
        self.workers = getattr(loader, "num_workers", 0)
        self.period = max(1, self.workers)
        self.starts = 0
        self.startup_seconds = 0.0
        self._iterator: Iterator | None = None
        self._first: list = []
        self._workers: list = []

    def start(self) -> None:
        """Start the workers and wait for the first batch; it is not lost."""
        others = set(multiprocessing.active_children())
        began = time.perf_counter()
        self._iterator = iter(self.loader)
        try:
            self._first = [self._next()]
        except StopIteration:
            raise LoaderFault(self._empty()) from None
        self.startup_seconds = time.perf_counter() - began
        self._workers = [p for p in multiprocessing.active_children() if p not in others]
        self.starts += 1

    def next(self) -> Any:
        """The next batch; begins another epoch when a loader without samplers has ended."""
        if self._iterator is None:
            self.start()
        if self._first:
            return self._first.pop()
        try:
            return self._next()
        except StopIteration:
            self.start()
            return self._first.pop()

    def _next(self) -> Any:
        try:
            return next(self._iterator)
        except RuntimeError as error:
            raise _explained(error, self.loader) from error

    def _empty(self) -> str:
        return empty(self.loader) if isinstance(self.loader, DataLoader) else "this loader yields no batch"

    def pause(self) -> None:
        """Stop the worker processes where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the worker processes go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            try:
                os.kill(worker.pid, number)
            except ProcessLookupError:
                pass  # a dead worker is reported by the loader itself at the next batch

    def close(self) -> None:
        """Let go of the iterator, which ends its worker processes."""
        self.resume()
        self._iterator, self._first, self._workers = None, [], []

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def _explained(error: RuntimeError, loader: Any) -> Exception:
    """PyTorch's worker errors in the learner's terms; any other error unchanged."""
    text = str(error)
    if "exited unexpectedly" in text or "is killed by signal" in text:
        why = "shared memory (/dev/shm) full?" if "Bus error" in text else "host memory used up?"
        count = getattr(loader, "num_workers", "?")
        return LoaderFault(f"one of {count} workers died ({why}): {_line(error).split(' This error')[0]}")
    if "Cannot re-initialize CUDA in forked subprocess" in text:
        return LoaderFault(
            "the data set uses the card inside a worker: move .to(device) out of the data set, into the step"
        )
    return error
