"""A thread that looks at this job's cards at a steady pace, and never holds up what it watches.

Everything that may wait for the driver happens in the thread, finding the cards too. A driver that hangs costs the
watch its further samples, and nobody else anything.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager

from gpuworkshop.instruments.card_reader import CardReader
from gpuworkshop.instruments.cpu_use import LEAST_PAUSE, CpuUse
from gpuworkshop.instruments.samples import Sample, WatchedCard, thinned
from gpuworkshop.machine import allocation, gpus
from gpuworkshop.machine.nvml import Nvml

INTERVAL = 0.2
"""Seconds between two looks, and the least: the driver has nothing new any sooner, and GPM needs a gap."""

LAST_LOOK = 0.1
"""Seconds of CPU use that the last sample must hold."""

PATIENCE = 3.0
"""Seconds that stopping waits for a driver that does not answer."""


class Sampler:
    """Samples of the job's cards by UUID, and of its CPUs. Looks once when it starts and once when it stops."""

    def __init__(
        self,
        interval: float = INTERVAL,
        env: Mapping[str, str] = os.environ,
        *,
        whole_user: bool = False,
        clock: Callable[[], float] = time.monotonic,
        open_nvml: Callable[[], Nvml] = Nvml,
    ):
        """``interval`` in seconds; a shorter one than :data:`INTERVAL` is raised to it. ``env`` names the cards.

        What is watched is this process and all that it started; with ``whole_user``, everything of this user.
        """
        self.interval = max(INTERVAL, interval)
        self.samples: list[Sample] = []
        """Oldest first. The thread replaces the list when it merges old ones; a reference stays what it was."""
        self.cards: gpus.Cards | None = None
        """None until the driver has answered."""
        self.readers: tuple[CardReader, ...] = ()
        self.problem = ""
        """Why NVML does not answer at all; "" when it does."""
        self.driver = ""
        self.cpus = allocation.cpus()
        self.cpu_seconds = 0.0
        """CPU time of the thread itself."""
        self.failure = ""
        """An error of our own that ended the thread; the watched job goes on."""
        self.own_cards = env is os.environ
        """Whether they are this process's, so that its PyTorch knows them."""
        self._env, self._clock, self._open_nvml = env, clock, open_nvml
        self._began = self._before = clock()
        self._waited = self._wait_before = 0.0
        self._waits_reported = False
        self._waiting_since: float | None = None
        self._whole_user = whole_user
        self._cpu, self._cpu_at = CpuUse(None if whole_user else os.getpid(), clock=clock), float("-inf")
        self._stopping, self._running = threading.Event(), threading.Event()
        self._running.set()
        self._thread = threading.Thread(target=self._run, name="gpuworkshop-watch", daemon=True)

    @property
    def watched(self) -> tuple[WatchedCard, ...]:
        """The cards as a chart names them."""
        return tuple(reader.watched for reader in self.readers)

    @property
    def began(self) -> float:
        """When it started, on its clock."""
        return self._began

    @property
    def over(self) -> bool:
        """Whether no further sample comes."""
        return self._stopping.is_set() or (self._thread.ident is not None and not self._thread.is_alive())

    @property
    def started(self) -> bool:
        """Whether it was started, ever."""
        return self._thread.ident is not None

    @property
    def hangs(self) -> bool:
        """Whether it was stopped and the driver still holds it."""
        return self._stopping.is_set() and self._thread.is_alive()

    def start(self) -> None:
        """Begin; returns at once, before the driver has answered."""
        self._began = self._before = self._clock()
        self._thread.start()

    def pause(self) -> None:
        """Look no more until :meth:`resume`; a look that has begun ends."""
        self._running.clear()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._running.set()

    def stop(self, patience: float = PATIENCE) -> None:
        """Take a last look and end; after ``patience`` seconds a hanging driver is left behind. May be called twice."""
        self._stopping.set()
        self._running.set()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def wait_for_first(self, patience: float = PATIENCE) -> bool:
        """Wait until there is a sample; whether there is one in time."""
        until = self._clock() + patience
        while not self.samples and not self.over and self._clock() < until:
            time.sleep(0.01)
        return bool(self.samples)

    def waited(self, seconds: float) -> None:
        """Report time that the job spent waiting for data."""
        self._waited += seconds
        self._waits_reported = True

    @contextmanager
    def waiting(self):
        """Report the time of the enclosed lines as waiting for data. A look meanwhile sees what has passed of it."""
        began = self._waiting_since = self._clock()
        self._waits_reported = True
        try:
            yield
        finally:
            self._waiting_since = None
            self.waited(self._clock() - began)

    @property
    def wait_seconds(self) -> float | None:
        """All time reported as waiting; None when nobody reported any."""
        return self._waited if self._waits_reported else None

    # The thread

    def _run(self) -> None:
        nvml = None
        try:
            nvml = self._open_nvml()
            self.open(nvml)
            due = self._clock()
            while not self._stopping.is_set():
                if not self._running.is_set():
                    self._running.wait()
                    due = self._clock() + self.interval / 2
                    self._stopping.wait(self.interval / 2)
                self.look()
                due = max(due + self.interval, self._clock())
                self._stopping.wait(due - self._clock())
            self.look(last=True)
        except Exception as error:  # a watch must never end what it watches
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            for reader in self.readers:
                reader.close()
            if nvml is not None:
                nvml.close()
            self.cpu_seconds = time.thread_time()

    def open(self, nvml: Nvml) -> None:
        """Find the job's cards: as PyTorch has them once it runs here, else as the environment names them."""
        seen = gpus.seen_by_torch() if self._torch_knows() else None
        self._nvml = nvml
        self.problem = nvml.problem.words if nvml.problem else ""
        self.cards = gpus.cards(self._env, seen, nvml)
        self.driver = gpus.driver_version(nvml)
        now = self._clock()
        self.readers = tuple(CardReader(nvml, card, now) for card in self.cards.mine if card.uuid)
        self._asked_torch = seen is not None

    def look(self, last: bool = False) -> None:
        """Take one sample of the cards that :meth:`open` found; at the ``last`` one everything is asked."""
        if self.cards and self.cards.unknown and not self._asked_torch and self._torch_knows():
            for reader in self.readers:
                reader.close()
            self.open(self._nvml)  # PyTorch has since said which cards are ours
        now = self._clock()
        seconds, self._before = now - self._before, now
        cpu, members = self._cpu_share(now), None if self._whole_user else self._cpu.members
        sample = Sample(
            at=now - self._began,
            cards=tuple(reader.read(now, members, last) for reader in self.readers),
            cpu=cpu,
            wait=self._wait_share(now, seconds),
            seconds=seconds,
        )
        self.samples.append(sample)
        self.samples = thinned(self.samples)
        self.cpu_seconds = time.thread_time()

    def _torch_knows(self) -> bool:
        """Whether PyTorch has a card open in this process, and so can say which are ours; never wakes it."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return bool(self.own_cards and cuda and hasattr(cuda, "is_initialized") and cuda.is_initialized())

    def _cpu_share(self, now: float) -> float | None:
        """Share of the job's CPUs since about a second ago; None between two looks at them."""
        since = now - self._cpu_at
        if since < (LAST_LOOK if self._stopping.is_set() else LEAST_PAUSE):
            return None
        self._cpu_at = now
        read = self._cpu.since()
        return min(1.0, read[0] / read[1] / self.cpus.count) if read and read[1] > 0 else None

    def _wait_share(self, now: float, seconds: float) -> float | None:
        if not self._waits_reported or seconds <= 0:
            return None
        since = self._waiting_since
        waited = self._waited + (now - since if since is not None else 0.0)
        new, self._wait_before = waited - self._wait_before, waited
        return min(1.0, max(0.0, new / seconds))
