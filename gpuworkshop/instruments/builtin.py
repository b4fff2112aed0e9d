"""A built-in workload measured in a child: what every such child is asked for, and how it begins.

The settings and the job go over, the result comes back: the process that asks never holds the card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Progress, Tell
from gpuworkshop.machine.gpus import default_device
from gpuworkshop.workloads.config import Job, TrainConfig


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A workload and where to run it; each instrument adds what it wants to know."""

    config: TrainConfig
    job: Job
    device: str | None = None
    """None: the card, if there is one."""

    def where(self) -> str:
        """The device. ValueError for a workload that needs a card where there is none."""
        from gpuworkshop.workloads.train import need_card

        device = self.device or default_device()
        need_card(self.config, self.job, device)
        return device

    def training(self, tell: Tell) -> Any:
        """The training run, ready to be measured, in its precision. ValueError as for :meth:`where`."""
        from gpuworkshop.workloads.train import build

        device = self.where()
        tell.progress(0.0, "loading PyTorch and the data")
        training = build(self.config, self.job, device)
        training.use_precision()
        return training

    @property
    def names(self) -> dict[str, str]:
        """What a result calls the workload and the unit of its throughput."""
        return {"workload": self.job.title, "unit": self.job.sizes.unit}


def ask(
    target: str,
    request: type[Asked],
    config: TrainConfig | None,
    job: Job | None,
    *,
    type: type,
    launcher: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    **more: Any,
) -> Any:
    """Call ``target`` in a child with a ``request`` for a job (default: tiny) in a config (default: its naive start).

    ``more``: the other fields of the request. The rest, and what is raised, as in :func:`gpuworkshop.child.run`.
    """
    job = job or Job()
    asked = request(config=config or job.sizes.start, job=job, **more)
    return child.run(target, asked, type=type, launcher=launcher, progress=progress)
