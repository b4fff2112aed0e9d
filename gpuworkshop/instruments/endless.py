"""A loader like the learner's that never ends an epoch, so that no block of a measurement is cut short."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, IterableDataset

from gpuworkshop.instruments.loader_faults import LoaderFault, empty, no_loader

COPIED = ("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "in_order")
ONLY_WITH_WORKERS = ("multiprocessing_context", "prefetch_factor")
PATIENCE = 120
"""Seconds to wait for a batch from workers; PyTorch waits for ever when a worker cannot send what it made."""


class Endless:
    """Batches of indices from a sampler, one epoch after the other. LoaderFault if an epoch is empty."""

    def __init__(self, sampler: Iterable, fault: str):
        self.sampler, self.fault = sampler, fault

    def __iter__(self) -> Iterator:
        while True:
            came = False
            for indices in self.sampler:
                came = True
                yield indices
            if not came:
                raise LoaderFault(self.fault)
            self.fault = "the sampler of this loader ended and did not start again for the next epoch"


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


def _iterates_as_usual(kind: type) -> bool:
    return all(getattr(kind, name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator"))


def rebuilt(loader: DataLoader, *, workers: int | None = None) -> DataLoader:
    """A new, endless loader from the old one's arguments, with other ``workers`` if given; the old one stays untouched.

    Options that PyTorch only accepts with workers are dropped at 0 workers. ``persistent_workers`` is dropped: an
    endless loader never ends an epoch. So is ``pin_memory`` where there is no card, which only warns then.
    """
    options = _options(loader, loader.num_workers if workers is None else workers)
    if isinstance(loader.dataset, IterableDataset):
        return _made(batch_size=loader.batch_size, drop_last=loader.drop_last, **options)
    if loader.batch_sampler is not None:
        return _made(batch_sampler=Endless(loader.batch_sampler, empty(loader)), **options)
    return _made(sampler=Endless(loader.sampler, empty(loader)), batch_size=None, **options)


def _options(loader: DataLoader, workers: int) -> dict[str, object]:
    """The options of a loader that stay as they are with so many workers."""
    options = {name: getattr(loader, name) for name in COPIED} | {"num_workers": workers}
    options["pin_memory"] = loader.pin_memory and torch.cuda.is_available()
    options["timeout"] = (loader.timeout or PATIENCE) if workers else 0
    if workers:
        kept = {name: getattr(loader, name) for name in ONLY_WITH_WORKERS}
        options |= {name: value for name, value in kept.items() if value is not None}
    return options


def _made(**options: object) -> DataLoader:
    with unwarned():
        return DataLoader(**options)


@contextmanager
def unwarned() -> Iterator[None]:
    """Without PyTorch's warning of too many workers: it came when the learner's loader was made, and is a finding."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield
