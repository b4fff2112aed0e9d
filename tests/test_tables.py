"""Tables and pictures in README come from the recordings and agree with them."""

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_replay import climbed

from gpuworkshop.course import claims, replay
from gpuworkshop.figures.svg import COLORS

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"


def _maker(name: str):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "solutions" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables, pictures = _maker("tables"), _maker("pictures")


def test_readme_agrees_with_the_recordings() -> None:
    text = README.read_text()
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == set(tables.TABLES)
    assert tables.filled(text) == text, "run `make tables`"


def test_the_pictures_of_readme_agree_with_the_recordings() -> None:
    text = README.read_text()
    assert set(re.findall(r"<!-- picture: (\w+) -->", text)) == set(pictures.PICTURES)
    assert pictures.filled(text) == text, "run `make tables`"
    for name, draw in pictures.PICTURES.items():
        kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert kept == pictures.standing_alone(draw()), "run `make tables`"


def test_a_picture_holds_the_numbers_of_its_recording() -> None:
    loop, watch = replay.load("loop"), replay.load("watch")
    words = {name: " ".join(ElementTree.fromstring(pictures.standing_alone(draw())).itertext())
             for name, draw in pictures.PICTURES.items()}  # fmt: skip
    for record in loop.records:
        assert f"{record.rate.value:,.0f} images/s" in words["waterfall"]
    assert str(loop.origin) in words["waterfall"] and str(watch.origin) in words["live"]
    steady = [p.busy for p in watch.cards[0].path if pictures.MOMENT - 1 <= p.at <= pictures.MOMENT]
    assert f"busy {sum(steady) / len(steady):.0%}" in words["live"]
    assert f"{watch.cards[0].memory_used / 2**30:.1f} GiB" in words["live"]


@pytest.mark.parametrize("paper, ink", [pictures.PAPER, pictures.INK])
def test_a_picture_can_be_read_on_its_own_ground(paper, ink) -> None:
    """By WCAG, words against the ground that the picture brings, and the color of what computes."""
    style = pictures.STYLE
    assert f"color:{ink}" in style and f".ground{{fill:{paper}}}" in style
    assert _contrast(paper, ink) >= 7
    assert _contrast(paper, COLORS["compute"]) >= 3


def _contrast(one: str, other: str) -> float:
    """The ratio of WCAG of two colors."""
    bright = []
    for color in (one, other):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        bright.append(0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)
    return max(bright) / min(bright)


def test_the_verified_table_has_a_row_for_each_card_driver_and_pytorch() -> None:
    first = replay.load("loop").conditions
    rows = [row for row in tables.verified_table().splitlines() if first.machine in row]
    (row,) = (row for row in rows if first.torch in row and first.driver in row)
    last = max(replay.load(one.what).origin.date for one in replay.available())
    assert last in row and "loop" in row and "claims" in row
    assert "watch" not in row, "which does not know a PyTorch"


def test_the_verdicts_add_up() -> None:
    said = tables.TABLES["verdicts"]()
    total, *counts = map(int, re.findall(r"\d+", said.partition(". ")[0]))
    assert sum(counts) == total == len(claims.claims())
    assert said.count("\n| ") - 1 == int(re.search(r"not here\* (\d+)", said)[1])


def test_the_sweep_table_holds_every_rate_and_its_mark() -> None:
    result = replay.load("sweep")
    table = tables.sweep_table(result)
    for point in result.points:
        assert f"| {point.workers} | {point.rate.value:,.0f} |" in table
    assert table.endswith(f"{result.origin}.") and str(result.origin).startswith("recorded on")


def test_the_loop_table_holds_every_kept_change_and_names_the_refused() -> None:
    result = climbed()
    table = tables.loop_table(result)
    for record in result.kept:
        assert record.remedy in table and f"{record.rate.value:,.0f}" in table
    for record in result.refused:
        assert record.remedy in table.splitlines()[-1]
    assert f"{result.synthetic.value:,.0f}" in table and f"{result.final.ceiling.value:,.0f}" in table
    assert str(result.origin) in table


def test_a_changed_number_in_a_table_is_noticed() -> None:
    text = README.read_text()
    rate = f"{replay.load('sweep').points[-1].rate.value:,.0f}"
    assert rate in text and tables.filled(text.replace(rate, "12,345")) == text


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(KeyError):
        tables.filled("<!-- table: nothing-of-the-kind -->\n<!-- end -->")
