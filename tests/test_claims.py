"""Claims: every one has a source, a test and a rule; a verdict follows its number; parts are kept, and never mixed."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import memory_results
import msgspec
import precision_results
import pytest
from test_replay import CARD, called, comparison, demonstrated, rate, seen, starved, swept
from test_scaling import made as scaled

from gpuworkshop import __version__, cli, state
from gpuworkshop.child import ChildFailed
from gpuworkshop.course import claims, claims_parts, claims_readings, claims_store, replay
from gpuworkshop.course.claims import Rule, judge
from gpuworkshop.course.claims_readings import LoaderSeen, Looked, Trained
from gpuworkshop.course.claims_result import ClaimsResult, Part, Reading, exact, merged, missing, spread
from gpuworkshop.report import Origin
from gpuworkshop.timing import Rate

HERE = msgspec.structs.replace(CARD, kit=__version__)
BY_ID = {claim.id: claim for claim in claims.claims()}
MARKED = {
    "silent-cpu", "cuda-module", "verify-5s", "idle-watts", "profile-20", "one-call", "below-60",
    "workers-utilization", "workers-win", "doubling", "room", "bf16-activations", "bf16-products", "stays-fp32",
    "checkpointing-memory", "checkpointing-compute", "two-b200",
}  # fmt: skip
"""What the syllabus marks as a claim, mark by mark in its order."""


def part(name: str = "calls", here=HERE, **readings: Reading) -> Part:
    return Part(name, readings, 9.0, here, here.origin)


def around(value: float, half: float = 0.01, unit: str = "x") -> Reading:
    return spread(value, value - half, value + half, 8, unit)


def verdict(id: str, reading: Reading | None, machine: str = "NVIDIA H200") -> str:
    return judge(BY_ID[id], reading, machine)[0]


# ---------------------------------------------------------------- the claims as data


def test_every_mark_of_the_syllabus_is_a_claim_and_rules_stand_beside_them() -> None:
    assert {claim.id for claim in claims.claims() if claim.marked} == MARKED
    assert len(BY_ID) >= 18 and len(BY_ID) > len(MARKED)


@pytest.mark.parametrize("id", BY_ID)
def test_a_claim_has_its_source_its_experiment_and_a_part_or_a_reason(id: str) -> None:
    claim = BY_ID[id]
    assert claim.source.strip() and claim.tests.strip() and claim.words.strip() and claim.claimed.strip()
    assert claim.part in claims_parts.PARTS or (claim.never and not claim.part)
    assert str(claim.origin).startswith("claimed by")


@pytest.mark.parametrize("field", ["source", "tests", "words", "claimed", "id"])
def test_a_claim_without_it_is_refused(field: str) -> None:
    values = msgspec.structs.asdict(BY_ID["one-call"]) | {field: "  "}
    with pytest.raises(ValueError, match=f"has no {field}"):
        claims.Claim(**values)


def test_a_claim_that_nothing_can_test_says_why() -> None:
    values = msgspec.structs.asdict(BY_ID["one-call"]) | {"part": ""}
    with pytest.raises(ValueError, match="neither a part .* nor a reason"):
        claims.Claim(**values)


@pytest.mark.parametrize(
    "bounds",
    [{}, {"above": 1.0}, {"between": (2, 1)}, {"between": (1, 2), "at_least": 1}, {"at_least": 3, "at_most": 2}],
)
def test_a_rule_that_cannot_be_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a rule has"):
        Rule(**bounds)


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("rule", "ends", "expected"),
    [
        (Rule(at_least=2), (2, 2), "holds"),
        (Rule(at_least=2), (1.999, 2.5), "partly"),
        (Rule(at_least=2), (1.5, 2.0), "partly"),
        (Rule(at_least=2), (1.5, 1.999), "not here"),
        (Rule(at_least=2, above=1), (1.5, 1.999), "partly"),
        (Rule(at_least=2, above=1), (1.0, 1.999), "not here"),
        (Rule(at_most=5), (4.9, 5.0), "holds"),
        (Rule(at_most=5), (4.9, 5.001), "partly"),
        (Rule(at_most=5), (5.001, 9), "not here"),
        (Rule(at_most=5, below=9), (5.001, 8.999), "partly"),
        (Rule(at_most=5, below=9), (5.001, 9), "not here"),
        (Rule(between=(2, 4)), (2, 4), "holds"),
        (Rule(between=(2, 4)), (1.9, 4), "partly"),
        (Rule(between=(2, 4)), (1, 9), "partly"),
        (Rule(between=(2, 4)), (4.01, 9), "not here"),
        (Rule(between=(2, 4), above=1), (4.01, 9), "partly"),
    ],
)
def test_a_verdict_at_its_bounds(rule: Rule, ends: tuple[float, float], expected: str) -> None:
    claim = msgspec.structs.replace(BY_ID["one-call"], rule=rule)
    assert judge(claim, Reading(sum(ends) / 2, *ends))[0] == expected


def test_the_direction_alone_is_said_with_its_side() -> None:
    assert "more than claimed" in judge(BY_ID["bf16-products"], around(14.0))[1]
    assert "less than claimed" in judge(BY_ID["bf16-products"], around(1.8))[1]


def test_what_no_machine_can_tell_is_never_judged() -> None:
    assert judge(BY_ID["idle-watts"], exact(2.5, "x")) == ("not measurable here", BY_ID["idle-watts"].never)
    assert judge(BY_ID["one-call"], missing("there is no card here")) == (
        "not measurable here",
        "there is no card here",
    )
    assert judge(BY_ID["one-call"], None)[0] == "not recorded yet"


def test_only_the_card_that_is_meant_can_tell() -> None:
    assert verdict("b200-watts", exact(1000, "W"), "NVIDIA B200") == "holds"
    assert verdict("b200-watts", exact(1000, "W"), "NVIDIA H200") == "not measurable here"
    assert verdict("b200-watts", None, "NVIDIA H200") == "not measurable here"
    assert verdict("b200-watts", None, "NVIDIA B200") == "not recorded yet"


@pytest.mark.parametrize("ends", [(math.nan, 1, 2), (1, -math.inf, math.inf), (1, math.nan, 2)])
def test_an_interval_without_ends_is_no_value(ends: tuple[float, ...]) -> None:
    reading = spread(*ends, 1, "x")
    assert reading.value is None and reading.why
    assert str(reading) == "n/a"


# ---------------------------------------------------------------- a changed number flips a verdict


def recorded(what: str) -> Any:
    """A result of the course's recordings, as plain data."""
    return msgspec.json.decode((replay.FOLDER / f"{what}-h200.json").read_bytes())["result"]


