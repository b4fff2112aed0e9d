"""Python imports this when it starts, because its folder is on PYTHONPATH: the hooks get ready, and wait for torch.

Any other `sitecustomize` that this one hides is run afterwards, as if it had been found first.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _run_hidden():
    """Run the `sitecustomize` that would have been found without ours."""
    here = os.path.realpath(os.path.dirname(__file__))
    rest = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    import gpuworkshop_hooks.wake

    gpuworkshop_hooks.wake.get_ready()
except Exception as error:  # whatever is wrong with us must not keep their script from running
    sys.stderr.write(f"gpuworkshop: the hooks cannot start here: {error!r}\n")

_run_hidden()
