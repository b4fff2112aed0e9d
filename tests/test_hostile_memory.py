"""Attacks on memory and precision: odd steps, odd numbers, words about memory that mean something else."""

import functools
import math
import sys

import msgspec
import numpy as np
import pytest
import torch
from simulated_memory import GIB, Allocator

from gpuworkshop import cli
from gpuworkshop.course import exercise
from gpuworkshop.course.checks import chapter05
from gpuworkshop.instruments import arms, memory, memory_child, precision, torch_settings
from gpuworkshop.instruments.memory_ceiling import Limits, Search, probe_in
from gpuworkshop.instruments.memory_faults import fault_of
from gpuworkshop.instruments.memory_room import HostRoom, room_for
from gpuworkshop.instruments.precision_measured import _number
from gpuworkshop.instruments.precision_result import arms_of
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job, TrainConfig

QUICK = Plan(block_seconds=0.001, min_rounds=2, min_steps=1, budget_seconds=0.01, max_warm_up_blocks=1)


# ---------------------------------------------------------------- words about memory


@pytest.mark.parametrize(
    "error",
    [
        ValueError("to avoid CUDA out of memory the batch must be a multiple of 7"),
        RuntimeError("a batch of 9 is refused, lest there be a CUDA out of memory"),
        RuntimeError("the sensor ran out of memory cards"),
        KeyError("cannot allocate memory cell"),
        RuntimeError("this model cannot allocate memory slots for 3 tokens"),
        SystemExit(3),
    ],
)
def test_a_sentence_about_memory_is_no_lack_of_it_and_comes_out(error) -> None:
    def step(batch: int) -> None:
        raise error

    found = probe_in(step, 8, Allocator(GIB))
    assert found.fault.kind == "other" and str(error) in found.fault.words
    assert found.fault.where.startswith("test_hostile_memory.py")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("step 3 failed: CUDA out of memory. Tried to allocate 2.00 GiB."), "memory"),
        (RuntimeError("Caught OutOfMemoryError in replica 0.\nCUDA out of memory."), "memory"),
        (OSError(12, "Cannot allocate memory"), "host memory"),
        (RuntimeError("unable to allocate memory"), "host memory"),
    ],
)
def test_a_lack_that_somebody_passed_on_is_one(error, kind) -> None:
    assert fault_of(error).kind == kind


def test_an_error_without_a_message_of_its_own_still_has_a_name() -> None:
    class Wordless(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert fault_of(Wordless()).words == "Wordless"


# ---------------------------------------------------------------- steps that do nothing


def generator(batch):
    yield batch


async def coroutine(batch):
    return batch


@pytest.mark.parametrize("step", [generator, coroutine, functools.partial(generator), lambda batch: (yield)])
def test_a_step_that_is_only_begun_is_named_and_not_measured(step) -> None:
    for door in (
        lambda: memory.ceiling(step, device="cpu"),
        lambda: memory.sweep(step, [8], device="cpu"),
        lambda: arms.callable_step(step),
    ):
        with pytest.raises(TypeError, match="calling it does nothing"):
            door()


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("sizes", [5, "816", [8, "x"], [8.5], [math.nan], [], [0, 8], [-1], None, [8j]])
def test_what_are_no_batch_sizes_is_one_line(sizes) -> None:
    with pytest.raises(ValueError, match="sizes are .*: batch sizes to try, whole numbers, 1 or more"):
        memory.sweep(lambda batch: None, sizes, device="cpu")


def test_numbers_of_numpy_are_sizes() -> None:
    tried = []
    found = memory.sweep(tried.append, np.array([16, 8, 8]), device="cpu", plan=QUICK)
    assert [point.batch for point in found.points] == [8, 16] and {type(size) for size in tried} == {int}


@pytest.mark.parametrize("seconds", [math.nan, -1, 0, "60", None])
def test_a_time_that_is_none_is_refused(seconds) -> None:
    with pytest.raises(ValueError, match="seconds is .*: a time to search, above 0"):
        Limits(seconds=seconds)


@pytest.mark.parametrize("limit", [0, -1, 1e9, "8GiB", 2**80, math.inf, True])
def test_a_limit_that_is_none_is_refused_before_anything_starts(limit) -> None:
    with pytest.raises(ValueError, match="a limit of .*: a whole number of bytes"):
        room_for("cpu", limit)
    with pytest.raises(ValueError, match="a limit of"):
        memory.cured(limit_bytes=limit)


@pytest.mark.parametrize("share", ["x", math.nan, 0.0, 1.0, -0.5, None])
def test_a_share_that_is_none_is_refused_before_anything_starts(share) -> None:
    with pytest.raises(ValueError, match="share is .*: above 0 and below 1"):
        memory.cured(share=share)


@pytest.mark.parametrize("limit", ["9999999999GiB", "８GiB", "0GiB", "1e3GiB", "8", ""])
def test_a_limit_of_the_verb_that_makes_no_sense_is_one_line(limit, capsys) -> None:
    assert cli.main(["memory", "--ceiling", "--limit", limit]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("gpuworkshop: --limit: ") and said.err.count("\n") == 1


@pytest.mark.parametrize("device", ["mps", "nonsense", "meta", "xpu:0"])
def test_a_device_whose_memory_is_unknown_is_named(device) -> None:
    with pytest.raises(ValueError, match=f"device is '{device}'"):
        memory.ceiling(lambda batch: None, device=device)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a limit")
def test_a_limit_above_what_the_system_allows_is_what_the_system_allows(monkeypatch) -> None:
    import resource

    seen = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (5 * GIB, 6 * GIB))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: seen.append(limits))
    with HostRoom(100 * GIB).limited():
        pass
    assert seen == [(6 * GIB, 6 * GIB), (5 * GIB, 6 * GIB)]