def again(what: str, whole: Any) -> Any:
    return msgspec.convert(whole, replay.KINDS[what])


def set_pair(whole: dict, kind: str, over: str, arm: str, value: float) -> None:
    pair = next(one for one in whole[kind] if (one["over"], one["arm"]) == (over, arm))
    pair["seen"] |= {"ratio": value, "low": value * 0.99, "high": value * 1.01}


def test_a_changed_product_flips_its_verdict() -> None:
    whole = recorded("precision")
    before = claims_readings.precision(again("precision", whole))
    set_pair(whole, "product_pairs", "fp32", "bf16", 3.0)
    after = claims_readings.precision(again("precision", whole))
    assert verdict("bf16-products", before["bf16-products"]) == "partly"
    assert verdict("bf16-products", after["bf16-products"]) == "holds"
    set_pair(whole, "product_pairs", "fp32", "bf16", 0.9)
    assert verdict("bf16-products", claims_readings.precision(again("precision", whole))["bf16-products"]) == "not here"


def test_changed_bytes_flip_their_verdicts() -> None:
    whole = recorded("precision")
    sizes = {arm["arm"]["id"]: arm["memory"] for arm in whole["arms"]}
    before = claims_readings.precision(again("precision", whole))
    sizes["bf16"]["activations"] = sizes["fp32"]["activations"] // 2
    sizes["bf16-checkpointing"]["activations"] = int(sizes["bf16"]["activations"] * 0.35)
    after = claims_readings.precision(again("precision", whole))
    for id in ("bf16-activations", "checkpointing-memory"):
        assert (verdict(id, before[id]), verdict(id, after[id])) == ("partly", "holds"), id


