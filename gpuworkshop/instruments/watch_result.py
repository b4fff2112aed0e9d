"""What a watch saw and what it means: the result and its findings. Nothing here measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpuworkshop.figures.map import MIDDLE, TARGET, quadrant
from gpuworkshop.instruments.card_reader import Source
from gpuworkshop.instruments.on_card import OnCard
from gpuworkshop.instruments.samples import Point, WatchedCard
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, number
from gpuworkshop.report import Finding, Origin
from gpuworkshop.timing import Rate

LEAST_WINDOWS = 10
"""Distinct windows of the driver below which nothing is judged."""

BUSY = TARGET[0][0]
"""Share of the time from which on a card counts as busy."""

FEW_SMS = 0.10
"""SM activity below which a busy card may be waiting."""

LITTLE_POWER = 0.30
"""Share of the power limit below which a busy card may be waiting, where SM activity cannot be read."""

NO_TENSOR = 0.01
"""Tensor activity below which the tensor cores did no work."""

CONTEXT = 2**30
"""Bytes that a CUDA context takes at most; more than that beside PyTorch's own belongs to somebody else."""


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
    processes: tuple[OnCard, ...] | None = ()
    """Seen on the card at any look; None when the driver does not say."""
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
    def shared(self) -> tuple[OnCard, ...]:
        """Processes on the card that do not belong to what was watched."""
        return tuple(p for p in self.processes or () if p.who in ("another's", "mine, left over"))


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

    @property
    def busy(self) -> float | None:
        """Mean of the cards whose utilization is known, by time."""
        known = [card for card in self.cards if card.busy is not None and card.seconds]
        total = sum(card.seconds for card in known)
        return sum(card.busy * card.seconds for card in known) / total if total else None

    @property
    def used_minutes(self) -> float | None:
        """GPU-minutes used, over the cards whose utilization is known."""
        return _sum(card.used_minutes for card in self.cards)

    @property
    def wasted_minutes(self) -> float | None:
        """GPU-minutes wasted, over the cards whose utilization is known."""
        return _sum(card.wasted_minutes for card in self.cards)


def findings(result: WatchResult) -> Iterator[Finding]:
    """What a result says, as a pure function of it."""
    for name in result.unknown:
        fix = "watch from inside the job's own Python, or name the card by its UUID in CUDA_VISIBLE_DEVICES"
        yield Finding("unknown", f"Not watched: which card is {name}?", "the order of the cards is not certain", fix)
    for card in result.cards:
        yield from _card_findings(card, result)
    if not result.cards:
        yield _no_card(result)
    yield from _watch_findings(result)


def _card_findings(card: CardWatch, result: WatchResult) -> Iterator[Finding]:
    if card.lost_at is not None:
        fix = "end the job and report the node and the card's UUID to the staff"
        yield Finding("fail", f"{card.label} stopped answering {card.lost_at:.0f} s in", card.card.uuid, fix)
    yield _verdict(card, result)
    yield from _tensor_finding(card)
    yield from process_findings(card)
    yield from _memory_findings(card)
    yield from _reading_findings(card)


def _verdict(card: CardWatch, result: WatchResult) -> Finding:
    """The card's place on the two axes, or why it gets none."""
    why = _why_not_judged(card, result)
    if why:
        return Finding("unknown", f"{card.label} is not judged: {why}", _evidence(card))
    if card.busy >= BUSY and _maybe_waiting(card):
        return Finding(
            "warning",
            f"{card.label} is busy but maybe waiting: a kernel was resident {card.busy:.0%} of the time, "
            + (f"SM activity {percent(card.sm)}" if card.sm is not None else f"at {watts(card)}"),
            f"{_evidence(card)}. Utilization counts the time in which any kernel was resident: one thread, or ranks "
            "that spin while they wait for each other, count as much as a full card",
            "compare the throughput; give the card more work a kernel; with several ranks, find the one that is late",
        )
    level, title = _place(card)
    return Finding(level, f"{card.label}: {title}", _evidence(card), "" if level == "ok" else _fix(card, result))


