"""A DataLoader of the script: what it gives, how long the host is in next(), and batches from before in its place."""

from __future__ import annotations

import copy
import os
import signal
import weakref
from threading import get_ident
from time import perf_counter
from typing import Any

from gpuworkshop_hooks import records

KEPT_BATCHES = 8
KEPT_BYTES = 2 << 30
"""Of the batches that are kept for the replay; at least two are."""


class Feed:
    """One loader and its newest iterator. ``replaying``: next() gives kept batches, and the workers are stopped."""

    def __init__(self, loader: Any, place: dict | None, session: Any):
        self._loader, self.place, self._session = weakref.ref(loader), place, session
        self.batches = self.epochs = self.of_epoch = self.since_step = self.rounds = 0
        self.replaying = self.feeding = self.threaded = self.short = self.handed = self.full = False
        self.kept: list[Any] = []
        self._turn, self._bytes, self._began = 0, 0, 0.0
        self._workers: list[Any] = []
        self.startup = 0.0
        self.most = _length(loader)

    # The script's own calls

    def started(self, begin: Any) -> Any:
        """``begin()`` makes an iterator: with running workers, and outside of any block."""
        self._session.interrupted(self, None)
        self.resume()
        self._began = perf_counter()
        iterator = begin()
        self._workers = list(getattr(iterator, "_workers", None) or ())
        self.epochs, self.of_epoch = self.epochs + 1, 0
        if self.replaying:
            self.pause()
        return iterator

    def next(self, iterator: Any, original: Any) -> Any:
        """The loader's next batch, or one from before; never more in an epoch than the loader has."""
        session = self._session
        if get_ident() != session.thread:
            if not self.threaded:
                self.threaded = True
                records.note("loader in a thread")
            return original(iterator)
        if self.handed and self.most is not None and self.of_epoch >= self.most:
            self._end_early()
        marks = session.marks
        start = session.clock.mark() if marks else None
        if self.replaying:
            batch = self._again()
        else:
            try:
                batch = original(iterator)
            except StopIteration:
                session.interrupted(self, start)
                raise
        end = session.clock.mark() if marks else None
        if not self.of_epoch:
            self.startup = perf_counter() - self._began
        self.of_epoch += 1
        self.batches += 1
        session.fetched(self, batch, start, end)
        return batch

    def _again(self) -> Any:
        self._turn += 1
        return shallow(self.kept[self._turn % len(self.kept)])

    def _end_early(self) -> None:
        """Replayed batches took the place of real ones, so that the epoch is as long as it would have been."""
        self._session.interrupted(self, None)
        self.resume()
        self.handed = False
        raise StopIteration

    # What the schedule asks for

    def keep(self, batch: Any) -> None:
        """Keep a batch for the replay, until there are enough of them."""
        self.kept.append(shallow(batch))
        self._bytes += nbytes(batch)
        count = len(self.kept)
        self.full = count >= KEPT_BATCHES or (count >= 2 and self._bytes + self._bytes // count > KEPT_BYTES)

    def replay(self, on: bool) -> None:
        """Give kept batches and stop the workers; or the loader's own again, from where it was."""
        self.replaying = on and bool(self.kept)
        if self.replaying:
            self.handed = True
            self.pause()
        else:
            self.resume()

    def pause(self) -> None:
        """Stop the worker processes where they are."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Let the worker processes go on."""
        self._signal("SIGCONT")

    def kill(self) -> None:
        """End the workers at once: the script ends here."""
        self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        for worker in self._workers:
            try:
                os.kill(worker.pid, getattr(signal, name))
            except (OSError, TypeError, ValueError):
                pass  # a worker that is gone is reported by the loader itself

    def facts(self) -> dict:
        """The loader's settings, as the running program has them."""
        loader = self._loader()
        own = _collate(loader)
        return {
            "place": self.place,
            "workers": int(getattr(loader, "num_workers", 0) or 0),
            "batch_size": _whole(getattr(loader, "batch_size", None)),
            "pin_memory": bool(getattr(loader, "pin_memory", False)),
            "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
            "prefetch_factor": _whole(getattr(loader, "prefetch_factor", None)),
            "dataset": type(getattr(loader, "dataset", None)).__name__,
            "iterable": _iterable(loader),
            "batches": self.batches,
            "epochs": self.epochs,
            "collate": own,
        }


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except Exception:  # an IterableDataset without a length, or one whose own __len__ fails
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _iterable(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(getattr(loader, "dataset", None), IterableDataset)


def _collate(loader: Any) -> str:
    function = getattr(loader, "collate_fn", None)
    module = str(getattr(function, "__module__", ""))
    if function is None or module.startswith("torch."):
        return ""
    return str(getattr(function, "__qualname__", type(function).__name__))


def shallow(batch: Any) -> Any:
    """The same tensors in new containers: a script that takes its batch apart does not take ours apart."""
    if type(batch) in (list, tuple):
        return type(batch)([shallow(part) for part in batch])
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[shallow(part) for part in batch])
    if type(batch) is dict:
        return {name: shallow(part) for name, part in batch.items()}
    if hasattr(batch, "storage_offset") or isinstance(batch, (str, bytes, int, float)):
        return batch
    try:
        return copy.copy(batch)
    except Exception:  # something that cannot be copied is handed over as it is
        return batch


def nbytes(batch: Any) -> int:
    """Bytes of the tensors in a batch."""
    if hasattr(batch, "element_size") and hasattr(batch, "nelement"):
        return batch.element_size() * batch.nelement()
    if hasattr(batch, "items"):
        return sum(nbytes(part) for _, part in batch.items())
    if isinstance(batch, (list, tuple)):
        return sum(nbytes(part) for part in batch)
    return 0


def size(batch: Any) -> int:
    """Samples in a batch: the length of its first field; 0 where it has none."""
    shape = getattr(batch, "shape", None)
    if shape is None:
        if hasattr(batch, "num_graphs"):
            return int(batch.num_graphs)
        if isinstance(batch, (list, tuple)):
            if not batch:
                return 0
            first = batch[0]
            return len(batch) if isinstance(first, (str, bytes, int, float)) else (size(first) or len(batch))
        values = getattr(batch, "values", None)
        if callable(values):
            return next((found for found in map(size, values()) if found), 0)
        return 0
    return int(shape[0]) if len(shape) else 0
