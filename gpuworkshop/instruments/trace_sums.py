"""What a trace adds up to: the card's time and why it was idle, copies, launches, kinds of kernels, top rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from gpuworkshop.instruments.intervals import Intervals, gaps, overlap, union
from gpuworkshop.instruments.trace import CALL, COPY, KERNEL, LABEL, ON_DEVICE, OP, SET, Events, Trace
from gpuworkshop.instruments.trace_calls import Calls, calls, launched_by
from gpuworkshop.instruments.trace_host import HostTime, host_time

STEP, LOADER = "ProfilerStep#", "enumerate(DataLoader)#"
SYNCHRONIZES = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
                "cuCtxSynchronize", "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize")  # fmt: skip
LAUNCHES = ("LaunchKernel", "LaunchCooperativeKernel", "ModuleLaunch", "LaunchKernelEx")
GRAPH = "GraphLaunch"
AFTER_WAIT = 5
"""Launches after a wait whose lateness is that wait's: of some hundreds in a step, these few say nothing else."""


CLOCKS = 5.0
"""Microseconds by which the clocks of host and card may differ without harm: a launch takes about as long."""


class CardTime(msgspec.Struct, frozen=True):
    """How one card spent the traced time, from its first to its last event. Shares of ``span`` (microseconds).

    ``busy`` = ``computing`` + ``only_copying`` + ``only_communicating``; the rest is idle, by cause: the host was in
    the ``loader``, had waited for the card (``synchronizing``), was late with the next launch (``launching``), or had
    launched in time and the card itself was not ready (``card_itself``).
    """

    device: int
    span: float
    busy: float
    computing: float
    only_copying: float
    only_communicating: float
    communicating: float
    """All communication, also what computing hides."""
    idle_loader: float
    idle_synchronizing: float
    idle_launching: float
    idle_card_itself: float

    @property
    def idle(self) -> float:
        """The share of the time in which nothing ran."""
        return 1 - self.busy


class Copies(msgspec.Struct, frozen=True):
    """All copies of one direction: ``HtoD``, ``DtoH``, ``DtoD`` or ``PtoP``.

    ``pageable``: from or to host memory that is not page-locked.
    """

    direction: str
    pageable: bool
    count: int
    bytes: int
    microseconds: float


class Row(msgspec.Struct, frozen=True):
    """One operator, or one label of the learner's, over all its calls. Microseconds; total is with what it calls."""

    name: str
    calls: int
    device_total: float
    device_self: float
    cpu_total: float
    cpu_self: float


class Kernel(msgspec.Struct, frozen=True):
    """One kernel over all its calls, with the kind of work it does."""

    name: str
    kind: str
    calls: int
    microseconds: float


class TraceSums(msgspec.Struct, frozen=True):
    """What a trace adds up to. ``cards`` is empty where no event of a card was recorded: nothing is known, not 0."""

    file: str
    steps: int
    """Profiled steps; 0 where the trace has no step marks."""
    step_microseconds: float | None
    """Median of a profiled step on the host: longer than a plain step, never to be reported as one."""
    cards: tuple[CardTime, ...]
    kernels: int
    launches: int
    lost_launches: int
    """Kernel launches of the host without a kernel in the trace."""
    graph_launches: int
    median_kernel: float | None
    kinds: dict[str, float]
    """Share of the kernels' time, by kind of work, the largest first."""
    top_kernels: tuple[Kernel, ...]
    copies: tuple[Copies, ...]
    synchronizations: int
    """Calls that wait for the card, without the profiler's own last one."""
    synchronizing: float
    """Microseconds in them on the host."""
    loader: float
    """Microseconds of the host inside the DataLoader."""
    host_span: float
    operators: tuple[Row, ...]
    """By device time of their own, the largest first; by CPU time of their own where there is no card."""
    labels: tuple[Row, ...]
    rank: int | None
    world_size: int | None
    card: str
    events: int
    notes: tuple[str, ...]
    loading: Row | None = None
    """All calls of the DataLoader by the thread that trains; None where there were none."""
    early: float = 0.0
    """Share of what ran on the cards that began before its launch: more than a few and the clocks disagree."""
    silence: float = 0.0
    """The longest time, in microseconds, in which neither host nor card has an event, step marks aside."""
    host: HostTime | None = None
    """How the steps' time on the host divides; None without step marks, and in older recordings."""

    @property
    def main(self) -> CardTime | None:
        """The card with the most work; None where no card was recorded."""
        return max(self.cards, key=lambda card: card.span * card.busy, default=None)

    def per_step(self, count: float) -> float | None:
        """A count a step; None where the trace has no step marks."""
        return count / self.steps if self.steps else None


