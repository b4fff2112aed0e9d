"""The trace reader: what a file holds, what it adds up to, and files that are torn, odd or no traces."""

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from standins.traces import Traced

from gpuworkshop.instruments import trace as reader
from gpuworkshop.instruments.intervals import Intervals, gaps, overlap, union, without
from gpuworkshop.instruments.trace import NoTrace, read
from gpuworkshop.instruments.trace_sums import kind_of, sums
from gpuworkshop.instruments.trace_timeline import timeline


def added_up(traced: Traced, folder: Path):
    return sums(read(traced.write(folder / "trace.json")))


# ---------------------------------------------------------------- intervals

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def covered(spans) -> set[int]:
    return {tick for start, length in spans for tick in range(start, start + length)}


def made(spans) -> Intervals:
    start = np.array([start for start, _ in spans], dtype=float)
    return union(start, start + np.array([length for _, length in spans], dtype=float))


@given(spans)
def test_a_union_is_ordered_disjoint_and_covers_the_same(these) -> None:
    found = made(these)
    assert found.length == len(covered(these))
    assert (found.start[1:] > found.end[:-1]).all()
    assert (gaps(found).end > gaps(found).start).all()


@given(spans, spans)
def test_overlap_and_difference_agree_with_counting(these, those) -> None:
    a, b = made(these), made(those)
    assert overlap(a, b).sum() == len(covered(these) & covered(those))
    assert without(a, b).length == len(covered(these) - covered(those))


# ---------------------------------------------------------------- what a trace adds up to


def test_a_step_with_gaps_is_told_by_cause(tmp_path) -> None:
    traced = Traced()
    for _ in range(4):
        with traced.step():
            traced.loader(300)
            traced.op("aten::mm", 20, [("sgemm", 100)])
            traced.wait()
            traced.idle(50)
            traced.op("aten::relu", 10, [("vectorized_elementwise_kernel", 40)])
            traced.wait()
    found = added_up(traced, tmp_path)
    card = found.main
    assert found.steps == 4 and found.kernels == 8
    assert card.busy * card.span == pytest.approx(4 * 140)
    assert card.idle_loader * card.span == pytest.approx(3 * 300)  # before the first kernel nothing is a gap
    assert card.idle_synchronizing * card.span >= 4 * 50
    assert card.idle == pytest.approx(
        card.idle_loader + card.idle_synchronizing + card.idle_launching + card.idle_card_itself
    )
    assert found.synchronizations == 8 and found.per_step(found.synchronizations) == 2


def test_late_launches_are_launch_bound(tmp_path) -> None:
    traced = Traced()
    for _ in range(3):
        with traced.step():
            for _ in range(50):
                traced.op("aten::add", 40, [("vectorized_elementwise_kernel", 4)])
    card = added_up(traced, tmp_path).main
    assert card.idle_launching > 0.8 and card.idle_loader == 0 and card.idle_synchronizing == 0


def test_a_gap_after_an_early_launch_is_the_card_s_own(tmp_path) -> None:
    traced = Traced()
    with traced.step():
        traced.launch("sgemm", 100)
        traced.card_free += 30  # the card was not ready although the launch was there
        traced.launch("sgemm", 100)
    card = added_up(traced, tmp_path).main
    assert card.idle_card_itself * card.span == pytest.approx(30) and card.idle_launching == 0


def test_p08_busy_is_a_union_of_intervals(tmp_path) -> None:
    """Computing and communication on two streams overlap: GindaChen/nsys-ai#574, pytorch#33855."""
    traced = Traced()
    for name, stream, start, length in (("sgemm", 7, 0, 1200), ("ncclDevKernel_AllReduce", 20, 1050, 450)):
        traced.event("kernel", name, 5000 + start, length, stream, 0, device=0, stream=stream)
    traced.event("kernel", "sgemm", 6550, 0, 7, 0, device=0, stream=7)
    card = added_up(traced, tmp_path).main
    assert card.busy == pytest.approx(1500 / 1550)
    assert card.communicating == pytest.approx(450 / 1550)
    assert card.only_communicating == pytest.approx(300 / 1550)


