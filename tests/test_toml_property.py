"""Whatever stands in a site file: it is refused in one line that names the file, or every fact is one that it holds."""

from __future__ import annotations

import tomllib

from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop.cluster import site, site_show
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.cluster.site import Site, SiteError

TEXT = (site.SHIPPED / "aicr.toml").read_text()
LINES = TEXT.splitlines()
KEYS = [number for number, line in enumerate(LINES) if " = " in line and not line.startswith(" ")]
values = st.sampled_from(
    [
        "0",
        "-1",
        "1e400",
        "nan",
        "9" * 40,
        '""',
        '"\\u0000"',
        '"<script>alert(1)</script>"',
        '"\\u001b[2J"',
        "true",
        "[]",
        "[[]]",
        "{}",
        "1979-05-27",
        '"00:00:00"',
        '"infinite"',
        '"../../etc/passwd"',
        "'''\n'''",
        "[1,",
        '"' + "x" * 5000 + '"',
    ]
) | st.text(max_size=8)
SCRIPT = b"#!/bin/bash -l\n#SBATCH --partition=b200-devel\n#SBATCH --gres=gpu:b200:1\n#SBATCH --time=1\npython t.py\n"


def answered(text: str) -> Site | None:
    """The site of a text; None where it is refused. What is made of a site can be shown."""
    try:
        found = site.parse(text, "mine.toml")
    except SiteError as error:
        said = str(error)
        assert said.startswith("mine.toml: ") and "\n" not in said and "\x1b" not in said and len(said) < 2000
        return None
    report = site_show.report(found)
    assert "\x1b" not in str(report) and "<script>" not in report._repr_mimebundle_()["text/html"]
    check.check(SCRIPT, found)
    return found


@fuzz()
@given(st.sampled_from(KEYS), values, st.integers(0, 2))
def test_another_value_is_taken_as_it_stands_or_refused(number, value, copies) -> None:
    """No number of the site is one that the file does not hold."""
    line = f"{LINES[number].partition(' = ')[0]} = {value}"
    text = "\n".join([*LINES[:number], *[line] * copies, *LINES[number + 1 :]])
    found = answered(text)
    if found is None:
        return
    held = set(_numbers(tomllib.loads(text)))
    for one in (*found.families, *found.partitions, found.conventions, found.idle, found.habit, found.jobstats):
        defaults = {field: getattr(type(one), field, None) for field in one.__struct_fields__}
        for name in one.__struct_fields__:
            value = getattr(one, name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert value in held or value == _default(one, name), (name, value, defaults)


def _numbers(data: object) -> list[float]:
    if isinstance(data, dict):
        return [number for part in data.values() for number in _numbers(part)]
    if isinstance(data, list):
        return [number for part in data for number in _numbers(part)]
    return [data] if isinstance(data, int | float) else []


def _default(fact: object, name: str) -> object:
    names = type(fact).__struct_fields__
    given = type(fact).__struct_defaults__
    return dict(zip(names[len(names) - len(given) :], given, strict=True)).get(name)


@fuzz()
@given(st.integers(0, len(TEXT)), st.text(max_size=6), st.integers(0, 40))
def test_spoiled_text_is_refused_or_read(place, letters, gone) -> None:
    answered(TEXT[:place] + letters + TEXT[place + gone :])


@fuzz()
@given(st.lists(st.sampled_from(LINES), max_size=30) | st.permutations(LINES[:40]))
def test_lines_in_any_order_are_refused_or_read(lines) -> None:
    answered("\n".join(lines))