def test_changed_times_flip_their_verdicts() -> None:
    whole = recorded("precision")
    before = claims_readings.precision(again("precision", whole))
    set_pair(whole, "pairs", "bf16", "bf16-checkpointing", 1 / 1.30)
    set_pair(whole, "pairs", "fp32", "bf16", 100.0)
    after = claims_readings.precision(again("precision", whole))
    assert verdict("checkpointing-time", before["checkpointing-time"]) == "partly"
    assert verdict("checkpointing-time", after["checkpointing-time"]) == "holds"
    assert (verdict("bf16-step", before["bf16-step"]), verdict("bf16-step", after["bf16-step"])) == (
        "holds",
        "not here",
    )


def test_a_changed_sweep_flips_its_verdicts() -> None:
    sweep, starve = recorded("sweep"), again("starve", recorded("starve"))
    before = claims_readings.swept(again("sweep", sweep), starve)
    for point in sweep["points"]:
        if point["workers"] >= 4:
            point["against_zero"] |= {"ratio": 1.2, "low": 1.19, "high": 1.21}
        if point["workers"] == 7:
            point["rate"] |= {"value": 300.0, "low": 299.0, "high": 301.0}
    after = claims_readings.swept(again("sweep", sweep), starve)
    for id in ("workers-win", "workers-rule"):
        assert (verdict(id, before[id]), verdict(id, after[id])) == ("holds", "not here"), id


def test_a_changed_batch_flips_its_verdict() -> None:
    whole = recorded("batches")
    before = claims_readings.batches(again("batches", whole))["doubling"]
    next(point for point in whole["points"] if point["batch"] == 128)["against_smallest"] |= {
        "ratio": 6.0, "low": 5.9, "high": 6.1,
    }  # fmt: skip
    after = claims_readings.batches(again("batches", whole))["doubling"]
    assert (verdict("doubling", before), verdict("doubling", after)) == ("holds", "partly")


def test_a_changed_number_in_the_recording_of_the_claims_changes_its_table() -> None:
    result = replay.load("claims")
    calls = result.part("calls")
    flipped = msgspec.structs.replace(calls, readings={"one-call": around(300.0, 20)})
    other = ClaimsResult(tuple(flipped if one is calls else one for one in result.parts), result.origin)
    before, after = ({row.claim.id: row.verdict for row in claims.judged(one)} for one in (result, other))
    assert (before.pop("one-call"), after.pop("one-call")) == ("partly", "holds")
    assert before == after


# ---------------------------------------------------------------- readings


def test_the_readings_of_a_part_are_those_of_its_claims() -> None:
    looked = LoaderSeen(Looked("0", starved(), None), None, (), comparison(1.1), 7)
    made = {
        "verify": claims_readings.verified([4.0, 5.0, 4.4], Trained("cpu"), Trained("cuda")),
        "calls": claims_readings.calls(called()),
        "loader": claims_readings.looked(looked) | claims_readings.swept(swept(), starved()),
        "batch": claims_readings.batches(memory_results.swept(b8=100.0, b16=200.0)),
        "memory": claims_readings.life(memory_results.life()) | claims_readings.ceiling(memory_results.found()),
        "precision": claims_readings.precision(precision_results.made()) | claims_readings.types({"loss": "float32"}),
        "busy": claims_readings.busy(demonstrated()) | claims_readings.watched(seen()),
        "profile": claims_readings.profiles(replay.load("profile"), replay.load("profile")),
        "scale": claims_readings.scaled(scaled(), scaled()),
    }
    assert made.keys() == claims_parts.PARTS.keys()
    for name, readings in made.items():
        assert readings.keys() == {claim.id for claim in claims.claims() if claim.part == name}, name


def test_without_a_card_the_same_claims_have_their_reasons() -> None:
    nothing = (
        claims_readings.busy(None) | claims_readings.watched(None) | claims_readings.ceiling(None)
        | claims_readings.scaled(None, None, "one card") | claims_readings.verified([], card=False)
    )  # fmt: skip
    assert len(nothing) == 11
    assert all(reading.value is None and reading.why for reading in nothing.values())


def test_verify_is_judged_by_its_fastest_and_slowest_run() -> None:
    reading = claims_readings.verified([3.0, 9.0, 4.0])["verify-5s"]
    assert (reading.value, reading.low, reading.high) == (4.0, 3.0, 9.0)
    assert verdict("verify-5s", reading) == "partly"
    assert verdict("verify-5s", claims_readings.verified([3.0, 4.9])["verify-5s"]) == "holds"


