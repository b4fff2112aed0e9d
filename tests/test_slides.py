"""The slides' sources: every number has its source, every problem its line; the instructor's tables are true."""

from __future__ import annotations

import io
import itertools
import json
import re
import tomllib
from pathlib import Path

import pytest
import slides_room
from rich.console import Console
from slides_room import SLIDES

from gpuworkshop.cli import app
from gpuworkshop.course import material, replay
from gpuworkshop.timing import Comparison, Rate

maker = slides_room.load("make")
instructor = slides_room.load("instructor")

from deck import blocks, page, resolve, source, values  # noqa: E402
from deck.piece import Wrong  # noqa: E402

CHAPTERS = resolve.chapters(SLIDES)
PLAIN = source.plain_numbers(SLIDES / "plain.toml")


@pytest.fixture(scope="module")
def sources() -> dict[str, source.Source]:
    """Every source of the deck, and the card, read."""
    return {one.file: one for one in maker.sources([*CHAPTERS, SLIDES / "card.md"], PLAIN)}


def read(tmp_path: Path, text: str, plain: dict[str, str] | None = None) -> source.Source:
    """A source with this text on its second line."""
    file = tmp_path / "09_made_up.md"
    file.write_text(f"## Title\n{text}\n")
    return source.read(file, resolve.resolve, plain or {})


def test_every_placeholder_and_every_number_of_the_slides_has_its_source(sources: dict[str, source.Source]) -> None:
    assert len(CHAPTERS) == 10 and "card.md" in sources
    assert sum(len(one.pieces) for one in sources.values()) > 100
    for one in sources.values():
        assert set(source.MARK.findall(one.markdown)) == set(one.pieces)


def test_a_number_of_a_recording_comes_with_its_mark(sources: dict[str, source.Source]) -> None:
    piece = resolve.resolve("number", "sweep-h200 points[workers=4].rate.value | whole")
    result = replay.load("sweep", "h200")
    assert (
        f"{result.points[3].rate.value:,.0f}" in piece.html and 'data-from="recordings/sweep-h200.json"' in piece.html
    )
    assert piece.origins == (result.origin,) and str(result.origin).startswith("recorded on")
    for one in sources.values():
        for made in one.pieces.values():
            assert made.origins or "recordings/" not in made.comes_from or made.shows_origin


