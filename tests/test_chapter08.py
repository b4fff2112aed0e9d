"""Chapter 8: a script through the loop, the answers and their two checks, what fits a card, and the pages."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import own_runs
import pytest
from mistakes import assert_mistake

from gpuworkshop.cluster import site
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.course import answers, domains, exercise, lesson, material, place, progress, quiz, serving, your_turn
from gpuworkshop.course.checks import chapter08
from gpuworkshop.own import changes, launch
from gpuworkshop.own.remedies import in_framework

CHAPTER = "08_your_turn"
AICR = site.load("aicr")
SUPPLIED = your_turn.SUPPLIED.read_text()
OLD, NEW = "batch_size=16, shuffle=True)", "batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)"


# The script of the course


def test_what_is_planted_in_the_script_is_named_so() -> None:
    lines = SUPPLIED.splitlines()
    (place,) = [number for number, line in enumerate(lines) if "# planted" in line]
    assert "DataLoader(" in lines[place + 1] and "num_workers" not in SUPPLIED and "sleep" not in SUPPLIED
    assert "no workers" in lines[place] and "no workers" in your_turn.PLANTED
    assert "planted" in ast.get_docstring(ast.parse(SUPPLIED))


def test_the_notebook_s_change_is_in_the_script_once() -> None:
    assert SUPPLIED.count(OLD) == 1
    source = (Path(__file__).parents[1] / "notebooks" / f"{CHAPTER}.ipynb").read_text()
    assert OLD in source and NEW in source


def test_the_job_script_of_the_course_has_no_fault() -> None:
    checked = check.check(your_turn.JOB.read_bytes(), AICR, "job.sbatch")
    assert [one.title for one in check.findings(checked) if one.level == "fail"] == []


class Runs:
    """Stands for launch.run: the changed script is three times as fast."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.fails = False
        monkeypatch.setattr(launch, "run", self.run)
        monkeypatch.setattr("gpuworkshop.machine.gpus.there_is_one", lambda: False)

    def run(self, command: tuple[str, ...], **how: Any) -> Any:
        text = Path(command[1]).read_text()
        many = int("num_workers=2" in text)
        if self.fails:
            return own_runs.result(None, None, ended="error", exit_code=1, own_words="NameError: oops", command=command)
        seen = own_runs.with_loader(workers=2 * many, persistent_workers=bool(many), batch_size=16)
        return own_runs.result(100.0 + 200 * many, seen, command=command, script=command[1])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def test_a_script_goes_through_the_loop(runs: Runs) -> None:
    mine = your_turn.begin()
    assert "loader = DataLoader" in mine.listing("def main", "total += loss").code
    assert "Planted: the loader" in " ".join(str(mine.measure()).split())
    assert "num_workers=2" in mine.change(OLD, NEW).code
    told = " ".join(str(mine.again()).split())
    assert "loader workers: faster: 3.00x" in told and mine.gain.value == pytest.approx(3.0)
    assert mine.what_changed().title == "What changed: one change" and "num_workers=2" in mine.what_changed().code
    assert "workers 2" in mine.prompt().fold.code and "Measure first" in mine.prompt().fold.code
    assert "What this chapter cost" in str(lesson.begin().cost(mine))


def test_what_goes_wrong_is_a_note_and_the_chapter_goes_on(runs: Runs) -> None:
    mine = your_turn.begin()
    assert mine.gain is None and mine.waits is None and "Run the cell" in str(mine.what_changed())
    assert "no run was kept yet" in str(mine.again()) and "no run was kept yet" in str(mine.prompt())
    mine.measure()
    assert "nothing changed" in str(mine.again())
    assert "0 times" in str(mine.change("no such words", "nor these"))
    mine.change(OLD, NEW)
    assert "changed already" in str(mine.change(OLD, NEW))
    runs.fails = True
    assert "NameError: oops" in str(mine.again())
    assert "no such file" in str(mine.prompt("none.sbatch"))


def test_a_script_of_one_s_own_is_never_written(runs: Runs, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"x = dict({OLD}\n")
    mine = your_turn.begin("python", str(file))
    mine.measure()
    assert "file of your own" in str(mine.change(OLD, NEW)) and file.read_text() == f"x = dict({OLD}\n"
    assert "Planted" not in str(mine.measure())


def test_a_command_without_a_script_is_said(runs: Runs) -> None:
    assert "names no Python file" in str(your_turn.begin("make", "train").listing())


# The three answers


@pytest.mark.parametrize("name", answers.answers())
def test_an_answer_changes_one_place_of_the_script(name: str) -> None:
    one = answers.answers()[name]
    assert SUPPLIED.count(one.old) == 1 and one.diff.count("@@ ") == 1
    compile(one.changed, "train.py", "exec")
    assert one.title in str(answers.show(name))


