"""A loader that can be measured in blocks: endless, pausable, and with its faults named.

A paused loader with workers goes on prefetching and takes CPU time from whatever is measured next; then its next
block starts with batches that cost nothing. So :class:`Feed` stops the worker processes themselves (SIGSTOP) and
lets them go on exactly where they were (SIGCONT): a paused arm really is paused.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import multiprocessing as torch_processes
from torch.utils.data import DataLoader

from gpuworkshop.instruments import loader_faults, shared_memory
from gpuworkshop.instruments.endless import ours, rebuilt, unwarned
from gpuworkshop.instruments.loader_faults import LoaderFault
from gpuworkshop.instruments.sendable import obstacle
from gpuworkshop.instruments.shared_memory import Shared

__all__ = ["Feed", "LoaderFault", "rebuilt"]


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


class Feed:
    """The batches of a loader, without end, with its worker processes under control.

    ``startup_seconds`` is the time from asking for an iterator to its first batch, of the newest start; ``shared`` is
    what batches like that one take of the shared memory, None without workers. Raises LoaderFault for a loader that
    cannot be measured, at the latest when it is left as a context.
    """

    def __init__(self, loader: Iterable, *, workers: int | None = None):
        self.loader = ours(loader, workers)
        self.workers = getattr(self.loader, "num_workers", 0)
        self.period = max(1, self.workers)
        self.startup_seconds = 0.0
        self.shared: Shared | None = None
        self._iterator: Iterator | None = None
        self._first: list = []
        self._processes: list[multiprocessing.Process] = []
        if isinstance(self.loader, DataLoader) and self.workers:
            if why := obstacle(self.loader):
                raise LoaderFault(why)
            self.loader.worker_init_fn = Tied(self.loader.worker_init_fn)

    def start(self) -> None:
        """Start the workers and wait for the first batch; it is not lost."""
        others, room = set(multiprocessing.active_children()), shared_memory.free()
        began = time.perf_counter()
        try:
            with unwarned():
                self._iterator = self._explained(iter, self.loader)
            self._first = [self._explained(next, self._iterator)]
        except StopIteration:
            self.close()
            raise LoaderFault(loader_faults.empty(self.loader)) from None
        self.startup_seconds = time.perf_counter() - began
        if self.workers:
            self.shared = shared_memory.asked(self.loader, self.workers, self._first[0], room)
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

    def fault(self, error: BaseException) -> str:
        """What an error says about this loader's workers, in one line; "" for an error of another kind."""
        return loader_faults.explained(error, self.loader, self._iterator)

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
