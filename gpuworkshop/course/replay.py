"""Recordings: results that the kit measured on a card, shown where there is none, always with their mark.

A recording is what ``--json`` prints, as it is, in ``recordings/WHAT-CARD.json``. Only the marks of origin in
it change when it is loaded, from "measured here" to "recorded on".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from gpuworkshop import __version__
from gpuworkshop.course import calls, claims, demos, guided, your_turn
from gpuworkshop.course.calls import CallsResult
from gpuworkshop.course.claims_result import ClaimsResult
from gpuworkshop.course.demos import DemoResult
from gpuworkshop.course.faces import Note
from gpuworkshop.course.guided import GuidedResult
from gpuworkshop.instruments import memory, precision, profile, scaling, starve, verify, watch
from gpuworkshop.instruments.memory import BatchSweep, CeilingResult, CureResult, MemoryResult
from gpuworkshop.instruments.precision_result import PrecisionResult
from gpuworkshop.instruments.profile_result import ProfileResult
from gpuworkshop.instruments.scaling_result import ScalingResult
from gpuworkshop.instruments.starve import StarveResult, SweepResult
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.instruments.watch import WatchResult
from gpuworkshop.loop import climb
from gpuworkshop.loop.climb import LoopResult
from gpuworkshop.own import again
from gpuworkshop.own.again import AgainResult
from gpuworkshop.own.result import OwnResult
from gpuworkshop.report import Figure, Finding, Origin, Report

FOLDER = Path(__file__).parent / "recordings"
Result = (
    StarveResult
    | SweepResult
    | LoopResult
    | VerifyResult
    | WatchResult
    | DemoResult
    | ProfileResult
    | ScalingResult
    | PrecisionResult
    | CallsResult
    | GuidedResult
    | MemoryResult
    | BatchSweep
    | CeilingResult
    | CureResult
    | ClaimsResult
    | OwnResult
    | AgainResult
)
KINDS: dict[str, type[Result]] = {
    "starve": StarveResult,
    "sweep": SweepResult,
    "loop": LoopResult,
    "verify": VerifyResult,
    "watch": WatchResult,
    "busy": DemoResult,
    "profile": ProfileResult,
    "memory": MemoryResult,
    "batches": BatchSweep,
    "ceiling": CeilingResult,
    "cure": CureResult,
    "scale": ScalingResult,
    "precision": PrecisionResult,
    "gaps": ProfileResult,
    "copies": ProfileResult,
    "elsewhere": ProfileResult,
    "calls": CallsResult,
    "guided": GuidedResult,
    "claims": ClaimsResult,
    "own": OwnResult,
    "again": AgainResult,
}
"""What can be recorded, and the type of its result."""

REPORTS: dict[type[Result], Callable[[Any], Report]] = {
    StarveResult: starve.report,
    SweepResult: starve.report,
    LoopResult: climb.report,
    VerifyResult: verify.report,
    WatchResult: watch.report,
    DemoResult: demos.report,
    ProfileResult: profile.report,
    MemoryResult: memory.report,
    BatchSweep: memory.report,
    CeilingResult: memory.report,
    CureResult: memory.report,
    ScalingResult: scaling.report,
    PrecisionResult: precision.report,
    CallsResult: calls.report,
    GuidedResult: guided.report,
    ClaimsResult: claims.report,
    OwnResult: your_turn.report_of_supplied,
    AgainResult: again.report,
}
"""What shows a result."""


class Recording(msgspec.Struct, frozen=True, order=True):
    """A file of the folder: ``what`` was measured, and on which ``card``, as the file's name has it."""

    what: str
    card: str
    file: Path


class _Kit(msgspec.Struct, frozen=True):
    kit: str


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kit: str
    origin: Origin
    result: msgspec.Raw
    findings: tuple[Finding, ...]


def available(folder: Path = FOLDER) -> list[Recording]:
    """The recordings there are, by what and card. Their contents are not read."""
    names = ((file, *file.stem.partition("-")) for file in folder.glob("*.json"))
    return sorted(Recording(what, card, file) for file, what, dash, card in names if dash and what in KINDS)


def load(what: str, card: str | None = None, folder: Path = FOLDER) -> Result | None:
    """The recording of ``what`` (one of :data:`KINDS`) on ``card``; the newest if no card is named.

    None if there is none. KeyError for any other ``what``. ValueError, with the name of the file, for a file
    that is broken or is none of the kit's.
    """
    if what not in KINDS:
        raise KeyError(f"no recording is called {what!r}: there are {', '.join(KINDS)}")
    found = [one for one in available(folder) if one.what == what and card in (None, one.card)]
    return max(map(_read, found), key=lambda result: result.origin.date, default=None)


def show(what: str, card: str | None = None, folder: Path = FOLDER) -> Report | Note:
    """The report of a recording, or a note that there is none."""
    result = load(what, card, folder)
    if result is None:
        where = f" on {card}" if card else ""
        text = f"This version of the kit has no recording of `{what}`{where}, and shows nothing in its place."
        return Note("No recording yet", text=(text,))
    return REPORTS[type(result)](result)


def picture(what: str, card: str | None = None, folder: Path = FOLDER) -> Figure | Note:
    """Only the picture of a recording's report, or a note that there is no recording."""
    shown = show(what, card, folder)
    if isinstance(shown, Note):
        return shown
    return shown.figures[0] if shown.figures else Note(f"The recording of `{what}` is words and tables, no picture")


def _read(recording: Recording) -> Result:
    try:
        data = recording.file.read_bytes()
        whole = msgspec.json.decode(data, type=_Envelope)
        result = msgspec.json.decode(whole.result, type=KINDS[recording.what])
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else _newer(data) or error
        raise ValueError(f"{recording.file.name} is not a recording of {recording.what}: {why}") from None
    if {whole.origin.mark, result.origin.mark} != {"measured here"}:
        raise ValueError(f"{recording.file.name} is not a recording of {recording.what}: it was not measured")
    return _marked(result, whole.kit)


def _newer(data: bytes) -> str:
    """Why a recording of a later kit cannot be read; "" if it is of none."""
    try:
        kit = msgspec.json.decode(data, type=_Kit).kit
        later = [int(part) for part in kit.split(".")] > [int(part) for part in __version__.split(".")]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""
    return f"kit {kit[:20]} made it, which is newer than this one ({__version__})" if later else ""


def _marked(value: Any, kit: str) -> Any:
    """The same value with every origin in it marked as recorded."""
    if isinstance(value, Origin):
        return Origin("recorded on", value.on, value.date, value.kit or kit)
    if isinstance(value, msgspec.Struct):
        parts = {name: _marked(getattr(value, name), kit) for name in value.__struct_fields__}
        return type(value)(**parts)
    return tuple(_marked(one, kit) for one in value) if isinstance(value, tuple) else value
