"""The live chart and its idle meter: what they show, what they never show, how they end, and that they stay small."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gpuworkshop.cluster import site
from gpuworkshop.cluster.facts import Help, Idle
from gpuworkshop.cluster.site import SiteError
from gpuworkshop.figures.live import AT_ONCE, Line, Meter, Row, duration, live_strip
from gpuworkshop.instruments import idle, live_rows, live_screen, watch_live
from gpuworkshop.instruments.idle import UNKNOWN, IdleMeter, Policy, policy
from gpuworkshop.instruments.live_screen import Output, Page, Screen, screen_for
from gpuworkshop.instruments.samples import CardSample, Sample, WatchedCard
from gpuworkshop.instruments.watch_live import Live
from gpuworkshop.machine.frontend import FrontEnd
from gpuworkshop.report import Figure, Origin

HERE = Origin("measured here", "NVIDIA H200", "2026-12-01")
GIB = 2**30
ONE = WatchedCard("GPU-1", "NVIDIA H200", "cuda:0 (physical card 0, bus 1)")
TWO = WatchedCard("GPU-2", "NVIDIA H200", "cuda:1 (physical card 1, bus 2)")
PATIENCE = 20
"""Seconds after which a thread that should have ended has not."""


def sample(at: float, busy: float | None = None, uuid: str = "GPU-1", **more: Any) -> Sample:
    windows = {"windows": 1, "covered": 0.2} if busy is not None else {}
    card = CardSample(uuid, busy, memory_used=24 * GIB, memory_total=140 * GIB, **windows, **more)
    return Sample(at, (card,), seconds=0.2)


def steadily(busy: Callable[[float], float | None], seconds: float, pace: float = 0.2, **more: Any) -> list[Sample]:
    times = [pace * number for number in range(1, round(seconds / pace) + 1)]
    return [sample(at, busy(at), **more) for at in times]


# The policy


def told(**facts: Any) -> Policy:
    """The policy of a site with these facts about idle jobs."""
    plain = msgspec.structs.replace(site.load("generic"), name="Somewhere", help=Help(email="help@somewhere.example"))
    return policy(lambda: msgspec.structs.replace(plain, idle=Idle(**facts)))


def test_a_policy_that_nobody_stated_is_not_known_and_names_whom_to_ask() -> None:
    assert told() == Policy("This site's policy for idle cards is not known: ask help@somewhere.example.")
    assert policy(lambda: site.load("generic")) == Policy(UNKNOWN)


def test_a_limit_that_nobody_stated_is_not_known() -> None:
    here = site.load("aicr")
    assert here.idle.cancels and here.idle.minutes is None, "the site has published it since: mend this test"
    found = policy(lambda: here)
    assert found.seconds is None and here.name in found.says and here.help.email in found.says
    assert "not known" in found.says and not re.search(r"\d", found.says)


def test_a_stated_limit_counts_down_and_the_threshold_decides_what_is_idle() -> None:
    found = told(cancels=True, minutes=30, below_percent=5)
    assert (found.seconds, found.below) == (1800, 0.05)
    assert found.says == "Somewhere cancels a job after 30 min with an idle card, below 5% utilization."
    meter = counted(steadily(lambda at: 0.5 if at <= 10 else 0.04, 70), found)
    assert meter.says == "idle 1 min 00 s" and meter.countdown == "canceled in 29 min 00 s"
    assert counted(steadily(lambda at: 0.05, 70), found).says == "busy"


def test_a_site_that_cancels_nothing_has_no_limit() -> None:
    assert told(cancels=False, minutes=30) == Policy("Somewhere does not cancel jobs with an idle card.")


def test_a_site_file_that_cannot_be_used_leaves_the_policy_unknown() -> None:
    def broken() -> site.Site:
        raise SiteError("site.toml: not TOML")

    assert policy(broken) == Policy(UNKNOWN)


# The meter


def counted(samples: list[Sample], of: Policy | None = None, cards: tuple[WatchedCard, ...] = (ONE,)) -> Meter:
    meter = IdleMeter(of or Policy())
    meter.add(samples)
    return meter.read(cards)


def test_the_idle_time_is_that_since_a_kernel_last_ran() -> None:
    meter = counted(steadily(lambda at: 0.9 if at <= 20 else 0.0, 100))
    assert meter.idle == pytest.approx(80) and meter.says == "idle 1 min 20 s" and not meter.since_start
    again = counted(steadily(lambda at: 0.9 if at <= 20 or at > 99 else 0.0, 100))
    assert again.says == "busy"


def test_a_card_never_seen_busy_may_have_been_idle_for_longer() -> None:
    meter = counted(steadily(lambda at: 0.0, 100), Policy(seconds=600.0))
    assert meter.says == "idle 1 min 40 s or more" and meter.countdown == "canceled in 8 min 20 s or less"


def test_w01_a_slice_without_utilization_is_neither_idle_nor_busy() -> None:
    """Cases W01: NVML refuses utilization on MIG; it must never turn into 0 %."""
    meter = counted(steadily(lambda at: None, 100), Policy(seconds=60.0))
    assert meter.idle is None and meter.says == "idle time n/a" and meter.countdown == ""
    assert meter.minutes == ("held 1.67 GPU-minutes", "used n/a")


def test_minutes_are_held_by_every_card_and_used_by_what_ran() -> None:
    half = [Sample(s.at, (*s.cards, *sample(s.at, 0.0, "GPU-2").cards)) for s in steadily(lambda at: 0.5, 60)]
    meter = counted(half, cards=(ONE, TWO))
    assert meter.held == pytest.approx(2) and meter.used == pytest.approx(0.5)
    assert meter.card == "cuda:1", "the card that has been idle for longest"


def test_samples_are_counted_once_however_often_they_are_shown() -> None:
    samples, meter = steadily(lambda at: 1.0 if at < 20 else 0.0, 60), IdleMeter(Policy())
    for end in (100, 200, 300, 300):
        meter.add(samples[:end])
    assert meter.read((ONE,)) == counted(samples)


def test_without_a_card_there_is_no_meter() -> None:
    meter = IdleMeter(Policy())
    meter.add([Sample(1.0, cpu=0.5)])
    assert meter.read(()) is None


def test_a_short_pause_is_no_idling() -> None:
    assert Meter(AT_ONCE / 2, False, 60.0, "", 1.0, 0.5).says == "busy"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0 s"), (59.4, "59 s"), (192, "3 min 12 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_a_duration_reads_like_a_clock(seconds: float, said: str) -> None:
    assert duration(seconds) == said


# The rows


def test_a_card_has_utilization_with_sm_activity_and_memory() -> None:
    busy, memory = live_rows.rows((ONE,), steadily(lambda at: 0.84, 30, sm=0.3))
    assert busy.title == "cuda:0: utilization, %" and [line.now for line in busy.lines] == ["84%", "30%"]
    assert memory.title == "cuda:0: memory in use, % of 140 GiB" and memory.lines[0].now == "24.0 GiB"
    assert memory.lines[0].points[-1][1] == pytest.approx(24 / 140)


def test_w01_a_slice_keeps_its_memory_and_has_no_utilization() -> None:
    """Case W01: the line reads n/a and never 0; the memory of the slice is still shown."""
    mig = msgspec.structs.replace(ONE, mig=True)
    busy, memory = live_rows.rows((mig,), steadily(lambda at: None, 30))
    assert busy.lines == () and "MIG" in busy.note and memory.lines
    text = str(live_strip((busy, memory), None, HERE, "live"))
    assert "n/a" in text and " 0%" not in text


def test_without_a_card_the_cpus_are_shown_and_the_loader_where_it_is_known() -> None:
    samples = [Sample(0.2 * n, cpu=0.5 if n % 5 == 0 else None) for n in range(100)]
    (cpus,) = live_rows.rows((), samples)
    assert cpus.title == "CPUs of this job in use, %" and cpus.lines[0].now == "50%"
    assert None not in [share for _, share in cpus.lines[0].points], "a look a second is no gap"
    _, wait = live_rows.rows((), [msgspec.structs.replace(one, wait=0.9) for one in samples])
    assert wait.title == "loader wait, % of the time" and wait.lines[0].now == "90%"


def test_a_lost_card_says_so() -> None:
    busy, _ = live_rows.rows((ONE,), [Sample(1.0, (CardSample("GPU-1", lost=True),))])
    assert busy.note == "the card has stopped answering"


def test_a_time_without_a_reading_is_a_gap_in_the_line() -> None:
    busy, _ = live_rows.rows((ONE,), steadily(lambda at: None if 10 < at < 20 else 0.5, 30))
    assert [share for _, share in busy.lines[0].points].count(None) == 1
    figure = live_strip((busy,), None, HERE, "live")
    assert figure.svg.count('fill="none"') == 2, "one line before the gap and one after it"


def test_only_the_last_minute_is_drawn() -> None:
    newest = live_rows.newest(steadily(lambda at: 0.5, 300))
    assert newest[0].at == pytest.approx(240) and newest[-1].at == pytest.approx(300)
    assert live_rows.newest([]) == []


@pytest.mark.parametrize("pace", [0.2, 0.02])
def test_a_picture_has_its_size_whatever_the_pace_of_the_watch(pace: float) -> None:
    samples = live_rows.newest(steadily(lambda at: (at * 7) % 1, 120, pace, sm=0.3))
    figure = live_strip(live_rows.rows((ONE,), samples), counted(samples), HERE, "live")
    print(f"one picture of a card at {1 / pace:.0f} samples/s: {len(figure.svg)} bytes")
    assert len(figure.svg) < 12_000


def test_many_cards_have_one_row_each_and_the_picture_stays_small() -> None:
    cards = tuple(WatchedCard(f"GPU-{n}", "NVIDIA H200", f"cuda:{n} (bus {n})") for n in range(16))
    samples = [Sample(s.at, tuple(sample(s.at, 0.5, card.uuid).cards[0] for card in cards))
               for s in steadily(lambda at: 0.5, 60)]  # fmt: skip
    rows = live_rows.rows(cards, samples)
    assert len(rows) == live_rows.MOST_CARDS
    figure = live_strip(rows, counted(samples, cards=cards), HERE, "live")
    print(f"one picture of 16 cards: {len(figure.svg)} bytes")
    assert len(figure.svg) < 40_000


# The strip


def words(figure: Figure) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg)


def test_the_bar_grows_with_the_idle_time_and_only_where_the_limit_is_known() -> None:
    def bars(idle: float | None, limit: float | None) -> list[float]:
        figure = live_strip((), Meter(idle, False, limit, "", 1.0, 0.5), HERE, "live")
        return [float(wide) for wide in re.findall(r'<rect[^>]* width="([\d.]+)"', figure.svg)]

    whole, half = bars(900, 1800)
    assert half == pytest.approx(whole / 2, abs=0.1) and bars(3600, 1800)[1] == whole
    assert bars(900, None) == bars(None, 1800) == []


def test_values_at_the_same_height_do_not_touch() -> None:
    both = (Line("busy", ((1.0, 0.5),), "50%"), Line("SM activity", ((1.0, 0.5),), "50%"))
    figure = live_strip((Row("utilization, %", both),), None, HERE, "live")
    heights = [float(y) for y, said in re.findall(r'y="([\d.]+)"[^>]*>([^<]*50%)<', figure.svg)]
    assert len(heights) == 2 and abs(heights[0] - heights[1]) >= 12


def test_nothing_read_is_said_and_never_drawn_as_zero() -> None:
    figure = live_strip((Row("utilization, %", note="no driver"),), None, HERE, "live")
    assert {"n/a: no driver", "n/a: no card is held"} <= set(words(figure))
    assert "<path" not in figure.svg and "n/a" in figure.alt and "n/a" in figure.text


# The chart and how it ends


class Seen:
    """A watch for tests: cards, and samples that come as the test wants."""

    def __init__(self) -> None:
        self.samples: list[Sample] = steadily(lambda at: 0.5, 2)
        self.watched: tuple[WatchedCard, ...] = (ONE,)
        self.over = False


class Paper(Screen):
    """Keeps what is drawn."""

    def __init__(self) -> None:
        self.drawings: list[Figure] = []
        self.last: list[Figure] = []
        self.fresh, self.closed = threading.Event(), threading.Event()

    def draw(self, figure: Figure) -> None:
        self.drawings.append(figure)
        self.fresh.set()

    def close(self, last: Figure) -> None:
        self.last.append(last)
        self.closed.set()


@pytest.fixture
def shown() -> Any:
    """A watch, its chart and what it is drawn on, started; ended in any case."""
    one = SimpleNamespace(seen=Seen(), paper=Paper())  # nobody else holds the watch
    one.chart = Live(one.seen, one.paper, Policy())
    one.chart.start()
    yield one
    one.chart.stop()


def test_a_chart_follows_its_watch_and_ends_with_it(shown: Any) -> None:
    assert shown.paper.fresh.wait(PATIENCE) and "live, last sample" in str(shown.chart)
    shown.seen.samples = [*shown.seen.samples, sample(3.0, 1.0)]
    shown.seen.over = True
    assert shown.paper.closed.wait(PATIENCE)
    (last,) = shown.paper.last
    assert "100%" in last.alt, "the last sample counts"
    assert "ended, last sample" in last.text and not shown.chart.running


def test_a_chart_ends_when_its_watch_is_dropped(shown: Any) -> None:
    shown.seen = None
    gc.collect()
    assert shown.paper.closed.wait(PATIENCE)
    assert "busy 50%" in shown.paper.last[0].alt, "the last picture stays"


def test_a_stopped_chart_draws_no_more_and_leaves_its_watch_alone(shown: Any) -> None:
    shown.chart.stop()
    drawn = len(shown.paper.drawings)
    shown.chart.stop()
    shown.chart._thread.join(PATIENCE)
    assert not shown.chart._thread.is_alive()
    assert (len(shown.paper.drawings), len(shown.paper.last)) == (drawn, 1) and not shown.seen.over


def test_nothing_is_drawn_over_the_last_picture(shown: Any) -> None:
    assert shown.paper.fresh.wait(PATIENCE)
    with shown.chart._ending:
        drawn = len(shown.paper.drawings)
        shown.chart._thread.join(4 * watch_live.PERIOD)  # by now it waits for its turn to draw
        shown.chart._stopping.set()
    shown.chart._thread.join(PATIENCE)
    assert len(shown.paper.drawings) == drawn


def test_an_interrupted_cell_ends_the_chart_and_a_finished_one_does_not(shown: Any) -> None:
    for error in (None, ValueError()):
        shown.chart._cell_ended(SimpleNamespace(error_in_exec=error))
        assert shown.chart.running
    shown.chart._cell_ended(SimpleNamespace(error_in_exec=KeyboardInterrupt()))
    assert not shown.chart.running


def test_the_end_of_a_cell_shows_the_last_picture_at_once_if_the_watch_is_over(shown: Any) -> None:
    shown.seen.over = True
    shown.chart._cell_ended(SimpleNamespace(error_in_exec=None))
    assert shown.paper.closed.is_set()


def test_a_chart_that_fails_ends_and_says_why_and_disturbs_nobody() -> None:
    class Torn(Paper):
        def draw(self, figure: Figure) -> None:
            raise OSError("no paper")

    seen, paper = Seen(), Torn()
    chart = Live(seen, paper, Policy())
    chart.start()
    assert paper.closed.wait(PATIENCE)
    assert "ended: OSError: no paper" in str(chart)


def test_the_newest_chart_of_a_watch_is_the_live_one() -> None:
    seen = Seen()
    first = watch_live.live(seen)
    second = watch_live.live(seen)
    assert (first.running, second.running) == (False, True)
    second.stop()


def test_a_chart_by_itself_ends_the_watch_that_it_began() -> None:
    chart = watch_live.live()
    watch = chart._watch()
    assert chart.running and not watch.over
    watch_live.live().stop()
    assert watch.over and not chart.running


def test_a_chart_does_not_wait_for_the_driver_or_for_its_first_picture(shown: Any) -> None:
    empty = Seen()
    empty.samples, empty.watched = [], ()
    chart = Live(empty, Paper(), Policy())
    assert "n/a" in str(chart), "a chart without a sample can be printed"


# Where it shows


@pytest.mark.parametrize(
    ("kind", "has_widgets", "expected"),
    [
        ("jupyter", "9.9", Page),
        ("jupyter", "", Output),
        ("vscode", "8.1", Page),
        ("headless", "8.1", Output),
        ("ipython", "8.1", Screen),
        ("terminal", "8.1", Screen),
        ("none", "", Screen),
    ],
)
def test_each_front_end_has_its_screen(kind: Any, has_widgets: str, expected: type) -> None:
    assert type(screen_for(FrontEnd(kind, "python", "/env", has_widgets))) is expected


def test_j02_a_broken_ipywidgets_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case J02: tqdm.notebook raises ImportError when ipywidgets is not there; nothing of ours may."""
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    screen = screen_for(FrontEnd("jupyter", "python", "/env", "8.1"))
    assert type(screen) is Output and screen._pace == live_screen.SLOW


def test_an_output_is_replaced_slowly_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        live_screen, "_display", lambda face, id, update=False: shown.append((face["text/plain"], update))
    )
    figure = live_strip((), None, HERE, "live")
    for pace, drawn in ((None, 0), (3600.0, 1)):
        shown.clear()
        screen = Output(pace)
        screen.open(figure, lambda: None)
        for _ in range(3):
            screen.draw(figure)
        screen.close(figure)
        assert shown[0] == (live_screen.WAITING, False) and shown[-1] == (str(figure), True)
        assert len(shown) == 2 + drawn == 2 + screen.drawn


def test_the_first_face_of_an_output_holds_no_number() -> None:
    assert not re.search(r"\d", live_screen.WAITING), "a saved notebook must not show a frozen 0 %"
    assert idle.UNKNOWN.endswith("ask.")
