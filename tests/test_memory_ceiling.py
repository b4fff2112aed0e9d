"""The search for the batch ceiling, against a simulated allocator whose true ceiling is known."""

from __future__ import annotations

import builtins
import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_memory import GIB, Allocator, Model

from gpuworkshop.instruments import memory, memory_faults
from gpuworkshop.instruments.memory_ceiling import STEPS, Limits, Search, probe_in
from gpuworkshop.instruments.memory_faults import Fault, fault_of
from gpuworkshop.instruments.memory_result import Probe
from gpuworkshop.instruments.memory_room import Reading
from gpuworkshop.timing import Plan

GOAL, PROBES = 0.97, 7
"""What the search must reach: this share of the true ceiling, on a straight line with so many probes."""


def searched(room, step, **limits) -> Search:
    search = Search(lambda batch: probe_in(step, batch, room), room.available, Limits(**limits), growth=room.growth)
    search.run()
    return search


# ---------------------------------------------------------------- models of all shapes

LIMITS = st.sampled_from([8, 24, 80, 140]).map(lambda gib: gib * GIB)
BROKEN = st.floats(0, 0.12)
SHARE = st.floats(0.0005, 0.2)
"""Weights as a share of the card."""


@settings(max_examples=400, deadline=None)
@given(limit=LIMITS, broken=BROKEN, share=SHARE, true=st.floats(40, 100_000), small=st.floats(0, 0.002))
def test_on_a_straight_line_it_is_close_below_and_quick(limit, broken, share, true, small) -> None:
    """``small``: what the first samples take more, such as the workspaces of kernels."""
    room, weights = Allocator(limit, broken), int(share * limit)
    each = (limit - 4 * weights) / true
    model = Model(room, weights, lambda batch: each * batch + small * limit * (1 - 0.5 ** (batch / 8)))
    found, right = searched(room, model.step), model.true_ceiling()
    assert GOAL * right <= found.fits <= right
    assert found.ended == "found" and found.above > right
    assert len(found.probes) <= PROBES, [(p.batch, p.fits) for p in found.probes]


@settings(max_examples=300, deadline=None)
@given(limit=LIMITS, broken=BROKEN, share=SHARE, true=st.integers(1, 60))
def test_small_ceilings_are_found_to_the_sample(limit, broken, share, true) -> None:
    room, weights = Allocator(limit, broken), int(share * limit / (1 + broken))
    each = (limit / (1 + broken) - 4 * weights) / (true + 0.5)
    model = Model(room, weights, lambda batch: each * batch)
    right = model.true_ceiling()
    found = searched(room, model.step)
    assert found.fits == right or GOAL * right <= found.fits < right
    assert len(found.probes) <= 9


CURVES = st.one_of(
    st.tuples(st.just("power"), st.floats(0.4, 2.5)),
    st.tuples(st.just("jump"), st.floats(0.02, 0.3)),
    st.tuples(st.just("parabola"), st.floats(0.05, 0.95)),
)


@settings(max_examples=400, deadline=None)
@given(limit=LIMITS, broken=BROKEN, share=SHARE, true=st.floats(3, 50_000), curve=CURVES, at=st.floats(0.05, 0.95))
def test_what_is_no_line_takes_more_probes_and_is_still_right(limit, broken, share, true, curve, at) -> None:
    room, weights = Allocator(limit, broken), int(share * limit / (1 + broken))
    left = limit / (1 + broken) - 4 * weights
    kind, shape = curve
    curves = {
        "power": lambda batch: left * (batch / true) ** shape,
        "jump": lambda batch: left * ((1 - shape) * batch / true + (shape if batch > at * true else 0)),
        "parabola": lambda batch: left * (shape * batch / true + (1 - shape) * (batch / true) ** 2),
    }
    model = Model(room, weights, curves[kind])
    right = model.true_ceiling()
    found = searched(room, model.step)
    assert GOAL * right <= found.fits <= right
    assert len(found.probes) <= 25 and found.ended == "found"


