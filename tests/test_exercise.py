"""The exercises: the right answer passes, every typical wrong one fails with the hint made for it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuworkshop.course import exercise, material, progress
from gpuworkshop.course.checks import chapter04
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.report import Origin
from gpuworkshop.timing import Comparison
from gpuworkshop.workloads.config import TrainConfig, changed

torch = pytest.importorskip("torch", reason="the exercises of chapter 4 need PyTorch")
from torch.utils.data import DataLoader  # noqa: E402

from gpuworkshop.loop.trial import Trial  # noqa: E402

CHAPTERS = sorted(
    path.stem
    for path in (Path(material.__file__).parent / "exercises").glob("*.toml")
    if not path.stem.endswith(".solutions")
)
EXERCISES = [(chapter, id) for chapter in CHAPTERS for id in material.exercises(chapter)]


@pytest.fixture(params=[False, True], ids=["no card", "card"])
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A machine without a card and one that says it has one; pinning would fail on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return request.param


def loader(workers: int, **changes: Any) -> dict[str, Any]:
    """The settings of a right answer, with some of them changed."""
    right = {
        "batch_size": 4,
        "shuffle": True,
        "num_workers": workers,
        "pin_memory": torch.cuda.is_available(),
        "persistent_workers": workers > 0,
        "prefetch_factor": 2 if workers > 0 else None,
    }
    return {**right, **changes}


def answer(change: Callable[[int], dict[str, Any]] = lambda workers: {}) -> Callable:
    """A learner's `make_loader` whose settings differ from the right ones by `change(workers)`."""

    def make_loader(dataset: Any, batch_size: int, workers: int) -> Any:
        return DataLoader(dataset, **loader(workers, **{"batch_size": batch_size, **change(workers)}))

    return make_loader


def own_error(dataset: Any, batch_size: int, workers: int) -> Any:
    raise NameError("name 'num_worker' is not defined")


def on_or_off(workers: int) -> dict[str, Any]:
    """Passes 0 on, and makes 2 of every other number."""
    return {"num_workers": 2 if workers else 0}


def twice(dataset: Any, batch_size: int, workers: int) -> Any:
    return DataLoader([*dataset[:5], *dataset[:5]], **loader(workers))


KNOBS_WRONG = {
    "no-function": DataLoader([1, 2]),
    "no-loader": lambda dataset, batch_size, workers: dataset,
    "returns-nothing": lambda dataset, batch_size, workers: print(end=""),
    "cannot-read": answer(lambda workers: {"collate_fn": lambda samples: {"x": samples}}),
    "raised": own_error,
    "prefetch_factor": answer(lambda workers: {"prefetch_factor": 2}),
    "persistent_workers": answer(lambda workers: {"persistent_workers": True}),
    "workers-fixed": answer(lambda w: {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 2}),
    "batch-fixed": answer(lambda workers: {"batch_size": 32}),
    "workers-not-kept": answer(lambda workers: {"persistent_workers": False}),
    "prefetch-low": answer(lambda workers: {"prefetch_factor": 1 if workers else None}),
    "no-shuffle": answer(lambda workers: {"shuffle": False}),
    "samples-lost": answer(lambda workers: {"drop_last": True}),
}
PINNING = {"pinning-forgotten": (True, False), "pinning-without-card": (False, True)}


def test_the_right_loader_is_done(card: bool) -> None:
    result = exercise.open("04_starve", "knobs").check(answer())
    assert (result.done, result.mistake, result.hint) == (True, "", "")


def test_more_batches_ahead_are_right_too(card: bool) -> None:
    more = answer(lambda workers: {"prefetch_factor": 4 if workers else None})
    assert exercise.open("04_starve", "knobs").check(more).done


@pytest.mark.parametrize("mistake", KNOBS_WRONG)
def test_a_wrong_loader_gets_its_own_hint(card: bool, mistake: str) -> None:
    assert_mistake("knobs", mistake, KNOBS_WRONG[mistake])


@pytest.mark.parametrize("mistake", PINNING)
def test_pinning_must_suit_the_machine(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has_card, pinned = PINNING[mistake]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_card)
    assert_mistake("knobs", mistake, answer(lambda workers: {"pin_memory": pinned}))


def test_the_same_data_twice_are_found(card: bool) -> None:
    result = exercise.open("04_starve", "knobs").check(twice)
    assert result.mistake == "samples-lost" and "10 samples, 5 of them different" in result.says


def test_workers_that_are_only_on_or_off_are_found(card: bool) -> None:
    result = exercise.open("04_starve", "knobs").check(answer(on_or_off))
    assert result.mistake == "workers-fixed" and "`workers=1`" in result.says


