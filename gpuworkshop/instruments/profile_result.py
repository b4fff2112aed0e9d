"""What a profile says and what it means: the result, the four signs, findings and report. Nothing here measures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from gpuworkshop.instruments import nsight
from gpuworkshop.instruments.trace_sums import CardTime, Copies, Row, TraceSums
from gpuworkshop.instruments.trace_timeline import Timeline
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, number, shortened
from gpuworkshop.report import Finding, Level, Origin, Report, Table
from gpuworkshop.timing import Rate
from gpuworkshop.workloads.config import TrainConfig

GAPS = 0.10
"""Share of the time from which idling is a sign: of the card's time in gaps, of the host's time in the DataLoader."""
A_CAUSE = 0.05
"""Share of the card's time from which one cause of its gaps is named, where they are a sign."""
COPYING = 0.05
"""Share of the card's time in copies that nothing hides from which they are a sign."""
HEAVY = ("aten::mm", "aten::addmm", "aten::bmm", "aten::convolution", "aten::mkldnn_convolution", "aten::linear",
         "aten::_slow_conv2d_forward", "aten::convolution_backward", "aten::native_batch_norm",
         "aten::_scaled_dot_product_flash_attention_for_cpu")  # fmt: skip
"""Operators that belong on the card: where they take CPU time and no time of the card, the work is not there."""
COPY = "aten::copy_"
PYTORCHS_OWN = ("Optimizer.", "DistributedDataParallel.", "FSDP::", "Torch-Compiled Region", "## ", "nccl:", "gloo:")
"""How labels begin that PyTorch sets by itself, so that nobody has to look for them in a script."""
LOST = 0.05
"""Share of launches without a kernel in the trace from which its times are a lower bound."""

EARLY = 0.10
"""Share of what ran on the card that began before its launch, from which the clocks of host and card disagree."""
SILENT, SILENT_SECONDS = 0.5, 10.0
"""Share of a trace, and seconds, from which a time without any event is said: it makes all shares small."""

CALLING, FEW_CALLS = 0.25, 50
"""Share of the host's time that calling small operators takes, and calls a step, from which it is a sign on a CPU."""

Sign = Literal["loader", "synchronizing", "launching", "copies", "not on the card", "calling"]


class ProfileResult(msgspec.Struct, frozen=True):
    """One profile. ``plain`` is the rate without the profiler; None for a trace that something else wrote."""

    workload: str
    device: str
    asked_steps: int | None
    batch_size: int | None
    plain: Rate | None
    sums: TraceSums
    timeline: Timeline
    trace_file: str
    trace_bytes: int
    conditions: Conditions | None
    origin: Origin
    config: TrainConfig | None = None
    planted: str = ""
    step_calls: int | None = None
    """Calls of operators in one step, where they are so many that fewer than :attr:`usual_steps` are profiled."""
    usual_steps: int | None = None
    counters: bool | None = None
    """Whether Nsight Compute may read the card's counters where this was measured; None: not known."""

    @property
    def plain_ms(self) -> float | None:
        """Milliseconds of a step without the profiler."""
        return 1e3 * self.batch_size / self.plain.value if self.plain and self.batch_size else None

    @property
    def slowed_by_profiling(self) -> float | None:
        """How many times longer a profiled step is than a plain one."""
        profiled = self.sums.step_microseconds
        return profiled / 1e3 / self.plain_ms if profiled and self.plain_ms else None


class Seen(msgspec.Struct, frozen=True):
    """One of the signs, and how much of the time it stands for."""

    sign: Sign
    share: float


def signs(sums: TraceSums) -> tuple[Seen, ...]:
    """The signs that a trace shows, the one that costs most first.

    Shares of the card's time; of the host's time where there is no card, and for work that is not on the card. Where
    the clocks of host and card disagree, nobody can tell why the card was idle, and no cause is named.
    """
    card = sums.main
    apart = sums.early >= EARLY
    elsewhere = not_on_card(sums) / sums.host_span if sums.host_span else 0.0
    found = []
    if card:
        if elsewhere >= GAPS:
            found.append(Seen("not on the card", elsewhere))
        late = card.idle_launching - (elsewhere if found else 0.0)  # a host that computes is no slow launcher
        gaps = {"loader": card.idle_loader, "synchronizing": card.idle_synchronizing, "launching": late}
        if card.idle >= GAPS and not apart:
            found += [Seen(sign, share) for sign, share in gaps.items() if share >= A_CAUSE]
        if card.only_copying >= COPYING:
            found.append(Seen("copies", card.only_copying))
    else:
        if sums.host_span and sums.loader / sums.host_span >= GAPS:
            found.append(Seen("loader", sums.loader / sums.host_span))
        calling = sums.host.calling if sums.host else None
        if calling and calling.share >= CALLING and calling.calls >= FEW_CALLS * sums.steps:
            found.append(Seen("calling", calling.share))
    return tuple(sorted(found, key=lambda seen: -seen.share))


