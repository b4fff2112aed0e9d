"""For the tests of watch: a clock that is moved by hand, and a sampler that looks when it is told to."""

from __future__ import annotations

from standins import pynvml as fake_nvml

from gpuworkshop.instruments import watch
from gpuworkshop.instruments.sampler import Sampler
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.machine.nvml import Nvml

GIB = 2**30
CARD = {
    "name": "NVIDIA A100-SXM4-80GB",
    "uuid": "GPU-8f3a1c02-0000-4000-8000-000000000001",
    "bus_id": "00000000:31:00.0",
    "memory": {"total": 80 * GIB, "used": 60 * GIB, "free": 20 * GIB},
    "power": 300_000,
    "power_limit": 400_000,
}


def card(**facts) -> dict:
    """A card as the stand-in takes it: busy by the sample buffer, three quarters full, and what is given."""
    return {**CARD, **facts}


def windows(*percent: int, every: float = 0.2) -> dict:
    """A sample buffer that fills by the clock."""
    return {"gpu": {"every": every, "values": list(percent)}}


class Scene:
    """A node and a sampler on a clock that stands still until :meth:`looks`."""

    def __init__(self, monkeypatch, *cards: dict, env: dict[str, str] | None = None, whole_user=False, **node):
        self.now = 100.05  # a look falls between the ends of two windows
        self.driver = fake_nvml.install({"devices": list(cards), **node}, monkeypatch)
        monkeypatch.setattr(fake_nvml.Driver, "elapsed", property(lambda driver: self.now))  # buffers and counters
        self.sampler = Sampler(env=env or {}, clock=lambda: self.now, whole_user=whole_user)
        self.sampler.open(Nvml())

    def looks(self, count: int, every: float = 0.2) -> Scene:
        """Look so many times, after as many pauses."""
        for _ in range(count):
            self.now += every
            self.sampler.look()
        return self

    def result(self, asked: float = 0.2) -> WatchResult:
        """What was seen until now."""
        return watch.read(self.sampler, "a test", asked)

    def titles(self) -> str:
        """The findings' levels and titles, one line each."""
        return "\n".join(f"{one.level}: {one.title}" for one in watch.findings(self.result()))
