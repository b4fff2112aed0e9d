"""Can a loader's parts be sent to its workers? Found out before workers are started, with the culprit named.

Workers that are forked inherit everything. Workers that are spawned (macOS) or come from a fork server (Linux from
Python 3.14 on) get the data set pickled, and must import what it is made of: a class or function that was written in
a notebook cell cannot be imported.
"""

from __future__ import annotations

import multiprocessing
import pickle
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import DataLoader

PARTS = ("dataset", "collate_fn", "worker_init_fn")


def obstacle(loader: DataLoader) -> str:
    """What of a loader cannot be sent to its workers and what to change, in one line; "" if all of it can."""
    method = (loader.multiprocessing_context or multiprocessing).get_start_method()
    if loader.num_workers == 0 or method == "fork":
        return ""
    for name in PARTS:
        part = getattr(loader, name)
        if error := _error(part):
            return f"{name} cannot be sent to a worker started by {method}: {_culprit(part) or error}"
        if _in_notebook() and (homeless := _Probe.of(part).homeless):
            return (
                f"{name} needs {homeless}, which is defined in the notebook, and workers are started by {method}: "
                f"they cannot import it. Move {homeless} to a .py file, or use num_workers=0"
            )
    return ""


def line(error: BaseException) -> str:
    """An error's message in one line; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class _Nowhere:
    """A file that keeps nothing: a data set may be large."""

    def write(self, data: bytes) -> int:
        return len(data)


class _Probe(pickle.Pickler):
    """Pickles a part as a start of workers does, and remembers what lives in ``__main__``."""

    homeless = ""

    @classmethod
    def of(cls, part: Any) -> _Probe:
        probe = cls(_Nowhere(), pickle.HIGHEST_PROTOCOL)
        probe.dump(part)
        return probe

    def reducer_override(self, part: Any) -> Any:
        module = type(part).__module__
        if isinstance(part, torch.Tensor) or module.startswith(("multiprocessing.", "torch.multiprocessing.")):
            return int, ()  # shared with workers, not copied
        if isinstance(part, type | FunctionType) and part.__module__ == "__main__":
            self.homeless = self.homeless or part.__qualname__
        return NotImplemented


def _error(part: Any) -> str:
    try:
        _Probe.of(part)
    except Exception as error:  # a data set's own way of being pickled can raise anything
        return line(error)
    return ""


def _culprit(part: Any) -> str:
    """The attribute that cannot be pickled, if one can be found."""
    attributes = vars(part) if hasattr(part, "__dict__") else {}
    for name, value in attributes.items():
        if error := _error(value):
            return f"its attribute {name!r}: {error}"
    return ""


def _in_notebook() -> bool:
    import __main__

    return not hasattr(__main__, "__file__")
