"""What a watch means: pure functions of its result. Nothing here measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuworkshop.figures.map import MIDDLE, TARGET, quadrant
from gpuworkshop.instruments import launched
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult
from gpuworkshop.machine import processes_findings
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.machine.processes_findings import CONTEXT
from gpuworkshop.numbers import counted, gib, number, percent, several
from gpuworkshop.report import Finding

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


def findings(result: WatchResult) -> Iterator[Finding]:
    """What a result says, as a pure function of it."""
    if result.launched:
        yield launched.finding(result.launched)
    if result.unknown:
        fix = "watch from inside the job's own Python, or name the card by its UUID in CUDA_VISIBLE_DEVICES"
        yield Finding(
            "unknown",
            f"Not watched: which card is {several(result.unknown)}?",
            "the order of the cards is not certain",
            fix,
        )
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
    if card.on_card.shared:
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
    for process in card.on_card.strangers:
        yield processes_findings.finding(process, card.label)
    if card.processes is not None and not card.torch:  # PyTorch's own figures tell the memory apart by themselves
        yield from processes_findings.unseen(card.on_card, card.label)


def _memory_findings(card: CardWatch) -> Iterator[Finding]:
    torch = card.torch
    if not torch:
        return
    told = f"live tensors {gib(torch.live)}, cached by torch {gib(torch.cached)}, rest {gib(torch.rest)}"
    foreign = torch.rest - CONTEXT
    if foreign > CONTEXT:
        title = f"{card.label}: another process holds about {gib(foreign)}"
        yield Finding("warning", title, f"{told} (one CUDA context is below {gib(CONTEXT)})", "nvidia-smi")
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
    if result.cards and result.problem:
        why = "the job is not affected; utilization, power and processes are n/a, and memory is as PyTorch counts it"
        fix = "gpuworkshop verify   # says why, and what to do"
        yield Finding("warning", f"No monitoring: NVML does not answer ({result.problem})", why, fix)
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