def sums(trace: Trace, rows: int = 30) -> TraceSums:
    """Add a trace up. ``rows``: how many operators and kernels to keep."""
    host, device, launch = trace.host, trace.device, launched_by(trace)
    nesting = calls(trace, launch)
    names = np.array(trace.names, dtype=object)
    is_call = host.kind == CALL
    waits = waits_for_card(trace)
    kernels = device.where(device.kind == KERNEL)
    steps = starting(trace, STEP) & np.isin(host.kind, (LABEL, OP))
    loader = starting(trace, LOADER) & nesting.outermost
    launches = is_call & _holding(trace, LAUNCHES)
    caught = np.zeros(len(host), dtype=bool)
    caught[launch[launch >= 0]] = True
    cards = (_card_time(trace, int(number), launch, loader, waits) for number in _devices(device))
    lost = int((launches & ~caught).sum()) if len(kernels) else 0
    return TraceSums(
        file=trace.file,
        steps=int(steps.sum()),
        step_microseconds=float(np.median(host.duration[steps])) if steps.any() else None,
        cards=tuple(card for card in cards if card),
        kernels=len(kernels),
        launches=int(launches.sum()),
        lost_launches=lost,
        graph_launches=int((is_call & _holding(trace, (GRAPH,))).sum()),
        median_kernel=float(np.median(kernels.duration)) if len(kernels) else None,
        kinds=_kinds(trace, kernels),
        top_kernels=_top_kernels(trace, kernels, rows),
        copies=_copies(trace),
        synchronizations=int(waits.sum()),
        synchronizing=float(host.duration[waits].sum()),
        loader=float(host.duration[loader].sum()),
        host_span=_span(host),
        operators=_rows(names, host, nesting, host.kind == OP, rows),
        labels=_labels(trace, _rows(names, host, nesting, (host.kind == LABEL) & ~steps & ~loader, rows), launch),
        rank=trace.rank,
        world_size=trace.world_size,
        card=trace.card,
        events=len(host) + len(device),
        notes=trace.notes,
        loading=_together("DataLoader", _rows(names, host, nesting, loader, len(host))),
        early=_early(trace, launch),
        silence=_silence(trace, ~steps),
        host=host_time(trace, steps, loader, nesting),
    )


def _early(trace: Trace, launch: np.ndarray) -> float:
    ours = (launch >= 0) & np.isin(trace.device.kind, ON_DEVICE)
    before = trace.device.start[ours] + CLOCKS < trace.host.start[launch[ours]]
    return float(before.mean()) if len(before) else 0.0


def _silence(trace: Trace, host: np.ndarray) -> float:
    both = [trace.host.times(host), trace.device.times(trace.device.kind >= KERNEL)]
    idle = gaps(union(*(np.concatenate(column) for column in zip(*both, strict=True))))
    return float((idle.end - idle.start).max(initial=0.0))


def _span(events: Events) -> float:
    return float(events.end.max() - events.start.min()) if len(events) else 0.0


def _devices(device: Events) -> np.ndarray:
    return np.unique(device.device[np.isin(device.kind, ON_DEVICE)])


def starting(trace: Trace, beginning: str) -> np.ndarray:
    """Which host events have a name with this beginning."""
    return _chosen(trace, (row for row, name in enumerate(trace.names) if name.startswith(beginning)))


def _holding(trace: Trace, words: Iterable[str]) -> np.ndarray:
    return _chosen(trace, (row for row, name in enumerate(trace.names) if any(word in name for word in words)))


def _chosen(trace: Trace, rows: Iterable[int]) -> np.ndarray:
    """Which host events have one of these names."""
    return np.isin(trace.host.name, np.fromiter(rows, dtype=np.int32))


def waits_for_card(trace: Trace) -> np.ndarray:
    """Which host events wait for the card; without the profiler's own last one, behind all steps."""
    waits = (trace.host.kind == CALL) & _holding(trace, SYNCHRONIZES)
    rows = np.flatnonzero(waits)
    steps = np.flatnonzero(starting(trace, STEP))
    if len(rows) and len(steps):
        waits[rows[trace.host.start[rows] >= trace.host.end[steps].max()]] = False
    return waits


