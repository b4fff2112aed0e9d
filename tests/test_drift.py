"""What the texts name is there: commands with their options, files, targets, variables, versions, partitions, more."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import CycloptsError

import gpuworkshop
from gpuworkshop import timing
from gpuworkshop.cli import app
from gpuworkshop.cluster import site
from gpuworkshop.cluster.jobscript import rule
from gpuworkshop.instruments import arms, flops, gpm, learning, memory_ceiling, profile, starve_result, watch_findings
from gpuworkshop.loop import climb, diagnose, pace, rightsize_choices

ROOT = Path(__file__).parents[1]
PROSE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")]
SLIDES = sorted((ROOT / "slides").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb")) + sorted((ROOT / "solutions").glob("*.ipynb"))
CODE = sorted((ROOT / "gpuworkshop").rglob("*.py")) + sorted((ROOT / "gpuworkshop").rglob("*.toml"))

PLACEHOLDERS = {"N": "2", "X": "2", "SECONDS": "60", "JOBID": "104212", "JOB": "104212"}
"""What stands for a number in a text, and a number."""
LEARNERS = {
    "my-site.toml",
    "claims-CARD.json",
    "train.py",
    "script.py",
    "job.sbatch",
    "trace.json",
    ".gpuworkshop.json",
    "slides.html",
}
"""Files that a learner makes, or that the kit writes for one."""
STANDS_FOR = ("NN_name", "WHAT-CARD", "NN")
"""In a name of a file: for any."""


def text_of(file: Path) -> str:
    """The words of a file; of a notebook, its cells."""
    if file.suffix != ".ipynb":
        return file.read_text(encoding="utf-8")
    return "\n".join("".join(cell["source"]) for cell in json.loads(file.read_text(encoding="utf-8"))["cells"])


TEXTS = {file.relative_to(ROOT).as_posix(): text_of(file) for file in (*PROSE, *SLIDES, *NOTEBOOKS)}


@functools.cache
def tracked() -> tuple[str, ...]:
    """Every file of the project that git keeps or would keep."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    return tuple(f"/{name}" for name in listed if name)


# ---------------------------------------------------------------- commands

COMMAND = re.compile(r"(?:^|[\s`\"'/({])(?:python3? -m )?gpuworkshop +([a-z][^`\n]*)", re.MULTILINE)
ENDS = re.compile(r"\s#|\s[|>&;]|&&|\)\s|\\n|\{\{| says |  +|…|, and |\s\(|\. |: |; ")


def commands(text: str) -> Iterator[str]:
    """The words behind `gpuworkshop` wherever a text gives a command: in code, in a string, in a block."""
    for found in COMMAND.finditer(text):
        line = re.sub(r"\w\{.*", lambda tail: tail[0][0], re.sub(r"\$\(\(.*?\)\)", "2", found[1]))
        line = ENDS.split(re.sub(r"\{[^{}]*\}", "2", line))[0]
        for quote in ("'", '"'):
            line = line.partition(quote)[0] if line.count(quote) % 2 else line  # the end of a string of code
        yield line.rstrip(" .,:;)\\")


