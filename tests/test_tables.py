"""Tables in README come from the recordings and agree with them."""

from pathlib import Path

import pytest

from gpuworkshop.course import replay, tables

README = Path(__file__).parents[1] / "README.md"


def test_readme_agrees_with_the_recordings():
    text = README.read_text()
    assert "<!-- table: loop -->" in text
    assert tables.filled(text) == text, "run `make tables`"


def test_table_holds_every_kept_change_and_the_mark_of_origin():
    result = replay.load("loop")
    table = tables.loop_table(result)
    for record in result.kept:
        assert record.remedy in table and f"{record.rate.value:,.0f}" in table
    assert f"{result.synthetic.value:,.0f}" in table and str(result.origin) in table
    assert str(result.origin).startswith("recorded on")


def test_unknown_table_is_an_error():
    with pytest.raises(KeyError):
        tables.filled("<!-- table: nothing-of-the-kind -->\n<!-- end -->")
