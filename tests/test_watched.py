"""What a chapter takes from a watch: runs side by side, and who was on the card."""

from __future__ import annotations

import msgspec
import pytest

from gpuworkshop.course import watched
from gpuworkshop.course.faces import Note
from gpuworkshop.instruments.samples import WatchedCard
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.machine.processes import Process

HERE = Conditions("cuda:0", "A Card", "GPU-0", "1.0", 8, "affinity", 8, "3.11", "2.11", "0.1", "2026-12-01")
CARD = CardWatch(WatchedCard("GPU-0", "A Card", "cuda:0"), busy=0.12, windows=20, sm=0.05, seconds=4.0)


def result(*cards: CardWatch, **facts: float) -> WatchResult:
    return WatchResult("a run", 4.0, cards, 0.2, 20, 0.01, HERE, HERE.origin, **facts)


def test_runs_stand_side_by_side_and_what_neither_knows_is_left_out() -> None:
    full = msgspec.structs.replace(CARD, busy=0.97, sm=None, memory_used=3, memory_total=4)
    report = watched.side_by_side({"one": result(CARD, wait=0.9), "two": result(full)})
    rows = {row[0]: row[1:] for row in report.tables[0].rows}
    assert rows["GPU utilization"] == ("12%", "97%")
    assert rows["SM activity"] == ("5%", "n/a")
    assert rows["GPU memory, the most"] == ("n/a", "75%")
    assert rows["loader wait, as the host saw it"] == ("90%", "n/a")
    assert "CPUs of this session in use" not in rows and report.origin == HERE.origin


def test_who_is_on_the_card_is_a_table() -> None:
    mine, other = Process(7, "mine", "python", 2**30), Process(9, "another's")
    report = watched.processes(result(msgspec.structs.replace(CARD, processes=(mine, other))))
    assert report.tables[0].rows == (
        ("7", "python", "cuda:0", "mine", "1 GiB"),
        ("9", "n/a", "cuda:0", "another's", "n/a"),
    )
    assert report.findings == ()


def test_nobody_on_the_card_is_not_the_same_as_not_told() -> None:
    nobody, untold = (watched.processes(result(msgspec.structs.replace(CARD, processes=p))) for p in ((), None))
    assert (nobody.findings[0].level, untold.findings[0].level) == ("ok", "unknown")
    assert nobody.tables == untold.tables == ()


@pytest.mark.parametrize("seen", [None, result()])
def test_without_a_card_there_is_a_note(seen: WatchResult | None) -> None:
    assert isinstance(watched.processes(seen), Note)