def test_lines_and_settings_do_not_tell_which_answer_makes_one_change() -> None:
    """The trap of the exercise: one line can be two changes, and many lines or settings one."""
    made = answers.answers()
    added = {name: sum(line.startswith("+ ") for line in one.diff.splitlines()) for name, one in made.items()}
    assert added["first"] == 1 and not made["first"].attribution.one
    assert added["second"] > 3 and len(made["second"].settings) > 3 and made["second"].attribution.one
    assert added["third"] > 3 and made["third"].attribution.one
    assert {chapter08.truth(name) for name in made} == {"several changes", "does not ask", "passes"}


def test_the_recorded_settings_of_an_answer_are_those_of_its_script(tmp_path: Path) -> None:
    """A real run: what the comparison judges is what the changed script was seen to do."""
    one = answers.answers()["second"]
    (tmp_path / "train.py").write_text(one.changed)
    command = (sys.executable, "train.py", "--epochs", "100")
    seen = launch.run(command, budget_seconds=60, only=("baseline",), cwd=tmp_path)
    assert seen.rate is not None, seen.own_words
    settings = changes.in_words(seen.settings)
    assert {name: settings[name] for name in one.settings} == {name: after for name, (_, after) in one.settings.items()}
    assert settings["batch_size"] == "16" and settings["precision"] == "fp32"


# The checks


RIGHT = {
    "checks": {"first": "several changes", "second": "does not ask", "third": "passes"},
    "cache": lambda layers, kv_heads, head_dim, tokens, sequences, size: (
        2 * layers * kv_heads * head_dim * tokens * sequences * size
    ),
}
CHECKS_WRONG = {
    "no-dict": ("several changes", "does not ask", "passes"),
    "answer-missing": {"first": "several changes"},
    "unknown-word": RIGHT["checks"] | {"third": "good"},
    "counted-lines": RIGHT["checks"] | {"first": "passes"},
    "counted-lines-too": RIGHT["checks"] | {"third": "several changes"},
    "counted-settings": RIGHT["checks"] | {"second": "fails both"},
    "did-not-ask": RIGHT["checks"] | {"second": "passes"},
    "it-asks": RIGHT["checks"] | {"third": "does not ask"},
}
CACHE_WRONG = {
    "no-function": 12,
    "raises": lambda layers: layers,
    "no-number": lambda *shape: str(shape[0]),
    "keys-only": lambda n, h, d, t, s, b: n * h * d * t * s * b,
    "no-tokens": lambda n, h, d, t, s, b: 2 * n * h * d * s * b,
    "one-sequence": lambda n, h, d, t, s, b: 2 * n * h * d * t * b,
    "no-layers": lambda n, h, d, t, s, b: 2 * h * d * t * s * b,
    "one-head": lambda n, h, d, t, s, b: 2 * n * d * t * s * b,
    "no-head-dim": lambda n, h, d, t, s, b: 2 * n * h * t * s * b,
    "numbers-not-bytes": lambda n, h, d, t, s, b: 2 * n * h * d * t * s,
    "in-gib": lambda n, h, d, t, s, b: 2 * n * h * d * t * s * b / 2**30,
    "in-bits": lambda n, h, d, t, s, b: 16 * n * h * d * t * s * b,
    "other-size": lambda n, h, d, t, s, b: 3 * n * h * d * t * s * b,
}
TESTED = {"checks": CHECKS_WRONG, "cache": CACHE_WRONG}
UNREACHED = {"checks": {"other"}, "cache": set()}
"""Mistakes for what nobody typically answers."""


@pytest.mark.parametrize("id", RIGHT)
def test_the_right_answers_are_done(id: str) -> None:
    assert exercise.open(CHAPTER, id).check(RIGHT[id]).done


@pytest.mark.parametrize(("id", "mistake"), [(id, mistake) for id, wrong in TESTED.items() for mistake in wrong])
def test_a_wrong_answer_gets_its_own_hint(id: str, mistake: str) -> None:
    assert_mistake(CHAPTER, id, mistake, TESTED[id][mistake])


@pytest.mark.parametrize("id", TESTED)
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str) -> None:
    assert {*TESTED[id], *UNREACHED[id], "unforeseen"} == set(material.exercises(CHAPTER)[id].mistakes)


def test_every_word_for_an_answer_is_judged_with_a_hint() -> None:
    for name, word in [(name, word) for name in RIGHT["checks"] for word in chapter08.WORDS.values()]:
        result = exercise.open(CHAPTER, "checks").check(RIGHT["checks"] | {name: word})
        assert result.done is (word == RIGHT["checks"][name])
        assert result.mistake in {"", *material.exercises(CHAPTER)["checks"].mistakes} and "{" not in result.says


