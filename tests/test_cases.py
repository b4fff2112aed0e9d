"""Every public case has its test, and INDEX.md says which."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

PLACE = Path(__file__).parent / "cases" / "index.py"
_SPEC = importlib.util.spec_from_file_location("cases_index", PLACE)
index = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(index)

CASES, TESTS = index.cases(), list(index.tests())


def test_the_index_is_that_of_the_tests() -> None:
    assert index.INDEX.read_text(encoding="utf-8") == index.index(), "write it anew: python tests/cases/index.py"


def test_there_are_108_cases_and_each_belongs_to_an_area() -> None:
    assert len(CASES) == 108 and {identity[0] for identity in CASES} == set(index.AREAS)
    assert all(case.title and case.sources for case in CASES.values())


@pytest.mark.parametrize("identity", CASES)
def test_a_case_has_a_test_that_names_its_source(identity) -> None:
    found = index.of_case(identity, TESTS)
    assert found, f"no test carries {identity} in its name"
    said = " ".join(test.says for test in found)
    sources = [re.split(r"[/ ]", source)[-1] for source in CASES[identity].sources]
    assert any(source in said or source.partition("#")[2] and f"#{source.partition('#')[2]}" in said
               for source in sources), f"no docstring names one of {CASES[identity].sources}"  # fmt: skip


def test_no_test_carries_the_id_of_a_case_that_is_none() -> None:
    for test in TESTS:
        for identity in re.findall(r"(?<=_)([vwpdmrsjbl]\d\d)(?=_)", test.name):
            assert identity.upper() in CASES, test


def test_what_the_index_names_is_what_pytest_runs() -> None:
    """No second function of the same name hides one, and each stands in its module once pytest has imported that."""
    named = [(test.file, test.name) for test in TESTS]
    assert [one for one, count in Counter(named).items() if count > 1] == []
    for file, name in named:
        module = sys.modules.get(Path(file).stem)
        if module and getattr(module, "__file__", "") == str(index.TESTS / file):
            assert callable(getattr(module, name, None)), (file, name)