def fault(line: str) -> str:
    """Why these words are no command; "" if they are one."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        return str(error)
    words = [PLACEHOLDERS.get(word, word) for word in words if word != "..."]
    try:
        app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


VERBS = {name for name in app if not name.startswith("-")}


def shown(text: str) -> set[str]:
    """The commands of a text that begin with a verb; other words after the name of the kit are prose."""
    return {line for line in commands(text) if line.split()[:1] and line.split()[0] in VERBS}


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_of_a_text_is_understood(name) -> None:
    assert {line: why for line in shown(TEXTS[name]) if (why := fault(line))} == {}


def test_every_command_that_a_fix_names_is_understood() -> None:
    """Fixes of findings, rules and course texts are copied by a learner as they stand."""
    wrong = {}
    for file in CODE:
        for line in shown(file.read_text(encoding="utf-8")):
            if why := fault(line):
                wrong[f"{file.relative_to(ROOT)}: {line}"] = why
    assert wrong == {}


def test_a_wrong_command_would_be_found() -> None:
    text = "Say `gpuworkshop loop --budgets 2m`.\n.venv/bin/gpuworkshop site shows # x\npython -m gpuworkshop verify\n"
    assert shown(text) == {"loop --budgets 2m", "site shows", "verify"}
    assert fault("loop --budgets 2m") and fault("site shows") and not fault("verify")


# ---------------------------------------------------------------- files, targets, variables

QUOTED = re.compile(r"`([^`\n]+)`")
NAMES_A_FILE = re.compile(r"[\w.*-]*(?:/[\w.*-]+)*\.(?:py|toml|md|css|ipynb|sbatch|yml|json|jsonl|html)\Z|[\w.-]+/\Z")


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_that_a_text_names_is_there(name) -> None:
    named = {word for quoted in QUOTED.findall(TEXTS[name]) for word in quoted.split() if NAMES_A_FILE.match(word)}
    named = {
        functools.reduce(lambda word, any_: word.replace(any_, "*"), STANDS_FOR, word) for word in named - LEARNERS
    }
    assert {word for word in named if not _is_there(word)} == set()


def _is_there(word: str) -> bool:
    if word.endswith("/"):
        return any(f"/{word}" in file for file in tracked())
    pattern = re.compile(".*/" + re.escape(word.lstrip("/")).replace(r"\*", "[^/]*") + r"\Z")
    return any(pattern.match(file) for file in tracked())


@pytest.mark.parametrize("file", [*PROSE, *SLIDES], ids=lambda file: file.name)
def test_every_link_inside_the_project_leads_somewhere(file) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(file)):
        if target.startswith(("http", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path) if path else file
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("name", TEXTS)
def test_every_target_of_make_is_there(name) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    blocks = re.findall(r"```[a-z]*\n(.*?)```", TEXTS[name], re.DOTALL) + QUOTED.findall(TEXTS[name])
    used = {word for block in blocks for word in re.findall(r"^\s*make ([a-z]+)", block, re.MULTILINE)}
    assert used <= targets


@pytest.mark.parametrize("name", TEXTS)
def test_every_variable_is_one_that_the_code_reads(name) -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in (*CODE, *(ROOT / "tests").glob("*.py")))
    assert {word for word in re.findall(r"GPUWORKSHOP_[A-Z]+", TEXTS[name]) if word not in code} == set()


@pytest.mark.parametrize("name", TEXTS)
def test_every_module_of_the_kit_is_there(name) -> None:
    """`gpuworkshop.instruments.starve` and the like, with or without a name in it."""
    for found in re.findall(r"(?<![.\w])gpuworkshop(?:\.[a-z_0-9]+)+", TEXTS[name]):
        parts = found.split(".")
        module = next(m for m in (parts, parts[:-1]) if importlib.util.find_spec(".".join(m)))
        assert module == parts or hasattr(importlib.import_module(".".join(module)), parts[-1]), found


# ---------------------------------------------------------------- versions and counts

CASES = tomllib.loads((ROOT / "tests" / "cases" / "cases.toml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_versions_agree() -> None:
    readme, python = TEXTS["README.md"], PROJECT["requires-python"].removeprefix(">=")
    assert (
        f"Python {python} or newer" in readme and f"({', '.join(python.split('.'))})" in (ROOT / "Makefile").read_text()
    )
    assert f"Version {gpuworkshop.__version__.rpartition('.')[0]} has" in readme
    tested = re.search(r'TORCH="([^"]+)"', (ROOT / ".ci" / "run").read_text())[1]
    for text in (readme, (ROOT / "Makefile").read_text()):
        assert set(re.findall(r"torch==[\d.]+ torchvision==[\d.]+", text)) == {tested}
    (least,) = (word.partition(">=")[2].strip() for word in PROJECT["optional-dependencies"]["course"]
                if re.match(r"torch\b", word))  # fmt: skip
    assert tuple(map(int, re.search(r"torch==([\d.]+)", tested)[1].split("."))) >= tuple(map(int, least.split(".")))


def test_counts_agree() -> None:
    readme, words = TEXTS["README.md"], ("seven", "eight", "nine", "ten", "eleven")
    chapters = len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert f"has {words[chapters - 7]} chapters" in readme
    items = tomllib.loads((ROOT / "gpuworkshop" / "loop" / "checklist.toml").read_text())["item"]
    assert f"the {words[len(items) - 7]} items before batch" in readme
    (tens,) = re.findall(r"knows some (\w+) faults", readme)
    assert abs(len(rule.rules()) - {"fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80}[tens]) <= 5


NUMBERS = [
    ("ARCHITECTURE.md", r"(\S+) s and at least (\d) steps on a CPU, (\S+) s on a card",
     (timing.CPU_PLAN.block_seconds, timing.CPU_PLAN.min_steps, timing.CARD_PLAN.block_seconds)),
    ("ARCHITECTURE.md", r"at least (\d+) rounds, an even", (timing.CPU_PLAN.min_rounds,)),
    ("ARCHITECTURE.md", r"interval's half-width is (\d+)%", (100 * timing.CPU_PLAN.width,)),
    ("ARCHITECTURE.md", r"effect is above (\d+)%", (100 * timing.SMALLEST_EFFECT,)),
    ("ARCHITECTURE.md", r"for at least (\d+) s an arm", (timing.BASELINE_SECONDS,)),
    ("ARCHITECTURE.md", r"make do with (\d+) rounds", (pace.FEW_ROUNDS,)),
    ("ARCHITECTURE.md", r"same step over (\d+) real batches", (arms.RESIDENT_BATCHES,)),
    ("ARCHITECTURE.md", r"noise and (\d+)% of the time; else", (100 * starve_result.TOLERANCE,)),
    ("ARCHITECTURE.md", r"above (\d+)% of the multiplying", (100 * flops.UNCOUNTED,)),
    ("ARCHITECTURE.md", r"within (\S+)% of one that failed", (100 * (1 - memory_ceiling.CLOSE),)),
    ("ARCHITECTURE.md", r"judged below (\d+)\s+windows", (watch_findings.LEAST_WINDOWS,)),
    ("ARCHITECTURE.md", r"GPM is asked at most every (\S+) s", (gpm.GAP,)),
    ("ARCHITECTURE.md", r"On a CPU (\d+) s are", (climb.USUAL_ON_CPU,)),
    ("ARCHITECTURE.md", r"profile of (\d+) steps", (profile.STEPS,)),
    ("ARCHITECTURE.md", r"from (\d+)% of the time on", (100 * diagnose.FIRST,)),
    ("ARCHITECTURE.md", r"full memory \((\d+)%\)", (100 * diagnose.FULL,)),
    ("ARCHITECTURE.md", r"seeds or (\d+)% of the starting loss", (100 * learning.WORSE,)),
    ("ARCHITECTURE.md", r"must still fall by (\d+)%", (100 * learning.MUST_FALL,)),
    ("ARCHITECTURE.md", r"holds the peak at (\d+)%", (100 * rightsize_choices.FULL,)),
    ("ARCHITECTURE.md", r"(\d+) public cases are in", (len(CASES),)),
]  # fmt: skip
"""A number of a text, and the constants of the code that it tells."""


@pytest.mark.parametrize(("name", "words", "values"), NUMBERS, ids=[f"{name} {words}" for name, words, _ in NUMBERS])
def test_every_number_of_how_it_measures_is_that_of_the_code(name, words, values) -> None:
    found = re.search(words.replace(" ", r"\s+"), TEXTS[name])
    assert found, f"{name} does not say it any more: change NUMBERS with it"
    assert tuple(map(float, found.groups())) == pytest.approx(values)


@pytest.mark.parametrize("name", TEXTS)
def test_every_partition_of_the_first_site_is_in_its_file(name) -> None:
    known = {partition.name for partition in site.load("aicr").partitions}
    families = {family.name for family in site.load("aicr").families}
    words = set(re.findall(rf"\b(?:{'|'.join(families)})-(?:devel|batch|interactive|short|long)\b", TEXTS[name]))
    assert words <= known