def test_a_card_that_needs_no_module_is_told_from_one_that_does() -> None:
    found = claims_readings.verified([], None, Trained("cuda"))["cuda-module"]
    lost = claims_readings.verified([], None, Trained("cpu"))["cuda-module"]
    assert (verdict("cuda-module", found), verdict("cuda-module", lost)) == ("not here", "holds")
    assert "that it brings" in found.says


def test_an_error_on_the_cpu_is_not_silent() -> None:
    quiet = claims_readings.verified([], Trained("cpu", warnings=("a",)))["silent-cpu"]
    loud = claims_readings.verified([], Trained("cpu", "RuntimeError: no"))["silent-cpu"]
    assert (verdict("silent-cpu", quiet), verdict("silent-cpu", loud)) == ("holds", "not here")
    assert "1 warning" in quiet.says


def test_jobs_below_sixty_percent_are_counted_by_their_measured_limit() -> None:
    busy = lambda percent: Rate(percent, percent - 1, percent + 1, 20, "%")  # noqa: E731
    compute = msgspec.structs.replace(starved(), limit="compute")
    unknown = msgspec.structs.replace(starved(), limit="unknown")
    jobs = [Looked("data", starved(), busy(10)), Looked("small", compute, busy(20)), Looked("high", compute, busy(90))]
    reading = claims_readings._below([*jobs, Looked("dark", unknown, busy(5)), Looked("none", compute, None)])
    assert reading.value == 50 and "small" in reading.says
    assert verdict("below-60", reading) == "partly"
    assert claims_readings._below([Looked("none", compute, None, "no driver")]).why == "no driver"
    assert claims_readings._below(jobs[2:]).value is None


def test_utilization_with_workers_is_held_against_that_without() -> None:
    def looked(value: float, workers: int) -> Looked:
        run = msgspec.structs.replace(starved(), workers=workers)
        return Looked("job", run, Rate(value, value * 0.98, value * 1.02, 20, "%"))

    both = looked(20, 0), looked(70, 4)
    reading = claims_readings.looked(LoaderSeen(*both))["workers-utilization"]
    assert verdict("workers-utilization", reading) == "holds" and "from 20.0% to 70.0%" in reading.says
    less = claims_readings.looked(LoaderSeen(looked(8, 0), looked(18, 4)))["workers-utilization"]
    assert verdict("workers-utilization", less) == "partly"


def test_two_cpus_have_no_room_for_four_workers_and_what_was_seen_is_told() -> None:
    small = msgspec.structs.replace(swept(), cpus=2, points=(swept().points[0], swept().points[0]))
    reading = claims_readings.swept(small, starved())["workers-win"]
    assert reading.value is None and "2 CPUs have no room for 4 workers" in reading.why


def test_types_that_autocast_lowered_are_named() -> None:
    reading = claims_readings.types({"weights": "float32", "batch norm": "bfloat16"})["stays-fp32"]
    assert (reading.value, str(reading)) == (1, "1 of 2") and reading.says == "batch norm bfloat16"


def test_room_is_the_ceiling_over_what_fills_fifteen_to_twenty_percent() -> None:
    reading = claims_readings.ceiling(memory_results.found())["room"]
    line, total = memory_results.found().line, memory_results.found().total
    assert line.at(3200 / reading.low) == pytest.approx(0.20 * total)
    assert line.at(3200 / reading.high) == pytest.approx(0.15 * total)


def test_a_knee_that_still_rises_is_no_place_below_the_ceiling() -> None:
    rising = memory_results.found(knee=memory_results.swept(b8=100.0, b16=200.0))
    flat = memory_results.found(knee=memory_results.swept(b8=100.0, b16=101.0))
    assert claims_readings.ceiling(rising)["at-70-85"].value is None
    assert claims_readings.ceiling(flat)["at-70-85"].value == pytest.approx(100 * 8 / 3200)


# ---------------------------------------------------------------- keeping parts


def test_parts_of_another_card_or_kit_are_not_merged() -> None:
    other = part("memory", msgspec.structs.replace(HERE, machine="NVIDIA B200"))
    older = part("memory", msgspec.structs.replace(HERE, kit="0.0.0"))
    for strange in (other, older):
        with pytest.raises(ValueError, match="only for the same card and kit"):
            merged([part(), strange])
    same = part("memory", msgspec.structs.replace(HERE, uuid="GPU-1"))
    assert [one.name for one in merged([part(), same]).parts] == ["calls", "memory"]


