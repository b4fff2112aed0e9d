"""Chapter 1: its exercises and their hints, what it says of the site, where the learner is, and CUDA asked itself."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuworkshop import cli
from gpuworkshop.cluster import site as sites
from gpuworkshop.cluster.site import Site
from gpuworkshop.course import ask_cuda, exercise, madeup, material, place, progress, quiz, script, where
from gpuworkshop.course.checks import chapter01
from gpuworkshop.machine import gpus
from gpuworkshop.machine.gpus import Card, Cards
from gpuworkshop.machine.visible import VARIABLE, visible

CHAPTER = "01_verify"
SITES = sites.shipped()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    """The site whose facts the exercises show, whatever machine runs the tests."""
    monkeypatch.setenv(sites.VARIABLE, place.HOME)


# What CUDA sees

RIGHT = {"unset": "ABCD", "": "", "-1": "", "2,0": "CA", "0,7,1": "A", "1,1": "", "NoDevFiles": ""}


def sees(**changes: Any) -> dict[str, Any]:
    """The right table with some answers changed; `minus` and `none` stand for keys that are no names."""
    keys = {"minus": "-1", "none": "", "swap": "2,0", "gap": "0,7,1", "twice": "1,1"}
    return {**RIGHT, **{keys.get(name, name): answer for name, answer in changes.items()}}


VISIBLE_WRONG = {
    "no-table": "ABCD",
    "unfinished": sees(twice=...),
    "no-letters": sees(unset=4),
    "unset-hides": sees(unset=""),
    "empty-is-unset": sees(none="ABCD"),
    "minus-is-last": sees(minus="D"),
    "minus-is-all": sees(minus="ABCD"),
    "order": sees(swap="AC"),
    "from-one": sees(swap="B"),
    "goes-on": sees(gap="AB"),
    "all-or-nothing": sees(gap=""),
    "twice": sees(twice="B"),
    "word": sees(NoDevFiles="ABCD"),
    "other": sees(gap="ABC"),
}


def check(id: str, *answer: Any) -> exercise.CheckResult:
    return exercise.open(CHAPTER, id).check(*answer)


def assert_mistake(id: str, mistake: str, answer: Any) -> None:
    result = check(id, answer)
    assert (result.done, result.attempted, result.mistake) == (False, True, mistake)
    words = material.exercises(CHAPTER)[id].mistakes[mistake]
    assert result.hint == words.hint != "" and result.says
    assert not re.search(r"[{}]", result.says), "a brace was not filled"


def test_the_right_table_is_done() -> None:
    assert chapter01.VALUES == tuple(RIGHT)
    assert check("visible", RIGHT).done


@pytest.mark.parametrize("same", [["c", "a"], "c, a", ("C", "A")])
def test_letters_may_be_written_in_any_way(same: Any) -> None:
    assert check("visible", sees(swap=same)).done


@pytest.mark.parametrize("mistake", VISIBLE_WRONG)
def test_a_wrong_table_gets_its_own_hint(mistake: str) -> None:
    assert_mistake("visible", mistake, VISIBLE_WRONG[mistake])


def test_every_typical_slip_is_wrong_and_named() -> None:
    for value, slips in chapter01.TYPICAL.items():
        for given, mistake in slips.items():
            assert given != RIGHT[value]
            assert check("visible", {**RIGHT, value: given}).mistake == mistake


def test_no_hint_of_a_wrong_answer_tells_the_cards() -> None:
    """A hint leads on. For the swapped list, "CA" would be the answer."""
    for mistake in ("order", "from-one", "other"):
        words = material.exercises(CHAPTER)["visible"].mistakes[mistake]
        assert "CA" not in words.hint + words.says and "C and A" not in words.hint


def test_an_empty_table_is_no_try_and_a_half_filled_one_says_what_is_left() -> None:
    assert not check("visible", dict.fromkeys(RIGHT, ...)).attempted
    assert progress.tally(CHAPTER, "exercise", "visible").tries == 0
    half = check("visible", sees(none=..., twice=...))
    assert "2 of 7" in half.says and 'the first is ""' in half.says


@pytest.mark.parametrize(
    ("value", "letters"),
    [("3,1", "DB"), ("4", ""), ("0,4,1", "A"), ("GPU-C,GPU-A", "CA"), ("0,x,1", "A"), ("2,-1,0", "C")],
)
def test_the_made_up_machine_is_read_as_a_real_one(value: str, letters: str) -> None:
    """CUDA's guide: if one of the indices is invalid, only the devices whose index precedes it are visible."""
    assert madeup.letters({VARIABLE: value}) == letters


