"""The ledger: one line for each baseline and each change, in the learner's state folder. Lines are only ever added."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gpuworkshop import state
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.loop.remedies import Remedy
from gpuworkshop.loop.trial_result import Trial
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import TrainConfig

FILE = "ledger.jsonl"


class Own(msgspec.Struct, frozen=True):
    """What a run of a script of one's own was seen to use; it has no config of ours."""

    script: str
    """The file, with its whole path."""
    settings: dict[str, str]
    """By the names of the remedies' ``touches`` where one may change it; as words."""
    before: dict[str, str] = {}
    """Of the run that it was compared with."""
    workers: int | None = None
    batch_size: int | None = None


class Record(msgspec.Struct, frozen=True):
    """One measured config; for a change also what it was compared with and what became of it."""

    when: str
    run: str
    """All records of one loop share it."""
    workload: str
    kind: Literal["baseline", "change", "final"]
    config: TrainConfig | None
    """None for a script of one's own."""
    rate: Rate | None
    """None when the change could not be measured."""
    conditions: Conditions
    before: TrainConfig | None = None
    rate_before: Rate | None = None
    """The run before it, measured in turn with it."""
    remedy: str = ""
    """Title of the remedy; "" when the change is not one remedy's."""
    code: str = ""
    changed: tuple[str, ...] = ()
    comparison: Comparison | None = None
    learning: Judgement | None = None
    kept: bool = False
    why: str = ""
    paid_once_seconds: float = 0.0
    """Work done once before the change could run: decoding all pictures, compiling."""
    at_most: float | None = None
    """The bound on its gain that was known before it was tried, as a ratio; None where nothing bounds it."""
    limit_before: str = ""
    limit_after: str = ""
    """What limited the run before a kept change and after it; "" where nobody looked."""
    aside: str = ""
    """What the change does besides, that neither speed nor loss shows."""
    own: Own | None = None
    """For a script of one's own, what ``config`` is for the kit's."""

    @property
    def batch_size(self) -> int | None:
        """Samples a step; None where that is not known."""
        return self.config.batch_size if self.config else self.own.batch_size if self.own else None

    @property
    def pays_back_after(self) -> int | None:
        """Steps after which what is paid once is saved; None where nothing was paid, or nothing is saved."""
        if not (self.paid_once_seconds and self.rate and self.rate_before and self.batch_size):
            return None
        saved = self.batch_size * (1 / self.rate_before.value - 1 / self.rate.value)
        return math.ceil(self.paid_once_seconds / saved) if saved > 0 else None


def now() -> str:
    """The time for a record, in ISO format with its zone."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def change(
    trial: Trial,
    remedy: Remedy | None,
    *,
    run: str,
    workload: str,
    conditions: Conditions,
    name: str = "",
    **known: Any,
) -> Record:
    """The record of a trial; ``name``: the remedy in other words than its title, or several; ``known``: more fields."""
    return Record(
        when=now(),
        run=run,
        workload=workload,
        kind="change",
        config=trial.after,
        rate=trial.rate_after,
        conditions=conditions,
        before=trial.before,
        rate_before=trial.rate_before,
        remedy=name or (remedy.title if remedy else ""),
        code=remedy.code_for(trial.after) if remedy else "",
        changed=trial.changed,
        comparison=trial.comparison,
        learning=trial.learning,
        kept=trial.kept,
        why=trial.why,
        paid_once_seconds=trial.paid_once_seconds,
        aside=remedy.aside if remedy else "",
        **known,
    )


def add(record: Record) -> bool:
    """Append a record; False if the state folder cannot be written."""
    return state.append(FILE, msgspec.to_builtins(record))


def read() -> tuple[list[Record], int]:
    """All records that can be read, oldest first, and the number of lines that could not."""
    lines, torn = state.read_lines(FILE)
    records = []
    for line in lines:
        try:
            records.append(msgspec.convert(line, Record))
        except (msgspec.ValidationError, ValueError):
            torn += 1
    return records, torn


def of_run(records: Sequence[Record], run: str) -> list[Record]:
    """The records of one loop."""
    return [record for record in records if record.run == run]