# The card's time


def _card_time(trace: Trace, number: int, launch: np.ndarray, loader: np.ndarray, waits: np.ndarray) -> CardTime | None:
    """None where nothing took any time: then no share of it can be told."""
    device = trace.device
    work = np.isin(device.kind, ON_DEVICE) & (device.device == number)
    talks = work & is_kind(trace, "communication")
    moves = work & np.isin(device.kind, (COPY, SET))
    computing, talking = device.times(work & ~talks & ~moves), device.times(talks)
    busy, no_copies = device.times(work), device.times(work & ~moves)
    span = float(busy.end[-1] - busy.start[0])
    if not span:
        return None
    causes = _idle_causes(trace, work, busy, launch, loader, waits)
    return CardTime(
        device=number,
        span=span,
        busy=busy.length / span,
        computing=computing.length / span,
        only_copying=(busy.length - no_copies.length) / span,
        only_communicating=(no_copies.length - computing.length) / span,
        communicating=talking.length / span,
        **{f"idle_{cause}": microseconds / span for cause, microseconds in causes.items()},
    )


def _idle_causes(
    trace: Trace, work: np.ndarray, busy: Intervals, launch: np.ndarray, loader: np.ndarray, waits: np.ndarray
) -> dict[str, float]:
    """Microseconds of the gaps, by what the host did before it launched the work that ends them.

    A gap belongs to the card itself if that launch was made before it began. Else the host was late: what lies inside
    the loader is the loader's, and the rest is a synchronization's if the host was waiting for the card when the gap
    began, or had just done so: a wait leaves nothing launched ahead, and the host needs some launches to get ahead
    again (:data:`AFTER_WAIT`).
    """
    idle = gaps(busy)
    device, host = trace.device, trace.host
    rows = np.flatnonzero(work)
    ends_gap = rows[np.searchsorted(device.start[rows], idle.end)]
    call = launch[ends_gap]
    long = idle.end - idle.start
    launched = np.full(len(call), np.inf)
    launched[call >= 0] = host.start[call[call >= 0]]
    late = launched > idle.start
    in_loader = np.where(late, overlap(idle, host.times(loader)), 0.0)
    rest = np.where(late, long - in_loader, 0.0)
    waited = _inside(host.times(waits), idle.start) | _just_waited(trace, launch, waits, launched)
    return {
        "loader": float(in_loader.sum()),
        "synchronizing": float(rest[waited].sum()),
        "launching": float(rest[~waited].sum()),
        "card_itself": float(long[~late].sum()),
    }


def _just_waited(trace: Trace, launch: np.ndarray, waits: np.ndarray, launched: np.ndarray) -> np.ndarray:
    """Whether each launch, by its time, is one of the first few after the host had waited for the card."""
    host = trace.host
    ends = np.sort(host.end[waits])
    last = np.searchsorted(ends, launched, side="right") - 1
    if not len(ends):
        return np.zeros(len(launched), dtype=bool)
    made = np.sort(host.start[np.unique(launch[launch >= 0])])
    since = np.searchsorted(made, launched) - np.searchsorted(made, ends[np.maximum(last, 0)])
    return (last >= 0) & np.isfinite(launched) & (since < AFTER_WAIT)


def _inside(covered: Intervals, at: np.ndarray) -> np.ndarray:
    """Whether each time lies in one of the intervals."""
    if not len(covered.start):
        return np.zeros(len(at), dtype=bool)
    place = np.searchsorted(covered.start, at, side="right") - 1
    return (place >= 0) & (at <= covered.end[np.maximum(place, 0)])


# Kernels and copies


@cache
def _kernel_words() -> tuple[tuple[str, tuple[str, ...]], ...]:
    raw = msgspec.toml.decode(Path(__file__).with_name("kernels.toml").read_bytes())
    return tuple((kind["name"], tuple(kind["words"])) for kind in raw["kind"])


def kind_of(kernel: str) -> str:
    """The kind of work that a kernel with this name does; "other" where its name does not say."""
    plain = kernel.lower()
    return next((kind for kind, words in _kernel_words() if any(word in plain for word in words)), "other")


