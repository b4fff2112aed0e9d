"""The checks of chapter 6: a training function that is run as two ranks, and what to do with four measured jobs."""

from __future__ import annotations

import inspect
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuworkshop.child import ChildFailed
from gpuworkshop.course import several
from gpuworkshop.course.checks import STUB, Found, does_nothing, not_whole, right, written, wrong
from gpuworkshop.instruments.scaling_witness import WitnessResult

SAMPLES, EPOCHS = 48, 3
SCRIPT = """\
from gpuworkshop.course.checks.chapter06_rank import *

{source}

run({name}, {folder!r})
"""


class Notes(msgspec.Struct, frozen=True):
    """What one rank did beside training."""

    read: tuple[int, ...]
    """The samples that it read, in order."""
    asked: tuple[int, ...]
    """The local ranks of which it asked the device."""
    lines: int
    """Lines that it printed."""

    def epoch(self, number: int) -> tuple[int, ...]:
        """The samples of one epoch, in order."""
        each = len(self.read) // EPOCHS
        return self.read[number * each : (number + 1) * each]


ERRORS = {
    "mutually exclusive with shuffle": "shuffle-and-sampler",
    "not been initialized": "not-joined",
    "NCCL": "nccl",
    "CUDA": "card-by-name",
    "NVIDIA": "card-by-name",
    "NameError": "unknown-name",
}
"""Words of an error, each with the mistake that it is a sign of."""


def ddp(train: Any) -> Found:
    """Judge ``train(dataset, epochs)`` by what two gloo ranks really do with it."""
    if not callable(train):
        return wrong("no-function", kind=type(train).__name__)
    if does_nothing(train):
        return STUB
    if (source := _source(train)) is None:
        return wrong("no-source")
    with tempfile.TemporaryDirectory(prefix="gpuworkshop-") as folder:
        text = SCRIPT.format(source=source, name=train.__name__, folder=folder)
        try:
            result = several.watched(text, "train_ddp.py", folder=Path(folder))
        except ChildFailed as failed:
            return wrong("not-run", why=str(failed))
        notes = [_notes(Path(folder, f"notes-{one.rank}.json")) for one in result.seen]
    steps = (_failed, _apart, _data, _manners)
    return next((found for step in steps if (found := step(result, notes))), _done(result))


def _source(train: Callable) -> str | None:
    """The text of a function that stands by itself; None if it has none."""
    try:
        source = textwrap.dedent(inspect.getsource(train))
        compile(source, "train_ddp.py", "exec")
    except (OSError, TypeError, SyntaxError):
        return None
    return source if source.lstrip().startswith("def ") else None


def _notes(file: Path) -> Notes:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Notes)
    except (OSError, msgspec.DecodeError):
        return Notes((), (), 0)


def _failed(result: WitnessResult, notes: Sequence[Notes]) -> Found | None:
    """An error in a rank, or no end."""
    for one in result.seen:
        if one.error:
            mistake = next((mistake for words, mistake in ERRORS.items() if words in one.error), "raised")
            return wrong(mistake, rank=one.rank, error=one.error)
    return wrong("never-ends", seconds=several.SECONDS) if any(one.stopped for one in result.seen) else None


def _apart(result: WitnessResult, notes: Sequence[Notes]) -> Found | None:
    """Ranks that do not train as one by DDP."""
    if result.use in ("ddp", "sharded"):
        return None
    if result.use != "copies":
        return wrong(result.use.replace(" ", "-"))
    if any(one.world is None for one in result.seen):
        return wrong("not-joined")
    return wrong("not-used" if all(one.ddp for one in result.seen) else "not-wrapped", ranks=result.ranks)


def _data(result: WitnessResult, notes: Sequence[Notes]) -> Found | None:
    """Shares of the data that overlap, leave something out, or come in the same order in every epoch."""
    read = [one.epoch(0) for one in notes]
    if all(len(set(part)) == SAMPLES for part in read):
        return wrong("no-sampler", samples=SAMPLES, ranks=result.ranks)
    if len(set().union(*read)) < SAMPLES or sum(map(len, read)) > SAMPLES:
        return wrong("shares", seen=len(set().union(*read)), samples=SAMPLES, each=len(read[0]))
    if any(list(part) == sorted(part) for part in read):
        return wrong("not-shuffled")
    return wrong("same-order") if any(one.epoch(0) == one.epoch(1) for one in notes) else None


def _manners(result: WitnessResult, notes: Sequence[Notes]) -> Found | None:
    """Each on a device of its own, and one of them tells how it goes."""
    for rank, one in enumerate(notes):
        if not one.asked:
            return wrong("no-device", rank=rank)
        if {*one.asked} != {rank}:
            return wrong("one-card", rank=rank, asked=", ".join(map(str, one.asked)))
    if any(one.lines for one in notes[1:]):
        return wrong("all-print", ranks=result.ranks)
    return None if notes[0].lines else wrong("nobody-prints")


def _done(result: WitnessResult) -> Found:
    each = SAMPLES // result.ranks
    return right(ranks=result.ranks, each=each, samples=SAMPLES, exchanges=result.seen[0].exchanges)


# ---------------------------------------------------------------- four measured jobs

WORDS = ("one card", "more cards", "fix first")
JOBS = {"galaxies": "more cards", "scans": "fix first", "letters": "one card", "proteins": "fix first"}
"""The decision for each job of the exercise."""

AGAINST = {
    ("galaxies", "one card"): "gain-left",
    ("galaxies", "fix first"): "nothing-to-fix",
    ("scans", "more cards"): "starved-multiplied",
    ("scans", "one card"): "starved-kept",
    ("letters", "more cards"): "below-the-bands",
    ("letters", "fix first"): "no-cure-left",
    ("proteins", "more cards"): "slow-multiplied",
    ("proteins", "one card"): "busy-believed",
}
"""What each wrong decision is a sign of."""


def decide(mine: Any) -> Found:
    """Judge a decision for each job, as ``{"galaxies": "more cards", ...}``."""
    if found := not_whole(mine, JOBS, "job"):
        return found
    for job in JOBS:
        if not isinstance(mine[job], str) or mine[job] not in WORDS:
            return wrong("unknown-word", job=job, got=written(mine[job]), known=", ".join(WORDS))
    return next((wrong(AGAINST[job, mine[job]], job=job) for job in JOBS if mine[job] != JOBS[job]), right())


CHECKS: dict[str, Callable[..., Found]] = {"ddp": ddp, "decide": decide}
