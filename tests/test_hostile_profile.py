"""Attacks on the profile: traces that are odd, damaged or of another tool; steps and files that misbehave."""

import gzip
import json
import random
from pathlib import Path

import pytest
import torch
from standins.traces import Traced

from gpuworkshop.instruments import profile
from gpuworkshop.instruments import trace as reader
from gpuworkshop.instruments.profile import CannotProfile
from gpuworkshop.instruments.profile_result import findings, report, signs
from gpuworkshop.instruments.trace import NoTrace, read
from gpuworkshop.instruments.trace_sums import sums
from gpuworkshop.timing import Plan, Rate

PLAN = Plan(block_seconds=0.01, min_rounds=2, max_warm_up_blocks=1, budget_seconds=0.05)
DEEP = b"[" * 20_000 + b"]" * 20_000


def event(cat: str = "cpu_op", name: str = "aten::mm", ts: object = 1.0, dur: object = 2.0, **more: object) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def kernel(ts: float, dur: float, correlation: int = -1, device: object = 0) -> dict:
    args = {"stream": 7, "device": device, "correlation": correlation}
    return event("kernel", "gemm", ts, dur, pid=0, args=args)


def launch(ts: float, correlation: int) -> dict:
    return event("cuda_runtime", "cudaLaunchKernel", ts, 1, args={"correlation": correlation})


def text(*events: dict, **head: object) -> bytes:
    return json.dumps({**head, "traceEvents": events}).encode()


def kept(folder: Path, data: bytes) -> Path:
    file = folder / "trace.json"
    file.write_bytes(data)
    return file


def seen(folder: Path, *events: dict, **head: object) -> profile.ProfileResult:
    return profile.read(kept(folder, text(*events, **head)))


def titles(result: profile.ProfileResult) -> list[str]:
    return [finding.title for finding in findings(result)]


# ---------------------------------------------------------------- text


@pytest.mark.parametrize(
    "data",
    [
        text(event(), event(name="deep")).replace(b'"deep"', b'"deep", "z": ' + DEEP),
        b'{"x": ' + DEEP + b", " + text(event())[1:],
    ],
)
def test_what_is_nested_without_end_costs_its_own_event_at_most(tmp_path, data) -> None:
    found = read(kept(tmp_path, data))
    assert len(found.host) == 1 and not any("ends in the middle" in note for note in found.notes)
    assert (data.count(b"deep") == 0) == (found.notes == ())


@pytest.mark.parametrize("name", [b"\\ud800", b"a\nb", b"a\x01b", b"\\ud83d\\ude00 \\udc00"])
def test_a_name_that_is_no_json_loses_no_event(tmp_path, name) -> None:
    found = read(kept(tmp_path, text(event(name="odd"), event(ts=9.0)).replace(b"odd", name)))
    assert len(found.host) == 2 and found.notes == ()


def test_filler_behind_a_gzipped_trace_is_no_tear(tmp_path) -> None:
    packed = gzip.compress(text(event()))
    for data in (
        packed + bytes(512),
        packed + b"filler",
        gzip.compress(text(event())[:40]) + gzip.compress(text(event())[40:]),
    ):
        found = read(kept(tmp_path, data))
        assert len(found.host) == 1 and found.notes == ()


