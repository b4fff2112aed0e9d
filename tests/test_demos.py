"""What 100% does not say: the demonstration runs, its means are means, and its words are those of its numbers."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from gpuworkshop.child import ChildFailed, Tell
from gpuworkshop.course import demos
from gpuworkshop.course.demos import BF16, FP32, ONE_THREAD, DemoResult, Seen
from gpuworkshop.figures.at_work import Bar, at_work
from gpuworkshop.instruments.samples import WatchedCard
from gpuworkshop.instruments.watch_result import CardWatch, WatchResult
from gpuworkshop.machine import gpus
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.numbers import percent
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison, Plan, Rate
from gpuworkshop.workloads.config import Job

torch = pytest.importorskip("torch", reason="the demonstration is PyTorch's work")

CARD = Conditions("cuda:0", "A Card", "GPU-0", "1.0", 8, "affinity", 8, "3.11", "2.11", "0.1", "2026-12-01")


def result(*seen: Seen, verdict: str = "faster") -> DemoResult:
    rates = Rate(2000, 1990, 2010, 8, "images/s"), Rate(4000, 3980, 4020, 8, "images/s")
    return DemoResult("a network", seen, *rates, Comparison(2.0, 1.9, 2.1, 8, 0.03, verdict), CARD, CARD.origin)


def all_seen() -> DemoResult:
    return result(
        Seen(ONE_THREAD, 0.99, 0.0053, 0.0, 120, 20),
        Seen(FP32, 1.0, 0.9, 0.0, 600, 20),
        Seen(BF16, 1.0, 0.8, 0.3, 590, 20),
    )


def test_every_kind_of_work_runs_and_the_steps_are_compared_in_turn() -> None:
    plan = Plan(block_seconds=0.05, min_rounds=2, budget_seconds=0.2)
    got = demos.measure(Job("tiny"), "cpu", Tell(), plan, seconds=0.3)
    assert [one.name for one in got.seen] == [ONE_THREAD, FP32, BF16]
    assert got.faster.pairs >= 2 and got.fp32.unit == got.bf16.unit == "images/s"
    assert got.of(ONE_THREAD).busy is None or got.conditions.device != "cpu"
    assert msgspec.json.decode(msgspec.json.encode(got), type=DemoResult) == got


@pytest.mark.parametrize(("gib", "batch"), [(139, 128), (16, 32), (None, 32)])
def test_a_small_card_gets_a_small_batch(gib: int | None, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    card = gpus.Card("A Card", "GPU-0", memory_bytes=gib and gib * 2**30)
    monkeypatch.setattr(gpus, "card", lambda device: card)
    assert demos._batch("cuda:0") == batch


def test_one_thread_computes_what_it_says() -> None:
    """P2(x) = (3x^2 - 1) / 2, and a long one stays a polynomial within its bounds."""
    assert torch.special.legendre_polynomial_p(torch.tensor([0.5]), 2).item() == pytest.approx(-0.125)
    arm = demos.OneThread("cpu")
    kept = []
    arm._run = lambda at, degree: kept.append(torch.special.legendre_polynomial_p(at, degree).item())
    arm.step(None)
    assert -1 <= kept[0] <= 1 and arm._at.numel() == 1


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ChildFailed, match="needs a GPU, and there is none here"):
        demos.run()


def test_the_command_that_records_says_so_too_and_prints_no_envelope() -> None:
    command = [sys.executable, "-m", "gpuworkshop.course.demos"]
    done = subprocess.run(command, capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}, timeout=120)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.strip().splitlines()[-1] == "this needs a GPU, and there is none here"


def test_what_a_watch_knows_of_its_card_is_taken_over() -> None:
    card = CardWatch(WatchedCard("GPU-0", "A Card", "cuda:0"), busy=0.5, windows=20, sm=0.1, tensor=0.0, power=300.0)
    got = demos.seen_of("x", watched(card))
    assert got == Seen("x", busy=0.5, sm=0.1, tensor=0.0, power=300.0, windows=20)


def test_nothing_is_known_of_a_card_that_was_not_there() -> None:
    assert demos.seen_of("x", watched()) == Seen("x")


def watched(*cards: CardWatch) -> WatchResult:
    return WatchResult("x", 4.0, cards, 0.2, 20, 0.01, CARD, CARD.origin)


def test_the_findings_say_the_measured_numbers() -> None:
    thread, precision = demos.findings(all_seen())
    assert thread.level == "notice" and thread.title.endswith("GPU utilization 99%, SM activity 0.53%")
    assert "power 120 W, in the FP32 step 600 W" in thread.evidence
    assert "faster: 2.00x" in precision.title and "100% in FP32 and 100% in BF16" in precision.evidence
    assert "tensor activity 0% and 30%" in precision.evidence


def test_a_thread_that_fills_the_card_gets_no_verdict() -> None:
    thread, _ = demos.findings(result(Seen(ONE_THREAD, 0.99, 0.5), Seen(FP32), Seen(BF16)))
    assert "SM activity 50%" in thread.title and "no part" not in thread.evidence


def test_what_the_driver_does_not_tell_is_n_a_and_no_claim_is_made() -> None:
    thread, precision = demos.findings(result(Seen(ONE_THREAD, 0.99), Seen(FP32), Seen(BF16)))
    assert (thread.level, precision.level) == ("unknown", "unknown")
    assert "SM activity n/a" in thread.title and "nearly all" not in thread.evidence
    assert "n/a in FP32" in precision.evidence


def test_the_report_shows_every_number_with_its_origin() -> None:
    report = demos.report(all_seen())
    (table,) = report.tables
    assert table.rows[0] == (ONE_THREAD, "", "99%", "0.53%", "0%", "120 W")
    assert table.rows[2] == (BF16, "4,000 images/s (3,980 to 4,020)", "100%", "80%", "30%", "590 W")
    assert report.figures and report.origin == Origin("measured here", "A Card", "2026-12-01", "0.1")


def test_the_picture_is_told_in_words_and_escapes_names() -> None:
    figure = at_work([Bar("<b>", "x & y", 0.74, 0.005), Bar("mig", "", None, None)], CARD.origin)
    assert "&lt;b&gt;" in figure.svg and "<b>" not in figure.svg
    assert "<b>: GPU utilization 74%, SM activity 0.5%." in figure.alt and "mig: GPU utilization n/a" in figure.alt
    assert "0.5%" in figure.text and "n/a" in figure.text


def test_the_bars_are_as_long_as_their_shares() -> None:
    from xml.etree import ElementTree

    root = ElementTree.fromstring(at_work([Bar("a", "", 1.0, 0.25), Bar("b", "", None, 0.0)], CARD.origin).svg)
    wide = [float(box.get("width")) for box in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(wide) == 3 and wide[1] == pytest.approx(wide[0] / 4) and wide[2] == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "n/a"),
        (float("nan"), "n/a"),
        (0.0, "0%"),
        (2.3e-11, "<0.1%"),
        (0.005, "0.5%"),
        (0.0053, "0.53%"),
        (0.74, "74%"),
        (1, "100%"),
    ],
)
def test_small_shares_keep_two_figures(value: float | None, words: str) -> None:
    assert percent(value) == words
