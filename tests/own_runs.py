"""Runs of a script of one's own as they would be read from the hooks' records, made by hand; and launches of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.own.result import Loader, Losses, Optimizer, OwnResult, Settings
from gpuworkshop.timing import Rate

CARD = Conditions(
    "cuda:0", "a card of a test", "GPU-1", "580.1", 8, "the system", 1, "3.11", "2.11", "0.1.0", "2026-12-01"
)
LOADER = Loader(None, 0, 32, False, False, None, "Pictures", False, 60, 1)
OPTIMIZER = Optimizer(None, "AdamW", 60, False, True, 1000)
SETTINGS = Settings(
    device="cuda:0", precision="fp32", autocast=False, scaler=False, channels_last=False, checkpointing=False,
    compiled=False, ddp="", world=1, accumulation=1.0, loaders=(LOADER,), optimizers=(OPTIMIZER,), model="Net",
)  # fmt: skip


def with_loader(**changes: Any) -> Settings:
    """The settings with another loader."""
    return msgspec.structs.replace(SETTINGS, loaders=(msgspec.structs.replace(LOADER, **changes),))


def losses(end: float = 0.4, steps: int = 60, batch: int = 32) -> Losses:
    """A loss that falls from 2 to ``end``."""
    values = [2.0 + (end - 2.0) * step / (steps - 1) for step in range(steps)]
    return Losses(tuple(batch * (step + 1) for step in range(steps)), tuple(values))


def result(rate: float | None = 100.0, settings: Settings | None = SETTINGS, **changes: Any) -> OwnResult:
    """A run as it was seen; every field can be given."""
    known: dict[str, Any] = dict(
        command=("python", "train.py"), script="train.py", ended="stopped by us", exit_code=None, own_words="",
        output="", steps=60, settings=settings, starve=None, step_seconds=0.3, traced=None, achieved=None,
        rate=rate and Rate(rate, 0.97 * rate, 1.03 * rate, 8), watched=None, memory=0.2, memory_bytes=None,
        not_seen=(), losses=losses(), seconds=4.0, conditions=CARD, origin=CARD.origin,
    )  # fmt: skip
    return OwnResult(**{**known, **changes})


class Launches:
    """Stands for launch.run: gives a run by the text of the script that is started, and notes how it was started."""

    def __init__(self, seen: Callable[[str], OwnResult]):
        self.seen = seen
        self.started: list[tuple[str, Path]] = []

    def __call__(self, command: Sequence[str], **how: Any) -> OwnResult:
        cwd = Path(how["cwd"])
        file = next(cwd / word for word in command if word.endswith(".py"))
        self.started.append((file.read_text(), cwd))
        return msgspec.structs.replace(self.seen(file.read_text()), command=tuple(command))