def test_text_without_end_is_held_no_longer_than_an_event_can_be(tmp_path, monkeypatch) -> None:
    """Stands for a gzip bomb: what is held is counted."""
    monkeypatch.setattr(reader, "PIECE", 2**16)
    monkeypatch.setattr(reader, "LONGEST_TEXT", 2**18)
    for begins in (b'{"a": "', b'{"traceEvents": [{"name": "'):
        pieces = reader._Pieces(kept(tmp_path, gzip.compress(begins + bytes(2**24).replace(b"\0", b"x"))))
        assert list(pieces) == [] and pieces.text_bytes < 2**19, pieces.text_bytes


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x28\xb5\x2f\xfd....", "zstd: unpack"),
        (b"PK\x03\x04....", "zip archive: unpack"),
        (text(event()).decode().encode("utf-16"), "UTF-16: save it as UTF-8"),
        (gzip.compress(gzip.compress(text(event()))), "packed twice"),
        (b"SQLite format 3\x00", "Nsight Systems exports; .*export_chrome_trace"),
        (b"\x1f\x8b" + b"\xff" * 99, "gzip data is damaged"),
        (b'{"displayTimeUnit": "ns", "traceEvents": [{"ph": "X", "ts": 1, "dur": 3, "name": "MatMul"}]}',
         "no events of PyTorch in it; .*export_chrome_trace"),
        (text(event(dur=-5)), "1 event without a usable time left out"),
        (text(event(ts=1e300)), "1 event without a usable time left out"),
        (text(event(name=None)), "1 event could not be read"),
    ],
)  # fmt: skip
def test_what_no_event_comes_from_is_named_with_what_to_do(tmp_path, data, says) -> None:
    with pytest.raises(NoTrace, match=says):
        read(kept(tmp_path, data))


@pytest.mark.parametrize("rank", [-1, True, "0", 10**30, None, [1]])
def test_a_rank_that_is_none_and_a_card_without_a_name_are_not_told(tmp_path, rank) -> None:
    about = {"distributedInfo": {"rank": rank, "world_size": rank}, "deviceProperties": [{"name": None}]}
    found = read(kept(tmp_path, text(event(), **about)))
    assert (found.rank, found.world_size, found.card) == (None, None, "")


# ---------------------------------------------------------------- events


@pytest.mark.parametrize("device", [-7, 10**12, 2**31 - 1, "x", None])
def test_a_card_of_no_number_is_no_list_of_so_many(tmp_path, device) -> None:
    found = seen(tmp_path, launch(1, 1), kernel(2, 3, 1, device), kernel(6, 3, 1, device))
    assert len(found.sums.cards) == 1 and str(report(found))


def test_sizes_of_copies_that_are_none_are_not_summed(tmp_path) -> None:
    copy = "Memcpy HtoD (Pageable -> Device)"
    odd = [
        event("gpu_memcpy", copy, 10 * n, 2, pid=0, args={"device": 0, "bytes": size})
        for n, size in enumerate([-5, 2**52, 2**52, 100])
    ]
    assert [one.bytes for one in seen(tmp_path, *odd).sums.copies] == [100]


def test_a_card_without_any_time_is_not_idle(tmp_path) -> None:
    found = seen(tmp_path, event(), launch(1, 1), kernel(5, 0, 1))
    assert found.sums.cards == () and "No times of the card were recorded" in titles(found)
    assert "busy" not in str(report(found))


def test_a_long_name_does_not_fill_the_page(tmp_path) -> None:
    found = seen(tmp_path, event(name="x" * 200_000), event("user_annotation", "y" * 200_000))
    assert len(str(report(found))) < 5000 and len(found.sums.operators[0].name) == reader.LONGEST_NAME


def test_calls_that_are_nested_deeply_are_added_up(tmp_path) -> None:
    deep = 3000
    nested = [event(name="f", ts=n, dur=2 * deep - 2 * n + 9) for n in range(deep)]
    at = deep + 1
    (row,) = seen(tmp_path, *nested, launch(at, 1), kernel(at + 2, 3, 1)).sums.operators
    assert row.calls == deep and row.device_total == 3 and row.device_self == 3


def test_totals_are_those_of_adding_up_one_by_one(tmp_path) -> None:
    draw, traced = random.Random(4), Traced()
    with traced.step():
        for _ in range(30):
            with traced.label("outer", "cpu_op"), traced.label(f"op{draw.randrange(3)}", "cpu_op"):
                traced.launch("gemm", draw.randrange(1, 9))
    found = sums(read(traced.write(tmp_path / "trace.json")))
    rows = {row.name: row for row in found.operators}
    inside = sum(row.device_self for name, row in rows.items() if name.startswith("op"))
    assert rows["outer"].device_total == pytest.approx(inside)