@pytest.mark.parametrize(
    ("placeholder", "says"),
    [
        ("{{ nmber: sweep-h200 ceiling }}", "no placeholder is called 'nmber'"),
        ("{{ number }}", "a placeholder is {{ kind: what }}"),
        ("{{ number: sweep-b200 ceiling }}", "no recording is called 'sweep-b200'"),
        ("{{ number: nothing ceiling }}", "no recording is called 'nothing'"),
        ("{{ number: sweep-h200 celing }}", "no 'celing' here, but"),
        ("{{ number: sweep-h200 __class__ }}", "no '__class__' in a SweepResult"),
        ("{{ number: sweep-h200 points[workers=3].rate }}", "fits 0: there are 0, 1, 2, 4, 7, 8"),
        ("{{ number: sweep-h200 points[9].rate }}", "there are 6"),
        ("{{ number: sweep-h200 points }}", "not one value"),
        ("{{ number: sweep-h200 ceiling | furlongs }}", "no form is called 'furlongs'"),
        ("{{ number: sweep-h200 workload | percent }}", "which has no form 'percent'"),
        ("{{ site: mascot }}", "no 'mascot' here"),
        ("{{ claim: no-such claimed }}", "no claim is called 'no-such'"),
        ("{{ claim: verify-5s said }}", "a claim has words, claimed, measured, verdict"),
        ("{{ claims: 4 verify-5s }}", "chapter 4 has the claims"),
        ("{{ question: 04_starve no-such }}", "has no question 'no-such'"),
        ("{{ question: 99_no no-such }}", "99_no"),
        ("{{ figure: starve-h200 7 }}", "has 1 figures"),
        ("{{ figure: at nowhere }}", "no chapter is called 'nowhere'"),
        ("{{ table: no-such }}", "no table is called 'no-such'"),
        ("{{ exercise: 04_starve no-such }}", "has no exercise 'no-such'"),
        ("It takes 42 ms.", "42 is written by hand"),
        ("About 3.5x", "3.5 is written by hand"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_file_and_line(tmp_path: Path, placeholder: str, says: str) -> None:
    with pytest.raises(Wrong) as wrong:
        read(tmp_path, placeholder)
    assert str(wrong.value).startswith(f"{tmp_path.name}/09_made_up.md:2: ") and says in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "01_a.md").write_text("42\n{{ nothing }}\n")
    (tmp_path / "02_b.md").write_text("43\n")
    with pytest.raises(Wrong) as wrong:
        maker.sources(resolve.chapters(tmp_path), {})
    assert [line.split(": ")[0].rpartition("/")[2] for line in str(wrong.value).splitlines()] == [
        "01_a.md:1",
        "01_a.md:2",
        "02_b.md:1",
    ]


@pytest.mark.parametrize(
    "problem", [Wrong("slides/01_a.md:3: 42 is written by hand"), FileNotFoundError("no Chromium")]
)
def test_the_command_says_what_is_wrong_and_ends_with_2(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(maker, "make", fails)
    assert maker.main([]) == 2 and capsys.readouterr().err == f"{problem}\n"


def test_a_missing_reveal_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "REVEAL", tmp_path / "not-there")
    with pytest.raises(Wrong, match="npm ci --prefix slides"):
        page.deck((), "deck")


def test_names_and_list_marks_are_no_numbers_and_a_reason_lets_one_pass(tmp_path: Path) -> None:
    assert read(tmp_path, "1. BF16 on an H200, FP8 E4M3, cuda.0").pieces == {}
    assert read(tmp_path, "fifty is 50", {"50": "the diagnostic"}).pieces == {}
    assert source.numbers("from 1,234.5 to 01:00:00, 80%") == ["1,234.5", "01:00:00", "80"]


def test_every_plain_number_is_used_where_it_is_listed() -> None:
    for name, listed in PLAIN.items():
        text = source.PLACEHOLDER.sub("", (SLIDES / f"{name}.md").read_text())
        there = {number for line in text.splitlines() for number in source.numbers(line)}
        assert listed.keys() <= there, f"{name}: {listed.keys() - there} is not used any more"
        assert all(listed.values())


def test_paths_and_forms() -> None:
    rate = Rate(10.0, 9.0, 11.0, 3, "images/s")
    there = {"rate": rate, "list": ({"id": "a", "n": 1}, {"id": "b", "n": 2_000}), "none": None}
    assert values.written(there, "rate") == "10.0 images/s (9.00 to 11.0)"
    assert values.written(there, "rate.value | x") == "10.0x"
    assert values.written(there, "list[id=b].n") == "2,000" and values.written(there, "list[-1].n | whole") == "2,000"
    assert values.written(there, "none") == "n/a" and values.written(there, "none | percent") == "n/a"
    assert values.written({"t": "04:00:00"}, "t | hours") == "4 h"
    assert values.written({"r": 1.69}, "r | more") == "69%"
    assert values.written({"t": "00:30:00"}, "t | hours") == "0 h 30 min"
    ratio = Comparison(2.0, 1.5, 2.5, 8, 0.03, "faster")
    assert values.written({"r": ratio}, "r") == "2.00x (1.50 to 2.50)"


def test_a_question_shows_its_options_and_its_answer_explains_each(sources: dict[str, source.Source]) -> None:
    asked = resolve._asked("04_starve what-can-help")
    shown, told = blocks.question(asked, "04_starve").html, blocks.answer(asked, "04_starve").html
    for option in asked.data.options:
        assert blocks.ticks(option.text) in shown and blocks.ticks(option.says) in told
        assert blocks.ticks(option.says) not in shown
    number = resolve._asked("04_starve wasted-share")
    assert "<b>80.0 %</b>" in blocks.answer(number, "04_starve").html
    assert "80" not in re.sub("<[^>]*>", "", blocks.question(number, "04_starve").html)


def test_words_from_outside_are_escaped() -> None:
    assert blocks.ticks("a `<b>` & <script>") == "a <code>&lt;b&gt;</code> &amp; &lt;script&gt;"


def test_every_slide_has_notes_and_every_question_its_answer() -> None:
    for file in CHAPTERS:
        slides = re.split(r"(?m)^## ", file.read_text())[1:]
        for slide in slides:
            title = slide.splitlines()[0]
            assert slide.count("::: notes") == 1, f"{file.name}: {title} has no notes"
            told = set(re.findall(r"\{\{ answer: (.*?) \}\}", slide))
            assert set(re.findall(r"\{\{ question: (.*?) \}\}", slide)) == told, f"{file.name}: {title}"


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    texts = [file.read_text() for file in (*CHAPTERS, SLIDES / "card.md", instructor.FILE)]
    shown = set(re.findall(r"gpuworkshop ([a-z].*?)(?=`|$| \| | &&| +#)", "\n".join(texts), re.MULTILINE))
    assert len(shown) > 20
    for line in shown:
        words = line.split(" -- ")[0].split()
        verbs = list(itertools.takewhile(str.isalpha, words))[: 2 if words[0] in ("job", "site") else 1]
        told = io.StringIO()
        app.help_print(verbs, console=Console(file=told, width=200))
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", told.getvalue()), f"gpuworkshop {line}: no {option}"


def test_every_chapter_has_a_question_to_the_room_and_names_its_exercises() -> None:
    assert len(instructor.chapters()) == 8
    for name in instructor.chapters():
        text = (SLIDES / f"{name}.md").read_text()
        assert f"{{{{ question: {name} " in text and material.exercises(name)
        for exercise in material.exercises(name):
            assert f"{{{{ exercise: {name} {exercise} }}}}" in text


def test_every_figure_says_in_words_what_it_shows(sources: dict[str, source.Source]) -> None:
    figures = [piece.html for one in sources.values() for piece in one.pieces.values() if "<svg" in piece.html]
    assert len(figures) > 20
    assert all(len(re.search(r'<svg[^>]*role="img"[^>]*aria-label="([^"]*)"', html)[1]) > 30 for html in figures)


def test_scaling_is_shown_as_soon_as_it_is_recorded() -> None:
    text = (SLIDES / "06_ddp.md").read_text()
    assert ("not been recorded yet" in text) == (replay.load("scale") is None)


def test_reveal_and_pandoc_are_pinned() -> None:
    wanted = json.loads((SLIDES / "package.json").read_text())["dependencies"]["reveal.js"]
    locked = json.loads((SLIDES / "package-lock.json").read_text())["packages"]["node_modules/reveal.js"]
    assert wanted == locked["version"] and re.fullmatch(r"5\.\d+\.\d+", wanted) and locked["integrity"]
    project = tomllib.loads((SLIDES.parent / "pyproject.toml").read_text())["project"]
    (pandoc,) = (line for line in project["optional-dependencies"]["slides"] if line.startswith("pypandoc_binary"))
    assert re.fullmatch(r"pypandoc_binary == [\d.]+", pandoc)


def test_the_instructors_tables_are_what_the_notebooks_and_plans_say() -> None:
    text = instructor.FILE.read_text()
    assert all(f"<!-- table: {name} -->" in text for name in instructor.TABLES)
    assert instructor.filled(text) == text, "run `make tables`"


def test_every_run_of_show_fits_its_minutes_and_names_what_there_is() -> None:
    for plan in instructor.plans().plan:
        used = sum(block.length for block in plan.blocks)
        assert 0.75 * plan.minutes <= used <= plan.minutes, f"{plan.name}: {used}"
        for block in plan.blocks:
            assert bool(block.what) != bool(block.chapter)
            if block.chapter:
                assert set(block.done) <= set(material.exercises(block.chapter)) and not block.minutes
                assert 0 < block.hands_on <= instructor.chapters()[block.chapter].minutes


def test_an_exercise_that_is_left_out_gives_its_minutes_back() -> None:
    whole, part = instructor.Block(chapter="04_starve"), instructor.Block(chapter="04_starve", exercises=("knobs",))
    left_out = [one.minutes for id, one in material.exercises("04_starve").items() if id != "knobs"]
    assert whole.hands_on - part.hands_on == sum(left_out) > 0