def test_p05_labels_and_step_marks_are_no_rows_of_their_own(tmp_path) -> None:
    """Annotations span real kernels and must neither lead nor be added: pytorch#130730, #121126."""
    traced = Traced()
    with traced.step(), traced.label("train_step"):
        traced.op("aten::mm", 20, [("sgemm", 500)])
        traced.op("aten::add", 20, [("vectorized_elementwise_kernel", 180)])
    traced.event("gpu_user_annotation", "train_step", 1000, 680, 7, 0, device=0, stream=7)
    found = added_up(traced, tmp_path)
    assert [row.name for row in found.operators] == ["aten::mm", "aten::add"]
    assert [(row.name, row.device_total) for row in found.labels] == [("train_step", 680)]
    assert sum(kernel.microseconds for kernel in found.top_kernels) == 680
    assert found.main.busy * found.main.span == pytest.approx(680)


def test_totals_hold_what_is_called_and_self_does_not(tmp_path) -> None:
    traced = Traced()
    with traced.step(), traced.label("aten::linear", "cpu_op"):
        traced.idle(10)
        traced.op("aten::addmm", 30, [("sgemm", 70)])
        traced.op("aten::addmm", 30, [("sgemm", 70)])
    rows = {row.name: row for row in added_up(traced, tmp_path).operators}
    outer, inner = rows["aten::linear"], rows["aten::addmm"]
    assert (outer.cpu_total, outer.cpu_self, outer.device_total, outer.device_self) == (70, 10, 140, 0)
    assert (inner.calls, inner.cpu_total, inner.device_total, inner.device_self) == (2, 60, 140, 140)
    assert inner.cpu_self == 60 - 2 * 5  # without the launches


def test_a_call_inside_one_of_the_same_name_counts_once(tmp_path) -> None:
    traced = Traced()
    with traced.label("aten::to", "cpu_op"), traced.label("aten::to", "cpu_op"):
        traced.idle(40)
    (row,) = added_up(traced, tmp_path).operators
    assert (row.calls, row.cpu_total, row.cpu_self) == (2, 40, 40)


def test_copies_by_direction_and_memory(tmp_path) -> None:
    traced = Traced()
    with traced.step():
        for _ in range(3):
            traced.copy("Memcpy HtoD (Pageable -> Device)", 100, 1000)
        traced.copy("Memcpy HtoD (Pinned -> Device)", 10, 1000)
        traced.copy("Memcpy DtoH (Device -> Pageable)", 5, 8)
    found = [(c.direction, c.pageable, c.count, c.bytes, c.microseconds) for c in added_up(traced, tmp_path).copies]
    assert found == [("HtoD", True, 3, 3000, 300), ("HtoD", False, 1, 1000, 10), ("DtoH", True, 1, 8, 5)]


def test_p09_launches_without_kernels_are_counted(tmp_path) -> None:
    """Kernels can be dropped when a session begins: pytorch#192021, tritonbench#459."""
    traced = Traced()
    with traced.step():
        for number in range(10):
            traced.launch("sgemm", 10, seen=number >= 3)
    found = added_up(traced, tmp_path)
    assert (found.launches, found.kernels, found.lost_launches) == (10, 7, 3)


def test_p12_the_profilers_own_last_wait_is_no_wait_of_the_job(tmp_path) -> None:
    """By CPU time the waits lead, and one of them is the profiler's own: pytorch#6715, #44784."""
    traced = Traced()
    for _ in range(20):
        with traced.step():
            with traced.label("aten::item", "cpu_op"):
                traced.launch("vectorized_elementwise_kernel", 2)
                traced.wait()
            traced.idle(900)
    traced.wait("cudaDeviceSynchronize")
    found = added_up(traced, tmp_path)
    assert found.synchronizations == 20 and found.main.busy < 0.02


def test_a_trace_without_a_card_has_no_card_and_not_0_percent(tmp_path) -> None:
    traced = Traced()
    with traced.step():
        traced.loader(90)
        traced.op("aten::mm", 10)
    found = added_up(traced, tmp_path)
    assert found.cards == () and found.main is None and found.median_kernel is None
    assert (found.loader, found.host_span) == (90, 100)


def test_several_ranks_and_cards_are_told_apart(tmp_path) -> None:
    traced = Traced(device=3)
    traced.head["distributedInfo"] = {"backend": "nccl", "rank": 3, "world_size": 8}
    with traced.step():
        traced.op("aten::mm", 20, [("sgemm", 100)])
    traced.event("kernel", "sgemm", 1000, 10, 7, 0, device=0, stream=7)
    found = added_up(traced, tmp_path)
    assert (found.rank, found.world_size) == (3, 8)
    assert [card.device for card in found.cards] == [0, 3] and found.main.device == 3