def test_what_stands_behind_a_number_without_a_card_is_nobody_s() -> None:
    seen = gpus.cards({VARIABLE: "0,7,1"}, nvml=madeup.MadeUp())
    assert [card.uuid for card in seen.mine] == ["GPU-A"] and seen.unknown == ("7", "1")


# The job script

FAULTY = [5, 12, 17]
WORDS = ["--cpus-per-task", "mkdir", "CUDA_VISIBLE_DEVICES"]
SCRIPT_WRONG = {
    "no-list": "mkdir",
    "no-line": ["--cpus-per-task", "mkdir", "sbatch"],
    "several-lines": ["logs"],
    "memory": ["--mem"],
    "time": ["--time"],
    "gres": ["--gres"],
    "sound": ["#!/bin/bash"],
    "line-twice": ["--cpus-per-task", "cpus-per-task=4", "mkdir"],
    "same-fault": ["--cpus-per-task", "--workers", "mkdir"],
    "missing-cpus": ["mkdir", "CUDA_VISIBLE_DEVICES"],
    "missing-logs": ["--workers", "CUDA_VISIBLE_DEVICES"],
    "missing-hidden": ["mkdir", "--workers"],
}


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Each site that ships, chosen as the learner's own."""
    monkeypatch.setenv(sites.VARIABLE, request.param)
    return sites.load(request.param)


@pytest.mark.parametrize("both", [WORDS, ["--workers", "--output", "CUDA_VISIBLE_DEVICES"], tuple(WORDS), set(WORDS)])
def test_either_side_of_each_fault_is_right_at_every_site(site: Site, both: Any) -> None:
    assert check("faulty", both).done


def test_lines_may_be_given_by_number(site: Site) -> None:
    shown = script.faulty(site)
    numbers = [shown.places(words)[0] for words in WORDS]
    assert check("faulty", numbers).done and check("faulty", [numbers[0], *WORDS[1:]]).done
    assert check("faulty", [str(number) for number in numbers]).done


@pytest.mark.parametrize("mistake", SCRIPT_WRONG)
def test_a_wrong_line_gets_its_own_hint(mistake: str) -> None:
    assert_mistake("faulty", mistake, SCRIPT_WRONG[mistake])


@pytest.mark.parametrize("nonsense", [[0], [99], [-1], [2.5], [None], [""], [True, 2]])
def test_what_is_no_line_is_said(nonsense: list) -> None:
    assert check("faulty", nonsense).mistake in ("no-line", "sound")


def test_no_lines_at_all_are_a_try_with_a_hint() -> None:
    assert check("faulty", []).mistake == "missing-cpus" and not check("faulty", ...).attempted


def directives(shown: script.Script) -> dict[str, str]:
    """What a script asks for, option by option."""
    found = (line.removeprefix("#SBATCH --").partition("=") for line in shown.lines if line.startswith("#SBATCH --"))
    return {name: value for name, _, value in found}


def workers(shown: script.Script) -> int:
    return int(re.search(r"--workers (\d+)", shown.text)[1])


def test_the_minimal_script_has_none_of_the_faults(site: Site) -> None:
    shown = script.minimal(site)
    asked = directives(shown)
    assert int(asked["cpus-per-task"]) == workers(shown) + 1 == site.conventions.cpus_per_card
    assert asked["mem"] == site.conventions.memory and asked["time"] == site.conventions.time
    assert (asked["output"], asked["error"]) == (site.conventions.output, site.conventions.error)
    assert "mkdir" not in shown.text and VARIABLE not in shown.text
    assert f"mkdir -p {script.logs_folder(site)}" in shown.about[1]


