"""What a scaling result says: does another rank pay, and where does the rest go? A pure function of the result."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.instruments.scaling_result import ScalingResult, World
from gpuworkshop.numbers import counted, in_unit, interval, number, percent, several, with_unit
from gpuworkshop.report import Finding, Level, Report, Table
from gpuworkshop.workloads.config import PRESETS

STARVED = 0.20
"""Share of its time that one rank alone may wait for data: more ranks come after that is cured (the 80% rule)."""

_LEVEL: dict[str, Level] = {"pays": "ok", "acceptable": "notice", "does not pay": "warning"}


def findings(result: ScalingResult) -> Iterator[Finding]:
    """What a result says, as a pure function of it."""
    if result.planted:
        yield Finding("notice", f"Planted: {result.planted}", "a real wait, put there on purpose")
    if result.backend == "gloo":
        yield Finding(
            "notice", "The ranks are CPU cores: the method is that of cards, the numbers are not", "backend gloo"
        )
    if result.alone_wait > STARVED:
        yield _starved(result)
    if result.ranks == 1:
        yield _one_rank(result)
        return
    for mode in ("weak", "strong"):
        if world := result.world(mode):
            yield _world(result, world)
    yield from _where_the_rest_goes(result)
    yield from _stragglers(result)
    yield from (Finding("notice", note) for note in result.notes)


def _world(result: ScalingResult, world: World) -> Finding:
    """The verdict of one mode at the largest size."""
    title = f"{_what(world)}: {_percents(world)} efficiency: {' or '.join(world.bands)}"
    numbers = f"{world.rate} with {counted(world.size, 'rank')}, {result.alone} with one alone: {world.speedup}"
    if world.efficiency.low > 100:
        why = "more than 100%: was the one alone disturbed? Smaller shares may also fit a cache"
        return Finding("warning", title, f"{numbers}; {why}", f"{_again(result)}   # again, on a quiet machine")
    level = "unknown" if len(world.bands) == len(_LEVEL) else _LEVEL[world.bands[-1]]
    return Finding(level, title, numbers, _fix(result, world))


def _what(world: World) -> str:
    """The mode in words that keep the two apart."""
    if world.mode == "weak":
        return f"Weak scaling, {world.batch} samples a step in each of {world.size} ranks"
    return f"Strong scaling, {world.size * world.batch} samples a step shared by {world.size} ranks"


def _fix(result: ScalingResult, world: World) -> str:
    if world.bands == ("pays",):
        return ""
    if len(world.bands) > 1 and world.bands[0] != "does not pay" and world.bands[-1] == "does not pay":
        return f"{_again(result)}   # again, longer: the interval reaches both sides of 70%"
    if world.bands[-1] != "does not pay":
        return ""
    if world.mode == "strong":
        return "give each rank the whole batch, if the training allows it;\nelse stay with fewer ranks"
    if result.world_wait > STARVED:
        return "back to one rank, and cure its data path first: gpuworkshop starve"
    return "back to one rank, or a larger batch for each:\ncommunication or the shared machine limits"


def _again(result: ScalingResult) -> str:
    """The command that measures the same once more."""
    fits = [one for one in PRESETS.values() if result.workload.startswith(one.title)]
    preset = f" --preset {max(fits, key=lambda one: len(one.title)).name}" if fits else ""
    return f"gpuworkshop scale{preset} --ranks {result.ranks}"


def _starved(result: ScalingResult) -> Finding:
    waits = f"One rank alone waits {percent(result.alone_wait)} of its time for data"
    if result.ranks == 1:
        return Finding("warning", f"{waits}: cure that before you ask for more cards", "", "gpuworkshop starve")
    title = f"{waits}: {result.ranks} ranks waste {result.ranks} times as much"
    numbers = f"{result.wait_name} {percent(result.alone_wait)} alone, {percent(result.world_wait)} with all ranks"
    return Finding("warning", title, numbers, "gpuworkshop starve   # the 80% rule: one card first, then more")


def _one_rank(result: ScalingResult) -> Finding:
    """With one rank: what DDP costs where there is nobody to talk to."""
    world = result.world("weak")
    title = f"One rank: DDP itself leaves {_percents(world)} of the throughput"
    numbers = f"{result.alone} without DDP, {result.wrapped} without all-reduce, {world.rate} with all of DDP"
    fix = "gpuworkshop scale --ranks 2   # where there are two cards"
    return Finding("notice", title, numbers, fix)


def _where_the_rest_goes(result: ScalingResult) -> Iterator[Finding]:
    """Communication that nothing hides, and what the ranks take from each other."""
    cost, least, most = (1 - ratio for ratio in _ends(result.communicating))
    name = f"Communication adds {percent(max(0.0, cost))} of a step ({percent(max(0.0, least))} to {percent(most)})"
    if result.communicating.verdict == "no real difference":
        name = f"Communication adds nothing that shows: {percent(result.communicating.smallest)} of a step would have"
    yield Finding("notice" if result.communicating.verdict == "slower" else "ok", name, _reduce_words(result))
    left, low, high = (100 * ratio for ratio in (result.taken.ratio, result.taken.low, result.taken.high))
    if result.taken.verdict == "slower":
        title = f"Side by side each rank reaches {number(left)}% {interval(low, high)} of one alone, without all-reduce"
        evidence = (
            f"{result.wrapped} in all against {result.ranks} x {result.alone}: CPUs, memory, data, DDP's own work"
        )
        yield Finding("notice", title, evidence)


def _ends(comparison) -> tuple[float, float, float]:
    return comparison.ratio, comparison.high, comparison.low


def _reduce_words(result: ScalingResult) -> str:
    words = f"gradient {number(result.gradient_bytes / 2**20)} MiB"
    if not (took := result.reduce_seconds):
        return words
    alone = f"all-reduce alone {number(1000 * took.value)} ms, {with_unit(result.bandwidth)}"
    bus = f"{in_unit(number(result.bus_bandwidth.value), 'GB/s')} on the bus, comparable over numbers of ranks"
    if result.communicating.verdict == "no real difference":
        return f"{words}; {alone}, {bus}; what is not hidden is less than the noise"
    return f"{words}; {alone}, {bus}; {percent(result.hidden)} of it runs behind the backward pass"


def _stragglers(result: ScalingResult) -> Iterator[Finding]:
    slow = [member for member in result.members if member.against and member.against.verdict == "slower"]
    if not slow or len(slow) == len(result.members):
        return
    names = several([f"rank {member.number} ({member.card})" for member in slow])
    title = f"{names}: slower than the others, and every step waits for the slowest"
    numbers = "; ".join(f"rank {member.number} {member.rate}, {member.against}" for member in slow)
    yield Finding("warning", title, numbers, "gpuworkshop watch   # is somebody else on that card, or is it hot?")


def _percents(world: World) -> str:
    said = world.efficiency
    return f"{number(said.value)}% {interval(said.low, said.high)}"


def report(result: ScalingResult) -> Report:
    """The result with its findings, its tables and the scaling figure."""
    from gpuworkshop.figures.scaling import scaling_figure

    tables = (_table(result), _members_table(result))
    picture = scaling_figure(result.worlds, result.origin)
    title = f"Scale: {result.workload}, {counted(result.ranks, 'rank')}"
    return Report(title, result.origin, tuple(findings(result)), tables, (picture,))


def _table(result: ScalingResult) -> Table:
    rows = [("one alone, without DDP", str(result.batch_size), str(result.alone), "100")]
    rows.append((f"{result.ranks} without all-reduce", str(result.batch_size), str(result.wrapped), _share(result)))
    rows += [
        (f"{world.size}, {world.mode}", str(world.batch), str(world.rate), number(world.efficiency.value))
        for world in result.worlds
    ]
    caption = f"All worlds in turn, {counted(result.alone.n, 'block')} each; throughput of all ranks together"
    return Table(("ranks", "batch a rank", "throughput", "efficiency, %"), tuple(rows), caption)


def _share(result: ScalingResult) -> str:
    return number(100 * result.taken.ratio)


def _members_table(result: ScalingResult) -> Table:
    rows = [(str(m.number), m.card, str(m.rate), str(m.against or "")) for m in result.members]
    caption = "Each rank by itself, without all-reduce: who is slower than the others?"
    return Table(("rank", "on", "throughput", "against the others"), tuple(rows), caption)
