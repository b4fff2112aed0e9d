"""The child of verify: PyTorch's answers, and behind a launcher the driver's too. It imports little beside torch."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments import verify_first
from gpuworkshop.instruments.verify_first import First
from gpuworkshop.instruments.verify_probe import Probe, TorchSays


class Asked(msgspec.Struct, frozen=True):
    """What a verify child is asked for: ``first``: also what answers at once, when it runs behind a launcher."""

    first: bool


class Answer(msgspec.Struct, frozen=True):
    """What a child knows so far."""

    torch: TorchSays = TorchSays()
    first: First | None = None


def in_child(request: Any, tell: Tell) -> Answer:
    """What the child does; every record is an :class:`Answer` that holds what is known until then."""
    asked = msgspec.convert(request, Asked)
    if not asked.first:
        return Answer(Probe(_Records(tell)).run())
    nvml = verify_first.open_driver()
    first = verify_first.look(nvml)
    tell.record(Answer(first=first))
    says = Probe(_Records(tell)).run()
    if says.seen:
        first = verify_first.joined(nvml, first, says.seen)
        tell.record(Answer(says, first))
    return Answer(says, first)


class _Records(Tell):
    """Passes on what a probe knows as an :class:`Answer`."""

    def __init__(self, tell: Tell):
        self._tell = tell

    def progress(self, share: float, text: str = "") -> None:
        self._tell.progress(share, text)

    def record(self, value: Any) -> None:
        self._tell.record(Answer(value))
