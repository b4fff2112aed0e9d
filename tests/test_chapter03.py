"""Chapter 3: its checks find every typical mistake, its planted jobs show their signs, its ratio is measured."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mistakes import assert_mistake

torch = pytest.importorskip("torch", reason="chapter 3 profiles PyTorch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from gpuworkshop.child import ChildFailed  # noqa: E402
from gpuworkshop.cluster import site  # noqa: E402
from gpuworkshop.course import calls, exercise, material, planted_steps, progress, quiz, replay, rungs, signs  # noqa: E402
from gpuworkshop.course.checks import chapter03  # noqa: E402
from gpuworkshop.instruments import nsight, profile  # noqa: E402
from gpuworkshop.timing import Comparison, Plan  # noqa: E402

CHAPTER = "03_profile"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As the chapter has it without a card: two threads on busy cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


REPOSITORY = Path(__file__).parents[1]

# ---------------------------------------------------------------- exercise 1: five profiles

RIGHT = {
    "photos": ("loader", "feed"),
    "faces": ("cpu", "move"),
    "masks": ("copies", "keep"),
    "letters": ("gaps", "batch"),
    "night": ("none", "leave"),
}
TABLES_WRONG = {
    "no-dict": ("loader", "feed"),
    "job-missing": {job: pair for job, pair in RIGHT.items() if job != "night"},
    "no-pair": RIGHT | {"photos": "loader"},
    "unknown-word": RIGHT | {"photos": ("DataLoader", "feed")},
    "wait-taken-for-work": RIGHT | {"night": ("gaps", "leave")},
    "gaps-with-a-cause": RIGHT | {"photos": ("gaps", "batch")},
    "calls-not-seen": RIGHT | {"letters": ("cpu", "move")},
    "cuda-time-is-none": RIGHT | {"faces": ("gaps", "batch")},
    "wrong-sign": RIGHT | {"masks": ("loader", "feed")},
    "wrong-fix": RIGHT | {"masks": ("copies", "move")},
}


def test_five_right_pairs_are_done() -> None:
    assert exercise.open(CHAPTER, "tables").check(RIGHT).done
    assert exercise.open(CHAPTER, "tables").check({job: list(pair) for job, pair in RIGHT.items()}).done


@pytest.mark.parametrize("mistake", TABLES_WRONG)
def test_a_wrong_pair_gets_its_own_hint(mistake: str) -> None:
    assert_mistake(CHAPTER, "tables", mistake, TABLES_WRONG[mistake])


@pytest.mark.parametrize("job", RIGHT)
def test_the_job_that_is_wrong_is_named(job: str) -> None:
    signs_left = [sign for sign in chapter03.SIGNS if sign != RIGHT[job][0]]
    fixes_left = [fix for fix in chapter03.FIXES if fix != RIGHT[job][1]]
    for pair in [(sign, RIGHT[job][1]) for sign in signs_left] + [(RIGHT[job][0], fix) for fix in fixes_left]:
        result = exercise.open(CHAPTER, "tables").check(RIGHT | {job: pair})
        assert not result.done and result.says.startswith(f"`{job}`")


def test_a_half_filled_table_is_no_try() -> None:
    for stub in (dict.fromkeys(RIGHT, ...), RIGHT | {"night": ...}, RIGHT | {"night": ("none", ...)}):
        assert not exercise.open(CHAPTER, "tables").check(stub).attempted
    assert progress.tally(CHAPTER, "exercise", "tables") == progress.Tally()


def test_the_chapter_s_text_has_the_words_and_jobs_of_the_check() -> None:
    text = (REPOSITORY / "solutions" / f"{CHAPTER}.py").read_text()
    for word in (*chapter03.SIGNS, *chapter03.FIXES):
        assert f'`"{word}"`' in text
    for job in chapter03.JOBS:
        assert f"| `{job}` |" in text


# ---------------------------------------------------------------- exercise 2: one call for the batch


def right_loss(model, images, classes):
    return cross_entropy(model(images), classes)


def by_hand(model, images, classes):
    """Another right way."""
    chances = model(images).log_softmax(1)
    return -chances[torch.arange(len(classes), device=classes.device), classes].mean().reshape(1)


def forgets_return(model, images, classes):
    cross_entropy(model(images), classes)


def own_error(model, images, classes):
    return cross_entropy(model(image), classes)  # noqa: F821


def without_gradient(model, images, classes):
    with torch.no_grad():
        return right_loss(model, images, classes)


def half_cut(model, images, classes):
    half = len(images) // 2
    outputs = model(images)
    return cross_entropy(torch.cat([outputs[:half].detach(), outputs[half:]]), classes)


def trains(model, images, classes):
    loss = right_loss(model, images, classes)
    loss.backward(retain_graph=True)
    return loss


def still_loops(model, images, classes):
    outputs = [model(image[None]) for image in images]
    return cross_entropy(torch.cat(outputs), classes)


def slow(model, images, classes):
    time.sleep(0.05)
    return right_loss(model, images, classes)


BATCHED_WRONG = {
    "no-function": 2.1,
    "returns-nothing": forgets_return,
    "raised": own_error,
    "no-tensor": lambda *batch: right_loss(*batch).item(),
    "each-sample": lambda model, images, classes: cross_entropy(model(images), classes, reduction="none"),
    "no-gradient": without_gradient,
    "summed": lambda model, images, classes: cross_entropy(model(images), classes, reduction="sum"),
    "other-loss": lambda model, images, classes: cross_entropy(model(images[:4]), classes[:4]),
    "other-gradient": half_cut,
    "trains": trains,
    "still-loops": still_loops,
    "slower": slow,
}


@pytest.mark.parametrize("answer", [right_loss, by_hand])
def test_a_right_loss_is_done_and_faster(answer: Callable) -> None:
    result = exercise.open(CHAPTER, "batched").check(answer)
    assert (result.done, result.mistake) == (True, "")
    assert "from one call of the model instead of 32: faster" in result.says


@pytest.mark.parametrize("mistake", BATCHED_WRONG)
def test_a_wrong_loss_gets_its_own_hint(mistake: str) -> None:
    assert_mistake(CHAPTER, "batched", mistake, BATCHED_WRONG[mistake])


@pytest.mark.parametrize(
    ("mistake", "verdict"), [("no-difference", "no real difference"), ("slower", "slower"), ("no-verdict", "unknown")]
)
def test_what_is_not_faster_is_not_done(mistake: str, verdict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = Comparison(1.01, 0.98, 1.04, 8, 0.04, verdict)
    monkeypatch.setattr(chapter03._Trial, "compare", lambda trial, function: comparison)
    assert_mistake(CHAPTER, "batched", mistake, right_loss)


@pytest.mark.parametrize("stub", [..., lambda model, images, classes: ...])
def test_a_loss_that_is_not_there_yet_is_no_try(stub: Any) -> None:
    assert "Not attempted yet" in str(exercise.open(CHAPTER, "batched").check(stub))
    assert progress.tally(CHAPTER, "exercise", "batched") == progress.Tally()


def test_the_given_loss_of_the_notebook_is_that_of_the_check() -> None:
    tree = ast.parse((REPOSITORY / "solutions" / f"{CHAPTER}.py").read_text())
    (shown,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "slow_loss"]
    names = {"nn": nn}
    exec(compile(ast.Module([shown], []), CHAPTER, "exec"), names)
    trial = chapter03._Trial()
    assert torch.equal(trial.loss(names["slow_loss"]), trial.loss(chapter03.slow_loss)) and trial.calls == 32


TESTED = {"tables": {*TABLES_WRONG}, "batched": {*BATCHED_WRONG, "no-difference", "no-verdict"}}


@pytest.mark.parametrize("id", TESTED)
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str) -> None:
    assert {*TESTED[id], "unforeseen"} == set(material.exercises(CHAPTER)[id].mistakes)


def test_every_mistake_that_the_code_names_is_tested() -> None:
    tree = ast.parse(inspect.getsource(chapter03))
    found = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "wrong")
    named = {call.args[0].value for call in found if isinstance(call.args[0], ast.Constant)}
    assert named
    assert named | {*chapter03.TAKEN_FOR.values(), *chapter03.VERDICTS.values()} <= TESTED["tables"] | TESTED["batched"]


def test_how_busy_the_card_can_be_is_the_arithmetic_of_its_prompt() -> None:
    question = quiz.ask(CHAPTER, "busy-when-late")
    assert "10 us" in question.prompt and "3 us" in question.prompt
    assert question.answer == pytest.approx(100 * 3 / 10)
    for slip in (70, 100 * 3 / 13, 0.3, 100 * 10 / 3):
        assert question.check(slip).says != question.data.wrong, f"{slip} has no words of its own"


# ---------------------------------------------------------------- the planted jobs


@pytest.mark.parametrize("name", planted_steps.JOBS)
def test_a_planted_job_runs_and_its_lines_are_those_that_run(name: str) -> None:
    shown = str(signs.lines(name))
    assert "# planted" in shown and f"def {name}(" in shown
    assert all(len(line) <= 88 for line in shown.splitlines())
    batches, step = planted_steps.JOBS[name]("cpu")
    assert step(next(iter(batches))) is None


def test_the_loader_of_its_job_is_at_the_top_of_the_table() -> None:
    seen = signs.measure("loader", "cpu")
    assert profile_signs(seen) == ["loader"] and seen.planted
    shown = signs.report(seen, "loader")
    assert shown.tables[0].rows[0][0] == "DataLoader"
    assert "does not show" not in str(shown)


def test_conversions_are_the_top_row_of_their_job() -> None:
    shown = signs.report(signs.measure("conversions", "cpu"), "conversions")
    assert shown.tables[0].rows[0][0] == "aten::copy_"
    assert any("Top row: aten::copy_" in found.title and found.level == "warning" for found in shown.findings)


def profile_signs(seen: Any) -> list[str]:
    from gpuworkshop.instruments.profile_result import signs as found

    return [one.sign for one in found(seen.sums)]


def test_a_sign_that_does_not_show_is_said() -> None:
    busy = msgspec.structs.replace(replay.load("profile"), planted="something")
    assert "This recording does not show the sign" in str(signs.report(busy, "copies"))
    here = msgspec.structs.replace(busy, origin=msgspec.structs.replace(busy.origin, mark="measured here"))
    assert "This machine does not show the sign" in str(signs.report(here, "copies"))
    assert "does not show" not in str(signs.report(busy, "loader"))


def test_a_measured_sign_is_shown_before_a_recording_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = replay.load("profile")
    here = msgspec.structs.replace(recorded, workload="measured just now")
    monkeypatch.setattr(replay, "load", lambda what: recorded)
    assert "measured just now" in str(signs.shown("gaps", {"gaps": here}))
    assert "measured just now" not in str(signs.shown("gaps", {}))


def test_a_sign_without_a_recording_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(replay, "load", lambda what, *where: None)
    assert "No recording" in str(signs.shown("gaps", {}))


def test_the_signs_of_a_card_say_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ChildFailed, match="needs a GPU, and there is none here"):
        signs.run()


def test_the_command_that_records_a_sign_says_so_too_and_prints_no_envelope() -> None:
    command = [sys.executable, "-m", "gpuworkshop.course.signs", "gaps"]
    done = subprocess.run(command, capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}, timeout=120)
    assert done.returncode == 1 and done.stdout == ""
    assert "there is none here" in done.stderr


# ---------------------------------------------------------------- one call, or ten thousand


def test_many_calls_are_slower_than_one_and_the_claim_has_its_mark() -> None:
    model, samples = nn.Linear(4, 4), torch.randn(300, 4)
    plan = Plan(block_seconds=0.02, min_rounds=4, budget_seconds=0.5)
    got = calls.measure(lambda: [model(one) for one in samples], lambda: model(samples), 300, device="cpu", plan=plan)
    assert got.faster.verdict == "faster" and got.times.value == got.faster.ratio > 2
    shown = calls.report(got)
    measured, claimed = shown.tables[1].rows
    assert "measured here" in measured[2] and "claimed by the AICR Training Workshop 2" in claimed[2]
    assert claimed[1] == "300" and got.faster.pairs >= 4
    assert msgspec.json.decode(msgspec.json.encode(got), type=calls.CallsResult) == got


def test_without_gradients_and_both_ways_as_often() -> None:
    seen = {"each": 0, "together": 0}

    def way(name: str) -> Callable[[], None]:
        def run() -> None:
            assert not torch.is_grad_enabled()
            seen[name] += 1
            time.sleep(0.002)

        return run

    plan = Plan(block_seconds=0.004, min_rounds=4, budget_seconds=0.1)
    got = calls.measure(way("each"), way("together"), 10, device="cpu", plan=plan)
    assert got.each.n == got.together.n and min(seen.values()) >= 8


# ---------------------------------------------------------------- the next rungs, and where to profile


def test_the_lines_of_the_next_rungs_are_of_the_command_and_say_what_is_allowed(monkeypatch) -> None:
    monkeypatch.setattr(nsight, "counters_allowed", lambda: False)
    note = rungs.lines("python train.py --name 'two --output=words'", replay.load("profile"))
    assert note.code.count("python train.py --name 'two --output=words'") == 2
    assert "regex:dgrad_engine" in note.code and "only administrators" in str(note)
    assert "not known" not in str(note)


def test_the_habit_is_the_site_s_and_unknown_where_nobody_stated_it(monkeypatch) -> None:
    home = site.load("aicr")
    shown = rungs.habit(home)
    assert home.habit.says in shown.findings[0].title and shown.origin.mark == "claimed by"
    assert [row[2] for row in shown.tables[0].rows] == [*home.habit.devel, *home.habit.batch]
    generic = rungs.habit(site.load("generic"))
    assert generic.findings[0].level == "unknown" and "An example" in generic.findings[1].title


def test_a_trace_of_plain_pytorch_is_opened(tmp_path) -> None:
    """The lines of the chapter for a batch job: 25 steps suffice for its schedule."""
    from torch.profiler import ProfilerActivity, schedule
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CPU], schedule=schedule(wait=2, warmup=3, active=20, repeat=1)) as run:
        for _ in range(25):
            torch.ones(3).sum()
            run.step()
    run.export_chrome_trace(str(tmp_path / "trace.json"))
    assert profile.read(tmp_path / "trace.json").sums.steps == 20


DEAD = ("torch-tb-profiler", "torch_tb_profiler", "tensorboard_trace_handler", "tensorboard")


def test_p11_no_text_of_the_course_sends_anybody_to_the_dead_plug_in() -> None:
    """Lessons that do show "no runs" with current PyTorch: pytorch/kineto#1009, #605; determined#10178."""
    kinds = ("solutions/*.py", "solutions/*.ipynb", "notebooks/*.ipynb", "README.md", "gpuworkshop/course/**/*.toml",
             "gpuworkshop/**/*.py", "pyproject.toml", "environment.yml")  # fmt: skip
    files = [file for kind in kinds for file in REPOSITORY.glob(kind)]
    assert any(file.name == f"{CHAPTER}.ipynb" for file in files)
    for file in files:
        text = file.read_text(encoding="utf-8").lower()
        assert [word for word in DEAD if word in text] == [], file
