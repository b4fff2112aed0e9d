"""What was measured, as a job's script and the list before batch need it: result files, and the ledger's newest run.

A result file is what ``--json`` prints. Of each kind the last file counts. Every number keeps the words that say where
it is from; what was not measured is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gpuworkshop.cluster.jobstats_result import JobUse
from gpuworkshop.instruments.memory_result import BatchSweep, CeilingResult, MemoryResult
from gpuworkshop.instruments.precision_result import PrecisionResult
from gpuworkshop.instruments.profile_result import ProfileResult
from gpuworkshop.instruments.scaling_result import ScalingResult
from gpuworkshop.instruments.starve_result import StarveResult, SweepResult
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.loop import ledger
from gpuworkshop.loop.climb_result import LoopResult
from gpuworkshop.loop.ledger import Record
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import shortened
from gpuworkshop.report import clean
from gpuworkshop.timing import Rate
from gpuworkshop.workloads.config import PRESETS, TrainConfig

KINDS = (
    VerifyResult,
    StarveResult,
    SweepResult,
    LoopResult,
    WatchResult,
    ProfileResult,
    MemoryResult,
    BatchSweep,
    CeilingResult,
    ScalingResult,
    PrecisionResult,
    JobUse,
)
"""The results that count here."""
_KITS = tuple(preset.title for preset in PRESETS.values())
LARGEST = 64 * 2**20
"""Bytes of a result file at most."""
Kind = TypeVar("Kind")


class NoResult(ValueError):
    """A file that holds no result of the kit; the message is one line."""


class _Envelope(msgspec.Struct, frozen=True):
    kit: str
    result: msgspec.Raw


class Run(NamedTuple):
    """One run as it was measured: its settings, its throughput, and where it is from."""

    workload: str
    workers: int
    batch: int
    rate: Rate
    conditions: Conditions | None
    config: TrainConfig | None
    limit: str
    """What limited it: "data", "compute", ...; "" where nobody looked."""
    source: str
    from_ledger: bool = False

    @property
    def step_seconds(self) -> float | None:
        """Seconds of one step; None for a rate that is none."""
        return self.batch / self.rate.value if self.rate.value > 0 else None


class Number(NamedTuple):
    """A number with the words that say where it is from."""

    value: float
    source: str


class Evidence:
    """Results with the names of their files, and the records of the ledger's newest run."""

    def __init__(self, results: Iterable[tuple[str, Any]] = (), records: Iterable[Record] = ()):
        self.results = tuple(results)
        self.records = tuple(records)

    def newest(self, kind: type[Kind]) -> tuple[str, Kind] | None:
        """The last result of a kind, and the words that say where it is from."""
        return next(((source(name, one), one) for name, one in reversed(self.results) if isinstance(one, kind)), None)

    def run(self) -> Run | None:
        """The run that the job repeats: the last of a loop, else of starve or profile; without files the ledger's."""
        made = (found and _run(*found) for found in map(self.newest, (LoopResult, StarveResult, ProfileResult)))
        return next(filter(None, made), None) or _of_ledger(self.records)

    def workloads(self) -> list[str]:
        """What the results were measured of, each once; a watch of a command says only its words."""
        run = self.run()
        named = [one_line(one.workload) for _, one in self.results if hasattr(one, "workload")]
        return list(dict.fromkeys([*([one_line(run.workload)] if run else []), *named]))

    def of_the_kit(self) -> list[str]:
        """The trainings of the kit that the files were measured of, each once."""
        named = [one_line(one.workload) for _, one in self.results if hasattr(one, "workload")]
        return [one for one in dict.fromkeys(named) if one.startswith(_KITS)]

    def workers(self) -> Number | None:
        """Loader workers of a rank: those of a loop, the best of a sweep, else those of the run."""
        run, swept = self.run(), self.newest(SweepResult)
        if swept and swept[1].measured and not self.newest(LoopResult):
            return Number(swept[1].best.workers, swept[0])
        return Number(run.workers, run.source) if run else None

    def card_memory(self) -> Number | None:
        """Bytes of a card that were in use at the most."""
        watched, memory, used = self.newest(WatchResult), self.newest(MemoryResult), self.newest(JobUse)
        if watched and (found := _most(card.memory_used for card in watched[1].cards)):
            return Number(found, watched[0])
        if memory and memory[1].used:
            return Number(memory[1].used, memory[0])
        if used and (found := _most(card.memory_used for _, card in used[1].cards)):
            return Number(found, used[0])
        return None

    def host_memory(self) -> Number | None:
        """Bytes of host memory for each card that were in use at the most, on one node."""
        found = self.newest(JobUse)
        nodes = [node for node in found[1].nodes if node.memory_used] if found else []
        if not nodes:
            return None
        most = max(nodes, key=lambda node: node.memory_used)
        cards = max(1, len(most.cards))
        return Number(most.memory_used / cards, found[0] + (f", {cards} cards" if cards > 1 else ""))

    def memory_share(self) -> Number | None:
        """The most of a card's memory that was in use, as a share."""
        watched, memory, used, loop = map(self.newest, (WatchResult, MemoryResult, JobUse, LoopResult))
        if watched and (found := _most(card.memory for card in watched[1].cards)):
            return Number(found, watched[0])
        if memory and memory[1].used and memory[1].total:
            return Number(memory[1].used / memory[1].total, memory[0])
        if loop and loop[1].looks and loop[1].looks[-1].memory is not None:
            return Number(loop[1].looks[-1].memory, loop[0])
        if used and used[1].gpu_memory is not None:
            return Number(used[1].gpu_memory, used[0])
        return None

    def knee(self) -> Number | None:
        """The smallest batch that is within 5% of the best throughput."""
        ceiling, swept = self.newest(CeilingResult), self.newest(BatchSweep)
        if swept and swept[1].measured:
            return Number(swept[1].knee, swept[0])
        if ceiling and ceiling[1].knee and ceiling[1].knee.measured:
            return Number(ceiling[1].knee.knee, ceiling[0])
        return None

    def busy(self) -> Number | None:
        """Utilization of the cards, 0 to 1."""
        watched, loop, used = map(self.newest, (WatchResult, LoopResult, JobUse))
        if watched and watched[1].busy is not None:
            return Number(watched[1].busy, watched[0])
        seen = loop[1].looks[-1].watched if loop and loop[1].looks else None
        if seen and seen.busy is not None:
            return Number(seen.busy, loop[0])
        return Number(used[1].gpu, used[0]) if used and used[1].gpu is not None else None


