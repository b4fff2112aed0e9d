"""The idle policy as a learner reads it: from a site file only, and what nobody stated is unknown."""

from __future__ import annotations

import msgspec
import pytest

from gpuworkshop.cluster import site
from gpuworkshop.cluster.facts import Idle
from gpuworkshop.course import place, policy

PLAIN = site.load("generic")


def told(**facts: object) -> str:
    """The report for a site with these facts about idle jobs, as one line of text."""
    report = policy.idle(msgspec.structs.replace(PLAIN, name="Somewhere", idle=Idle(**facts)))
    return " ".join(str(report).split())


def test_what_the_site_says_stands_there_with_its_numbers_and_advice() -> None:
    text = told(cancels=True, says="Idle jobs end.", minutes=30, below_percent=5, advice=("Give it back.",))
    assert "! warning Somewhere: Idle jobs end. after 30 minutes below 5% utilization" in text
    assert "what Somewhere advises" in text and "Give it back." in text and "unknown" not in text


def test_a_site_that_cancels_nothing_is_no_warning() -> None:
    text = told(cancels=False)
    assert "✓ ok Somewhere: Idle jobs are not canceled." in text and "warning" not in text


def test_what_nobody_stated_is_unknown_and_says_whom_to_ask() -> None:
    nobody = "? unknown Idle jobs on Somewhere: nobody stated what happens to them ask the people who run the cluster"
    assert nobody in told()
    text = told(cancels=True, ask="After how many minutes?")
    assert "? unknown After how many minutes? ask the people who run the cluster" in text and "after" not in text


def test_where_nothing_is_known_there_is_an_example_with_its_source() -> None:
    example = site.load(place.HOME)
    assert f"An example, from {example.name}: {example.idle.says}" in told()
    assert f"claimed by {' '.join(example.source_of(example.idle).split())[:40]}" in told()


def test_the_site_of_the_course_has_its_own_words_and_source() -> None:
    here = site.load("aicr")
    report = policy.idle(here)
    assert here.idle.says in report.findings[0].title and report.origin.mark == "claimed by"
    assert [row[0] for row in report.tables[0].rows] == list(here.idle.advice)


def test_without_a_cluster_it_is_the_site_that_the_lessons_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(site.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    assert policy.idle() == policy.idle(place.site()) == policy.idle(site.load(place.HOME))


def test_the_kit_says_that_it_keeps_no_card_busy() -> None:
    assert "never keeps a card busy" in told(cancels=True)


def test_a_wrong_site_file_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(site.VARIABLE, "nowhere")
    (found,) = policy.idle().findings
    assert found.level == "unknown" and "nowhere" in found.title and "\n" not in found.title