def _why_not_judged(card: CardWatch, result: WatchResult) -> str:
    if card.card.mig:
        return "utilization is n/a (MIG): the driver has no such number for a slice"
    if card.busy is None and not card.busy_why:
        return "too short, no window of the driver ended meanwhile"
    if card.busy is None:
        return f"utilization is n/a ({card.busy_why})"
    if card.shared:
        return "shared card, its numbers are not this job's alone"
    if card.windows < LEAST_WINDOWS:
        windows = counted(card.windows, "distinct window")
        return f"{windows} of the driver in {result.seconds:.1f} s, and {LEAST_WINDOWS} are needed"
    return "memory is n/a" if card.memory is None else ""


def _maybe_waiting(card: CardWatch) -> bool:
    """Whether a busy card does next to nothing: few SMs at work; where that is not known, little power."""
    if card.sm is not None:
        return card.sm < FEW_SMS
    return bool(card.power is not None and card.power_limit and card.power / card.power_limit < LITTLE_POWER)


def _place(card: CardWatch) -> tuple[Literal["ok", "notice", "warning"], str]:
    """The quadrant, in words."""
    name = quadrant(card.busy, card.memory)
    numbers = f"busy {card.busy:.0%} of the time, memory {card.memory:.0%} full"
    if card.busy < MIDDLE:
        return "warning", f"{name}: {numbers}"
    return ("ok" if name == "the target zone" else "notice"), f"{name}: {numbers}"


def _fix(card: CardWatch, result: WatchResult) -> str:
    """One line for each axis: the fix for one makes the other worse."""
    workers = max(2, workers_rule(result.conditions.cpus))
    feed = f"feed the card: DataLoader(..., num_workers={workers}, pin_memory=True), cheaper decoding"
    if card.busy < MIDDLE and card.memory < MIDDLE:
        return (
            "is the work on the card? next(model.parameters()).device\n"
            f"if it is, {feed}\n"
            "if nothing runs now, give the card back: somebody is waiting for it"
        )
    lines = [f"utilization: {feed if card.busy < BUSY else 'leave the data path alone'}"]
    if card.memory > TARGET[1][1]:
        lines.append("memory: nearly full; leave a tenth of it free for peaks")
    elif card.busy < MIDDLE:
        lines.append("memory: leave the batch as it is; a larger one waits for just as long")
    elif card.memory < TARGET[1][0]:
        lines.append("memory: room for a larger batch; keep it only if samples/s rise")
    else:
        lines.append("memory: leave the batch as it is")
    return "\n".join(lines)


def _tensor_finding(card: CardWatch) -> Iterator[Finding]:
    known = card.busy is not None and card.sm is not None and card.tensor is not None
    if known and card.windows >= LEAST_WINDOWS and card.sm >= MIDDLE and card.tensor < NO_TENSOR:
        yield Finding(
            "notice",
            f"{card.label}: the tensor cores did no work ({percent(card.tensor)} of the time)",
            f"SM activity {percent(card.sm)}: the same utilization can hide twice the speed",
            'with torch.autocast("cuda", dtype=torch.bfloat16): ...   # then compare samples/s',
        )


def process_findings(card: CardWatch) -> Iterator[Finding]:
    """Whose processes are on the card, besides what was watched."""
    for process in card.shared:
        holds = f"{gib(process.memory)} on {card.label}" if process.memory is not None else f"on {card.label}"
        name = f" ({process.name})" if process.name else ""
        if process.who == "mine, left over":
            fix = f"shut that kernel or process down: kill {process.pid}"
            yield Finding("warning", f"A leftover of yours is {holds}: process {process.pid}{name}", "", fix)
        else:
            yield Finding("notice", f"Somebody else's process is {holds}: {process.pid}{name}")
    hidden = _hidden(card)
    if hidden is not None and hidden > CONTEXT:
        why = "a container sees only its own processes, the card's memory is counted for all"
        yield Finding("notice", f"{gib(hidden)} on {card.label} used by processes not visible from here", why)


def _hidden(card: CardWatch) -> int | None:
    """Bytes that no visible process and no tensor of ours accounts for; None when the driver does not say."""
    if card.processes is None or card.memory_used is None or card.torch:
        return None  # with PyTorch's own figures the memory is told apart by them
    visible = [p for p in card.processes if p.who != "not visible"]
    if any(process.memory is None for process in visible):
        return None
    return max(0, card.memory_used - sum(process.memory or 0 for process in visible))