def gather(files: Iterable[str] = (), with_ledger: bool = True) -> Evidence:
    """What these files and the ledger's newest run hold. Raises NoResult for a file that holds no result."""
    results = [(Path(file).name, read(file)) for file in files]
    records = ledger.read()[0] if with_ledger else []
    return Evidence(results, ledger.of_run(records, records[-1].run) if records else ())


def read(file: str) -> Any:
    """The result in a file. Raises NoResult."""
    try:
        place = Path(file)
        if not place.is_file():
            what = "a folder" if place.is_dir() else "not a plain file" if place.exists() else "no such file"
            raise NoResult(f"{file}: {what}")
        if place.stat().st_size > LARGEST:
            raise NoResult(f"{file}: larger than 64 MiB, that is no result")
        if not (data := place.read_bytes()).strip():
            raise NoResult(f"{file}: empty: the command that was to write it did not get so far")
        whole = msgspec.json.decode(data, type=_Envelope)
        return msgspec.json.decode(whole.result, type=_kind(whole.result))
    except (OSError, ValueError, RecursionError, StopIteration) as error:
        if isinstance(error, NoResult):
            raise
        why = error.strerror if isinstance(error, OSError) else "save what the command prints with --json"
        raise NoResult(f"{file}: no result of memory, scale, loop, watch, starve or the like: {why}") from error


def source(name: str, result: Any) -> str:
    """Where a number of a result is from, in a few words: the file, what it was measured on, the day."""
    origin = result.origin
    return one_line(" · ".join(filter(None, (shortened(name, 50), shortened(origin.on, 80), origin.date))))


def one_line(text: str) -> str:
    """A text from outside as one line that can stand in a comment."""
    return " ".join(clean(text).split())


def _kind(result: msgspec.Raw) -> type:
    """The kind of result that has these fields; StopIteration for none."""
    names = set(msgspec.json.decode(result, type=dict[str, msgspec.Raw]))
    if {"form", "nodes"} <= names:  # everything of a report card may be missing
        return JobUse
    return next(one for one in KINDS if one is not JobUse and _required(one) <= names)


def _required(kind: type) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind) if field.required}


def _run(said: str, result: Any) -> Run | None:
    if isinstance(result, LoopResult):
        return _starved(f"loop, final run: {said}", result.final)
    if isinstance(result, StarveResult):
        return _starved(said, result)
    if isinstance(result, ProfileResult) and result.plain and result.batch_size and result.config:
        config = result.config
        return Run(
            result.workload, config.workers, result.batch_size, result.plain, result.conditions, config, "", said
        )
    return None


def _starved(said: str, one: StarveResult) -> Run:
    return Run(one.workload, one.workers, one.batch_size, one.real, one.conditions, one.config, one.limit, said)


def _of_ledger(records: tuple[Record, ...]) -> Run | None:
    """The last run of a loop that counts: the final one, else the last change that was kept, else the baseline."""
    for kind in ("final", "change", "baseline"):
        kept = [one for one in records if one.kind == kind and _counts(one) and (kind != "change" or one.kept)]
        if kept:
            one = kept[-1]
            said = one_line(f"ledger · {shortened(one.workload, 60)} · {one.conditions.machine} · {one.when[:10]}")
            workers, batch = (one.config or one.own).workers or 0, one.batch_size
            limit = one.limit_after if kind == "change" else ""
            return Run(one.workload, workers, batch, one.rate, one.conditions, one.config, limit, said, True)
    return None


def _counts(record: Record) -> bool:
    """Whether a record has what a job script needs: a rate of samples, and the batch that it was measured with."""
    return bool(record.rate and record.batch_size) and record.rate.unit != "steps/s"


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value), default=None)