def test_a_request_is_checked_in_the_child_as_well() -> None:
    asked = memory_child.Request(config=TrainConfig(), job=Job(), what="cure", limit_bytes=GIB)
    with pytest.raises(msgspec.ValidationError, match="a limit of -1"):
        msgspec.convert(msgspec.to_builtins(asked) | {"limit_bytes": -1}, memory_child.Request)


# ---------------------------------------------------------------- models and losses


def test_a_memory_that_rises_and_falls_ends() -> None:
    """Not one answer that has not run, whatever the memory does."""
    room = Allocator(80 * GIB)
    search = Search(
        lambda batch: probe_in(lambda b: room.take((b * 7919 % 83) * GIB), batch, room), room.available, Limits()
    )
    found = search.run()
    assert found is None or any(probe.fits and probe.batch == found for probe in search.probes)
    assert len(search.probes) <= 25


def test_sizes_that_fit_alone_and_not_in_turn_give_way_from_the_largest() -> None:
    steps = []

    def step(batch: int) -> None:
        steps.append(batch)
        if batch == 32 and steps.count(32) > 1:
            raise MemoryError("too much together")

    found = memory.sweep(step, [8, 16, 32], device="cpu", plan=QUICK)
    assert [point.batch for point in found.measured] == [8, 16]
    assert "too much together" in found.points[-1].note and found.largest_asked == 32


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (lambda: None, TypeError, "something of type NoneType"),
        (lambda: 3.0, TypeError, "something of type float"),
        (lambda: (torch.ones(1), 2), TypeError, "something of type tuple"),
        (lambda: torch.ones(6, requires_grad=True), ValueError, "6 numbers"),
        (lambda: torch.ones(()), ValueError, "no trained weight led to"),
    ],
)
def test_what_is_no_loss_is_named(loss, kind, words) -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(kind, match=words):
        memory.measure(model, torch.optim.SGD(model.parameters()), loss, device="cpu")


def test_what_is_no_model_and_no_batch_is_named() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(TypeError, match="model is something of type list"):
        memory.measure([model], optimizer, lambda: None, device="cpu")
    for odd in (0, -1, "8", math.nan, 8.0):
        with pytest.raises(ValueError, match="batch_size is"):
            memory.measure(model, optimizer, lambda: None, device="cpu", batch_size=odd)


@pytest.mark.parametrize("kind", [torch.complex64, torch.float64, torch.bfloat16])
def test_a_life_of_weights_of_any_type_is_counted_in_bytes(kind) -> None:
    model = torch.nn.Linear(4, 2, dtype=kind)
    batch = torch.ones(3, 4, dtype=kind)
    seen = memory.measure(model, torch.optim.SGD(model.parameters()), lambda: model(batch).abs().sum(), device="cpu")
    assert seen.last.weights == 10 * torch.ones(1, dtype=kind).element_size()


def test_a_model_without_weights_has_a_life() -> None:
    batch = torch.ones(3, requires_grad=True)
    seen = memory.measure(torch.nn.ReLU(), torch.optim.SGD([batch]), lambda: (2 * batch).relu().sum(), device="cpu")
    assert seen.parameters == 0 and seen.last.weights == 0
    assert "times the weights" not in str(memory.report(seen))


# ---------------------------------------------------------------- precision