def test_many_waits_in_a_step_are_its_limit_not_the_launches_between_them(tmp_path) -> None:
    """Reading a norm after each of many small operations: two launches, then a wait, again and again."""
    traced = Traced()
    for _ in range(3):
        with traced.step():
            for _ in range(50):
                traced.op("aten::norm", 20, [("norm_kernel", 3)])
                traced.copy("Memcpy DtoH (Device -> Pageable)", 1, 4)
                traced.wait()
    card = sums(read(traced.write(tmp_path / "trace.json"))).main
    assert card.idle_synchronizing > 0.7 and card.idle_launching < 0.05


def test_one_wait_in_a_step_of_many_late_launches_is_not_its_limit(tmp_path) -> None:
    traced = Traced()
    for _ in range(3):
        with traced.step():
            for _ in range(300):
                traced.op("aten::mul", 20, [("mul_kernel", 3)])
            traced.wait()
    card = sums(read(traced.write(tmp_path / "trace.json"))).main
    assert card.idle_launching > 0.7 and card.idle_synchronizing < 0.05


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "convolution"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matrix product"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64>", "matrix product"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits>", "attention"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...FusedAdam", "optimizer"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>", "normalization"),
        ("Cijk_Alik_Bljk_SB_MT64x16x32", "other"),
    ],
)
def test_kernels_are_told_by_their_names(name, kind) -> None:
    assert kind_of(name) == kind


# ---------------------------------------------------------------- files