def not_on_card(sums: TraceSums) -> float:
    """Microseconds of CPU time in operators that belong on the card and did nothing there."""
    return sum(row.cpu_self for row in sums.operators if row.name in HEAVY and row.device_total == 0)


def findings(result: ProfileResult) -> Iterator[Finding]:
    """What a profile says, as a pure function of it."""
    sums = result.sums
    yield from _reading(result)
    if sums.cards:
        yield _launches(sums)
        yield from _synchronizations(sums)
        yield from _communication(sums.main)
    if result.slowed_by_profiling:
        title = f"Take times from plain steps: {number(result.plain_ms)} ms"
        evidence = f"a profiled step took {result.slowed_by_profiling:.1f}x as long: read its times as shares"
        yield Finding("notice", title, evidence)
    if sums.cards:
        yield _rungs(result)


def _reading(result: ProfileResult) -> Iterator[Finding]:
    """What is read first: whether the trace is whole, busy or not, the signs, the top row."""
    sums = result.sums
    if result.planted:
        yield Finding("notice", f"Planted: {result.planted}", "put there on purpose; what it does here is real")
    yield from _completeness(result)
    if sums.cards:
        yield _busy(sums, sums.main)
        yield from (_sign(sums, seen) for seen in signs(sums))
        yield _top_row(sums)
    else:
        yield from _no_card(result)
    if sums.main is None or sums.main.idle >= GAPS:  # what the host does beside a busy card costs nothing
        yield from _unseen(sums)


def _completeness(result: ProfileResult) -> Iterator[Finding]:
    sums = result.sums
    for note in sums.notes:
        yield Finding("warning", "The trace is not whole", note)
    yield from _clocks(sums)
    if result.step_calls:
        title = f"{counted(sums.steps, 'step')} of this job are enough: each makes {result.step_calls:,} calls"
        evidence = f"{result.usual_steps} would make a trace that is large and slow to read, and say the same"
        yield Finding("notice", title, evidence, f"gpuworkshop profile --steps {result.usual_steps}")
    if result.asked_steps and 0 < sums.steps < result.asked_steps:
        title = f"Only {counted(sums.steps, 'step')} of {result.asked_steps}: the loader ended"
        yield Finding("notice", title, "shares of few steps say less", "a loader with more batches, or a DataLoader")
    if sums.launches and sums.lost_launches > LOST * sums.launches:
        share = sums.lost_launches / sums.launches
        title = f"{share:.0%} of the kernels were not recorded: times of the card are a lower bound"
        yield Finding("warning", title, f"{sums.launches:,} launches, {sums.lost_launches:,} without a kernel")
    if sums.world_size and sums.world_size > 1:
        rank = "a rank" if sums.rank is None else f"rank {sums.rank}"
        yield Finding("notice", f"This is {rank} of {sums.world_size}: other ranks may differ")
    if len(sums.cards) > 1:
        yield Finding("notice", f"{len(sums.cards)} cards in this trace; shown is the one with the most work")


def _clocks(sums: TraceSums) -> Iterator[Finding]:
    if sums.early >= EARLY:
        evidence = f"{sums.early:.0%} of what ran on the card begins before its launch: why it was idle cannot be told"
        yield Finding(
            "warning", "The clocks of host and card disagree", evidence, "profile once more, with a newer PyTorch"
        )
    whole = max([sums.host_span, sums.silence, *(card.span for card in sums.cards)])
    if sums.silence >= max(SILENT * whole, SILENT_SECONDS * 1e6):
        title = (
            f"Nothing at all was recorded for {number(sums.silence / 1e6)} s, {sums.silence / whole:.0%} of the trace"
        )
        evidence = "the clock jumped, or the job did something else than steps: all shares are of this whole time"
        yield Finding("warning", title, evidence, "profile steps that follow each other, and nothing between them")


