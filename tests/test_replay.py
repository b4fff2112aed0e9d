"""Recordings: read by type, marked as recorded wherever a number has an origin, and refused when they are not ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import memory_results
import msgspec
import own_runs
import precision_results
import pytest
from test_scaling import made as scaled

from gpuworkshop import __version__
from gpuworkshop.course import replay
from gpuworkshop.course.calls import CallsResult
from gpuworkshop.course.claims_result import ClaimsResult, Part, exact, merged, ratio
from gpuworkshop.course.demos import DemoResult, Seen
from gpuworkshop.course.guided import Guided, GuidedResult
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.instruments.samples import WatchedCard
from gpuworkshop.instruments.starve import StarveResult, SweepPoint, SweepResult
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult
from gpuworkshop.loop.climb import LoopResult
from gpuworkshop.loop.ledger import Own, Record
from gpuworkshop.loop.look_result import Look, Watched
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.own.again import AgainResult
from gpuworkshop.own.changes import Changes, Differs, attribute
from gpuworkshop.report import Finding, Origin, Report, envelope
from gpuworkshop.timing import Comparison, Rate
from gpuworkshop.workloads.config import Job, TrainConfig

CARD = Conditions(
    device="cuda:0", machine="NVIDIA Test Card", uuid="GPU-0", driver="1.0", cpus=8, cpus_said_by="affinity",
    threads=8, python="3.11", torch="2.11", kit="0.0.1", date="2026-12-01",
)  # fmt: skip
RECORDED = Origin("recorded on", "NVIDIA Test Card", "2026-12-01", "0.0.1")


def rate(value: float) -> Rate:
    return Rate(value, value * 0.99, value * 1.01, 8)


def comparison(ratio: float) -> Comparison:
    return Comparison(ratio, ratio * 0.98, ratio * 1.02, 8, 0.03, "faster")


def starved(date: str = "2026-12-01") -> StarveResult:
    here = msgspec.structs.replace(CARD, date=date)
    return StarveResult(
        workload="resnet50 at 224 px", real=rate(100), ceiling=rate(1000), loader=rate(101),
        headroom=comparison(10), wait_name="stall", wait_share=0.89, data_work_share=0.01, slowed_share=0.0,
        agrees=True, limit="data", startup_seconds=0.2, workers=0, batch_size=32, config=TrainConfig(),
        planted="", conditions=here, origin=here.origin,
    )  # fmt: skip


def swept() -> SweepResult:
    points = (SweepPoint(0, rate(100), None), SweepPoint(7, rate(600), comparison(6)))
    return SweepResult("resnet50 at 224 px", points, rate(1000), 8, "", CARD, CARD.origin)


def climbed() -> LoopResult:
    decoded = TrainConfig(data_path="pre-decoded")
    base = dict(when="2026-12-01T10:00:00+00:00", run="r", workload="resnet50", conditions=CARD, kept=True)
    records = (
        Record(kind="baseline", config=TrainConfig(), rate=rate(100), **base),
        Record(
            kind="change", config=decoded, rate=rate(900), before=TrainConfig(), remedy="pre-decoded pictures",
            changed=("data_path",), comparison=comparison(9), why="faster: 9.00x", **base,
        ),
    )  # fmt: skip
    return LoopResult(
        run="r", job=Job("card"), baseline=starved(), records=records, final=starved(), synthetic=rate(1100),
        of_synthetic=comparison(0.9), jpegs=rate(600), jpegs_config=TrainConfig(workers=7), gain=9.0,
        stopped="nothing that is left to try pays", seconds=60.0, conditions=CARD, origin=CARD.origin,
    )  # fmt: skip


def seen() -> WatchResult:
    card = CardWatch(WatchedCard("GPU-0", "NVIDIA Test Card", "cuda:0"), busy=0.12, windows=20, seconds=4.0)
    return WatchResult("python train.py", 4.0, (card,), 0.2, 20, 0.01, CARD, CARD.origin)


def demonstrated() -> DemoResult:
    kinds = (Seen("one thread", 0.99, 0.005), Seen("FP32", 1.0, 0.9), Seen("BF16", 1.0, 0.8))
    return DemoResult("resnet50", kinds, rate(2000), rate(4000), comparison(2), CARD, CARD.origin)


def called() -> CallsResult:
    return CallsResult(10_000, rate(30_000), rate(9_000_000), comparison(300), CARD, CARD.origin)


def guided() -> GuidedResult:
    look = Look(starved(), watched=Watched(0.12, 25), memory=0.2)
    return GuidedResult((Guided("decoding in one process", "data", look),), CARD, CARD.origin)


def claimed() -> ClaimsResult:
    readings = {"one-call": ratio(comparison(300)), "adam-state": exact(2.0, "x")}
    return merged([Part("calls", readings, 9.0, CARD, CARD.origin)])


def again() -> AgainResult:
    changes = Changes(("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n+y",), (), (Differs("workers", "0", "7"),))
    own = {"conditions": CARD, "own": Own("train.py", {"workers": "7"}), "run": "1", "workload": "train.py"}
    records = (
        Record("2026-12-01", kind="baseline", config=None, rate=rate(100), kept=True, **own),
        Record("2026-12-01", kind="change", config=None, rate=rate(300), comparison=comparison(3), kept=True, **own),
    )
    return AgainResult(
        when="2026-12-01", measured="2026-12-01", command=("python", "train.py"), script="train.py", changes=changes,
        attribution=attribute(changes), comparison=comparison(3), rate_before=rate(100), rate_after=rate(300),
        learning=Judgement(True, "learns as before: 2 -> 1"), kept=True, why="faster", launches=8, seconds=60.0,
        conditions=CARD, origin=CARD.origin, records=records,
    )  # fmt: skip


def measured(what: str) -> Any:
    """A result as it was before it became a recording of the course."""
    text = (replay.FOLDER / f"{what}-h200.json").read_text()
    whole = msgspec.json.decode(text.replace("NVIDIA H200", CARD.machine).replace(__version__, CARD.kit))
    return msgspec.convert(whole["result"], replay.KINDS[what])


RESULTS = {
    "starve": starved,
    "sweep": swept,
    "loop": climbed,
    "watch": seen,
    "busy": demonstrated,
    "verify": partial(measured, "verify"),
    "profile": partial(measured, "profile"),
    "scale": partial(scaled, here=CARD),
    "memory": memory_results.life,
    "batches": partial(memory_results.swept, b8=900.0, b16=1000.0, b32=1001.0),
    "ceiling": partial(memory_results.found, knee=memory_results.swept(b8=900.0, b16=1000.0, b32=1001.0)),
    "cure": partial(memory_results.cure, False, True),
    "gaps": partial(measured, "profile"),
    "copies": partial(measured, "profile"),
    "elsewhere": partial(measured, "profile"),
    "precision": partial(precision_results.made, conditions=CARD, origin=CARD.origin),
    "calls": called,
    "guided": guided,
    "claims": claimed,
    "own": partial(own_runs.result, conditions=CARD, origin=CARD.origin),
    "again": again,
}


def test_everything_that_can_be_recorded_is_tested_and_can_be_shown() -> None:
    assert set(RESULTS) == set(replay.KINDS)
    assert set(replay.REPORTS) == set(replay.KINDS.values())


def recording(of: Any, **changes: Any) -> bytes:
    """A recording as `--json` prints it, with some of its parts changed."""
    whole = msgspec.json.decode(envelope(of, of.origin, [Finding("ok", "fine")]))
    return msgspec.json.encode({**whole, "kit": "0.0.1", **changes})


def write(folder: Path, name: str, result: Any) -> None:
    (folder / name).write_bytes(recording(result))


def origins(value: Any) -> Iterator[Origin]:
    """Every origin in a result, however deep."""
    if isinstance(value, Origin):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from origins(getattr(value, name))
    elif isinstance(value, tuple):
        for part in value:
            yield from origins(part)


@pytest.mark.parametrize("what", RESULTS)
def test_a_recording_is_the_result_with_every_origin_marked(tmp_path: Path, what: str) -> None:
    result = RESULTS[what]()
    write(tmp_path, f"{what}-test.json", result)
    loaded = replay.load(what, folder=tmp_path)
    assert type(loaded) is type(result)
    assert set(origins(loaded)) == {RECORDED}
    assert len(list(origins(loaded))) == len(list(origins(result)))
    assert unmarked(loaded) == result


def unmarked(value: Any) -> Any:
    """The result with every origin as it was when it was measured."""
    if isinstance(value, Origin):
        return CARD.origin
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: unmarked(getattr(value, name)) for name in value.__struct_fields__})
    return tuple(map(unmarked, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("what", RESULTS)
def test_a_recording_is_shown_as_a_report_with_its_mark(tmp_path: Path, what: str) -> None:
    write(tmp_path, f"{what}-test.json", RESULTS[what]())
    shown = replay.show(what, folder=tmp_path)
    assert isinstance(shown, Report) and (shown.figures or shown.tables)
    assert str(RECORDED) in str(shown) and "measured here" not in str(shown)
    html = shown._repr_mimebundle_()["text/html"]
    assert "recorded on NVIDIA Test Card" in html and "measured here" not in html


@pytest.mark.parametrize("what", [what for what in RESULTS if what not in ("verify", "calls", "own")])
def test_the_picture_alone_carries_the_mark(tmp_path: Path, what: str) -> None:
    write(tmp_path, f"{what}-test.json", RESULTS[what]())
    alone = replay.picture(what, folder=tmp_path)
    assert alone == replay.show(what, folder=tmp_path).figures[0]
    assert str(RECORDED) in alone.text and "recorded on NVIDIA Test Card" in alone.svg


def test_without_a_recording_there_is_a_note(tmp_path: Path) -> None:
    assert replay.load("loop", folder=tmp_path) is None
    assert replay.load("loop", folder=tmp_path / "missing") is None
    assert "no recording of `loop`, and shows nothing" in str(replay.show("loop", folder=tmp_path))
    assert "no recording of `loop` on h200, and" in str(replay.picture("loop", "h200", folder=tmp_path))


def test_a_card_can_be_named_and_the_newest_comes_first(tmp_path: Path) -> None:
    write(tmp_path, "starve-old.json", starved("2026-12-01"))
    write(tmp_path, "starve-new.json", starved("2026-12-09"))
    write(tmp_path, "starve-middle.json", starved("2026-12-05"))
    assert replay.load("starve", folder=tmp_path).origin.date == "2026-12-09"
    assert replay.load("starve", "old", tmp_path).origin.date == "2026-12-01"
    assert replay.load("starve", "other", tmp_path) is None


def test_what_is_available_is_known_from_the_names(tmp_path: Path) -> None:
    for name in ("starve-h200.json", "loop-rtx-6000.json", "loop.json", "notes-h200.json", "sweep-h200.txt"):
        (tmp_path / name).touch()
    found = [(one.what, one.card) for one in replay.available(tmp_path)]
    assert found == [("loop", "rtx-6000"), ("starve", "h200")]
    assert replay.available(tmp_path / "missing") == []


def test_another_thing_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="starve, sweep, loop"):
        replay.load("holiday", folder=tmp_path)


GOOD = msgspec.to_builtins(starved())
BROKEN = {
    "nothing": b"",
    "half of it": recording(starved())[:400],
    "no text": b"\xff\xfe\x00",
    "other JSON": b'{"cells": []}',
    "another result": recording(swept()),
    "a word for a number": recording(starved(), result={**GOOD, "wait_share": "89%"}),
    "a missing field": recording(starved(), result={"real": GOOD["real"]}),
    "another level": recording(starved(), findings=[{"level": "bad", "title": ""}]),
    "a part too many": recording(starved(), by="hand"),
    "a claim": recording(starved(), origin={"mark": "claimed by", "on": "somebody"}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_or_foreign_file_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    (tmp_path / "starve-bad.json").write_bytes(BROKEN[what])
    with pytest.raises(ValueError) as refused:
        replay.load("starve", folder=tmp_path)
    assert re.fullmatch(r"starve-bad\.json is not a recording of starve: .+", str(refused.value))


def test_every_recording_of_the_course_can_be_shown() -> None:
    for one in replay.available():
        assert str(replay.load(one.what, one.card).origin).startswith("recorded on"), one.file.name
        shown = replay.show(one.what, one.card)
        assert shown.figures or shown.tables, one.file.name
        assert "in __init__.py" not in str(shown), "a recording keeps no folder, so a file's name says nothing"
    known = {one.file for one in replay.available()}
    assert set(replay.FOLDER.glob("*")) <= known, "a file of the folder is no recording"