# ---------------------------------------------------------------- clocks


def late(offset: float) -> list[dict]:
    """Ten launches with their kernels, whose clock is ahead by ``offset`` microseconds."""
    pairs = [(launch(100 * n, n), kernel(100 * n + 10 + offset, 20, n)) for n in range(1, 11)]
    return [one for pair in pairs for one in pair]


def test_kernels_before_their_launch_name_no_cause_of_a_gap(tmp_path) -> None:
    good, odd = seen(tmp_path, *late(0)), seen(tmp_path, *late(-5000))
    assert [one.sign for one in signs(good.sums)] == ["launching"] and good.sums.early == 0
    assert signs(odd.sums) == () and "The clocks of host and card disagree" in titles(odd)
    busy = next(one for one in findings(odd) if "was busy" in one.title)
    assert ":" not in busy.evidence


def test_a_clock_that_leaps_ahead_is_said_with_its_length(tmp_path) -> None:
    leap = 3600e6
    found = seen(tmp_path, event(), event(ts=50.0), event(ts=leap), event(ts=leap + 50))
    assert found.sums.silence == pytest.approx(leap, rel=1e-3)
    assert any("Nothing at all was recorded for 3,600 s, 100% of the trace" in title for title in titles(found))
    assert not any("Nothing at all" in title for title in titles(seen(tmp_path, event(), event(ts=9e6))))


# ---------------------------------------------------------------- profiling


def loader(count: int = 4) -> list[torch.Tensor]:
    return [torch.ones(2, 3) for _ in range(count)]


def step(batch: torch.Tensor) -> None:
    batch.sum()


@pytest.mark.parametrize("steps", ["20", 2.5, True, float("nan"), 0, -3])
def test_a_number_of_steps_that_is_none_is_one_line(steps) -> None:
    with pytest.raises(CannotProfile, match="steps is"):
        profile.measure(loader(), step, steps=steps)
    with pytest.raises(CannotProfile, match="steps is"):
        profile.run(steps=steps)


def test_a_step_that_is_no_function_is_named() -> None:
    with pytest.raises(TypeError, match="step is None: hand over a function"):
        profile.measure(loader(), None)


def test_a_profiler_that_the_step_begins_is_named(tmp_path) -> None:
    def profiles(batch: torch.Tensor) -> None:
        with torch.autograd.profiler.profile():
            step(batch)

    with pytest.raises(CannotProfile, match="or in your step"):
        profile.measure(loader(), profiles, steps=2, plan=PLAN, trace_file=tmp_path / "trace.json.gz")
    assert not torch.autograd._profiler_enabled() and list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_said() -> None:
    with pytest.raises(CannotProfile, match="cannot be kept in /dev/full: No space left"):
        profile.measure(loader(), step, steps=2, plan=PLAN, trace_file="/dev/full")


def test_where_no_trace_follows_no_file_stays(tmp_path) -> None:
    def raises(batch: torch.Tensor) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        profile.measure(loader(), raises, steps=2, trace_file=tmp_path / "trace.json.gz")
    assert list(tmp_path.iterdir()) == []
    old = tmp_path / "old.json.gz"
    old.write_bytes(b"mine")
    with pytest.raises(ZeroDivisionError):
        profile.measure(loader(), raises, steps=2, trace_file=old)
    assert old.read_bytes() == b"mine"


def test_an_interval_of_thousands_of_percent_is_not_spelled_out() -> None:
    assert str(Rate(10.0, -1e6, 1e6, 2)) == "10.0 samples/s ±>999%"
    assert str(Rate(10.0, 9.0, 11.0, 2)) == "10.0 samples/s ±10%" and str(Rate(10.0, 10.0, 10.0, 2)).endswith("±<1%")