def _no_card(result: ProfileResult) -> Iterator[Finding]:
    if result.device != "cpu" or result.sums.launches:
        yield Finding(
            "unknown",
            "No times of the card were recorded",
            "either nothing was launched on it, or the profiler's part for the card (CUPTI) could not start: another "
            "profiler holds it, counters are kept for administrators, or LD_LIBRARY_PATH holds another CUDA's CUPTI",
            "print(next(model.parameters()).device); if that is the card, end other profilers and unset "
            "LD_LIBRARY_PATH; KINETO_LOG_LEVEL=0 shows its errors; until then measure with events: gpuworkshop starve",
        )
    for seen in signs(result.sums):
        yield _sign(result.sums, seen)
    if result.sums.operators and not result.sums.launches and result.device == "cpu":
        yield _top_row_of_cpu(result.sums)


def _busy(sums: TraceSums, card: CardTime) -> Finding:
    level: Level = "ok" if card.idle < GAPS else "warning"
    causes = {
        "the host was in the DataLoader": card.idle_loader,
        "it had waited for the card": card.idle_synchronizing,
        "it was late with the next launch": card.idle_launching,
        "the card itself": card.idle_card_itself,
    }
    named = [f"{share:.0%} {cause}" for cause, share in causes.items() if share >= 0.005 and sums.early < EARLY]
    over = counted(sums.steps, "step") if sums.steps else "the trace"
    idle = f"idle {card.idle:.0%}" + (f": {', '.join(named)}" if named else "")
    return Finding(level, f"The card was busy {card.busy:.0%} of the time, over {over}", idle)


def _sign(sums: TraceSums, seen: Seen) -> Finding:
    title, evidence, fix = {
        "loader": _loader,
        "synchronizing": _waiting,
        "launching": _launching,
        "copies": _copying,
        "not on the card": _elsewhere,
        "calling": _calling,
    }[seen.sign](sums, seen.share)
    return Finding("warning", title, evidence, fix)


def _loader(sums: TraceSums, share: float) -> tuple[str, str, str]:
    where = "The card idles" if sums.cards else "The host is in the DataLoader"
    evidence = f"{number(sums.loader / 1e3)} ms inside the DataLoader" + _each(sums, sums.loader)
    return (
        f"{where} {share:.0%} of the time{' for the DataLoader' if sums.cards else ''}",
        evidence,
        "chapter 4: gpuworkshop starve",
    )


def _waiting(sums: TraceSums, share: float) -> tuple[str, str, str]:
    each = sums.per_step(sums.synchronizations)
    evidence = f"{counted(sums.synchronizations, 'call')} that wait for the card" + (
        f", {each:.0f} a step" if each else ""
    )
    fix = "read results less often: no .item(), .cpu(), print(loss) or if on a tensor in every step"
    return f"The card idles {share:.0%} of the time after the host waited for it", evidence, fix


def _launching(sums: TraceSums, share: float) -> tuple[str, str, str]:
    each = sums.per_step(sums.kernels)
    evidence = (f"{each:,.0f} kernels a step, " if each else "") + f"median kernel {number(sums.median_kernel)} us"
    fix = "fewer, larger kernels: a larger batch, torch.compile, a fused optimizer; no loop over samples"
    return f"Launch-bound: the card idles {share:.0%} of the time because launches come late", evidence, fix


def _calling(sums: TraceSums, share: float) -> tuple[str, str, str]:
    found = sums.host.calling
    each = found.calls / sums.steps
    evidence = (
        f"the median one works {number(found.median)} us: what it costs is being called. Profiling makes each call "
        "longer, so a plain step pays somewhat less"
    )
    fix = "one call for the whole batch, no loop over samples; a larger batch; torch.compile"
    return f"Many small calls: {each:,.0f} a step take {share:.0%} of the host's time", evidence, fix


def _unseen(sums: TraceSums) -> Iterator[Finding]:
    """The host's time in pauses of PyTorch, in which no row can tell what happened."""
    host = sums.host
    if host is None or host.unseen < GAPS * host.whole:
        return
    each = number(host.unseen / sums.steps / 1e3)
    title = f"In no row: {host.unseen / host.whole:.0%} of the host's time, {each} ms a step without any operator"
    evidence = (
        "NumPy, PIL or plain Python of yours, or the process waited for a CPU core that others used; "
        f"the way from one call to the next is {host.between / host.whole:.0%} more"
    )
    fix = "with torch.profiler.record_function('mine'): ...   # a label around the lines that you suspect has a row"
    yield Finding("notice", title, evidence, fix)


def _copying(sums: TraceSums, share: float) -> tuple[str, str, str]:
    named = "; ".join(map(_copy_words, sums.copies[:3]))
    fix = "keep tensors on the card"
    if any(copies.pageable and copies.direction == "HtoD" for copies in sums.copies):
        fix = "pin_memory=True in the DataLoader and .to(device, non_blocking=True); " + fix
    return f"Copies take {share:.0%} of the card's time, with nothing beside them", named, fix


