"""What a watch saw: facts only. What they mean is said by :mod:`.watch_findings`."""

from __future__ import annotations

import msgspec

from gpuworkshop.instruments.card_reader import Source
from gpuworkshop.instruments.launched import Launched
from gpuworkshop.instruments.samples import Point, WatchedCard, mean, total
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.machine.processes import OnCard, Process
from gpuworkshop.report import Origin
from gpuworkshop.timing import Rate


class TorchMemory(msgspec.Struct, frozen=True):
    """Memory of one card at one moment, in bytes: as PyTorch counts its own, and as the driver counts all."""

    live: int
    """In tensors."""
    reserved: int
    """Held by PyTorch: live tensors and its cache."""
    used: int
    """In use on the card, by everybody."""

    @property
    def cached(self) -> int:
        """Held by PyTorch and free for its next tensors."""
        return max(0, self.reserved - self.live)

    @property
    def rest(self) -> int:
        """CUDA contexts, libraries, other processes."""
        return max(0, self.used - self.reserved)


class CardWatch(msgspec.Struct, frozen=True):
    """One card over a watch. Shares from 0 to 1, means over time; None is not known."""

    card: WatchedCard
    busy: float | None = None
    """Share of the time in which a kernel was resident."""
    windows: int = 0
    """Distinct windows of the driver behind ``busy``."""
    source: Source = ""
    """How ``busy`` was read."""
    busy_why: str = ""
    """Why there is no ``busy``."""
    dropped: int = 0
    """Readings of ``busy`` that were dropped because they could not be."""
    sm: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    gpm_why: str = ""
    """Why GPM cannot be read, or no longer could."""
    gpm_stopped: float | None = None
    """Seconds after the beginning at which GPM was refused."""
    memory_used: int | None = None
    """Bytes, the most at any look."""
    memory_total: int | None = None
    power: float | None = None
    """W, from the energy counter where there is one."""
    power_limit: float | None = None
    energy: float | None = None
    """J."""
    seconds: float = 0.0
    """Time in which the card was watched and answered."""
    lost_at: float | None = None
    """Seconds after the beginning at which the card stopped answering."""
    processes: tuple[Process, ...] | None = ()
    """Seen on the card at any look, each with its most memory; None when the driver does not say."""
    torch: TorchMemory | None = None
    """At the end, where PyTorch runs in the watching process."""
    path: tuple[Point, ...] = ()

    @property
    def label(self) -> str:
        """The card's short name."""
        return self.card.label

    @property
    def memory(self) -> float | None:
        """The most memory in use, as a share."""
        return self.memory_used / self.memory_total if self.memory_total and self.memory_used is not None else None

    @property
    def used_minutes(self) -> float | None:
        """GPU-minutes in which a kernel was resident."""
        return None if self.busy is None else self.busy * self.seconds / 60

    @property
    def wasted_minutes(self) -> float | None:
        """GPU-minutes in which none was."""
        return None if self.busy is None else (1 - self.busy) * self.seconds / 60

    @property
    def on_card(self) -> OnCard:
        """Everybody who was on the card, and the most memory that was in use there."""
        return OnCard(self.processes, self.memory_used)


class WatchResult(msgspec.Struct, frozen=True):
    """What was seen while something ran."""

    what: str
    seconds: float
    cards: tuple[CardWatch, ...]
    interval: float
    """Seconds between two looks."""
    samples: int
    sampler_cpu_seconds: float
    """CPU time that the watch itself took."""
    conditions: Conditions
    origin: Origin
    busy_percent: Rate | None = None
    """Utilization of the cards in percent with its noise over the looks; without a card the use of the job's CPUs."""
    cpu: float | None = None
    """Mean share of the job's CPUs in use by what was watched."""
    wait: float | None = None
    """Share of the time that the caller reported as waiting for data."""
    others: int = 0
    """Cards that NVML shows and that are not this job's."""
    unknown: tuple[str, ...] = ()
    """Cards of this job that could not be told apart, and so were not watched."""
    problem: str = ""
    """Why NVML does not answer; "" when it does."""
    notes: tuple[str, ...] = ()
    """What went wrong with the watch itself."""
    status: int | None = None
    """Exit status of the command as a shell gives it; None for a watch without one."""
    left: tuple[str, ...] = ()
    """Processes of the command that still ran after it ended."""
    launched: Launched | None = None
    """What began the command, where that may give it other cards than this process has."""

    @property
    def busy(self) -> float | None:
        """Mean of the cards whose utilization is known, by time."""
        return mean((card.busy, card.seconds) for card in self.cards)

    @property
    def used_minutes(self) -> float | None:
        """GPU-minutes used, over the cards whose utilization is known."""
        return total(card.used_minutes for card in self.cards)

    @property
    def wasted_minutes(self) -> float | None:
        """GPU-minutes wasted, over the cards whose utilization is known."""
        return total(card.wasted_minutes for card in self.cards)
