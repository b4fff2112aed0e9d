"""Whatever a trace holds: an answer or one line of refusal, shares within 0 and 1, and no number the trace lacks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from standins.traces import Traced

from gpuworkshop.instruments import profile
from gpuworkshop.instruments.profile_result import ProfileResult
from gpuworkshop.instruments.trace import NoTrace

CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
NAMES = (
    "aten::mm",
    "ProfilerStep#1",
    "ProfilerStep#9",
    "cudaLaunchKernel",
    "cudaDeviceSynchronize",
    "sgemm",
    "Memcpy HtoD (Pageable -> Device)",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "ncclDevKernel_AllReduce_Sum",
    "",
    "<b>\x1b[2J",
)
odd = st.sampled_from([None, "7", "x", -1, 1e300, -(10**30), float("nan"), float("inf"), [], {}, True])
times = st.integers(0, 3000) | st.floats(0, 3000)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "stream": st.integers(0, 2) | odd,
        "device": st.integers(0, 2) | odd,
        "correlation": st.integers(0, 9) | odd,
        "bytes": st.integers(0, 2**40) | odd,
    },
)
events = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXXiMs"), "cat": st.sampled_from(CATEGORIES), "name": st.sampled_from(NAMES)},
    optional={
        "ts": times | odd,
        "dur": times | odd,
        "tid": st.integers(0, 2) | odd,
        "pid": st.integers(0, 2) | odd,
        "args": arguments | odd,
    },
)
whole = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(CATEGORIES), "name": st.sampled_from(NAMES), "ts": times, "dur": times},
    optional={"tid": st.integers(0, 2), "pid": st.integers(0, 1), "args": arguments},
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the traces lie, one after the other."""
    return tmp_path_factory.mktemp("traces") / "trace.json"


def answered(file: Path, text: str) -> ProfileResult | None:
    """What the trace says; None where it is refused, in one line. Every face of its report can be shown."""
    file.write_text(text, errors="replace")
    try:
        result = profile.read(file)
    except NoTrace as error:
        assert "\n" not in str(error)
        return None
    report = profile.report(result)
    assert str(report) and "\x1b" not in str(report) and "<b>" not in report._repr_mimebundle_()["text/html"]
    assert msgspec.json.decode(msgspec.json.encode(result), type=ProfileResult)
    return result


def holds(result: ProfileResult) -> None:
    """What is true of any trace: parts are no larger than the whole, and nothing is negative."""
    sums = result.sums
    for card in sums.cards:
        parts = (card.busy, card.computing, card.only_copying, card.only_communicating, card.communicating)
        gaps = (card.idle_loader, card.idle_synchronizing, card.idle_launching, card.idle_card_itself)
        assert all(0 <= share <= 1 + 1e-9 for share in (*parts, *gaps)), card
        assert card.busy + sum(gaps) <= 1 + 1e-6, card
    for row in (*sums.operators, *sums.labels):
        assert min(row.device_self, row.cpu_self) >= 0
    assert 0 <= sums.lost_launches <= sums.launches


@fuzz()
@given(st.lists(events, max_size=25))
def test_any_events_are_answered_or_refused(file, these) -> None:
    result = answered(file, json.dumps({"traceEvents": these}))
    if result:
        holds(result)


@fuzz()
@given(st.lists(whole, min_size=1, max_size=25))
def test_no_number_of_a_whole_trace_is_invented(file, these) -> None:
    """Kernels, their time and the bytes of copies are those that stand in the trace."""
    result = answered(file, json.dumps({"traceEvents": these}))
    if result is None:
        return
    holds(result)
    kernels = [one for one in these if one["cat"] == "kernel"]
    assert result.sums.kernels <= len(kernels)
    said = sum(kernel.microseconds for kernel in result.sums.top_kernels)
    assert said <= sum(one["dur"] for one in kernels) + 1e-3
    assert {kernel.name for kernel in result.sums.top_kernels} <= {" ".join(one["name"].split()) for one in kernels} | {
        one["name"] for one in kernels
    }
    for row in result.sums.operators:  # also where calls of one thread overlap, which no profiler writes
        assert row.cpu_self <= sum(one["dur"] for one in these if " ".join(one["name"].split()) == row.name) + 1e-3, row
    copied = [one for one in these if one["cat"] == "gpu_memcpy"]
    assert sum(copy.count for copy in result.sums.copies) <= len(copied)
    if not kernels and not copied and not [one for one in these if one["cat"] == "gpu_memset"]:
        assert result.sums.main is None, "no card is not a card at 0%"


@fuzz()
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 90), st.booleans(), st.integers(0, 200)), max_size=20),
)
def test_a_made_up_training_adds_up_to_what_it_was_made_of(file, steps) -> None:
    """Each step: an operator that launches one kernel, a wait or none, and a time with nothing."""
    traced = Traced()
    for operator, kernel, waits, idle in steps:
        with traced.step():
            traced.op("aten::mm", operator, [("sgemm", kernel)])
            if waits:
                traced.wait()
            traced.idle(idle)
    result = answered(file, traced.text())
    if not steps:
        assert result is None
        return
    holds(result)
    sums = result.sums
    for row in (*sums.operators, *sums.labels):
        assert row.cpu_self <= row.cpu_total + 1e-6 and row.device_self <= row.device_total + 1e-6, row
    assert (sums.steps, sums.kernels, sums.launches, sums.lost_launches) == (len(steps), len(steps), len(steps), 0)
    assert sums.synchronizations == sum(waits for _, _, waits, _ in steps)
    busy = sum(kernel for _, kernel, _, _ in steps)
    assert abs(sums.main.busy * sums.main.span - busy) < 1e-3
    assert [row.calls for row in sums.operators if row.name == "aten::mm"] == [len(steps)]
