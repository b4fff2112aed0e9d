"""The pictures: well-formed, the same every time, honest about what was not measured."""

import math
import re
from collections.abc import Callable
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_report import contrast

from gpuworkshop.figures.axis import axis_for
from gpuworkshop.figures.live import Line, Meter, Row, live_strip
from gpuworkshop.figures.map import Track, two_axes
from gpuworkshop.figures.prediction import predicted_and_measured
from gpuworkshop.figures.strip import step_strip
from gpuworkshop.figures.svg import COLORS, WIDTH
from gpuworkshop.figures.sweep import workers_sweep
from gpuworkshop.figures.waterfall import Bar, waterfall
from gpuworkshop.numbers import number, times
from gpuworkshop.report import Figure, Origin
from gpuworkshop.timing import Rate

SVG = "{http://www.w3.org/2000/svg}"
HERE = Origin("measured here", "NVIDIA H200", "2026-12-01")
HOSTILE = "<script>alert('x')</script>\"&]]>\x1b"
NAN = float("nan")


class Point(NamedTuple):
    workers: int
    rate: Rate | None
    note: str = ""


class Spot(NamedTuple):
    busy: float | None
    memory: float | None


def rate(value: float, half: float = 0.1) -> Rate:
    return Rate(value, value * (1 - half), value * (1 + half), 12, "images/s")


def sweep(text: str = "too many", rule: int | None = 3) -> Figure:
    points = [Point(2, rate(790)), Point(0, rate(412)), Point(8, None, text)]
    return workers_sweep(points, rate(1085), rule, HERE, text if text == HOSTILE else "images/s")


def strip(text: str = "loader wait") -> Figure:
    now = [(text, 0.0182, "wait"), ("copy", 0.0006, "copy"), ("compute", 0.0071, "compute"),
           ("slowed", 0.0044, "slowed"), ("decode", None, "other"), ("sync", 0.0, "other")]  # fmt: skip
    return step_strip(now, HERE, [("compute", 0.0072, "compute")])


def ledger(text: str = "2 workers") -> list[Bar]:
    return [
        Bar("baseline", rate(160), None, None, None, True, ""),
        Bar(text, rate(1496), 9.35, 9.1, 9.6, True, "faster", "learns the same"),
        Bar("batch 256", rate(1500), 1.01, 0.98, 1.04, False, text),
    ]


def fall(text: str = "2 workers") -> Figure:
    return waterfall(ledger(text), HERE, rate(4328))


def guess(text: str = "How fast?", prediction: float | None = 50) -> Figure:
    return predicted_and_measured(prediction, rate(182), "images/s", text, HERE)


def two(text: str = "cuda:0") -> Figure:
    path = (Spot(0.05, 0.1), Spot(None, 0.2), Spot(0.4, 0.3))
    return two_axes([Track(text, 0.12, 0.91, path), Track("cuda:1", None, 0.35, why="MIG")], HERE)


def minute(text: str = "cuda:0") -> Figure:
    busy = Line("busy", ((30.0, 0.2), (20.0, None), (1.0, 0.84)), "84%", "compute")
    rows = (Row(f"{text}: utilization, %", (busy, Line("SM activity", ((5.0, 0.3), (1.0, 0.31)), "31%"))),
            Row("memory in use, %", note="no reading"))  # fmt: skip
    return live_strip(rows, Meter(200.0, False, 1800.0, f"{text} cancels.", 5.0, 1.25, text), HERE, "live")


PICTURES = {"sweep": sweep, "strip": strip, "waterfall": fall, "guess": guess, "map": two, "live": minute}
every_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES.keys())


def shapes(figure: Figure, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(figure.svg).iter(SVG + tag))


def words(figure: Figure) -> list[str]:
    return [shape.text or "" for shape in shapes(figure, "text")]


def at(shape: ElementTree.Element, name: str) -> float:
    return float(shape.attrib[name])


def place(figure: Figure, said: str) -> tuple[float, float]:
    """Where the one text that says `said` stands."""
    (shape,) = [shape for shape in shapes(figure, "text") if shape.text == said]
    return at(shape, "x"), at(shape, "y")


# Every picture


@every_picture
def test_a_picture_is_the_same_every_time(draw: Callable[..., Figure]) -> None:
    assert draw() == draw()


@every_picture
def test_hostile_words_stay_words(draw: Callable[..., Figure]) -> None:
    figure = draw(HOSTILE)
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(figure.svg).iter()}
    assert tags <= {"svg", "text", "line", "rect", "circle", "path"}
    assert "alert('x')" in "".join(words(figure)) + figure.alt
    assert "\x1b" not in figure.svg + figure.alt + str(figure)