def test_a_stub_is_no_try() -> None:
    def kv_cache(layers, kv_heads, head_dim, tokens, sequences, bytes_each):
        """Bytes of the keys and values of all kept tokens."""
        ...

    for id, stub in (("checks", dict.fromkeys(RIGHT["checks"], ...)), ("cache", kv_cache)):
        assert not exercise.open(CHAPTER, id).check(stub).attempted
        assert progress.tally(CHAPTER, "exercise", id) == progress.Tally()


# What fits


def test_the_cache_is_that_of_a_sum_by_hand() -> None:
    """80 blocks, 8 heads of 128, two bytes: 2 x 80 x 8 x 128 x 2 = 327,680 bytes a token, 1.25 GiB for 4096 tokens."""
    assert serving.kv_cache(serving.MADE_UP, 1) == 327_680
    assert serving.kv_cache(serving.MADE_UP, 4096) == 1.25 * 2**30
    assert serving.weights(serving.MADE_UP, 2) == 140e9


def test_both_cards_of_the_site_are_sized_from_their_table() -> None:
    found = {(one.card, one.format): one for one in serving.fits(AICR)}
    assert set(found) == {(card, kind) for card in ("B200", "RTX PRO 6000") for kind in ("BF16", "FP8")}
    large, small = found["B200", "BF16"], found["RTX PRO 6000", "BF16"]
    assert large.usable == pytest.approx(0.9 * 175) and small.usable == pytest.approx(0.9 * 94)
    assert large.sequences == int((0.9 * 175 - 140e9 / 2**30) / 1.25) > 0
    assert small.room < 0 and small.sequences == 0 and found["RTX PRO 6000", "FP8"].sequences > 0
    told = str(serving.page(AICR))
    assert "does not fit" in told and "Calculated, not measured" in " ".join(told.split()) and "made-up model" in told


def test_a_card_that_is_in_no_table_counts_as_advertised() -> None:
    family = msgspec.structs.replace(AICR.families[0], card="a card of a test", memory_gb=80)
    other = msgspec.structs.replace(AICR, families=(family,), partitions=(), request=site.load("generic").request)
    assert serving.card_gib(other) == {"a card of a test": pytest.approx(80e9 / 2**30)}


def test_the_question_s_answer_is_calculated() -> None:
    data = material.questions(CHAPTER)["weights"]
    assert quiz.COMPUTED[data.computed](**data.given) == 28.0


# The pages


def arguments() -> set[str]:
    """Names of the arguments of the installed transformers, else of the recorded version."""
    if importlib.util.find_spec("transformers"):
        from transformers import TrainingArguments

        return set(TrainingArguments.__dataclass_fields__)
    return set(tomllib.loads(Path(__file__).with_name("transformers_arguments.toml").read_text())["names"])


def test_the_arguments_of_hugging_face_are_the_library_s_own() -> None:
    page, names = domains.known()["hugging-face"], arguments()
    assert set(page.arguments) <= names and len(page.arguments) == 5
    shown = " ".join(cell for row in page.rows for cell in row)
    assert all(name in shown for name in page.arguments)


@pytest.mark.parametrize("remedy", ["workers", "pin", "batch", "micro-batch", "bf16", "tf32", "compile"])
def test_what_a_verdict_writes_for_a_trainer_is_the_library_s_own(remedy: str) -> None:
    call, settings = in_framework("Trainer", remedy)
    assert call == "TrainingArguments" and {one.partition("=")[0] for one in settings.values()} <= arguments()


@pytest.mark.parametrize("name", domains.known())
def test_a_page_names_its_source(name: str) -> None:
    shown = str(domains.page(name, AICR))
    assert "claimed by the AICR Training Workshop 2" in shown and "{" not in shown and "`" not in shown


def test_a_page_has_the_site_s_own_numbers_and_says_what_is_ours() -> None:
    conventions = msgspec.structs.replace(AICR.conventions, cpus_per_card=16)
    told = " ".join(str(domains.page("hugging-face", msgspec.structs.replace(AICR, conventions=conventions))).split())
    assert "dataloader_num_workers=15" in told and "ours: CPUs - 1, which is 15 of 16" in told
    with pytest.raises(KeyError, match="hugging-face"):
        domains.page("none")


def test_no_page_names_a_card_of_the_site() -> None:
    """What is a fact of a site comes from its file."""
    words = (Path(domains.__file__).with_suffix(".toml")).read_text()
    assert not [family.card for family in AICR.families if family.card in words]
    assert place.site() is not None
