"""What the driver says of one card now: busy windows, GPM counters, memory, power, energy; each guarded by itself."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal

from gpuworkshop.instruments.gpm import Gpm, share
from gpuworkshop.instruments.on_card import MostSeen
from gpuworkshop.instruments.samples import CardSample, WatchedCard
from gpuworkshop.machine.gpus import Card
from gpuworkshop.machine.nvml import Nvml
from gpuworkshop.machine.processes import Process, processes

LONGEST_WINDOW = 1.0
"""Seconds: by product, the driver refreshes its utilization every 1/6 to 1 s."""

BUFFER = 1.0
"""Seconds between two readings of the sample buffer. It keeps every window, and a reading costs 1.5 ms on an H200."""

PROCESSES = 2.0
"""Seconds between two looks at the processes on the card."""

SELDOM = 5.0
"""Seconds between two readings of the energy counter, 3 ms each, and of the power limit."""

SILENCE = 3.0
"""Seconds without a window after which a sample buffer is taken to be dead."""

Source = Literal["sample buffer", "polled", ""]


class Busy:
    """The share of time in which a kernel was resident: from the driver's sample buffer, else polled.

    The buffer gives every window once. A poll repeats old ones, so only as many are counted as there must have been.
    """

    def __init__(self, nvml: Nvml, handle: Any, now: float):
        self._nvml, self._handle = nvml, handle
        self.dropped = 0
        """Windows whose value could not be: above 100."""
        self.why = ""
        """Why there is no utilization; "" when there is one."""
        self.source: Source = "sample buffer"
        self._last = 0
        """The driver's time of the newest window seen, in microseconds."""
        self._heard = self._began = self._polled = now
        self._read = float("-inf")
        self._partial = True
        """The first window that ends after the beginning began before it."""
        self._prime()

    def _prime(self) -> None:
        """Put aside what the buffer holds from before."""
        windows = self._windows()
        if windows is None:
            self.source = "polled"
        elif windows:
            self._last = windows[-1][0]

    def read(self, now: float, last: bool = False) -> tuple[float | None, int, float]:
        """The mean of the new windows, their number, and the seconds that they cover; ``last``: whatever is new."""
        if self.source == "sample buffer":
            if now - self._read < BUFFER - 0.01 and not last:
                return None, 0, 0.0
            self._read = now
            windows = self._windows()
            if windows:
                self._heard = now
                return self._weighted(windows)
            if windows is not None and now - self._heard < SILENCE:
                return None, 0, 0.0
            self.source = "polled"
        return self._poll(now)

    def _windows(self) -> list[tuple[int, int]] | None:
        """The windows that are new, by the driver's time; None when there is no buffer to read."""
        function = "nvmlDeviceGetSamples"
        self._nvml.refused.pop(function, None)
        kind = self._nvml.constant("NVML_GPU_UTILIZATION_SAMPLES")
        answer = self._nvml.ask(function, self._handle, kind, self._last)
        if answer is None:
            refused = self._nvml.refused.get(function)
            return [] if refused is not None and refused.cause == "not found" else None  # nothing new, or no buffer
        found = sorted((int(entry.timeStamp), int(entry.sampleValue.uiVal)) for entry in answer[1])
        return [(at, value) for at, value in found if at > self._last]

    def _weighted(self, windows: list[tuple[int, int]]) -> tuple[float | None, int, float]:
        """Mean by time, count, seconds. A window reaches from the end of the one before to its own."""
        busy = covered = 0.0
        count = 0
        for at, value in windows:
            seconds = min(LONGEST_WINDOW, (at - self._last) / 1e6)
            self._last = at
            known = share(value)
            if self._partial:
                self._partial = False
            elif known is None:
                self.dropped += 1
            else:
                busy, covered, count = busy + known * seconds, covered + seconds, count + 1
        return (busy / covered if covered else None), count, covered

    def _poll(self, now: float) -> tuple[float | None, int, float]:
        function = "nvmlDeviceGetUtilizationRates"
        seen = self._nvml.ask(function, self._handle)
        before, self._polled = self._polled, now
        if seen is None:
            refused = self._nvml.refused.get(function) or self._nvml.problem
            self.source, self.why = "", refused.words if refused else "the driver gave no answer"
            return None, 0, 0.0
        self.source, self.why = "polled", ""
        known = share(seen.gpu)
        if known is None:
            self.dropped += 1
            return None, 0, 0.0
        whole = int((now - self._began) / LONGEST_WINDOW) - int((before - self._began) / LONGEST_WINDOW)
        return known, whole, now - before


