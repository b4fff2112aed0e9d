"""Does a script use the ranks it is given? It is run as several, and watched: what it does counts, not what it says.

The word for it may stand in a comment, in an import that nobody uses, or in a framework and nowhere in the script. So
the script is started with torchrun, and each rank writes down whether it joined the others, which world it found, what
it wrapped its model in, and how often it exchanged anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from gpuworkshop.child import ChildFailed, Progress
from gpuworkshop.instruments.scaling import check_ranks, launch
from gpuworkshop.instruments.scaling_faults import in_one_line
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import counted, shortened
from gpuworkshop.report import Finding, Origin, Report, Table

Use = Literal["ddp", "sharded", "exchanges", "dataparallel", "copies", "wrong world", "unknown"]

ENOUGH = 60.0
"""Seconds after which a script that goes on is stopped: what it does all the time, it has done by then."""


LATE = 90.0
"""Seconds after that, in which the ranks must have said what they did."""


class Watched(msgspec.Struct, frozen=True):
    """What a rank is asked to run."""

    script: str
    arguments: tuple[str, ...] = ()
    seconds: float = ENOUGH


class Seen(msgspec.Struct, frozen=True):
    """What one rank did."""

    rank: int
    world: int | None = None
    """Size of the world that it joined; None if it joined none."""
    ddp: int = 0
    """Models wrapped in DistributedDataParallel."""
    sharded: int = 0
    """Models or parts of one sharded by FSDP."""
    dataparallel: int = 0
    """Models wrapped in DataParallel, which is one process."""
    exchanges: int = 0
    """Collectives after all wrapping was done."""
    stopped: bool = False
    """Whether it was still going on when there was enough to see."""
    error: str = ""
    """How it ended, in one line; "" for a usual end."""


class WitnessResult(msgspec.Struct, frozen=True):
    """What a script did as several ranks."""

    script: str
    ranks: int
    seen: tuple[Seen, ...]
    conditions: Conditions
    origin: Origin

    @property
    def use(self) -> Use:
        """How the script uses its ranks."""
        return judge(self.ranks, self.seen)


def judge(ranks: int, seen: Sequence[Seen]) -> Use:
    """How a script uses ``ranks`` ranks, from what each of them did."""
    if any(one.world not in (None, ranks) for one in seen):
        return "wrong world"
    if all(one.world == ranks and one.exchanges for one in seen):
        if all(one.sharded for one in seen):
            return "sharded"
        return "ddp" if all(one.ddp for one in seen) else "exchanges"
    if any(one.error for one in seen):
        return "unknown"
    return "dataparallel" if any(one.dataparallel for one in seen) else "copies"


def run(
    script: str,
    arguments: Sequence[str] = (),
    ranks: int = 2,
    launcher: Sequence[str] = (),
    *,
    seconds: float = ENOUGH,
    progress: Callable[[Progress], None] | None = None,
) -> WitnessResult:
    """Run a script of yours as ``ranks`` ranks for at most ``seconds`` and say whether they work together."""
    if not launcher and not Path(script).is_file():
        raise ChildFailed(f"there is no script {shortened(script)}", bad_input=True)
    check_ranks(ranks, launcher)
    asked = Watched(script, tuple(arguments), seconds)
    target = "gpuworkshop.instruments.scaling_witness_rank:in_rank"
    patience = seconds + LATE
    return launch(target, asked, ranks, type=WitnessResult, launcher=launcher, progress=progress, patience=patience)


PAYS = "# whether they pay: samples/s in your own log, of 1 rank and of 2\n# efficiency = those of 2 / (2 x those of 1)"
"""What comes after it is known that the ranks work together."""


def findings(result: WitnessResult) -> Iterator[Finding]:
    """What the ranks did, and what to do about it."""
    seen, ranks = result.seen, result.ranks
    numbers = _numbers(seen)
    match result.use:
        case "ddp":
            yield Finding("ok", f"The {ranks} ranks train as one: DistributedDataParallel", numbers, PAYS)
        case "sharded":
            title = f"The {ranks} ranks train as one, each with a part of the model: sharded"
            yield Finding("ok", title, numbers, PAYS)
        case "exchanges":
            title = f"The {ranks} ranks exchange data, without DistributedDataParallel: by hand, or by a framework"
            yield Finding("notice", title, numbers, "check that gradients are among it: after a step, equal weights")
        case "dataparallel":
            title = "DataParallel is one process for several cards, and not DDP"
            yield Finding("warning", title, numbers, "model = DistributedDataParallel(model)   # one process a card")
        case "copies":
            title = f"The {ranks} ranks do the same work {ranks} times: none of them exchanges anything"
            fix = "dist.init_process_group()\nmodel = DistributedDataParallel(model)   # and a DistributedSampler"
            yield Finding("warning", title, numbers, fix)
        case "wrong world":
            said = ", ".join(sorted({str(one.world) for one in seen}))
            title = f"{ranks} ranks were started, and their world has {said}: they do not train as one"
            yield Finding("fail", title, numbers, "init_process_group() without sizes: torchrun says them")
        case _:
            yield Finding("unknown", "The script ended before it exchanged anything", numbers)
    for one in seen:
        if one.error:
            means = in_one_line(one.error)
            said = one.error if means != one.error else ""
            yield Finding("warning", f"Rank {one.rank} ended with an error: {means}", said)


def _numbers(seen: Sequence[Seen]) -> str:
    def each(name: str) -> str:
        return ", ".join(str(getattr(one, name) or 0) for one in seen)

    return f"collectives of each rank: {each('exchanges')}; models in DDP: {each('ddp')}; world: {each('world')}"


def report(result: WitnessResult) -> Report:
    """What the ranks did, in a table."""
    columns = ("rank", "its world", "DDP", "sharded", "DataParallel", "collectives", "end")
    rows = tuple(
        (
            str(one.rank),
            "none joined" if one.world is None else str(one.world),
            *(str(count) for count in (one.ddp, one.sharded, one.dataparallel, one.exchanges)),
            shortened(one.error, 60) or ("stopped, enough seen" if one.stopped else "usual"),
        )
        for one in result.seen
    )
    table = Table(columns, rows, f"What each of {counted(result.ranks, 'rank')} did")
    title = f"Scale: does {Path(result.script).name} use its ranks?"
    return Report(title, result.origin, tuple(findings(result)), (table,))