def test_parts_of_several_cards_of_one_kind_are_said() -> None:
    both = merged([part(), part("memory", msgspec.structs.replace(HERE, uuid="GPU-1", torch="2.12"))])
    said = "; ".join(finding.title for finding in claims.findings(both))
    assert "2 cards" in said and "2 versions of PyTorch" in said


class Bench:
    """Measures what it is asked for, and counts it; "broken" fails, "stopped" is interrupted."""

    def __init__(self, here=HERE):
        self.here, self.asked = here, []

    def __call__(self, name: str) -> Part:
        self.asked.append(name)
        if name == "precision":
            raise ChildFailed("the child died")
        if name == "scale":
            raise KeyboardInterrupt
        return part(name, self.here, **{"one-call": around(300)})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> claims_store.InState:
    monkeypatch.setenv("GPUWORKSHOP_STATE", str(tmp_path / "state"))
    return claims_store.InState(HERE.machine)


def test_a_recorded_part_is_not_measured_again_unless_asked(store) -> None:
    bench = Bench()
    claims_store.record(["calls", "memory"], store, bench)
    told = claims_store.record(["calls", "memory", "batch"], store, bench)
    assert bench.asked == ["calls", "memory", "batch"] and told.before == ("calls", "memory")
    claims_store.record(["calls"], store, bench, again=True)
    assert bench.asked[-1] == "calls" and len(store.read().parts) == 3


def test_another_card_or_kit_is_measured_anew_and_its_parts_stay_its_own(store) -> None:
    for here in (msgspec.structs.replace(HERE, machine="NVIDIA B200"), msgspec.structs.replace(HERE, kit="0.0.0")):
        state.append(claims_store.NAME, part("calls", here))
    assert store.read() is None
    bench = Bench()
    claims_store.record(["calls"], store, bench)
    assert bench.asked == ["calls"] and len(store.read().parts) == 1
    with pytest.raises(ValueError, match="came from another machine"):
        claims_store.record(["memory"], store, Bench(msgspec.structs.replace(HERE, machine="NVIDIA B200")))


def test_an_interrupt_keeps_what_is_done(store) -> None:
    with pytest.raises(KeyboardInterrupt):
        claims_store.record(["calls", "scale", "memory"], store, Bench())
    assert [one.name for one in store.read().parts] == ["calls"]


def test_a_part_that_fails_does_not_stop_the_others(store) -> None:
    told = claims_store.record(["precision", "calls"], store, Bench())
    assert told.failed == {"precision": "the child died"}
    assert [one.name for one in told.result.parts] == ["calls"]


def test_torn_and_foreign_lines_are_skipped(store) -> None:
    claims_store.record(["calls"], store, Bench())
    file = state.folder() / claims_store.NAME
    file.write_bytes(b'{"name": "memory"}\n' + file.read_bytes() + file.read_bytes()[:200])
    assert [one.name for one in store.read().parts] == ["calls"]
    claims_store.record(["memory"], store, Bench())
    assert [one.name for one in store.read().parts] == ["calls", "memory"]


def test_a_file_is_whole_after_each_part_and_goes_on_later(tmp_path: Path) -> None:
    file = tmp_path / "claims-test.json"
    store = claims_store.InFile(file, HERE.machine)
    whole = []
    claims_store.record(["calls", "memory"], store, Bench(), done=lambda part: whole.append(claims_store.load(file)))
    assert [len(one.parts) for one in whole] == [1, 2]
    bench = Bench()
    claims_store.record(["calls", "batch"], claims_store.InFile(file, HERE.machine), bench)
    assert bench.asked == ["batch"] and os.listdir(tmp_path) == [file.name]
    assert str(replay.load("claims", folder=tmp_path).origin).startswith("recorded on")


def test_a_part_that_was_read_from_other_recordings_is_measured(tmp_path: Path) -> None:
    store, bench = claims_store.InFile(tmp_path / "claims-test.json", HERE.machine), Bench()
    store.add(msgspec.structs.replace(part("calls"), sources=("calls-test.json",)))
    assert claims_store.record(["calls"], store, bench).result.part("calls").sources == ()