@every_picture
def test_nothing_outside_is_referred_to(draw: Callable[..., Figure]) -> None:
    bare = draw().svg.replace('xmlns="http://www.w3.org/2000/svg"', "", 1)
    assert not re.search(r"https?:|//|url\(|@import|href|<style|data:", bare)


@every_picture
def test_the_ink_is_that_of_the_page(draw: Callable[..., Figure]) -> None:
    root = ElementTree.fromstring(draw().svg)
    assert root.get("fill") == "currentColor" and root.get("role") == "img"
    fixed = {shape.get("fill") for shape in root.iter(SVG + "text")} - {None}
    assert fixed <= {"#000", "#fff"}, "only words inside a colored box have an ink of their own"
    strokes = {shape.get("stroke") for shape in root.iter()} - {None}
    assert strokes <= {"currentColor", *COLORS.values()}


@every_picture
def test_alt_and_label_agree_and_the_origin_is_in_the_corner(draw: Callable[..., Figure]) -> None:
    figure = draw()
    root = ElementTree.fromstring(figure.svg)
    assert root.get("aria-label") == figure.alt
    x, y = place(figure, str(HERE))
    height = float(root.get("viewBox", "").split()[3])
    assert x == WIDTH and height - 10 < y < height
    assert str(figure).endswith(str(HERE))


