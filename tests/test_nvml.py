"""Questions to the driver: each is guarded by itself, and one that is never answered holds nobody up."""

import os
import threading
import time

import pytest
from standins import pynvml as fake_nvml

from gpuworkshop.machine import gpus
from gpuworkshop.machine.nvml import Nvml, in_time, number

HANGS = {"hang": 60}
CARD = {"name": "NVIDIA H200", "uuid": "GPU-1", "memory": {"total": 1000, "used": 10}}


@pytest.mark.parametrize("limit", [None, 5.0])
def test_one_refused_question_leaves_the_others(monkeypatch, limit) -> None:
    refused = {"name_error": "NotSupported", "temperature": {"error": "UnicodeDecodeError"}}
    fake_nvml.install({"devices": [CARD | refused], "missing": ["nvmlDeviceGetPowerUsage"]}, monkeypatch)
    nvml = Nvml(limit)
    handle = nvml.handle("GPU-1")
    assert nvml.memory(handle) == (10, 1000)
    for function, cause in (
        ("nvmlDeviceGetName", "not supported"),
        ("nvmlDeviceGetTemperature", "other"),
        ("nvmlDeviceGetPowerUsage", "not supported"),
        ("nvmlDeviceGetWhatNobodyKnows", "other"),
    ):
        assert nvml.ask(function, handle) is None
        assert nvml.refused[function].cause == cause and nvml.refused[function].words
    assert nvml.problem is None
    assert nvml.handle("") is None and nvml.ask("nvmlDeviceGetName", None) is None
    nvml.close()
    nvml.close()
    assert nvml.handle("GPU-1") is None and nvml.constant("nvmlMemory_v2") is None


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("LibraryNotFound", "no library"),
        ("DriverNotLoaded", "no driver"),
        ("LibRmVersionMismatch", "version mismatch"),
        ("NoPermission", "no permission"),
        ("Unknown", "other"),
        ("OSError", "other"),
    ],
)
@pytest.mark.parametrize("limit", [None, 5.0])
def test_a_session_that_cannot_open_says_why(monkeypatch, error, cause, limit) -> None:
    fake_nvml.install({"init_error": error}, monkeypatch)
    nvml = Nvml(limit)
    assert nvml.problem and nvml.problem.cause == cause
    assert list(nvml.handles()) == []


def within(seconds: float, do) -> object:
    """What ``do`` answers; fails if it takes longer than it should by far."""
    began = time.monotonic()
    answer = do()
    assert time.monotonic() - began < seconds
    return answer


def test_a_driver_that_does_not_open_is_given_up(monkeypatch) -> None:
    fake_nvml.install({"init": HANGS}, monkeypatch)
    nvml = within(20, lambda: in_time(0.2))
    assert nvml.problem and nvml.problem.cause == "did not answer"
    assert "nvmlInit did not answer within 0.2 s" in nvml.problem.words
    assert list(nvml.handles()) == [] and nvml.memory(object()) is None


def test_a_driver_that_stops_answering_ends_the_session_once(monkeypatch) -> None:
    """The question that hangs costs the limit; the later ones cost nothing, and closing does not hang either."""
    driver = fake_nvml.install({"devices": [CARD | {"temperature": HANGS}]}, monkeypatch)
    nvml = in_time(0.2)
    handle = nvml.handle("GPU-1")
    assert within(20, lambda: nvml.ask("nvmlDeviceGetTemperature", handle)) is None
    assert nvml.problem and nvml.problem.cause == "did not answer"
    assert nvml.refused["nvmlDeviceGetTemperature"].cause == "did not answer"
    asked = driver.calls.total()
    assert [nvml.ask("nvmlDeviceGetName", handle) for _ in range(1000)] == [None] * 1000
    within(20, nvml.close)
    assert driver.calls.total() == asked


def test_cards_are_asked_for_in_limited_time(monkeypatch) -> None:
    fake_nvml.install({"devices": [CARD, CARD | {"uuid": HANGS}]}, monkeypatch)
    monkeypatch.setattr(gpus, "in_time", lambda: in_time(0.2))
    assert within(20, lambda: gpus.cards({})).mine[0].uuid == "GPU-1"


def test_whether_there_is_a_card_is_asked_in_limited_time(monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "in_time", lambda: in_time(0.2))
    fake_nvml.install({"devices": [CARD], "calls": {"nvmlDeviceGetCount": HANGS}}, monkeypatch)
    assert within(20, gpus.there_is_one) is False
    fake_nvml.install({"devices": [CARD]}, monkeypatch)
    assert gpus.there_is_one() is True


def test_an_answer_in_time_is_the_answer(monkeypatch) -> None:
    fake_nvml.install({"devices": [CARD | {"temperature": {"hang": 0.1, "then": 55}}]}, monkeypatch)
    nvml = in_time(30)
    assert nvml.ask("nvmlDeviceGetTemperature", nvml.handle("GPU-1")) == 55


def test_threads_that_ask_one_session_get_their_own_answers(monkeypatch) -> None:
    cards = [CARD | {"uuid": f"GPU-{n}", "temperature": n} for n in range(8)]
    fake_nvml.install({"devices": cards}, monkeypatch)
    nvml = in_time(30)
    wrong = []

    def ask(n: int) -> None:
        handle = nvml.handle(f"GPU-{n}")
        wrong.extend(x for x in (nvml.ask("nvmlDeviceGetTemperature", handle) for _ in range(50)) if x != n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_can_go_on_asking(monkeypatch) -> None:
    """Threads do not survive a fork; the child starts its own."""
    fake_nvml.install({"devices": [CARD]}, monkeypatch)
    nvml = in_time(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if nvml.handle("GPU-1") is not None and nvml.problem is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_session_leaves_no_thread(monkeypatch) -> None:
    fake_nvml.install({"devices": [CARD]}, monkeypatch)
    before = threading.active_count()
    for _ in range(5):
        with in_time(10) as nvml:
            assert nvml.handle("GPU-1") is not None
        in_time(10)  # never closed, and forgotten
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_slice_that_does_not_answer_is_not_an_empty_place(monkeypatch) -> None:
    slices = [{"uuid": "MIG-1"}, {"uuid": "MIG-2", "handle_error": "Unknown"}]
    fake_nvml.install({"devices": [CARD | {"mig": {"enabled": True, "devices": slices}}]}, monkeypatch)
    nvml = Nvml()
    found = list(nvml.slices(nvml.handle("GPU-1")))
    assert [nvml.ask("nvmlDeviceGetUUID", one) for one in found] == ["MIG-1", None]


@pytest.mark.parametrize(
    ("raw", "known"), [(0, 0), (5, 5), (None, None), (2**64 - 1, None), (-1, None), ("n/a", None), (1.5, None)]
)
def test_what_nvml_says_for_not_known_is_no_number(raw, known) -> None:
    assert number(raw) == known