def test_the_faulty_script_has_exactly_the_faults(site: Site) -> None:
    shown = script.faulty(site)
    asked = directives(shown)
    assert int(asked["cpus-per-task"]) < workers(shown) + 1
    assert asked["mem"] == site.conventions.memory and asked["gres"].endswith(":1")
    minutes = int(re.search(r"took (\d+) minutes", shown.about[1])[1])
    assert minutes * 1.2 * 60 == pytest.approx(site.partition("x").seconds if site.partition("x") else 4 * 3600)
    header = [line for line in shown.lines if line.startswith("#SBATCH")]
    assert list(shown.lines[1 : 1 + len(header)]) == header, "a directive after the first command would be a fault"


@pytest.mark.parametrize("make", [script.minimal, script.faulty])
def test_the_shell_finds_nothing_wrong(site: Site, make: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(make(site).text)
    command = [Path(sys.executable).parent / "shellcheck", "-s", "bash", "-e", "SC1090,SC1091", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_only_the_site_file_knows_the_site() -> None:
    """No partition, module or limit of a site stands in the chapter's code, questions, exercises or notebook."""
    home = sites.load(place.HOME)
    names = {fact.name for fact in (*home.partitions, *home.modules)} | {home.portal.url}
    course = Path(material.__file__).parent
    files = [*course.rglob("*01*"), course / "place.py", course / "script.py", course / "where.py"]
    files += (Path(__file__).parents[1] / "solutions").glob("01_*.py")
    texts = {file.name: file.read_text() for file in files if file.suffix in (".py", ".toml")}
    assert len(texts) >= 6
    assert [(file, name) for file, text in texts.items() for name in names if name in text] == []


def test_line_numbers_are_shown_and_the_source_is_named(site: Site) -> None:
    shown = script.faulty(site)
    for face in (str(shown), shown._repr_mimebundle_()["text/html"]):
        assert "Made up for this exercise" in face and "site file" in face and " 1  #!/bin/bash -l" in face


TESTED = {"visible": VISIBLE_WRONG.keys(), "faulty": SCRIPT_WRONG.keys()}


@pytest.mark.parametrize("id", TESTED)
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str) -> None:
    assert {*TESTED[id], "unforeseen"} == set(material.exercises(CHAPTER)[id].mistakes)


def test_every_mistake_that_the_code_names_is_tested() -> None:
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(chapter01))) if isinstance(node, ast.Call))
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "wrong"]
    literals = {call.args[0].value for call in named if isinstance(call.args[0], ast.Constant)}
    assert literals and literals <= TESTED["visible"] | TESTED["faulty"]


# Questions


def test_the_time_to_ask_for_is_the_arithmetic_of_its_prompt() -> None:
    question = quiz.ask(CHAPTER, "time-to-ask")
    assert question.answer == 180 and "150 minutes" in question.prompt
    for slip in (150, 30, 150 + 20, 150 / 0.8, 180 / 60):
        assert question.check(slip).says != question.data.wrong, f"{slip} has no words of its own"


# The site


def test_the_choice_shows_every_partition_with_its_cards_and_limits() -> None:
    home = sites.load(place.HOME)
    text = str(place.choice(home))
    for partition in home.partitions:
        assert partition.name in text and partition.time_limit in text
    assert f"at most {home.partition(home.request.partition).running_jobs} running jobs a user" in text
    request = str(place.request(home))
    assert all(one in request for one in (home.interactive(), home.portal.url, home.help.email))
    assert home.conventions.cards in text and "claimed by" in text
    assert f"Shared by {home.shared_by}" in text
    assert all(one in request for one in (home.user_name, home.training.repository, home.training.folder))


def test_a_script_names_the_command_that_shows_its_site(site: Site, monkeypatch, capsys) -> None:
    """On a laptop `site show` alone would show another site than the lesson does."""
    monkeypatch.delenv(sites.VARIABLE)
    monkeypatch.setenv("PATH", "")
    command = re.search(r"`gpuworkshop (site show[^`]*)`", str(script.minimal(site)))[1]
    assert cli.main(command.split()) == 0 and capsys.readouterr().out.startswith(f"What the kit knows of {site.name}")