def _elsewhere(sums: TraceSums, share: float) -> tuple[str, str, str]:
    names = [row.name for row in sums.operators if row.name in HEAVY and row.device_total == 0][:3]
    fix = "model.to(device) and batch.to(device): print(next(model.parameters()).device)"
    return f"Work that belongs on the card runs on the CPU: {share:.0%} of the host's time", ", ".join(names), fix


def _top_row(sums: TraceSums) -> Finding:
    whole = sum(kernel.microseconds for kernel in sums.top_kernels) or 1.0
    kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in list(sums.kinds.items())[:4])
    top = next((row for row in sums.operators if row.device_self > 0), None)
    if top is None:
        return Finding("unknown", "The trace does not say which operator launched what", kinds)
    return Finding(
        "ok", f"Top row: {shortened(top.name)}, {_share(top.device_self, whole)} of the kernels' time", kinds
    )


def _top_row_of_cpu(sums: TraceSums) -> Finding:
    top = _ranked(sums)[0]
    title = f"Top row: {shortened(top.name)}, {_share(top.cpu_self, _cpu(sums))} of the CPU time"
    if top.name == COPY:
        return Finding("warning", title, f"{_calls(top)}: data is moved and converted, not computed with", CONVERTING)
    return Finding("ok", title, _calls(top))


CONVERTING = "convert once, before training: one dtype and one layout"


def _launches(sums: TraceSums) -> Finding:
    each = sums.per_step(sums.kernels)
    count = f"{each:,.0f} kernels a step" if each else f"{sums.kernels:,} kernels"
    if sums.graph_launches:
        count += f", from {counted(sums.graph_launches, 'launch')} of CUDA graphs and {sums.launches:,} single ones"
    return Finding("notice", f"{count}, median {number(sums.median_kernel)} us")


def _synchronizations(sums: TraceSums) -> Iterator[Finding]:
    each = sums.per_step(sums.synchronizations)
    shown = any(seen.sign == "synchronizing" for seen in signs(sums))
    if each and each >= 1 and not shown:
        title = f"The host waits for the card {each:.0f} times a step: waiting is not work, and costs nothing by itself"
        yield Finding("notice", title, f"{number(sums.synchronizing / 1e3)} ms of the host in all")


def _communication(card: CardTime) -> Iterator[Finding]:
    if card.communicating:
        hidden = 1 - card.only_communicating / card.communicating
        level: Level = "ok" if card.only_communicating < GAPS else "warning"
        title = f"Communication takes {card.communicating:.0%} of the time; computing hides {hidden:.0%} of it"
        yield Finding(level, title, f"not hidden: {card.only_communicating:.0%} of the card's time")


def _rungs(result: ProfileResult) -> Finding:
    """The lines of the two rungs above, for what is on the first place here."""
    may = {
        True: "Nsight Compute may read the card's counters here",
        False: "only administrators may read the card's counters here, as Nsight Compute must; the timeline needs none",
        None: "whether the card's counters may be read, as Nsight Compute must, is not known here",
    }[result.counters]
    kernel = next((short(one.name).partition(" ")[0] for one in result.sums.top_kernels), "")
    lines = (nsight.systems(nsight.YOURS), nsight.compute(nsight.YOURS, kernel=kernel))
    return Finding(
        "notice", "Not clear yet? The next rungs: every thread in order, then one kernel", may, "\n".join(lines)
    )


def _each(sums: TraceSums, microseconds: float) -> str:
    each = sums.per_step(microseconds)
    return f", {number(each / 1e3)} ms a step" if each else ""


def _copy_words(copies: Copies) -> str:
    memory = " pageable" if copies.pageable else ""
    size = f"{copies.bytes / 1e6:,.1f} MB" if copies.bytes else "size n/a"
    return f"{copies.count:,} {copies.direction}{memory}, {size}, {number(copies.microseconds / 1e3)} ms"


def short(kernel: str) -> str:
    """A kernel's name without its types: ``elementwise_kernel (direct_copy_kernel_cuda)``."""
    base, _, types = kernel.removeprefix("void ").partition("<" if "<" in kernel.partition("(")[0] else "(")
    base = base.rsplit("::", 1)[-1] if "::" in base else base
    functor = re.search(r"(\w*(?:Functor|_kernel_cuda|_kernel_impl|Ops?)\w*)", types) if "kernel" in base else None
    return f"{base} ({functor[1]})"[:70] if functor and functor[1] not in base else base[:70]