def test_the_learner_s_own_error_is_shown(card: bool) -> None:
    result = exercise.open("04_starve", "knobs").check(own_error)
    assert "NameError: name 'num_worker' is not defined" in result.says


def test_what_pytorch_refuses_is_shown_with_the_setting(card: bool) -> None:
    result = exercise.open("04_starve", "knobs").check(KNOBS_WRONG["prefetch_factor"])
    assert "`workers=0`" in result.says and "ValueError" in result.says and "prefetch_factor=None" in result.hint


NAIVE = TrainConfig()
PRE_DECODED = NAIVE.with_(data_path="pre-decoded")
WORKERS = NAIVE.with_(workers=2, persistent_workers=True)
FASTER = Comparison(1.8, 1.7, 1.9, 8, 0.05, "faster")
LEARNS = Judgement(True, "learns as before: held-out loss 2.08 -> 0.61")


def trial(
    after: TrainConfig,
    comparison: Comparison | None = FASTER,
    learning: Judgement | None = LEARNS,
    why: str = "",
    planted: str = "",
) -> Trial:
    """What `try_one` of the loop gives back."""
    origin = Origin("measured here", "a CPU", "2026-12-01")
    what = dict(before=NAIVE, after=after, changed=changed(NAIVE, after), comparison=comparison)
    return Trial(**what, learning=learning, kept=True, why=why, origin=origin, planted=planted)


def outcome(verdict: str, ratio: float, smallest: float = 0.04) -> Comparison:
    return Comparison(ratio, ratio - 0.03, ratio + 0.03, 8, smallest, verdict)


LADDER_RIGHT = {
    "planted wait": trial(WORKERS, planted="every file read really waits 4 ms"),
    "data path": trial(PRE_DECODED),
    "workers alone": trial(NAIVE.with_(workers=2)),
    "workers that stay": trial(WORKERS),
    "workers and what belongs to them": trial(WORKERS.with_(prefetch_factor=4)),
    "learning that cannot be judged": trial(WORKERS, learning=Judgement(None, "not judged: no classes")),
}
LADDER_WRONG = {
    "not-measured": PRE_DECODED,
    "no-trial": 1.8,
    "nothing-changed": trial(NAIVE),
    "other-ladder": trial(NAIVE.with_(precision="bf16")),
    "two-changes": trial(WORKERS.with_(data_path="pre-decoded")),
    "not-possible": trial(WORKERS, None, None, "not possible: a worker died"),
    "no-difference": trial(NAIVE.with_(workers=1), outcome("no real difference", 1.01, 0.07), None),
    "slower": trial(WORKERS, outcome("slower", 0.8), None),
    "no-verdict": trial(WORKERS, outcome("unknown", 1.2), None),
    "learns-nothing": trial(PRE_DECODED, learning=Judgement(False, "does not learn: held-out loss 2.08 -> 2.08")),
}


@pytest.mark.parametrize("measured", LADDER_RIGHT.values(), ids=LADDER_RIGHT)
def test_one_faster_change_that_learns_is_done(measured: Trial) -> None:
    result = exercise.open("04_starve", "ladder").check(measured)
    assert result.done and "1.80x" in result.says and measured.learning.says in result.says


@pytest.mark.parametrize("mistake", LADDER_WRONG)
def test_a_wrong_step_on_the_ladder_gets_its_own_hint(mistake: str) -> None:
    assert_mistake("ladder", mistake, LADDER_WRONG[mistake])


def test_no_difference_says_what_would_have_been_seen() -> None:
    result = exercise.open("04_starve", "ladder").check(LADDER_WRONG["no-difference"])
    assert "1.01 times" in result.says and "7% or more would have been seen" in result.says


def test_two_changes_are_named() -> None:
    result = exercise.open("04_starve", "ladder").check(LADDER_WRONG["two-changes"])
    assert "data_path" in result.says and "workers" in result.says and "attributed" in result.hint


def assert_mistake(id: str, mistake: str, wrong: Any) -> None:
    """The answer fails with exactly this mistake, in the words of the exercise's file."""
    result = exercise.open("04_starve", id).check(wrong)
    words = material.exercises("04_starve")[id].mistakes[mistake]
    assert (result.done, result.attempted, result.mistake) == (False, True, mistake)
    assert result.hint == words.hint and len(result.hint) > 20
    assert "{" not in result.says
    assert result.says in str(result).replace("\n", " ") and "✗ Not done yet" in str(result)


STUBS = {
    "the stub itself": ...,
    "a function that is a stub": lambda dataset, batch_size, workers: ...,
    "a function without return": lambda dataset, batch_size, workers: None,
}


