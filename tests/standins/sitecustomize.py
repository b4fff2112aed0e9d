"""With this folder on PYTHONPATH, every Python that starts answers as FAKE_CUDA says, its own children too.

A module that imports PyTorch later finds the stand-in in place; one that never does pays nothing.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets PyTorch be imported as it is, then puts the stand-in over ``torch.cuda``."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        self.spec = importlib.util.find_spec("torch")
        if self.spec is None:
            return None
        self.inner, self.spec.loader = self.spec.loader, self
        return self.spec

    def create_module(self, spec):
        import fake_cuda

        fake_cuda.before_import()
        return self.inner.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        import fake_cuda

        fake_cuda.from_environment()


if os.environ.get("FAKE_CUDA"):
    sys.meta_path.insert(0, _AfterTorch())