NUMBERS = {
    "sweep": ("412", "790", "1,085", "n/a"),
    "strip": ("18.2 ms", "0.600 ms", "7.10 ms", "4.40 ms", "n/a"),
    "waterfall": ("160", "1,496", "4,328"),
    "guess": ("50", "182", "(164 to 200)"),
    "map": ("12%", "91%", "35%", "n/a"),
    "live": ("84%", "31%", "n/a", "3 min 20 s", "26 min 40 s", "5.00", "1.25"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_the_numbers_are_in_picture_alt_and_text(name: str) -> None:
    figure = PICTURES[name]()
    for value in NUMBERS[name]:
        assert any(value in said for said in words(figure)), f"{value} is not in the picture"
        assert value in figure.alt and value in figure.text


@pytest.mark.parametrize(
    ("draw", "units"),
    [
        (sweep, ("throughput, images/s", "num_workers, processes (evenly spaced)")),
        (strip, ("time in one step, ms",)),
        (fall, ("throughput, images/s (log scale)",)),
        (guess, ("images/s",)),
        (two, ("GPU utilization, %", "GPU memory in use, %")),
        (minute, ("cuda:0: utilization, %", "60 s ago")),
    ],
)
def test_every_axis_has_its_unit(draw: Callable[..., Figure], units: tuple[str, ...]) -> None:
    assert set(units) <= set(words(draw()))


# The workers sweep


def test_a_higher_rate_stands_higher_and_more_workers_stand_to_the_right() -> None:
    (x0, y0), (x2, y2) = place(sweep(), "412"), place(sweep(), "790")
    assert x2 > x0 and y2 < y0


def test_the_ceiling_is_a_line_above_the_points_with_its_name() -> None:
    (line,) = [shape for shape in shapes(sweep(), "line") if shape.get("stroke") == COLORS["compute"]]
    assert line.get("y1") == line.get("y2")
    assert at(line, "y1") < min(at(dot, "cy") for dot in shapes(sweep(), "circle"))
    assert "data ceiling" in words(sweep())


@pytest.mark.parametrize(("rule", "said"), [(2, "rule: CPUs - 1 = 2"), (3, "rule: CPUs - 1 = 3")])
def test_the_rule_is_marked_at_its_place(rule: int, said: str) -> None:
    figure = sweep(rule=rule)
    (marked,) = [at(line, "x1") for line in shapes(figure, "line") if line.get("stroke-dasharray")]
    (two, _), (eight, _) = place(figure, "2"), place(figure, "8")
    assert said in words(figure)
    assert marked == two if rule == 2 else two < marked < eight


def test_without_cpus_there_is_no_rule() -> None:
    figure = sweep(rule=None)
    assert not [shape for shape in shapes(figure, "line") if shape.get("stroke-dasharray")]
    assert "ule: " not in "".join(words(figure)) + figure.text


def test_an_impossible_point_has_a_note_and_no_dot() -> None:
    assert "8 workers: n/a, too many" in words(sweep())
    assert len(shapes(sweep(), "circle")) == 2


def test_an_interval_is_drawn_or_said_to_be_narrower_than_its_mark() -> None:
    note = "no bar at a point: its interval is narrower than its mark"
    wide_one = workers_sweep([Point(0, rate(100, 0.2))], None, None, HERE, "images/s")
    tight = workers_sweep([Point(0, rate(100, 0.001))], None, None, HERE, "images/s")
    assert len(shapes(wide_one, "line")) - len(shapes(tight, "line")) == 3
    assert note in words(tight) and note not in words(wide_one)


# The strip


def test_parts_are_to_scale_and_side_by_side() -> None:
    boxes = shapes(strip(), "rect")
    seconds = [0.0182, 0.0006, 0.0071, 0.0044, 0.0072]
    widths = [at(box, "width") for box in boxes]
    assert [w / widths[0] for w in widths] == pytest.approx([s / seconds[0] for s in seconds], rel=0.02)
    for left, right in zip(boxes[:3], boxes[1:4], strict=True):
        end = at(left, "x") + at(left, "width")
        assert at(right, "x") == pytest.approx(end, abs=0.11)


def test_each_kind_has_its_color_everywhere() -> None:
    fills = [box.get("fill") for box in shapes(strip(), "rect")]
    assert fills == [COLORS[kind] for kind in ("wait", "copy", "compute", "slowed", "compute")]


def test_a_slowed_step_is_hatched_too() -> None:
    hatches = [shape for shape in shapes(strip(), "line") if shape.get("stroke") == COLORS["slowed"]]
    (box,) = [box for box in shapes(strip(), "rect") if box.get("fill") == COLORS["slowed"]]
    left, top = at(box, "x"), at(box, "y")
    right, bottom = left + at(box, "width"), top + at(box, "height")
    assert len(hatches) > 3
    for line in hatches:
        assert all(left - 0.1 <= at(line, end) <= right + 0.1 for end in ("x1", "x2"))
        assert all(top - 0.1 <= at(line, end) <= bottom + 0.1 for end in ("y1", "y2"))


def test_a_part_that_was_not_measured_is_named_and_not_drawn() -> None:
    assert "not in the strip: decode n/a, sync 0 ms" in words(strip())
    assert len(shapes(strip(), "rect")) == 5


# The waterfall


def test_each_bar_starts_where_the_one_before_it_ended() -> None:
    bars = [Bar("a", rate(40), None, None, None, True, ""), Bar("b", rate(70), 1.7, 1.6, 1.8, True, ""),
            Bar("c", rate(60), 0.9, 0.8, 1.0, True, "")]  # fmt: skip
    first, second, third = shapes(waterfall(bars, HERE), "rect")
    assert at(second, "x") == pytest.approx(at(first, "x") + at(first, "width"), abs=0.11)
    peak = at(second, "x") + at(second, "width")
    assert at(third, "x") < peak == pytest.approx(at(third, "x") + at(third, "width"), abs=0.11)
    assert third.get("fill-opacity") is not None and second.get("fill-opacity") is None, "a loss is paler"


def test_the_axis_is_logarithmic_only_when_the_rates_spread() -> None:
    assert "throughput, images/s (log scale)" in words(fall())
    assert len(shapes(fall(), "rect")) == 1, "on a log axis the baseline is a mark and no bar"
    near = waterfall([Bar("a", rate(40), None, None, None, True, "")], HERE)
    assert "throughput, images/s" in words(near) and len(shapes(near, "rect")) == 1


def test_refused_changes_stand_apart_and_hollow() -> None:
    figure = fall()
    hollow = [dot for dot in shapes(figure, "circle") if "--gw-paper" in dot.get("style", "")]
    assert len(hollow) == 1 and len(shapes(figure, "circle")) == 3
    (_, heading), (_, refused) = place(figure, "Tried and not kept"), place(figure, "batch 256")
    assert heading < refused < at(hollow[0], "cy") + 10
    assert "Tried and not kept" in figure.text and "1.01x (0.98 to 1.04)" in figure.text


def test_the_ratio_and_the_learning_are_said_in_words() -> None:
    assert {"9.35x (9.10 to 9.60)", "faster; learns the same"} <= set(words(fall()))
    assert "faster; learns the same" in " ".join(str(fall()).split())


# The guess


@pytest.mark.parametrize(
    ("prediction", "said"),
    [
        (91, "The measured value is 2.00 times your guess."),
        (364, "Your guess is 2.00 times the measured value."),
        (190, "Your guess lies inside the measured interval."),
        (0, "The measured value is 182 images/s above your guess."),
        (None, "The two cannot be compared: one of them is n/a."),
        (NAN, "The two cannot be compared: one of them is n/a."),
    ],
)
def test_the_distance_is_said_in_words(prediction: float | None, said: str) -> None:
    figure = guess(prediction=prediction)
    assert said in figure.alt and said in figure.text


# Nothing known is never drawn as zero

UNKNOWN = Rate(NAN, NAN, NAN, 0, "images/s")
LOST = (Point(0, None, "died"), Point(1, UNKNOWN))
BARS = (Bar("a", None, None, None, None, True, ""), Bar("b", UNKNOWN, NAN, NAN, NAN, False, "died"))
EMPTY = {
    "sweep, nothing tried": workers_sweep([], None, None, HERE, "images/s"),
    "sweep, all impossible": workers_sweep(LOST, UNKNOWN, 2, HERE, "images/s"),
    "strip, no part": step_strip([], HERE),
    "strip, none measured": step_strip([("copy", None, "copy"), ("compute", NAN, "compute")], HERE),
    "waterfall, no run": waterfall([], HERE),
    "waterfall, no rate": waterfall(BARS, HERE, UNKNOWN),
    "guess, neither": predicted_and_measured(None, None, "images/s", "How fast?", HERE),
}


@pytest.mark.parametrize("figure", EMPTY.values(), ids=EMPTY.keys())
def test_what_is_not_known_reads_not_available(figure: Figure) -> None:
    marks = shapes(figure, "circle") + shapes(figure, "rect") + shapes(figure, "path")
    assert marks == []
    for said in (" ".join(words(figure)), figure.alt, str(figure).replace(str(HERE), "")):
        assert "n/a" in said
        assert "nan" not in said.lower() and not re.search(r"\b0(\.0+)? (images|ms)", said)


def test_an_interval_that_is_not_known_is_said() -> None:
    single = Rate(100.0, NAN, math.inf, 1, "images/s")
    figure = predicted_and_measured(50, single, "images/s", "How fast?", HERE)
    assert "100 (interval n/a)" in words(figure)


def test_a_measured_zero_is_zero() -> None:
    figure = workers_sweep([Point(0, Rate(0.0, 0.0, 0.0, 3, "images/s"))], rate(100), None, HERE, "images/s")
    assert "0 (0 to 0)" in figure.text and len(shapes(figure, "circle")) == 1


# Numbers and axes


NUMBER = {
    0: "0", 0.0843: "0.0843", 7.314: "7.31", 9.999: "10.0", 45.31: "45.3", 99.96: "100", 182.4: "182",
    4328.2: "4,328", 1.23456e12: "1.23e+12", -3.5: "-3.50", None: "n/a", NAN: "n/a", math.inf: "n/a",
}  # fmt: skip


@pytest.mark.parametrize(("value", "said"), NUMBER.items())
def test_numbers_have_three_figures_that_matter(value: float | None, said: str) -> None:
    assert number(value) == said


def test_a_ratio_has_its_interval() -> None:
    assert times(1.731, 1.6, 1.9) == "1.73x (1.60 to 1.90)"
    assert times(1.731, None, 1.9) == "1.73x (interval n/a)" and times(NAN, 1, 2) == "ratio n/a"


@given(st.lists(st.floats(min_value=-1e6, max_value=1e30, allow_subnormal=False), max_size=8))
def test_an_axis_holds_every_value_between_its_ends(values: list[float]) -> None:
    values = [value for value in values if value == 0 or abs(value) > 1e-30]
    axis = axis_for(values)
    assert all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value in values)
    assert 2 <= len(axis.ticks) <= 9 and list(axis.ticks) == sorted(axis.ticks)
    assert axis.log == (bool(values) and min(values) > 0 and max(values) / min(values) >= 5)
    assert axis.log or axis.low <= 0 <= axis.high


# One look


def test_matplotlib_has_the_same_colors_and_a_transparent_ground() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with pyplot.style.context("gpuworkshop.figures.style"):
        given = dict(pyplot.rcParams)
    cycle = {color.removeprefix("#") for color in given["axes.prop_cycle"].by_key()["color"]}
    assert {color.removeprefix("#") for color in COLORS.values()} <= cycle
    assert given["figure.facecolor"] == "none" and given["savefig.transparent"]
    assert given["svg.fonttype"] == "none" and given["svg.hashsalt"] == "gpuworkshop"


@pytest.mark.parametrize("kind", sorted(COLORS.keys() - {"slowed"}))
def test_words_inside_a_box_have_aa_contrast(kind: str) -> None:
    figure = step_strip([(kind, 0.03, kind)], HERE)
    (box,) = shapes(figure, "rect")
    (ink,) = {shape.get("fill") for shape in shapes(figure, "text")} - {None}
    assert contrast({"#000": "#000000", "#fff": "#ffffff"}[ink], box.attrib["fill"]) >= 4.5
