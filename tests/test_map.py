"""The two-axes map: where a job stands, in the course's words, and what it says when a number is not there."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from gpuworkshop.figures.map import TARGET, Track, quadrant, two_axes
from gpuworkshop.figures.svg import COLORS
from gpuworkshop.instruments.samples import Point
from gpuworkshop.report import Figure, Origin

HERE = Origin("measured here", "NVIDIA H200", "2026-12-01")
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("loaded, not running", "doing nothing", "good throughput, memory to spare", "the target zone")


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


def shapes(figure: Figure, tag: str) -> list[dict[str, str]]:
    return [shape.attrib | {"says": shape.text or ""} for shape in ElementTree.fromstring(figure.svg).iter(SVG + tag)]


def words(figure: Figure) -> list[str]:
    return [shape["says"] for shape in shapes(figure, "text")]


def frame(figure: Figure) -> Box:
    """The sides of the map."""
    (found,) = [one for one in shapes(figure, "rect") if one.get("fill") == "none"]
    return box(found)


def box(rect: dict[str, str]) -> Box:
    x, y, wide, high = (float(rect[name]) for name in ("x", "y", "width", "height"))
    return Box(x, y, x + wide, y + high)


def dots(figure: Figure) -> list[tuple[float, float]]:
    """Where the cards stand, as shares of the two axes."""
    sides = frame(figure)
    found = [one for one in shapes(figure, "circle") if one.get("r") == "7"]
    return [
        ((float(one["cx"]) - sides.left) / (sides.right - sides.left),
         (sides.bottom - float(one["cy"])) / (sides.bottom - sides.top))
        for one in found
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("busy", "memory", "name"),
    [
        (0.12, 0.91, "loaded, not running"),
        (0.03, 0.02, "doing nothing"),
        (0.84, 0.12, "good throughput, memory to spare"),
        (0.92, 0.80, "the target zone"),
        (0.60, 0.80, "near the target zone"),
        (0.95, 0.97, "near the target zone"),
        (None, 0.80, "n/a"),
        (0.80, float("nan"), "n/a"),
    ],
)
def test_a_job_stands_in_a_quadrant_of_the_course(busy: float | None, memory: float | None, name: str) -> None:
    assert quadrant(busy, memory) == name


def test_the_dot_stands_at_its_two_numbers_and_the_numbers_are_said() -> None:
    figure = two_axes([Track("cuda:0", 0.12, 0.91)], HERE)
    (dot,) = dots(figure)
    assert dot == pytest.approx((0.12, 0.91), abs=0.005)
    assert {"cuda:0", "utilization 12%, memory 91%", "loaded, not running"} <= set(words(figure))
    assert "loaded, not running" in figure.alt and "loaded, not running" in figure.text


def test_the_four_quadrants_have_their_names_on_every_map() -> None:
    for spot in ((0.1, 0.9), (0.1, 0.05), (0.9, 0.05), (0.9, 0.95), (0.5, 0.5)):
        assert set(NAMES) <= set(words(two_axes([Track("cuda:0", *spot)], HERE)))


@pytest.mark.parametrize("spot", [(0.1, 0.94), (0.1, 0.04), (0.9, 0.04), (0.9, 0.94), (0.12, 0.91)])
def test_no_quadrant_name_is_covered_by_the_dot(spot: tuple[float, float]) -> None:
    figure = two_axes([Track("cuda:0", *spot)], HERE)
    (dot,) = [one for one in shapes(figure, "circle") if one["r"] == "7"]
    for one in shapes(figure, "text"):
        if one["says"] in NAMES and float(one["x"]) < frame(figure).right:
            right = one.get("text-anchor") == "end"
            near = abs(float(one["x"]) - float(dot["cx"])) < 220 and right == (spot[0] > 0.5)
            assert not near or abs(float(one["y"]) - 4 - float(dot["cy"])) > 12


def test_the_target_zone_is_a_field_at_its_place() -> None:
    figure = two_axes([Track("cuda:0", 0.5, 0.5)], HERE)
    sides = frame(figure)
    (zone,) = [box(one) for one in shapes(figure, "rect") if one.get("fill") == COLORS["compute"]]
    across = [(x - sides.left) / (sides.right - sides.left) for x in (zone.left, zone.right)]
    up = [(sides.bottom - y) / (sides.bottom - sides.top) for y in (zone.bottom, zone.top)]
    assert across == pytest.approx(TARGET[0], abs=0.005) and up == pytest.approx(TARGET[1], abs=0.005)


def test_a_path_has_its_start_and_its_end_marked() -> None:
    path = [Point(n, n / 10, 0.2) for n in range(2, 8)]
    figure = two_axes([Track("cuda:0", 0.45, 0.2, path)], HERE)
    (way,) = shapes(figure, "path")
    numbers = [float(one) for one in re.findall(r"[\d.]+", way["d"])]
    (start, *_) = [one for one in shapes(figure, "circle") if "--gw-paper" in one.get("style", "")]
    (end, *_) = [box(one) for one in shapes(figure, "rect") if one.get("fill") == "currentColor"]
    assert numbers[:2] == pytest.approx([float(start["cx"]), float(start["cy"])], abs=0.6)
    assert numbers[-2] == pytest.approx((end.left + end.right) / 2, abs=0.6)
    assert {"mean of the watch", "start of the path", "end of the path"} <= set(words(figure))
    assert re.search(r"start +20% +20% +doing nothing", figure.text) and re.search(r"end +70%", figure.text)


def test_a_point_without_a_reading_is_no_point_of_the_path() -> None:
    path = [Point(1, None, 0.2), Point(2, 0.4, None), Point(3, 0.3, 0.2)]
    figure = two_axes([Track("cuda:0", 0.3, 0.2, path)], HERE)
    assert shapes(figure, "path") == [] and "start" not in figure.text


def test_cards_that_stand_together_are_one_dot_and_each_is_listed() -> None:
    tracks = [Track(f"cuda:{n}", 0.6 + n / 500, 0.4) for n in range(3)] + [Track("cuda:3", 0.1, 0.9)]
    figure = two_axes(tracks, HERE)
    assert len(dots(figure)) == 2 and "3 cards" in words(figure)
    for track in tracks:
        assert track.name in words(figure) and track.name in figure.alt and track.name in figure.text


def test_w01_a_slice_without_utilization_is_a_line_at_its_memory_and_never_zero() -> None:
    """Case W01: NVML refuses utilization on MIG; dashboards turn this into 0 %."""
    why = "MIG: the driver has no utilization for a slice"
    figure = two_axes([Track("cuda:0", None, 0.35, why=why), Track("cuda:1", 0.9, 0.75)], HERE)
    assert dots(figure) == [pytest.approx((0.9, 0.75), abs=0.005)], "the slice has no dot, at 0 least of all"
    (line,) = [one for one in shapes(figure, "line") if one.get("stroke-dasharray")]
    sides = frame(figure)
    assert (float(line["x1"]), float(line["x2"])) == (sides.left, sides.right)
    assert (sides.bottom - float(line["y1"])) / (sides.bottom - sides.top) == pytest.approx(0.35, abs=0.005)
    assert "cuda:0: utilization n/a, somewhere on this line" in words(figure)
    assert "utilization n/a, memory 35%" in words(figure) and why in figure.text and why in figure.alt


def test_without_memory_a_card_stands_on_an_upright_line() -> None:
    (line,) = [one for one in shapes(two_axes([Track("cuda:0", 0.5, None)], HERE), "line") if "stroke-dasharray" in one]
    assert line["x1"] == line["x2"]


def test_without_a_card_there_is_no_map_but_a_sentence() -> None:
    figure = two_axes([], HERE, "this machine has no card")
    assert words(figure) == ["There is no map of the two axes: this machine has no card.", str(HERE)]
    assert not [tag for tag in ("rect", "line", "circle", "path") if shapes(figure, tag)]
    assert figure.alt == words(figure)[0] and figure.text.startswith(figure.alt)