def _memory_findings(card: CardWatch) -> Iterator[Finding]:
    torch = card.torch
    if not torch:
        return
    told = f"live tensors {gib(torch.live)}, cached by torch {gib(torch.cached)}, rest {gib(torch.rest)}"
    foreign = torch.rest - CONTEXT
    if foreign > CONTEXT:
        title = f"{card.label}: another process holds about {gib(foreign, 0)}"
        yield Finding("warning", title, f"{told} (one CUDA context is below {gib(CONTEXT, 0)})", "nvidia-smi")
    elif torch.cached > CONTEXT and torch.cached > torch.live:
        fix = "torch.cuda.empty_cache()   # only to share the card: your own tensors can use the cache as it is"
        yield Finding("notice", f"{card.label}: memory is cached, not lost", f"{told} (CUDA context)", fix)
    else:
        yield Finding("ok", f"{card.label}: memory: {told} (CUDA context, other processes)")


def _reading_findings(card: CardWatch) -> Iterator[Finding]:
    """How well the card could be read."""
    if card.gpm_stopped is not None:
        when = f"{card.gpm_stopped:.0f} s in"
        yield Finding("notice", f"{card.label}: SM and tensor activity only until {when}", f"GPM: {card.gpm_why}")
    elif card.gpm_why:
        yield Finding("notice", f"{card.label}: SM and tensor activity n/a", f"GPM: {card.gpm_why}")
    if card.source == "polled":
        why = "no sample buffer: each look repeats the driver's last window, of 1/6 to 1 s, counted as 1 s"
        yield Finding("notice", f"{card.label}: utilization was polled", why)
    if card.dropped:
        yield Finding("notice", f"{card.label}: {counted(card.dropped, 'reading')} dropped: not within 0 to 100%")


def _no_card(result: WatchResult) -> Finding:
    """Without a card only the host's side can be told."""
    cpus = counted(result.conditions.cpus, "CPU")
    said = f"{percent(result.cpu)} of {cpus} in use" if result.cpu is not None else f"use of {cpus} n/a"
    return Finding("notice", f"No card to watch: {said}", result.problem or "NVML shows no card of this job")


def _watch_findings(result: WatchResult) -> Iterator[Finding]:
    if result.wait is not None:
        title = f"Loader wait: {percent(result.wait)} of the time, as the host saw it"
        yield Finding("notice", title, "" if not result.cards else "a card may still work while the host waits")
    for note in result.notes:
        yield Finding("warning", note)
    if result.left:
        several = len(result.left) > 1
        count = f"{len(result.left)} processes" if several else "1 process"
        title = f"{count} of the command still {'run' if several else 'runs'}; nothing was done about it"
        yield Finding("notice", title, ", ".join(result.left))
    if result.cards and result.used_minutes is not None:
        used, wasted = number(result.used_minutes), number(result.wasted_minutes)
        level = "notice" if result.wasted_minutes > result.used_minutes else "ok"
        yield Finding(level, f"GPU-minutes: {used} used, {wasted} wasted")


def _evidence(card: CardWatch) -> str:
    """The numbers behind a verdict."""
    parts = [
        f"busy {percent(card.busy)}" + (f" of {counted(card.windows, 'window')}" if card.busy is not None else ""),
        f"SM activity {percent(card.sm)}",
        f"memory {memory(card)}",
        f"power {watts(card)}",
    ]
    return ", ".join(parts)


def memory(card: CardWatch) -> str:
    """The most memory in use: "95% full (76.0 of 80.0 GiB)"."""
    if card.memory is None:
        return "n/a"
    return f"{card.memory:.0%} full ({gib(card.memory_used)} of {gib(card.memory_total)})"


def watts(card: CardWatch) -> str:
    """Mean power against the limit: "310 of 700 W"."""
    limit = f" of {card.power_limit:.0f}" if card.power_limit else ""
    return "n/a" if card.power is None else f"{card.power:.0f}{limit} W"


def percent(share: float | None) -> str:
    """A share in percent, small ones with a decimal: "0.5%", "41%"."""
    if share is None:
        return "n/a"
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


def gib(size: int | None, decimals: int = 1) -> str:
    """Bytes in GiB, less than a tenth of one in MiB."""
    if size is None:
        return "n/a"
    return f"{size / 2**20:.0f} MiB" if size < 2**30 / 10 else f"{size / 2**30:.{decimals}f} GiB"


def _sum(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