@pytest.mark.parametrize(
    "content", [b"", b'{"kit": "0.1.0", "res', b"[]", b"\xff", b'{"kit":"1","origin":{},"result":{}}']
)
def test_a_torn_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "claims.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="no whole recording of claims"):
        claims_store.InFile(file, HERE.machine)
    assert file.read_bytes() == content


def test_a_file_of_another_card_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "claims.json"
    claims_store.record(["calls"], claims_store.InFile(file, HERE.machine), Bench())
    with pytest.raises(ValueError, match="holds the claims of NVIDIA Test Card .* this is NVIDIA B200"):
        claims_store.InFile(file, "NVIDIA B200")


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for file in (tmp_path / "none" / "claims.json", Path("/proc/claims.json")):
        with pytest.raises(ValueError, match="cannot be written"):
            claims_store.InFile(file, HERE.machine)
    assert not (tmp_path / "none").exists()


def test_a_state_folder_that_cannot_be_written_has_a_spare(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GPUWORKSHOP_STATE", "/proc/gpuworkshop-state")
    monkeypatch.setattr(state, "spare_folder", lambda: tmp_path / "spare")
    claims_store.record(["calls"], claims_store.InState(HERE.machine), Bench())
    assert (tmp_path / "spare" / claims_store.NAME).exists()


def test_parts_are_named_in_their_order_and_a_strange_one_is_told() -> None:
    known = tuple(claims_parts.PARTS)
    assert claims_store.which(["all"], known) == known
    assert claims_store.which(["memory", "calls", "calls"], known) == ("calls", "memory")
    with pytest.raises(ValueError, match='no part "holiday": there are verify, calls'):
        claims_store.which(["calls", "holiday"], known)


# ---------------------------------------------------------------- the report


def test_a_report_shows_every_claim_with_its_measured_value_and_both_marks() -> None:
    result = replay.load("claims")
    shown = claims.report(result)
    rows = {row[0]: row for row in shown.tables[0].rows}
    assert set(rows) == {claim.words for claim in claims.claims()}
    assert rows[BY_ID["one-call"].words][2] == str(result.readings["one-call"][0])
    assert "claimed by" in str(shown) and str(result.origin) in str(shown)
    assert shown.figures and "one-call" in shown.figures[0].svg
    html = shown._repr_mimebundle_()["text/html"]
    assert "not measurable here" in html and "partly" in html


def test_what_was_not_recorded_names_its_parts() -> None:
    readings = {claim.id: around(300) for claim in claims.claims() if claim.part == "calls"}
    found = list(claims.findings(merged([part(**readings)])))
    left = next(finding for finding in found if "not recorded yet" in finding.title and finding.fix)
    assert "memory" in left.fix and "calls" not in left.fix
    nothing = claims.report(None, "a machine")
    assert nothing.findings[0].level == "unknown" and not nothing.figures


def test_what_comes_from_a_recording_is_escaped() -> None:
    bad = spread(2.0, 1.9, 2.1, 8, "x", "<script>alert(1)</script>")
    html = claims.report(merged([part(**{"bf16-products": bad, "one-call": bad})]))._repr_mimebundle_()["text/html"]
    assert "<script>" not in html and "&lt;script&gt;" in html


# ---------------------------------------------------------------- the shipped recording


def composer():
    folder = Path(__file__).parents[1] / "solutions"
    spec = importlib.util.spec_from_file_location("compose_claims", folder / "compose_claims.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def test_parts_read_from_other_recordings_agree_with_them() -> None:
    shipped = json.loads((replay.FOLDER / "claims-h200.json").read_bytes())["result"]
    made = {one.name: one for one in composer().parts("h200")}
    read = [one for one in msgspec.convert(shipped, ClaimsResult).parts if one.sources]
    for one in read:
        assert one == made[one.name], f"{one.name}: python solutions/compose_claims.py h200"
        assert all((replay.FOLDER / source).exists() for source in one.sources)


def test_the_shipped_recording_judges_claims_and_knows_the_card() -> None:
    result = replay.load("claims", "h200")
    rows = claims.judged(result)
    assert sum(row.verdict in claims.LEVELS for row in rows) >= 15
    assert all(row.origin.on == "NVIDIA H200" for row in rows if row.reading)
    assert result.origin == Origin("recorded on", "NVIDIA H200", result.origin.date, result.origin.kit)


# ---------------------------------------------------------------- the verb


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    monkeypatch.setenv("GPUWORKSHOP_STATE", str(tmp_path / "state"))
    here = claims_parts.Setup(HERE.machine, True, 8, 1, conditions=HERE)
    monkeypatch.setattr(claims_parts, "here", lambda launcher=(): here)
    monkeypatch.setattr(claims_parts, "reached", lambda setup: setup)
    monkeypatch.setattr(claims_parts, "measure", lambda name, setup: bench(name))
    return bench


def test_the_verb_records_and_shows(verb: Bench, capsys) -> None:
    assert cli.main(["claims"]) == 0
    assert "not recorded yet" in capsys.readouterr().out
    assert cli.main(["claims", "--record", "calls", "memory"]) == 0
    out, err = capsys.readouterr()
    assert verb.asked == ["calls", "memory"] and "calls: recorded" in err and "300x" in out
    assert cli.main(["claims", "--record", "calls"]) == 0
    assert verb.asked == ["calls", "memory"] and "--again" in capsys.readouterr().err
    assert cli.main(["claims", "--record", "calls", "--again", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert verb.asked[-1] == "calls" and len(whole["result"]["parts"]) == 2


def test_the_verb_writes_a_file_and_shows_it(verb: Bench, tmp_path: Path, capsys) -> None:
    file = tmp_path / "claims-mine.json"
    assert cli.main(["claims", "--record", "calls", "--into", str(file)]) == 0
    capsys.readouterr()
    assert cli.main(["claims", str(file)]) == 0
    assert "300x" in capsys.readouterr().out


def test_the_verb_replays_without_a_card(verb: Bench, capsys) -> None:
    assert cli.main(["claims", "--replay"]) == 0
    assert "recorded on NVIDIA H200" in capsys.readouterr().out and verb.asked == []


def test_a_failed_part_is_said_and_ends_with_1(verb: Bench, capsys) -> None:
    assert cli.main(["claims", "--record", "calls", "precision"]) == 1
    out, err = capsys.readouterr()
    assert "precision: not recorded: the child died" in err and "300x" in out


def test_an_interrupted_verb_keeps_what_is_done(verb: Bench, capsys) -> None:
    assert cli.main(["claims", "--record", "calls", "scale"]) == 130
    assert "kept" in capsys.readouterr().err
    assert [one.name for one in claims_store.InState(HERE.machine).read().parts] == ["calls"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--record holiday", "there is no part"),
        ("--again", "--again goes with --record"),
        ("--into f.json", "--into goes with --record"),
        ("--replay --record calls", "two questions"),
        ("none.json", "cannot be read"),
        ("--record calls --into /proc/c.json", "cannot be written"),
        ("--record", ""),
    ],
)
def test_bad_input_is_one_line_and_2(verb: Bench, capsys, words: str, said: str) -> None:
    assert cli.main(["claims", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.strip().splitlines()) == 1 and not out
    assert verb.asked == []


# ---------------------------------------------------------------- for real


def test_a_part_is_measured_on_this_machine() -> None:
    setup = claims_parts.reached(claims_parts.here())
    seen = claims_parts.measure("memory", setup)
    assert seen.conditions.machine == setup.machine
    assert seen.readings["adam-state"].value == pytest.approx(2.0, rel=0.05)
    assert seen.readings.keys() == {claim.id for claim in claims.claims() if claim.part == "memory"}
    assert re.match(r"measured here", str(seen.origin))


def test_training_with_the_card_hidden_is_silent() -> None:
    hidden = claims_parts._trained(claims_parts.here(), ("env", "CUDA_VISIBLE_DEVICES="))
    assert hidden.device == "cpu" and not hidden.error and hidden.conditions.device == "cpu"


def test_rates_have_their_own_units() -> None:
    assert str(spread(50.0, 40.0, 60.0, 8, "%")) == "50.0% (40.0 to 60.0)"
    assert str(exact(1, "yes")) == "yes" and str(exact(0, "yes")) == "no"
    assert str(around(8673.0, 100)) == "8,673x (8,573 to 8,773)"
    assert rate(100).unit == "samples/s"