def _share(part: float, whole: float) -> str:
    return f"{min(1.0, part / whole):.0%}" if whole else "n/a"


def _cpu(sums: TraceSums) -> float:
    return sum(row.cpu_self for row in (*_ranked(sums), *sums.labels))


def _ranked(sums: TraceSums) -> list[Row]:
    """Operators and the DataLoader, the most time of their own first; with a card the DataLoader last."""
    if sums.loading is None:
        return list(sums.operators)
    if sums.cards:
        return [*sums.operators, sums.loading]
    return sorted((*sums.operators, sums.loading), key=lambda row: -row.cpu_self)


def _calls(row: Row) -> str:
    return f"{counted(row.calls, 'call')}, {number(row.cpu_self / 1e3)} ms without what it calls"


# Report


def report(result: ProfileResult) -> Report:
    """The findings, the table of the course's columns, labels, kernels and copies, and the timeline of one step."""
    from gpuworkshop.figures.timeline import step_timeline

    sums = result.sums
    tables = [_operators(sums)]
    if yours := [row for row in sums.labels if not row.name.startswith(PYTORCHS_OWN)]:
        tables.append(_labels(sums, yours[:10]))
    if sums.top_kernels:
        tables.append(_kernels(sums))
    where = f"trace: {result.trace_file} ({result.trace_bytes / 1e6:.1f} MB)"
    found = (*findings(result), Finding("notice", "The trace is kept: it opens in any trace viewer", where))
    title = f"Profile: {result.workload}"
    return Report(title, result.origin, found, tuple(tables), (step_timeline(result.timeline, result.origin),))


def brief(result: ProfileResult, rows: int = 5) -> Report:
    """What is read first, and no more: the signs, the first rows of the table, the timeline of one step."""
    from gpuworkshop.figures.timeline import step_timeline

    figure = step_timeline(result.timeline, result.origin)
    title = f"Profile: {result.workload}"
    return Report(title, result.origin, tuple(_reading(result)), (_operators(result.sums, rows),), (figure,))


def _operators(sums: TraceSums, rows: int = 10) -> Table:
    """The table of the course: the operators that took most time by themselves, in ms over all profiled steps."""
    by = "the card's own time" if sums.cards else "CPU time"
    columns = ("Name", "CUDA total", "Self CUDA", "CPU total", "Self CPU", "Calls", "a step")
    cells = (
        (
            shortened(row.name),
            *(_ms(time) if sums.cards else "n/a" for time in (row.device_total, row.device_self)),
            _ms(row.cpu_total),
            _ms(row.cpu_self),
            f"{row.calls:,}",
            f"{row.calls / sums.steps:,.1f}".removesuffix(".0") if sums.steps else "n/a",
        )
        for row in _first(sums, rows)
    )
    return Table(columns, tuple(cells), f"Top rows, by {by}. {_unit(sums)} Self: without what it calls")


def _first(sums: TraceSums, rows: int) -> list[Row]:
    """The first rows; with a card the DataLoader's stands below them, for it has no time there."""
    ranked = _ranked(sums)
    below = ranked[-1:] if sums.cards and sums.loading and len(ranked) > rows else []
    return [*ranked[: rows - len(below)], *below]


def _labels(sums: TraceSums, rows: Sequence[Row]) -> Table:
    """The learner's own labels; what each covers, with all that it calls."""
    cells = (
        (shortened(row.name), _ms(row.device_total) if sums.cards else "n/a", _ms(row.cpu_total), f"{row.calls:,}")
        for row in rows
    )
    return Table(("Your label", "CUDA total", "CPU total", "Calls"), tuple(cells), "Your labels, in ms as above")


def _unit(sums: TraceSums) -> str:
    """What the times of a table are: profiled steps are longer than plain ones."""
    over = f"all {counted(sums.steps, 'profiled step')}" if sums.steps else "the whole trace"
    return f"Times in ms, over {over}: compare the rows, a plain step is shorter." + (
        "" if sums.cards else " n/a: no card."
    )


def _ms(microseconds: float) -> str:
    return number(microseconds / 1e3)


def _kernels(sums: TraceSums, rows: int = 8) -> Table:
    whole = sum(kernel.microseconds for kernel in sums.top_kernels)
    cells = [
        (
            short(kernel.name),
            kernel.kind,
            f"{kernel.calls:,}",
            _ms(kernel.microseconds),
            _share(kernel.microseconds, whole),
        )
        for kernel in sums.top_kernels[:rows]
    ]
    return Table(("Kernel", "kind", "calls", "ms", "share"), tuple(cells), "Kernels by time on the card")
