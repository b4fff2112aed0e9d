"""The slides' maker for tests: slides/ is no part of the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SLIDES = Path(__file__).parents[1] / "slides"
REVEAL = SLIDES / "node_modules" / "reveal.js"

if str(SLIDES) not in sys.path:
    sys.path.insert(0, str(SLIDES))


def load(name: str) -> ModuleType:
    """A program of slides/, such as make, under a name of its own: solutions/ has a make, too."""
    spec = importlib.util.spec_from_file_location(f"slides_{name}", SLIDES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
