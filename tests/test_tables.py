"""Tables in README come from the recordings and agree with them."""

import importlib.util
from pathlib import Path

import pytest
from test_replay import climbed

from gpuworkshop.course import replay

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"

spec = importlib.util.spec_from_file_location("tables", REPOSITORY / "solutions" / "tables.py")
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


def test_readme_agrees_with_the_recordings() -> None:
    text = README.read_text()
    assert "<!-- table: sweep -->" in text
    assert tables.filled(text) == text, "run `make tables`"


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