class CardReader:
    """Everything that is read of one card; ``handle`` is None when NVML does not know it."""

    def __init__(self, nvml: Nvml, card: Card, now: float):
        self.card, self.watched = card, WatchedCard(card.uuid, card.name, card.place, card.mig)
        self.lost_at: float | None = None
        self._nvml, self._handle = nvml, nvml.handle(card.uuid)
        parent = nvml.handle(card.parent) if card.mig else None
        self.busy = None if card.mig or self._handle is None else Busy(nvml, self._handle, now)
        self.gpm = Gpm(nvml, self._handle, parent) if self._handle is not None and (parent or not card.mig) else None
        self.gpm_stopped: float | None = None
        """When GPM was refused after it had answered, on the clock of ``read``."""
        self._on_card = MostSeen()
        self._listed_at = self._metered_at = float("-inf")
        self._energy: tuple[float, int] | None = None
        """When the energy counter was read, and what it said."""
        self._limit: float | None = None

    @property
    def processes(self) -> tuple[Process, ...] | None:
        """The processes seen on the card; None when the driver does not list any."""
        return self._on_card.processes

    @property
    def known(self) -> bool:
        """Whether NVML knows the card."""
        return self._handle is not None

    def read(self, now: float, members: Set[int] | None = None, last: bool = False) -> CardSample:
        """One sample; ``now`` is a clock in seconds. A lost card is asked nothing more; at the ``last`` look, all is.

        ``members`` are the processes of what is watched, to tell them from others; None: all of this user's.
        """
        if self.lost_at is not None:
            return CardSample(self.card.uuid, lost=True)
        self._nvml.refused.clear()
        busy, windows, covered = self.busy.read(now, last) if self.busy else (None, 0, 0.0)
        energy, energy_seconds = self._metered(now, last)
        counters = self._counters(now)
        memory = self._nvml.memory(self._handle)
        sample = CardSample(
            self.card.uuid,
            busy=busy,
            **counters,
            memory_used=memory[0] if memory else None,
            memory_total=memory[1] if memory else self.card.memory_bytes,
            power=self._watts("nvmlDeviceGetPowerUsage"),
            power_limit=self._limit,
            energy=energy,
            energy_seconds=energy_seconds,
            windows=windows,
            covered=covered,
        )
        self._list(now, members, last)
        if any(refusal.cause == "lost" for refusal in self._nvml.refused.values()):
            self.lost_at = now
            return CardSample(self.card.uuid, lost=True)
        return sample

    def _metered(self, now: float, last: bool) -> tuple[float | None, float]:
        """Every :data:`SELDOM` seconds J since the time before, and the seconds between; the power limit with it."""
        if not last and now - self._metered_at < SELDOM - 0.01:
            return None, 0.0
        self._metered_at = now
        self._limit = self._watts("nvmlDeviceGetEnforcedPowerLimit")
        return self._energy_since(now)

    def _list(self, now: float, members: Set[int] | None, last: bool) -> None:
        """Every :data:`PROCESSES` seconds who is on the card."""
        if last or now - self._listed_at >= PROCESSES - 0.01:
            self._listed_at = now
            self._on_card.add(processes(self._nvml, self.card, watched=members), whole_user=members is None)

    def _counters(self, now: float) -> dict[str, float]:
        if self.gpm is None:
            return {}
        could = not self.gpm.why
        counters = self.gpm.read(now)
        if could and self.gpm.why and self.gpm.answered:
            self.gpm_stopped = now
        return counters

    def _watts(self, function: str) -> float | None:
        milliwatts = self._nvml.ask(function, self._handle)
        return milliwatts / 1e3 if milliwatts is not None else None

    def _counter(self) -> int | None:
        """The card's energy counter in mJ. A slice has none of its own."""
        return None if self.card.mig else self._nvml.ask("nvmlDeviceGetTotalEnergyConsumption", self._handle)

    def _energy_since(self, now: float) -> tuple[float | None, float]:
        """J since the reading before, and the seconds between the two; None at the first."""
        counter, before = self._counter(), self._energy
        self._energy = (now, counter) if counter is not None else None
        if before is None or counter is None or counter < before[1]:
            return None, 0.0
        return (counter - before[1]) / 1e3, now - before[0]

    def close(self) -> None:
        """Give back what was allocated in the driver."""
        if self.gpm:
            self.gpm.close()