def small(steps: int = 20) -> Traced:
    traced = Traced()
    for _ in range(steps):
        with traced.step():
            traced.op("aten::mm", 20, [("sgemm", 100)])
    return traced


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.of.a.batch.job"])
@pytest.mark.parametrize("dump", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_every_way_of_writing_a_trace_reads_the_same(tmp_path, name, dump, monkeypatch) -> None:
    whole = read(small().write(tmp_path / name, **dump))
    assert len(whole.device) == 20 and whole.notes == () and whole.card == "Made-up card"
    monkeypatch.setattr(reader, "PIECE", 700)  # many pieces must give the same as one
    pieces = read(tmp_path / name)
    assert pieces.names == whole.names
    assert np.array_equal(pieces.device.start, whole.device.start) and np.array_equal(pieces.host.name, whole.host.name)


def test_a_bare_list_of_events_is_a_trace(tmp_path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(small().events))
    assert len(read(file).device) == 20


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_file_gives_what_stands_before_the_tear(tmp_path, share, packed) -> None:
    traced = small(steps=300)
    data = traced.text(indent=1).encode()
    data = gzip.compress(data, mtime=0) if packed else data
    file = tmp_path / "torn.json"
    file.write_bytes(data[: int(share * len(data))])
    found = read(file)
    whole = len(traced.events)
    assert 0 < len(found.host) + len(found.device) < whole
    assert any("ends in the middle" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\x00\x01 not json", "not a trace"),
        (b'{"traceEvents": []}', "no events of PyTorch"),
        (b'{"traceEvents": [', "no events of PyTorch"),
        (b'{"planes": [{"name": "/host:CPU"}]}', "not a trace"),
        (b"[]", "no events of PyTorch"),
        (b"[1, 2, 3]", "no events of PyTorch"),
        (b'{"traceEvents": [{"ph": "X", "cat": "blink", "name": "Paint", "ts": 1, "dur": 2}]}', "no events of PyTorch"),
        (b"\x1f\x8b\x08broken", "gzip data is damaged"),
        (b"SQLite format 3\x00", "not a trace"),
    ],
)
def test_what_is_no_trace_is_said_in_one_line(tmp_path, content, says) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(NoTrace, match=says) as caught:
        read(file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_said(tmp_path) -> None:
    for place in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(NoTrace, match=str(place)):
            read(place)


def test_numbers_that_are_none_and_odd_events_are_left_out_and_said(tmp_path) -> None:
    traced = small()
    odd = [
        {"ph": "X", "cat": "kernel", "name": "no time", "pid": 0, "tid": 7, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "back in time", "ts": 1, "dur": -5, "args": {}},
        {"ph": "X", "cat": "kernel", "name": ["a list"], "ts": 1, "dur": 5},
        {"ph": "X", "cat": "kernel", "name": "texts", "ts": "2000.5", "dur": "7", "pid": "0", "tid": "stream 7",
         "args": {"stream": "0x0", "correlation": "none", "bytes": "many", "device": None}},
        "no event at all",
    ]  # fmt: skip
    file = tmp_path / "trace.json"
    text = traced.text([*odd, *traced.events], indent=1)
    file.write_text(text.replace('"correlation": 1\n', '"correlation": 1, "warps per SM": inf, "x": -nan\n'))
    found = read(file)
    assert len(found.device) == 21 and "texts" in found.named(found.device)
    assert any("2 events could not be read" in note for note in found.notes)
    assert any("2 events without a usable time" in note for note in found.notes)


def test_a_clock_that_jumps_is_read_and_nothing_becomes_negative(tmp_path) -> None:
    traced = small()
    for event in traced.events[30:]:
        event["ts"] -= 700
    found = sums(read(traced.write(tmp_path / "trace.json")))
    card = found.main
    assert all(0 <= share <= 1 for share in (card.busy, card.computing, card.idle_launching, card.idle_card_itself))
    assert all(row.cpu_self >= 0 for row in found.operators)


@fuzz()
@given(st.binary(max_size=300), st.integers(0, 2000))
def test_damaged_bytes_never_crash_the_reader(tmp_path_factory, noise, at) -> None:
    data = small().text(indent=1).encode()
    file = tmp_path_factory.mktemp("damaged") / "trace.json"
    file.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        sums(read(file))
    except NoTrace:
        pass


def test_more_events_than_are_kept_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(reader, "MOST_EVENTS", 50)
    monkeypatch.setattr(reader, "PIECE", 4000)
    found = read(small().write(tmp_path / "trace.json"))
    assert 50 <= len(found.host) + len(found.device) < 80
    assert any("only the first 50" in note for note in found.notes)


def test_memory_is_bounded_by_the_events_not_by_the_text(tmp_path) -> None:
    """Half a million events with long arguments: 250 MB of text in far less memory."""
    event = {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 1.0}
    line = json.dumps(event | {"args": {"stream": 7, "device": 0, "shapes": "x" * 400}})
    file = tmp_path / "trace.json.gz"
    with gzip.open(file, "wt", compresslevel=1) as text:
        text.write('{"traceEvents": [' + line)
        for _ in range(499):
            text.write(("," + line) * 1000)
        text.write("]}")
    code = (
        "import resource, sys; from gpuworkshop.instruments import trace; peak = lambda: "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10; before = peak(); found = trace.read(sys.argv[1]); "
        "print(len(found.device), found.text_bytes >> 20, peak() - before)"
    )
    said = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    events, text_mb, grown_mb = map(int, said.stdout.split())
    assert events == 499_001
    assert grown_mb < text_mb / 1.5, f"{grown_mb} MB for {text_mb} MB of text"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


# ---------------------------------------------------------------- one step


def test_the_timeline_is_the_step_of_median_length_and_counts_overlaps_once(tmp_path) -> None:
    traced = Traced()
    for wait in (100, 5000, 300):
        with traced.step():
            traced.loader(wait)
            traced.op("aten::mm", 20, [("sgemm", 100)])
            traced.copy("Memcpy HtoD (Pinned -> Device)", 50, 10)
            traced.wait()
    shown = timeline(read(traced.write(tmp_path / "trace.json")))
    assert shown.step == "ProfilerStep#3"
    totals = {(total.lane, total.kind): total.milliseconds for total in shown.totals}
    assert totals["host", "loader"] == pytest.approx(0.3) and totals["card", "compute"] == pytest.approx(0.1)
    assert totals["copies", "copy"] == pytest.approx(0.05)
    assert sum(value for (lane, _), value in totals.items() if lane == "host") <= shown.milliseconds
    for bar in shown.bars:
        assert 0 <= bar.start < bar.end <= shown.milliseconds and 0 < bar.covered <= 1


def test_a_lane_with_gaps_is_pale_and_not_solid(tmp_path) -> None:
    traced = Traced()
    with traced.step():
        for _ in range(2000):
            traced.op("aten::add", 20, [("vectorized_elementwise_kernel", 2)])
    shown = timeline(read(traced.write(tmp_path / "trace.json")))
    card = [bar.covered for bar in shown.bars if bar.lane == "card"]
    assert max(card) == 0.25
