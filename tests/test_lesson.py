"""A chapter's frame: its bars, what it says of an effect, of its cost, and of the card."""

from __future__ import annotations

import msgspec
import pytest

from gpuworkshop.child import Progress
from gpuworkshop.course import lesson
from gpuworkshop.instruments.samples import WatchedCard
from gpuworkshop.instruments.starve import StarveResult
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.timing import Comparison, Rate

torch = pytest.importorskip("torch", reason="freeing the card is PyTorch's work")


class Time:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def seen(device: str = "cpu", cpus: int = 2) -> StarveResult:
    here = Conditions(device, "a machine", "", "", cpus, "affinity", 1, "3.11", "2.11", "0.0.1", "2026-12-01")
    rate, ratio = Rate(100, 99, 101, 8), Comparison(10, 9.8, 10.2, 8, 0.03, "faster")
    name = "loader wait" if device == "cpu" else "stall"
    return StarveResult(
        workload="", real=rate, ceiling=rate, loader=rate, headroom=ratio, wait_name=name, wait_share=0.9,
        data_work_share=0, slowed_share=0, agrees=True, limit="data", startup_seconds=0, workers=0, batch_size=32,
        config=None, planted="", conditions=here, origin=here.origin,
    )  # fmt: skip


def three_minutes_of_six() -> lesson.Lesson:
    """A chapter that began six minutes ago and has measured for three of them."""
    now = Time()
    chapter = lesson.Lesson(now)
    now.seconds += 60
    for part in (120, 60):
        with chapter.bar("part") as bar:
            now.seconds += part
            bar(1.0)
        now.seconds += 60
    return chapter


def test_a_card_is_held_also_while_somebody_reads() -> None:
    text = str(three_minutes_of_six().cost(seen("cuda:0")))
    assert "Used: 6.0 card-minutes, 3.0 of them for measuring" in text
    assert "Wasted: 3.0 card-minutes or more" in text and "50% of the time nothing was measured" in text
    assert "At the naive start 90% of the time is stall" in text and "54 minutes are lost" in text


def test_a_borrowed_card_is_held_only_to_measure() -> None:
    text = str(three_minutes_of_six().cost(seen("cuda:0"), ("srun",)))
    assert "Used: 3.0 card-minutes, 3.0 of them" in text and "Wasted: 0.0 card-minutes" in text


def test_without_a_card_the_cpus_are_counted() -> None:
    text = str(three_minutes_of_six().cost(seen(cpus=4)))
    assert "Used: 24.0 CPU-minutes, 12.0 of them for measuring" in text and "4 CPUs" in text
    assert "no card was held" in text and "90% of the time is loader wait" in text


def test_a_chapter_without_a_training_run_counts_what_it_holds() -> None:
    chapter = three_minutes_of_six()
    text = str(chapter.cost(Looked(seen("cuda:0").conditions)))
    assert "Used: 6.0 card-minutes, 3.0 of them for measuring" in text and "naive start" not in text


@pytest.mark.parametrize("busy", [0.25, None])
def test_a_watched_run_says_what_an_hour_of_it_wastes(busy: float | None) -> None:
    here = seen("cuda:0").conditions
    card = CardWatch(WatchedCard("GPU-0", "A Card", "cuda:0"), busy=busy, seconds=4.0)
    watch = WatchResult("a run", 4.0, (card,), 0.2, 20, 0.01, here, here.origin)
    text = str(three_minutes_of_six().cost(watch))
    assert ("busy 25% of the time" in text and "45 card-minutes are wasted" in text) is (busy is not None)


class Looked(msgspec.Struct):
    """A result of an instrument that trains nothing."""

    conditions: Conditions


def test_without_any_result_the_default_device_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = three_minutes_of_six().cost()
    assert report.findings[1].title == "Wasted: no card-minutes" and "CPU-minutes" in report.findings[0].title


def test_a_step_that_fails_is_counted_too() -> None:
    now = Time()
    chapter = lesson.Lesson(now)
    with pytest.raises(KeyboardInterrupt):
        with chapter.bar("part"):
            now.seconds += 60
            raise KeyboardInterrupt
    assert "1.0 of them for measuring" in str(chapter.cost(seen("cuda:0")))


def test_a_bar_shows_how_far_it_is_and_leaves_how_long_it_took(capsys: pytest.CaptureFixture) -> None:
    now = Time()
    with lesson.Lesson(now).bar("sweep") as bar:
        bar(Progress(0.5, "all worker counts in turn"))
        now.seconds = 12
        bar(0.75)
    shown = capsys.readouterr().out
    assert "█" * 12 + " " * 12 + "| 00:00, all worker counts in turn" in shown
    assert "█" * 18 + " " * 6 in shown
    assert shown.rpartition("\r")[2] == "sweep: 12 s\n"


def test_a_step_that_was_not_needed_shows_nothing(capsys: pytest.CaptureFixture) -> None:
    with lesson.Lesson(Time()).bar("drawing the pictures"):
        pass
    assert capsys.readouterr().out == ""


def test_an_effect_is_there_only_beyond_noise() -> None:
    faster = lesson.effect("workers help", Comparison(1.8, 1.7, 1.9, 8, 0.05, "faster"))
    assert faster.title == "This machine shows it: workers help" and "1.80x" in str(faster)
    assert "storage_wait_ms" not in str(faster)
    for verdict in ("no real difference", "slower", "unknown"):
        not_here = lesson.effect("workers help", Comparison(1.8, 0.9, 2.9, 8, 0.05, verdict))
        assert not_here.title == "This machine does not show it: workers help"
        assert "storage_wait_ms=4" in str(not_here) and "planted" in str(not_here)
    assert "Nothing that was measured did better." in str(lesson.effect("workers help", None))


def test_without_a_card_none_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "There is no card in this session" in str(lesson.free_card())


MIB = 2**20


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A card whose cache can be emptied; in MiB: tensors, what is kept for new ones, all that is in use."""
    state = {"tensors": 0, "kept": 300, "in use": 900}

    def empty_cache() -> None:
        state["in use"] -= state["kept"] - state["tensors"]
        state["kept"] = state["tensors"]

    fakes = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_device_name": lambda: "NVIDIA Test Card",
        "empty_cache": empty_cache,
        "memory_allocated": lambda: state["tensors"] * MIB,
        "memory_reserved": lambda: state["kept"] * MIB,
        "mem_get_info": lambda: ((10_000 - state["in use"]) * MIB, 10_000 * MIB),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def clear_workspaces() -> None:
        state["tensors"] -= state.pop("workspaces", 0)

    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear_workspaces)
    return state


def test_a_freed_card_is_shown_to_be_free(card: dict[str, int]) -> None:
    report = lesson.free_card()
    assert report.findings[0].level == "ok" and report.origin.on == "NVIDIA Test Card"
    assert "0 MiB in tensors, 0 MiB kept" in report.findings[0].evidence
    assert "600 of 10,000 MiB are in use" in report.findings[0].evidence


def test_a_tensor_that_is_still_there_is_said(card: dict[str, int]) -> None:
    card["tensors"] = 100
    found = lesson.free_card().findings[0]
    assert found.level == "warning" and "100 MiB in tensors" in found.evidence and found.fix.startswith("del ")


def test_what_matrix_products_keep_is_no_tensor_of_the_learner(card: dict[str, int]) -> None:
    card["workspaces"] = 65
    card["tensors"] += 65
    assert lesson.free_card().findings[0].level == "ok"


def test_a_kernel_that_never_used_the_card_holds_nothing(card: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert "holds nothing of the card" in lesson.free_card().findings[0].title