@pytest.mark.parametrize("stub", STUBS.values(), ids=STUBS)
def test_a_stub_is_not_attempted_and_no_try(stub: Any) -> None:
    result = exercise.open("04_starve", "knobs").check(stub)
    assert (result.done, result.attempted) == (False, False)
    assert "Not attempted yet" in str(result)
    assert progress.tally("04_starve", "exercise", "knobs") == progress.Tally()


@pytest.mark.parametrize(("chapter", "id"), EXERCISES)
def test_no_answer_whatever_makes_a_check_raise(chapter: str, id: str) -> None:
    for junk in (None, 3, "text", object(), [], int, print, TrainConfig, Exception("x")):
        result = exercise.open(chapter, id).check(junk)
        assert not result.done
    assert not exercise.open(chapter, id).check(...).attempted
    assert not exercise.open(chapter, id).check().done
    assert not exercise.open(chapter, id).check(1, 2, 3).done


TESTED = {"knobs": KNOBS_WRONG.keys() | PINNING.keys(), "ladder": LADDER_WRONG.keys()}


@pytest.mark.parametrize("id", TESTED)
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str) -> None:
    assert {*TESTED[id], "unforeseen"} == set(material.exercises("04_starve")[id].mistakes)


def test_every_mistake_that_the_code_names_is_tested() -> None:
    tree = ast.parse(inspect.getsource(chapter04))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and named(node.func) == "wrong")
    literals = {n.value for call in calls for n in ast.walk(call.args[0]) if isinstance(n, ast.Constant)}
    assert literals and literals <= set().union(*TESTED.values())


def named(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


@pytest.mark.parametrize(("chapter", "id"), EXERCISES)
def test_the_card_says_what_to_do_and_when_it_is_done(chapter: str, id: str) -> None:
    one = exercise.open(chapter, id)
    bundle = one._repr_mimebundle_()
    for face in (bundle["text/plain"].replace("\n", " "), str(one).replace("\n", " ")):
        assert one.data.goal in face and one.data.done_when in face
        assert f"{one.data.difficulty} of 3, about {one.data.minutes} minutes" in face
        assert "Yours: open" in face
    assert "<dt>Goal</dt>" in bundle["text/html"]


@pytest.mark.parametrize(("chapter", "id"), EXERCISES)
def test_hints_come_one_by_one_and_end_with_the_solution(chapter: str, id: str) -> None:
    one = exercise.open(chapter, id)
    given = [one.hint() for _ in range(len(one.data.hints) + 2)]
    assert [note.text[0] for note in given[: len(one.data.hints)]] == list(one.data.hints)
    assert given[0].title == f"Hint 1 of {len(one.data.hints)}: {one.data.title}"
    assert all(".solution()" in str(note) for note in given[len(one.data.hints) :])


SOLUTION = "def make_loader(dataset, batch_size, workers):\n    return 1 < 2"


def test_the_solution_is_offered_after_two_failed_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "solution", lambda chapter, id: SOLUTION)
    wrong = KNOBS_WRONG["no-loader"]
    first, second = (exercise.open("04_starve", "knobs").check(wrong) for _ in range(2))
    assert first.solution == "" and "<details>" not in first._repr_mimebundle_()["text/html"]
    assert second.solution == SOLUTION
    html = second._repr_mimebundle_()["text/html"]
    assert "<details><summary>Show one way to solve it" in html and "return 1 &lt; 2" in html
    assert ".solution()" in str(second) and "1 < 2" not in str(second)


def test_the_solution_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "solution", lambda chapter, id: SOLUTION)
    note = exercise.open("04_starve", "knobs").solution()
    assert "return 1 < 2" in str(note) and "return 1 &lt; 2" in note._repr_mimebundle_()["text/html"]


def test_a_missing_solution_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "solution", lambda chapter, id: "")
    assert "solutions/04_starve.ipynb" in str(exercise.open("04_starve", "knobs").solution())


def test_tries_are_kept_until_it_is_done(card: bool) -> None:
    one = exercise.open("04_starve", "knobs")
    for attempt in (KNOBS_WRONG["raised"], answer(), KNOBS_WRONG["raised"]):
        one.check(attempt)
    assert progress.tally("04_starve", "exercise", "knobs") == progress.Tally(2, True)
    assert "done, 2 tries" in str(one)


def test_importing_the_course_does_not_import_pytorch() -> None:
    code = (
        "import sys; from gpuworkshop.course import exercise, predict, progress, quiz;"
        "from gpuworkshop.course.checks import chapter04; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_unknown_exercise_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="knobs, ladder"):
        exercise.open("04_starve", "missing")
