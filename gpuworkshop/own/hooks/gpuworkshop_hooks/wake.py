"""Waits for `import torch` at the price of one comparison an import, then arms the hooks."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from typing import Any

VARIABLE = "GPUWORKSHOP_OWN"
"""Names the folder into which the records go; without it, or without that folder, nothing is watched."""


class _AfterTorch:
    """A finder that finds torch as the others do, and is called back once torch has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of torch, with a loader that arms the hooks; None for every other name."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = _found(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        inner = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            vars(spec.loader).pop("exec_module", None)
            inner(module)
            _arm(module)

        spec.loader.exec_module = exec_module
        return spec


def _found(name: str) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None) if find else None
        if spec is not None:
            return spec
    return PathFinder.find_spec(name)


def get_ready() -> None:
    """Wait for torch, where a folder for records is named."""
    folder = os.environ.get(VARIABLE, "")
    if not folder or not os.path.isdir(folder):
        return
    from gpuworkshop_hooks import records

    records.hello(folder)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler's own lines stand in the script's output
    if "torch" in sys.modules:
        _arm(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _AfterTorch())


def _arm(torch: Any) -> None:
    from gpuworkshop_hooks import records

    try:
        from gpuworkshop_hooks import arm

        arm.arm(torch, os.environ[VARIABLE])
    except Exception as error:
        records.fault("arming", error)