def test_a_site_that_says_little_is_shown_with_little() -> None:
    generic = sites.load(sites.ANY)
    assert place.choice(generic).tables == () and place.claims(generic).tables == ()
    assert "srun" in str(place.request(generic)) and " -p " not in str(place.request(generic))
    assert not re.search("Questions|User name|Training|None", str(place.request(generic)))


def test_a_claim_is_marked_as_one() -> None:
    report = place.claims(sites.load(place.HOME))
    assert report.origin.mark == "claimed by" and "claimed, not measured" in str(report)
    assert "2.5 times" in str(report) and "1000 W" in str(report)


def test_without_slurm_the_example_is_the_course_s_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.sites, "load", lambda name=None: name)
    for named, tool, shown in (("", None, place.HOME), ("", "/usr/bin/scontrol", None), ("generic", None, None)):
        monkeypatch.setenv(sites.VARIABLE, named)
        monkeypatch.setattr(place.shutil, "which", lambda command, tool=tool: tool)
        assert place.site() == shown


# Where the learner is


def test_outside_a_job_it_says_so() -> None:
    text = str(where.report({}))
    assert "outside a job" in text and "scancel" not in text and "For you here: " in text


def test_inside_a_job_it_says_how_the_card_goes_back() -> None:
    text = str(where.report({"SLURM_JOB_ID": "61000001", "SLURM_JOB_PARTITION": "gpu", "SLURM_CPUS_PER_TASK": "1"}))
    assert "in Slurm job 61000001" in text and "partition gpu" in text and "scancel 61000001" in text
    assert "For you here: 1 CPU\n" in text


def test_a_python_without_pytorch_is_told_and_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where.interpreter, "find_spec", lambda name: None)
    report = where.report({})
    assert report.failed and "PyTorch" in str(report)


def test_importing_what_comes_first_needs_no_pytorch() -> None:
    code = (
        "import sys; from gpuworkshop.course import ask_cuda, exercise, lesson, place, predict, quiz, script, where;"
        "where.report(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True).returncode == 0


def test_a_pressed_button_says_that_buttons_work() -> None:
    button = where.button()
    bundle = button._repr_mimebundle_()
    press, feedback = button._box.children[2:]
    assert not button.pressed and "Buttons work" not in feedback.value
    press.click()
    assert button.pressed and "✓ Buttons work here." in feedback.value and 'role="status"' in feedback.value
    assert "No button here" in bundle["text/plain"] and "No button here" in bundle["text/html"]


def test_j02_without_ipywidgets_the_button_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case J02 (reproduced there with tqdm): without ipywidgets nothing raises and nothing is lost."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert sorted(where.button()._repr_mimebundle_()) == ["text/html", "text/plain"]


# The five checks by hand, beside a card that a stand-in plays

REPOSITORY = Path(__file__).parents[1]
BY_HAND = ("reach", "reach-module", "models", "variable", "nvml", "round-trip", "idle-power", "free-card")
CARD = {"name": "NVIDIA Test Card", "uuid": "GPU-11111111-2222-3333-4444-555555555555", "cc": [9, 0], "power": 77_000}
DEVICE = {"name": CARD["name"], "uuid": CARD["uuid"][4:], "total": 80 * 2**30, "major": 9, "minor": 0}


def by_hand(folder: Path, **env: str) -> str:
    """What the notebook's cells print, run in a plain Python whose PyTorch and NVML are stand-ins."""
    pytest.importorskip("torch", reason="the cells are PyTorch's lines")
    nbformat = pytest.importorskip("nbformat", reason="the cells are read from the notebook")
    cells = {cell.id: cell.source for cell in nbformat.read(REPOSITORY / "notebooks" / f"{CHAPTER}.ipynb", 4).cells}
    sources = [cells[f"01-{id}"] for id in BY_HAND]
    *shown, last = sources
    code = "import os\nfrom gpuworkshop.course import lesson\n" + "\n".join([*shown, f"print({last})"])
    (folder / "nvml.json").write_bytes(msgspec.json.encode({"devices": [CARD]}))
    here = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'tests' / 'standins'}{os.pathsep}{REPOSITORY}"}
    here |= {"FAKE_NVML": str(folder / "nvml.json"), **env}
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_lines_by_hand_show_a_card(tmp_path: Path) -> None:
    (tmp_path / "cuda.json").write_bytes(msgspec.json.encode({"built_cuda": "13.0", "devices": [DEVICE]}))
    text = by_hand(tmp_path, FAKE_CUDA=str(tmp_path / "cuda.json"), CUDA_VISIBLE_DEVICES="0", SLURM_JOB_ID="61000001")
    assert "is_available(): True" in text and "cuda:0  NVIDIA Test Card  80.0 GiB" in text
    assert "CUDA_VISIBLE_DEVICES: '0'" in text and "in a Slurm job: True" in text
    assert CARD["uuid"] in text and "came back right: True" in text and "draws 77 W" in text
    assert "No card" not in text and "no tensor of this kernel is on the card" in text