def is_kind(trace: Trace, kind: str) -> np.ndarray:
    """Which device events are kernels that do this kind of work."""
    device = trace.device
    names = [row for row in np.unique(device.name[device.kind == KERNEL]) if kind_of(trace.names[row]) == kind]
    return (device.kind == KERNEL) & np.isin(device.name, names)


def _by_name(events: Events) -> list[tuple[int, int, float]]:
    """Name, count and microseconds of each name, the longest first."""
    count, time = np.bincount(events.name), np.bincount(events.name, weights=events.duration)
    return [(int(row), int(count[row]), float(time[row])) for row in np.argsort(-time, kind="stable") if count[row]]


def _kinds(trace: Trace, kernels: Events) -> dict[str, float]:
    found: dict[str, float] = {}
    for row, _, time in _by_name(kernels):
        kind = kind_of(trace.names[row])
        found[kind] = found.get(kind, 0.0) + time
    whole = sum(found.values()) or 1.0
    return {kind: time / whole for kind, time in sorted(found.items(), key=lambda item: -item[1])}


def _top_kernels(trace: Trace, kernels: Events, rows: int) -> tuple[Kernel, ...]:
    named = [(trace.names[row], count, time) for row, count, time in _by_name(kernels)[:rows]]
    return tuple(Kernel(name, kind_of(name), count, time) for name, count, time in named)


def _copies(trace: Trace) -> tuple[Copies, ...]:
    """Copies by direction and by whether they went through pageable memory, the longest first."""
    events = trace.device.where(trace.device.kind == COPY)
    found: dict[tuple[str, bool], list[float]] = {}
    for row in np.unique(events.name):
        name, mine = trace.names[row], events.where(events.name == row)
        sums = found.setdefault((_direction(name), "Pageable" in name), [0, 0, 0.0])
        for place, value in enumerate((len(mine), mine.bytes.sum(dtype=float), mine.duration.sum())):
            sums[place] += value
    made = [Copies(*key, int(count), int(size), float(time)) for key, (count, size, time) in found.items()]
    return tuple(sorted(made, key=lambda copies: -copies.microseconds))


def _direction(name: str) -> str:
    return next((word for word in ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH") if word in name), "other")


# Rows


def _labels(trace: Trace, rows: tuple[Row, ...], launch: np.ndarray) -> tuple[Row, ...]:
    """The rows of labels, with the device time of all that was launched while they were open, on whatever thread.

    With a card the backward pass launches from a thread of PyTorch's own, on which the learner's label is not open.
    """
    host, device = trace.host, trace.device
    ours = (launch >= 0) & np.isin(device.kind, ON_DEVICE)
    launched, time = host.start[launch[ours]], device.duration[ours]
    if not len(time):
        return rows
    names = np.array(trace.names, dtype=object)[host.name]
    open_ = {row.name: host.times((host.kind == LABEL) & (names == row.name)) for row in rows}
    return tuple(
        msgspec.structs.replace(row, device_total=float(time[_inside(open_[row.name], launched)].sum())) for row in rows
    )


def _together(name: str, rows: tuple[Row, ...]) -> Row | None:
    """Rows of the same kind as one, under one name."""
    if not rows:
        return None
    columns = [column for column in Row.__struct_fields__ if column != "name"]
    return Row(name, *(sum(getattr(row, column) for row in rows) for column in columns))


def _rows(names: np.ndarray, host: Events, nesting: Calls, mask: np.ndarray, keep: int) -> tuple[Row, ...]:
    """Sums by name; a call inside one of the same name counts once in the totals."""
    if not mask.any():
        return ()
    name, outer = host.name[mask], nesting.outermost[mask]

    def total(column: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(name, weights=column[mask] * (1 if weight is None else weight))

    count = np.bincount(name)
    device_self, cpu_self = total(nesting.device_self), total(nesting.cpu_self)
    device_total, cpu_total = total(nesting.device_total, outer), total(host.duration, outer)
    order, by_host = (np.argsort(-time, kind="stable") for time in (device_self, cpu_self))
    if nesting.device_self.any():  # what the host alone computes has its rows, too
        kept = np.concatenate([by_host[: keep // 3], order[: keep - keep // 3]])
        order = order[np.isin(order, kept)]
    else:
        order = by_host
    return tuple(
        Row(
            str(names[row]),
            int(count[row]),
            *map(float, (device_total[row], device_self[row], cpu_total[row], cpu_self[row])),
        )
        for row in order[: max(keep, 0)]
        if count[row]
    )