@pytest.mark.parametrize(
    ("asked", "words"),
    [([], "no arm is asked for"), ("fp32", r'give a list of ids, such as \["fp32"\]'), ([None], "no arm None")],
)
def test_arms_that_are_none_are_named_at_every_door(asked, words) -> None:
    model = torch.nn.Linear(2, 1)
    loss = lambda own, batch: own(batch).sum()  # noqa: E731
    for door in (
        lambda: precision.measure(model, loss, [torch.ones(3, 2)], arms=asked, device="cpu"),
        lambda: precision.run(arms=asked),
    ):
        with pytest.raises(ValueError, match=words):
            door()
    with pytest.raises(ValueError, match="no arm is asked for"):
        precision.measure_steps({}, [torch.ones(1)], device="cpu")


def test_an_arm_that_is_asked_for_twice_is_one() -> None:
    assert [one.id for one in arms_of(["bf16", "fp32", "bf16"])] == ["bf16", "fp32"]


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (lambda model, batch: None, TypeError, "something of type NoneType"),
        (lambda model, batch: model(batch).detach().sum(), ValueError, "no trained weight led to"),
        (lambda model, batch: model(batch), ValueError, "3 numbers"),
    ],
)
def test_what_is_no_loss_is_named_by_precision_too(loss, kind, words) -> None:
    with pytest.raises(kind, match=words):
        precision.measure(torch.nn.Linear(2, 1), loss, [torch.ones(3, 2)], device="cpu", plan=QUICK)


def test_a_complex_loss_of_a_step_is_no_number_and_no_crash() -> None:
    assert _number(torch.ones((), dtype=torch.complex64)) is None and _number(torch.ones(())) == 1.0


SETTINGS = {
    "tf32 of all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "bf16 of the CPU": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),
    "tf32, the older way": lambda: torch.set_float32_matmul_precision("medium"),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "a default type": lambda: torch.set_default_dtype(torch.float64),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "a type of autocast": lambda: torch.set_autocast_dtype("cpu", torch.float16),
}


def settings() -> list:
    backends = torch.backends
    places = (backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn)
    return [
        *(place.fp32_precision for place in (*places, backends.mkldnn.matmul)),
        torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.is_grad_enabled(),
        torch.get_default_dtype(), torch.get_num_threads(), torch.get_deterministic_debug_mode(),
        torch.backends.cudnn.benchmark, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
    ]  # fmt: skip


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_a_measured_model_changes_are_put_back(change) -> None:
    before = settings()
    with pytest.raises(ZeroDivisionError), torch_settings.kept():
        change()
        _ = 1 / 0
    assert settings() == before


def test_precision_puts_them_back() -> None:
    def loss(model, batch):
        for change in (SETTINGS["tf32 of all"], SETTINGS["deterministic"], SETTINGS["benchmark"]):
            change()
        return model(batch).sum()

    before = settings()
    precision.measure(torch.nn.Linear(2, 1), loss, [torch.ones(3, 2)], arms=["fp32"], device="cpu", plan=QUICK)
    assert settings() == before


# ---------------------------------------------------------------- the checks of chapter 5


class Evil:
    """Cannot be compared, nor written."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __hash__ = object.__hash__


ODD = [np.zeros(2), np.array([64]), torch.ones(2, 2), None, 64.0, "64", math.nan, b"feed", 8j, Evil(), [64], True]
"""Answers that are no batch size and no word."""


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_what_is_no_batch_size_is_told_so(odd) -> None:
    for job in chapter05.BATCHES:
        assert chapter05.sizes(chapter05.BATCHES | {job: odd}).mistake == "no-batch"


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor, np.array])
def test_a_whole_number_of_any_library_is_a_batch_size(kind) -> None:
    assert chapter05.sizes(chapter05.BATCHES | {"pictures": kind(64)}).mistake == ""
    assert chapter05.sizes(chapter05.BATCHES | {"pictures": kind(32)}).mistake == "below-the-knee"


def test_a_number_of_too_many_digits_is_judged_like_any() -> None:
    shown = exercise.open("05_memory_precision", "sizes").check(chapter05.BATCHES | {"scans": 10**5000})
    assert shown.mistake == "does-not-fit" and len(str(shown)) < 1000


def test_a_step_that_changes_pytorch_leaves_it_as_it_was() -> None:
    def step(model, loss, batch, targets, optimizer):
        for change in SETTINGS.values():
            change()

    before = settings()
    assert chapter05.autocast(step).mistake == "no-forward"
    assert settings() == before