def test_a_card_that_computes_wrongly_is_seen_by_the_round_trip_alone(tmp_path: Path) -> None:
    spec = {"built_cuda": "13.0", "devices": [DEVICE], "wrong": 1}
    (tmp_path / "cuda.json").write_bytes(msgspec.json.encode(spec))
    text = by_hand(tmp_path, FAKE_CUDA=str(tmp_path / "cuda.json"))
    assert "is_available(): True" in text and "came back right: False" in text


def test_without_a_card_the_lines_by_hand_say_what_one_would_show(tmp_path: Path) -> None:
    (tmp_path / "cuda.json").write_bytes(msgspec.json.encode({"devices": []}))
    text = by_hand(tmp_path, FAKE_NVML="", FAKE_CUDA=str(tmp_path / "cuda.json"))
    assert "No card. With one" in text and "No card to send it to" in text and "NVML does not answer" in text
    assert "Measured here: n/a" in text and "none is held" in text


# CUDA asked itself


def test_without_a_card_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_cuda.gpus, "cards", lambda env=None: Cards(visible({})))
    monkeypatch.setattr(ask_cuda, "count", lambda value: pytest.fail("asked"))
    assert "no card here" in str(ask_cuda.report([None, ""]))


def test_each_value_is_asked_in_a_process_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask_cuda, "ASK", f"import os; print(len(os.environ.get('{VARIABLE}', 'none')))")
    monkeypatch.setenv(VARIABLE, "something else")
    assert [ask_cuda.count(value) for value in (None, "", "0,1")] == [4, 0, 3]
    monkeypatch.setattr(ask_cuda, "ASK", "raise OSError")
    assert ask_cuda.count(None) is None


def test_a_driver_that_reads_otherwise_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Card("NVIDIA Test GPU", "GPU-A")
    reads = {None: 1, "0": 1, "": 0}
    monkeypatch.setattr(ask_cuda.gpus, "cards", lambda env={}: Cards(visible(env), (one,) * reads[env.get(VARIABLE)]))
    gives = dict(reads)
    monkeypatch.setattr(ask_cuda, "count", gives.get)
    agree = ask_cuda.report([None, "0", ""])
    assert agree.findings[0].level == "ok" and "all 3 values" in agree.findings[0].title
    assert agree.tables[0].rows[2] == ('""', "0", "0") and agree.origin.on == "NVIDIA Test GPU"
    gives[""] = None
    differ = ask_cuda.report([None, "0", ""])
    assert differ.findings[0].level == "warning" and '""' in differ.findings[0].title
    assert differ.tables[0].rows[2][2] == "n/a"


def test_the_values_of_the_exercise_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {None if value == chapter01.UNSET else value for value in chapter01.VALUES} >= {None, "", "-1"}
    assert msgspec.json.encode(chapter01.VALUES)