def test_a_prediction_that_failed_is_not_believed_again() -> None:
    """Attention of old, quadratic: the line through two small sizes points far beyond the end."""
    room = Allocator(80 * GIB)
    found = searched(room, Model(room, GIB // 100, lambda batch: 79 * GIB * (batch / 500) ** 2).step)
    assert 0.97 * 500 <= found.fits <= 503 and len(found.probes) <= 8


def test_every_answer_has_run_and_the_size_above_has_failed() -> None:
    room = Allocator(24 * GIB, 0.05)
    model = Model(room, GIB, lambda batch: batch * 40 * 2**20)
    found = searched(room, model.step)
    by_size = {probe.batch: probe for probe in found.probes}
    assert by_size[found.fits].fits and not by_size[found.above].fits
    assert by_size[found.fits].retries == 0 and found.line.slope == pytest.approx(40 * 2**20, rel=1e-6)


def test_a_retry_of_the_allocator_counts_as_too_big_and_ends_the_probe() -> None:
    room, steps = Allocator(10 * GIB, broken=0.1), []
    found = probe_in(lambda batch: (steps.append(batch), room.take(9.5 * GIB)), 8, room)
    assert not found.fits and found.retries == 1 and found.fault is None and len(steps) == 1


def test_the_state_of_the_optimizer_counts_although_it_comes_late() -> None:
    """One step fits, the second does not: it has the optimizer's state."""
    room = Allocator(10 * GIB)
    model = Model(room, 2 * GIB, lambda batch: batch * GIB)
    model.step(4)
    assert not probe_in(Model(room, 2 * GIB, lambda batch: batch * GIB).step, 4, room).fits
    assert STEPS == 3


def test_an_exhausted_time_says_what_fits_so_far() -> None:
    now = SimpleNamespace(at=0.0)

    def slow(batch: int) -> Probe:
        now.at += batch / 10
        return Probe(batch, True, allocated=batch * 2**20, reserved=batch * 2**20, rate=30.0)

    search = Search(slow, lambda: 80 * GIB, Limits(seconds=100), now=lambda: now.at)
    assert search.run() == 32 and search.ended == "time" and now.at < 100


def test_the_number_of_tries_has_an_end() -> None:
    search = Search(lambda batch: Probe(batch, True), lambda: None, Limits(probes=5))
    assert search.run() and search.ended == "probes" and len(search.probes) == 5


@pytest.mark.parametrize("wrong", [{"start": 0}, {"most": 0}, {"start": 2.5}, {"most": True}])
def test_numbers_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="whole number, 1 or more"):
        memory.ceiling(lambda batch: None, device="cpu", **wrong)


def test_something_that_is_no_step_is_refused() -> None:
    with pytest.raises(TypeError, match="step is 12: hand over a function"):
        memory.ceiling(12, device="cpu")


def test_memory_that_falls_where_the_batch_grows_is_said() -> None:
    """Another kernel with less workspace is chosen at a larger size."""
    room = Allocator(24 * GIB)
    model = Model(room, GIB // 10, lambda batch: batch * 10 * 2**20 + (3 * GIB if batch <= 8 else 0))
    found = searched(room, model.step)
    probes = tuple(found.probes)
    result = told(ceiling=found.fits, above=found.above, probes=probes)
    assert not result.steady
    assert any("does not grow steadily" in finding.title for finding in memory.findings(result))


def told(**facts):
    """A result with facts of one's own."""
    from gpuworkshop.instruments.memory_result import CeilingResult
    from gpuworkshop.machine.conditions import conditions

    here = conditions("cpu")
    usual = dict(
        workload="a test", ceiling=100, above=103, ended="found", probes=(Probe(100, True), Probe(103, False)),
        seconds=1.0, room=24 * GIB, total=24 * GIB, others=0, most=1000, conditions=here, origin=here.origin,
    )  # fmt: skip
    return CeilingResult(**{**usual, **facts})


# ---------------------------------------------------------------- cases


class Held:
    """Stands for a tensor."""


def test_m01_a_failed_trial_leaves_nothing_behind() -> None:
    """pytorch/pytorch#18853, pytorch/pytorch#27600: the exception keeps the frames, and they keep the tensors."""
    alive: list[weakref.ref] = []
    seen_alive: list[int] = []

    def step(batch: int) -> None:
        seen_alive.append(sum(one() is not None for one in alive))
        tensor = Held()
        alive.append(weakref.ref(tensor))
        _deeper(tensor, batch)

    gc.disable()
    try:
        found = memory.ceiling(step, device="cpu", start=1, most=64)
        left = sum(one() is not None for one in alive)
    finally:
        gc.enable()
    assert left == 0 and seen_alive == [0] * len(seen_alive)
    assert found.ceiling == 10 and found.above == 11  # as from a fresh process


def test_m01_an_error_that_somebody_keeps_holds_no_tensors() -> None:
    """Comfy-Org/ComfyUI#11038: a log keeps the exception, and the exception its frames."""
    alive, log = [], []

    def step(batch: int) -> None:
        tensor = Held()
        alive.append(weakref.ref(tensor))
        try:
            _deeper(tensor, batch)
        except RuntimeError as error:
            log.append(error)
            raise

    found = memory.ceiling(step, device="cpu", start=1, most=64)
    assert found.above == 11 and log and all(one() is None for one in alive)


def _deeper(tensor: Held, batch: int) -> None:
    kept = [tensor]
    try:
        if batch > 10:
            raise KeyError("first")
    except KeyError:
        raise RuntimeError("CUDA out of memory. (simulated)") from None
    kept.clear()


def test_m01_the_last_error_of_a_session_is_emptied_and_said(monkeypatch) -> None:
    """ipython/ipython#11572: sys.last_value holds the frames of the cell that failed."""

    def cell() -> None:
        tensor = Held()
        alive.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    alive: list[weakref.ref] = []
    try:
        cell()
    except torch.OutOfMemoryError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert alive[0]() is not None
    found = memory.ceiling(lambda batch: None, device="cpu", most=8)
    assert alive[0]() is None
    assert any("last error" in finding.title for finding in memory.findings(found))


def test_m01_another_last_error_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("shapes"), raising=False)
    assert memory.ceiling(lambda batch: None, device="cpu", most=8).notes == ()


FACES = [
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 3.00 GiB.", "memory"),
    ("AcceleratorError", "CUDA error: out of memory", "memory"),
    ("RuntimeError", "CUDA error: out of memory", "memory"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "memory"),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", "maybe memory"),
    ("RuntimeError", "handles_ INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp", "maybe memory"),
    ("RuntimeError", "MPS backend out of memory", "memory"),
    ("RuntimeError", "DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes", "host memory"),
    ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes", "host memory"),
    ("MemoryError", "", "host memory"),
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (16x50 and 64x10)", "other"),
    ("AcceleratorError", "CUDA error: device-side assert triggered", "other"),
    ("ValueError", "Expected more than 1 value per channel when training", "other"),
    ("ValueError", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED", "other"),
    ("KeyError", "out of memory", "other"),
]


def error_of(name: str, text: str) -> Exception:
    """An error of this name; the accelerator's own is only made by PyTorch itself, and is a RuntimeError."""
    if name == "OutOfMemoryError":
        return torch.OutOfMemoryError(text)
    kind = type(name, (RuntimeError,), {}) if name == "AcceleratorError" else getattr(builtins, name)
    return kind(text) if text else kind()


@pytest.mark.parametrize(("name", "text", "kind"), FACES)
def test_m02_out_of_memory_is_told_from_bugs_by_its_words(name, text, kind) -> None:
    """mberr/torch-max-mem#45, analysiscenter/batchflow#744, deepmodeling/deepmd-kit#3857."""
    assert fault_of(error_of(name, text)).kind == kind


@pytest.mark.parametrize(("name", "text", "kind"), [face for face in FACES if face[2] in ("host memory", "other")])
def test_m02_a_search_stops_with_the_words_of_what_is_not_the_cards_memory(name, text, kind) -> None:
    room = Allocator(24 * GIB)

    def step(batch: int) -> None:
        room.take(batch * GIB / 100)
        if batch > 100:
            raise error_of(name, text)

    search = searched(room, step)
    assert search.ended == "fault" and search.fits == 32 and search.above is None
    finding = next(memory.findings(told(ceiling=32, above=None, ended="fault", probes=tuple(search.probes))))
    assert finding.level == "fail" and (text[:40] or name) in finding.title and "32 fits" in finding.evidence


def test_m02_what_may_be_memory_shrinks_and_is_reported() -> None:
    room = Allocator(24 * GIB)

    def step(batch: int) -> None:
        room.take(batch * GIB / 100)
        if batch > 500:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")

    search = searched(room, step)
    assert 0.97 * 500 <= search.fits <= 500 and search.ended == "found"
    result = told(ceiling=search.fits, above=search.above, probes=tuple(search.probes))
    assert any("may not mean memory" in finding.title for finding in memory.findings(result))


class Normed(torch.nn.Module):
    """A model that a batch of one cannot train."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))

    def step(self, batch: int) -> None:
        self.layers(torch.randn(batch, 4)).sum().backward()


def test_m03_a_batch_of_one_with_batchnorm_is_skipped_with_a_note() -> None:
    """pytorch/pytorch#7716, fastai/fastai#1352, pykeen/pykeen#113: not memory, and the ceiling is not 0."""
    found = memory.ceiling(Normed().step, device="cpu", start=1, most=4)
    assert found.ceiling == 4 and found.ended == "cap" and [p.batch for p in found.probes][:2] == [1, 2]
    assert "more than 1 value per channel" in found.notes[0] and "drop_last" in found.notes[0]


def test_m03_where_two_is_too_much_and_one_impossible_nothing_fits() -> None:
    room = Allocator(GIB)

    def step(batch: int) -> None:
        if batch == 1:
            raise ValueError("Expected more than 1 value per channel when training, got input size [1, 4]")
        room.take(batch * GIB)

    search = searched(room, step)
    assert search.fits is None and search.ended == "nothing fits" and "drop_last" in search.notes[0]


def test_an_optimizer_left_half_made_is_not_blamed_on_the_step() -> None:
    """The first update ran out of memory between the two tensors that Adam keeps of a weight."""
    room, made = Allocator(GIB), []

    def step(batch: int) -> None:
        if made:
            raise KeyError("exp_avg_sq")
        made.append(batch)
        room.take(2 * GIB)

    search = searched(room, step)
    assert search.ended == "fault" and "half made" in search.notes[0]


def test_m05_what_never_runs_out_ends_at_a_stated_cap() -> None:
    """ludwig-ai/ludwig#2034, Lightning-AI/pytorch-lightning#12271: a data set of 33 rows."""
    tried = []
    found = memory.ceiling(tried.append, device="cpu", most=33)
    assert found.ceiling == 33 and found.above is None and found.ended == "cap" and max(tried) == 33
    (finding, *_) = memory.findings(found)
    assert finding.title == "Not limited by memory up to 33"


def test_m05_a_step_that_ignores_its_batch_size_is_found_out() -> None:
    room = Allocator(24 * GIB)
    found = searched(room, lambda batch: room.take(5 * GIB))
    assert found.ended == "same memory" and len(found.probes) <= 5
    result = told(ceiling=found.fits, above=None, ended="same memory", probes=tuple(found.probes))
    assert "does the step use its batch size?" in next(memory.findings(result)).evidence


def test_m05_on_a_cpu_the_search_stays_away_from_the_end_of_the_memory(monkeypatch) -> None:
    """instructlab/training#170: the node swaps, or the job is killed."""
    monkeypatch.setattr("gpuworkshop.instruments.memory_room.safe_part", lambda: 300 * 2**20)
    found = memory.ceiling(lambda batch: torch.ones(batch, 2**18), device="cpu", start=8, most=10_000)  # 1 MiB each
    assert found.ended == "fault" and found.probes[-1].fault.kind == "host memory"
    assert found.ceiling < 300 and found.probes[-1].batch <= 4 * found.ceiling
    assert "more than 50% of the memory that was free" in next(memory.findings(found)).title


TEXT = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. Of the allocated memory 69.00 GiB is allocated by PyTorch, and "
    "{} is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("unused", "env", "platform", "virtual", "helps"),
    [
        ("9.00 GiB", {}, "linux", False, True),
        ("40.00 MiB", {}, "linux", False, False),
        ("9.00 GiB", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "linux", False, False),
        ("9.00 GiB", {"PYTORCH_CUDA_ALLOC_CONF": "a:64, expandable_segments: True"}, "linux", False, False),
        ("9.00 GiB", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, "linux", False, True),
        ("9.00 GiB", {}, "win32", False, False),
        ("9.00 GiB", {}, "linux", True, False),
    ],
)
def test_m07_growing_segments_are_named_only_where_they_help(unused, env, platform, virtual, helps) -> None:
    """pytorch/pytorch#183387, pytorch/pytorch#173049, meta-pytorch/torchtune#1185."""
    advice = memory_faults.grow_segments(TEXT.format(unused), env, platform, virtual)
    assert bool(advice) == helps
    if helps:
        assert all(f"{name}=expandable_segments:True" in advice for name in memory_faults.NAMES)
        assert "restart the kernel" in advice


def test_m13_checkpointing_against_autocast_is_no_lack_of_memory() -> None:
    """pytorch/pytorch#141896, deepspeedai/DeepSpeed#8148."""

    def step(batch: int) -> None:
        raise torch.utils.checkpoint.CheckpointError("Recomputed values have different metadata than those saved")

    found = memory.ceiling(step, device="cpu", most=64)
    assert found.ended == "fault" and found.ceiling is None and len(found.probes) == 1
    (finding,) = memory.findings(found)
    assert finding.level == "fail" and "another reason than memory" in finding.title
    assert finding.fix == "checkpointing and autocast disagree: enter autocast inside the checkpointed function"


def test_m14_without_cuda_nothing_of_it_is_asked(monkeypatch) -> None:
    """pytorch/pytorch#33655: on a CPU-only build some statistics raise and others quietly answer."""
    asked = []
    for name in ("reset_peak_memory_stats", "synchronize", "mem_get_info", "memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, name=name: asked.append(name))
    memory.ceiling(lambda batch: None, device="cpu", most=64)
    memory.sweep(lambda batch: sum(range(batch)), [8, 16], device="cpu", plan=QUICK)
    model = torch.nn.Linear(3, 3)
    memory.measure(model, torch.optim.Adam(model.parameters()), lambda: model(torch.ones(2, 3)).sum(), device="cpu")
    assert asked == []


QUICK = Plan(block_seconds=0.001, min_rounds=2, budget_seconds=0.1)


# ---------------------------------------------------------------- the host's own limit


def test_a_limit_that_the_system_holds_is_found_in_a_child() -> None:
    """On a real CPU, with a real limit: the size that fits has run, the one above was refused by the system."""
    from gpuworkshop.workloads.config import Job

    found = memory.run_ceiling(job=Job("gpt-tiny"), limit_bytes=200 * 2**20, knee=False)
    assert found.ended == "found" and found.ceiling >= GOAL * (found.above - 1)
    assert "200 MiB" in found.planted and found.probes[0].fits
    refused = next(probe for probe in found.probes if probe.batch == found.above)
    assert refused.fault.kind == "host memory"


def test_a_host_without_figures_is_searched_by_doubling() -> None:
    class Silent(Allocator):
        def read(self) -> Reading:
            return Reading()

        def available(self) -> None:
            return None

    room = Silent(10 * GIB)
    found = searched(room, lambda batch: room.take(batch * GIB / 100))
    assert GOAL * 1000 <= found.fits <= 1000 and found.line is None


def test_a_fault_has_words_and_place_but_no_frames() -> None:
    def broken() -> None:
        raise ZeroDivisionError("by nothing")

    try:
        broken()
    except ZeroDivisionError as error:
        fault = fault_of(error)
    assert fault == Fault("other", "ZeroDivisionError: by nothing", fault.where)
    assert fault.where.startswith("test_memory_ceiling.py:") and fault.where.endswith("in broken")
