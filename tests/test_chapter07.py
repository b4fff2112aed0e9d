"""Chapter 7: the hidden job, its panel and its answer; its checks find every typical mistake; what the site says."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gpuworkshop.child import ChildFailed, Tell
from gpuworkshop.cluster import site
from gpuworkshop.course import before_batch, exercise, guided, hidden, hidden_child, lesson, material, progress, replay
from gpuworkshop.course.checks import chapter07
from gpuworkshop.course.hidden_child import Seen, Turn
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.loop import ledger, pace, trial
from gpuworkshop.loop.climb_result import bars
from gpuworkshop.loop.look_result import Look, Traced, Watched
from gpuworkshop.loop.remedies import explaining, parts
from gpuworkshop.loop.trial_result import Trial
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.report import Origin, envelope
from gpuworkshop.timing import Comparison, Plan, Rate
from gpuworkshop.workloads.config import TrainConfig, changed
from gpuworkshop.workloads.planted import PLANTED

CHAPTER = "07_loop"
CPU = Conditions("cpu", "2 CPU cores, a test", "", "", 2, "the system", 1, "3.11", "2.11", "0.1.0", "2026-12-01")
CARD = msgspec.structs.replace(CPU, device="cuda:0", machine="a card of a test", cpus=8)
ORIGIN = Origin("measured here", "a machine of a test", "2026-12-01", "0.1.0")
FASTER = Comparison(2.0, 1.9, 2.1, 8, 0.05, "faster")
SAME = Comparison(1.0, 0.95, 1.05, 8, 0.05, "no real difference")


def rate(value: float) -> Rate:
    return Rate(value, 0.95 * value, 1.05 * value, 8, "images/s")


def seen(limit: str = "data", here: Conditions = CPU, config: TrainConfig | None = None) -> Seen:
    """A look at a run with this limit, on a machine of a test."""
    waits = limit == "data"
    headroom = Comparison(5.0, 4.5, 5.5, 8, 0.05, "faster") if waits else SAME
    starve = StarveResult(
        "pictures", rate(100), rate(500 if waits else 100), None, headroom, "loader wait", 0.8 if waits else 0.01, 0.0,
        0.0, True, limit if waits else "compute", 0.0, 0, 32, config, "", here, here.origin,
    )  # fmt: skip
    tiny = limit == "launches"
    whole = 1e6 * 32 / 100
    if here.device == "cpu":
        calls, heavy, mean = (18_000, 0.1 * whole, 9.0) if tiny else (400, 0.9 * whole, 700.0)
        return Seen(Look(starve, Traced(steps=20, step=whole, calls=calls, median=2.5, heavy=heavy, mean=mean)), 0.4)
    idle = dict(copying=0.0, idle_launching=0.8)
    on_card = Traced(steps=20, step=whole, calls=1900, median=4.0, busy=0.2 * whole, **idle)
    return Seen(Look(starve, on_card if not waits else None, watched=Watched(0.35, 40), memory=0.1), 0.4)


class Child:
    """Stands for the measuring process: every change has this outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Any = FASTER, here: Conditions = CPU):
        self.asked: list[tuple[TrainConfig, TrainConfig | None]] = []
        self.outcome, self.here, self.limits = outcome, here, ["data", "compute", "compute"]
        monkeypatch.setattr(hidden_child, "run", self.run)

    def run(self, job: Any, now: TrainConfig, after: TrainConfig | None = None, **how: Any) -> Turn:
        self.asked.append((now, after))
        if isinstance(self.outcome, ChildFailed):
            raise self.outcome
        if after is None:
            return Turn(None, seen(self.limits[0], self.here, now))
        kept = self.outcome.verdict == "faster" and explaining(now, after) is not None
        learning = Judgement(True, "learns as before: held-out loss 2 -> 1") if kept else None
        tried = Trial(
            before=now, after=after, changed=changed(now, after), comparison=self.outcome, rate_before=rate(100),
            rate_after=rate(200), learning=learning, kept=kept, why=self.why(now, after), origin=ORIGIN, planted="",
        )  # fmt: skip
        return Turn(tried, seen(self.limits[1], self.here, after) if kept else None)

    def why(self, before: TrainConfig, after: TrainConfig) -> str:
        several = None if explaining(before, after) else parts(before, after)
        return trial._decision(self.outcome, None, changed(before, after), several)[1]


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    return Child(monkeypatch)


def drawn(name: str) -> hidden.HiddenJob:
    """The hidden job with this name, whatever its seed."""
    return hidden.HiddenJob(1, next(one for card in (False, True) for one in hidden.jobs(card) if one.name == name))


def looked(name: str = "slow storage") -> hidden.HiddenJob:
    job = drawn(name)
    job.look()
    return job


# The draw


@pytest.mark.parametrize("card", [False, True])
def test_a_seed_draws_the_same_job_again_and_seeds_differ(card: bool) -> None:
    names = [hidden.draw(seed, card).name for seed in range(60)]
    assert names == [hidden.draw(seed, card).name for seed in range(60)]
    assert set(names) == {one.name for one in hidden.jobs(card)} and len(set(names)) >= 5


def test_what_needs_a_card_is_not_drawn_without_one() -> None:
    assert all("cpu" in one.shows_on for one in hidden.jobs(card=False))
    assert not {one.name for one in hidden.jobs(card=True)} <= {one.name for one in hidden.jobs(card=False)}
    assert {*hidden.NAMES} <= {one.name for one in PLANTED}


@pytest.mark.parametrize("seed", ["1", 1.5, True, None])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(TypeError, match="a whole number, such as 1"):
        hidden.draw(seed, card=False)


@pytest.mark.parametrize("planted", hidden.jobs(card=False), ids=lambda planted: planted.name)
def test_against_each_hidden_bottleneck_one_change_of_the_list_is_meant(child: Child, planted: Any) -> None:
    job = looked(planted.name)
    against = [one for one in job._fitting() if explaining(job.start, job._after(one)).id == one.id]
    assert against and {one.id for one in against} <= {id for choice in job.choices() for id in choice.ids}


# One change


def test_nothing_that_is_planted_is_told_before_the_answer(child: Child) -> None:
    for planted in hidden.jobs(card=False):
        job = looked(planted.name)
        bundle = job._repr_mimebundle_()
        told = f"{job.title} {job.look()} {bundle['text/html']} {bundle['text/plain']} {job.reveal()}"
        assert planted.name not in told and planted.says not in told and "Planted" not in told


def test_the_choices_do_not_tell_the_job(child: Child) -> None:
    pictures = [one for one in hidden.jobs(card=False) if one.job.sizes.pictures]
    offered = {tuple(choice.says for choice in looked(one.name).choices()) for one in pictures}
    assert len(offered) == 1


def test_a_change_that_pays_is_kept_recorded_and_drawn(child: Child) -> None:
    job = looked()
    status = job.choose("workers")
    assert status.correct and str(status).startswith("✓ loader workers: kept") and "bottleneck move" in str(status)
    assert job.now.workers == 2 and child.asked[-1] == (job.start, job.now)
    kept, _ = ledger.read()
    assert [(one.kind, one.kept, one.limit_before, one.limit_after) for one in kept] == [
        ("baseline", True, "", ""),
        ("change", True, "data", "compute"),
    ]
    assert "loader workers: 2" in str(job.waterfall()) and "as it was" in str(job.waterfall())
    assert job.first_gain.value == FASTER.ratio


def test_the_next_change_starts_from_the_kept_one(child: Child) -> None:
    job = looked()
    job.choose("workers")
    job.choose("batch")
    before, after = child.asked[-1]
    assert before.workers == after.workers == 2 and after.batch_size == hidden.BIGGER * before.batch_size


def test_a_change_that_does_not_pay_is_taken_back_and_not_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(monkeypatch, SAME)
    job = looked()
    assert "not kept" in str(job.choose("workers")) and job.now == job.start
    asked = len(child.asked)
    assert "measured from here already" in str(job.choose("workers")) and len(child.asked) == asked
    assert "Tried and not kept" in str(job.waterfall())


def test_what_noise_left_open_can_be_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(monkeypatch, msgspec.structs.replace(SAME, smallest=0.4))
    job = looked()
    assert "measure it again" in str(job.choose("workers"))
    asked = len(child.asked)
    child.outcome = FASTER
    assert job.choose("workers").correct and len(child.asked) == asked + 1


def test_two_at_once_are_measured_recorded_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the loop's own trial answers: faster, and nobody can say which of the two it was."""
    child = Child(monkeypatch)
    job = looked()
    both = next(choice.ids for choice in job.choices() if len(choice.ids) > 1)
    status = str(job.choose(*both))
    before, after = child.asked[-1]
    assert (after.workers, after.batch_size) == (2, hidden.BIGGER * before.batch_size)
    assert "not kept" in status and "cannot be attributed to one change" in status and "each alone" in status
    assert job.now == job.start and [one.kept for one in job.changes] == [False]
    kept, _ = ledger.read()
    assert kept[-1].remedy == "loader workers and a larger batch" and kept[-1].code == ""
    bar = bars(job.records)[-1]
    assert (bar.label, bar.why) == ("loader workers and a larger batch", "cannot be attributed to one change")
    assert "Tried and not kept" in str(job.waterfall())
    assert "was more than one: loader workers and a larger batch" in str(job.answer())
    asked = len(child.asked)
    assert "measured from here already" in str(job.choose(*both)) and len(child.asked) == asked
    assert job.choose("workers").correct, "and each alone can still be tried"


def test_two_at_once_of_which_one_has_nothing_to_change_are_not_measured(child: Child) -> None:
    job = looked()
    job.choose("workers")
    asked = len(child.asked)
    assert "loader workers: nothing to change" in str(job.choose("workers", "batch"))
    assert "Choose a change first." in str(job.choose()) and len(child.asked) == asked


def test_what_the_run_does_already_is_said(child: Child) -> None:
    job = looked("one call a sample")
    assert "nothing to change" in str(job.choose("fewer-workers")) and not job.changes


def test_a_change_of_no_name_says_which_there_are(child: Child) -> None:
    with pytest.raises(KeyError, match="no change is called 'faster'.*workers"):
        looked().choose("faster")


def test_a_child_that_fails_is_said_and_the_round_goes_on(child: Child) -> None:
    job = looked()
    child.outcome = ChildFailed("the measuring process was ended by SIGKILL")
    assert "Not measured: the measuring process" in str(job.choose("workers")) and not job.changes
    child.outcome = FASTER
    assert job.choose("workers").correct


def test_before_the_first_look_nothing_can_be_chosen() -> None:
    for act in (lambda job: job.choose("workers"), lambda job: job.waterfall(), lambda job: job.answer()):
        with pytest.raises(RuntimeError, match="not measured yet"):
            act(drawn("slow storage"))


def test_where_nobody_chose_the_usual_advice_is_tried_once(child: Child) -> None:
    job = looked()
    assert "Nothing was chosen" in str(job.unless_chosen()) and job.now.workers == 2
    assert "1 change, 1 kept" in str(job.unless_chosen()) and len(job.changes) == 1
    assert "The usual first advice, loader workers" in str(job.answer())


def test_a_choice_of_the_learner_is_theirs(child: Child) -> None:
    job = looked()
    job.choose("bf16")
    job.unless_chosen()
    assert "Your first change, BF16 autocast, is not one against data" in str(job.answer())


# The answer


def test_the_answer_names_what_was_planted_and_holds_it_against_the_measurement(child: Child) -> None:
    job = looked()
    job.choose("workers")
    told = str(job.answer())
    assert job.planted.says in told and "The measurement says so: data" in told
    assert "Your first change, loader workers, is one against data" in told and "The bottleneck moved" in told
    assert "utilization n/a" in told  # there is no card, and nothing stands for one


def test_a_measurement_that_shows_something_else_is_said(child: Child) -> None:
    child.limits = ["compute"]
    told = str(looked().answer())
    assert "does not show it: it says compute, planted is data" in told and "another seed" in told


def test_on_a_card_the_guide_is_asked_and_a_disagreement_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(monkeypatch, here=CARD)
    child.limits = ["launches", "launches"]
    job = looked("one call a sample")
    told = " ".join(str(job.answer()).split())
    assert "the data pipeline" in told and "Measured, the limit is launches" in told and "not for want of data" in told
    assert "GPU utilization" in str(job.measured())


def test_running_all_cells_gives_nothing_away(child: Child) -> None:
    folded = looked().reveal()._repr_mimebundle_()
    assert "<details><summary>Show what was planted" in folded["text/html"] and "open" not in folded["text/html"][:200]
    assert "Planted" not in folded["text/plain"] and "job.answer()" in folded["text/plain"]


# The panel


def test_the_panel_measures_what_is_chosen_and_shows_the_waterfall(child: Child) -> None:
    job = looked()
    job._repr_mimebundle_()
    panel = job._panel
    assert panel._shown.value == ""
    panel._press.click()
    assert "Choose a change first." in panel._status.value and len(child.asked) == 1
    place = [choice.ids for choice in job.choices()].index(("workers",))
    panel._control.widget.value = chr(ord("a") + place)
    panel._press.click()
    assert "kept" in panel._status.value and "loader workers: 2" in panel._shown.value
    assert not panel._press.disabled


def test_what_a_button_measures_counts_as_measuring(child: Child) -> None:
    clock = iter(range(100))
    chapter = lesson.Lesson(now=lambda: next(clock))
    job = hidden.HiddenJob(1, drawn("slow storage").planted, chapter)
    job.look()
    job._repr_mimebundle_()
    job._panel._control.widget.value = "a"
    job._panel._press.click()
    assert chapter._measuring > 0


def test_the_static_face_names_every_change(child: Child) -> None:
    job = looked()
    plain = job._repr_mimebundle_()["text/plain"]
    assert all(repr(id) in plain for choice in job.choices() for id in choice.ids)


# The measuring process


def test_the_child_looks_at_a_kept_change_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real child, on the smallest job, with a plan too short for a verdict: what is not kept is not looked at."""
    monkeypatch.setattr(pace, "plan_for", lambda device, **_: Plan(0.01, min_rounds=2, budget_seconds=0.1))
    monkeypatch.setattr(hidden_child, "SECONDS", 0.1)
    small = hidden.SMALL_BATCHES
    first = hidden_child.in_child(msgspec.to_builtins(hidden_child.Request(small.job, small.start)), Tell())
    assert first.trial is None and first.seen.look.starve.real.value > 0 and first.seen.look.traced.calls > 100
    same = hidden_child.Request(small.job, small.start, small.start)
    second = hidden_child.in_child(msgspec.to_builtins(same), Tell())
    assert not second.trial.kept and second.seen is None


# The guide beside the measurement


def test_the_guide_and_the_measurement_part_where_launches_limit() -> None:
    jobs = tuple(guided.Guided(limit, limit, seen(limit, CARD).look) for limit in ("data", "launches"))
    shown = guided.report(guided.GuidedResult(jobs, CARD, CARD.origin))
    told = " ".join(str(shown).split())
    assert "agree in 1 of 2 jobs" in told and "launches. The published guide would say: the data pipeline" in told


def test_a_recording_of_the_guide_can_be_replayed(tmp_path: Any) -> None:
    jobs = (guided.Guided("one call a sample", "launches", seen("launches", CARD).look),)
    result = guided.GuidedResult(jobs, CARD, CARD.origin)
    (tmp_path / "guided-test.json").write_bytes(envelope(result, result.origin, guided.findings(result)))
    assert "recorded on a card of a test" in str(replay.show("guided", folder=tmp_path))


def test_the_guide_s_jobs_are_planted_ones() -> None:
    assert {*guided.NAMES} <= {one.name for one in PLANTED}


# What the site says


def test_the_list_before_batch_has_the_site_s_own_names_and_numbers() -> None:
    told = str(before_batch.checklist(site.load("aicr")))
    assert "b200-batch" in told and "7 of 8" in told and "folder logs" in told


def test_a_site_of_other_numbers_gets_them() -> None:
    aicr = site.load("aicr")
    other = msgspec.structs.replace(
        aicr, conventions=msgspec.structs.replace(aicr.conventions, cpus_per_card=16, output="out/%j.log")
    )
    told = str(before_batch.checklist(other))
    assert "15 of 16" in told and "folder out" in told


def test_the_habit_of_the_site_or_one_as_an_example() -> None:
    assert "nobody stated" not in str(before_batch.habit(site.load("aicr")))
    told = str(before_batch.habit(site.load("generic")))
    assert "nobody stated a habit" in told and "AICR" in told


# The exercises

REPORT_CARD_WRONG = {
    "no-dict": ("stays", "larger batch", "fewer CPUs", "less time"),
    "line-missing": {"gpu_utilization": "stays"},
    "unknown-word": chapter07.NEXT_TIME | {"gpu_memory": "bigger"},
    "healthy-touched": chapter07.NEXT_TIME | {"gpu_utilization": "larger batch"},
    "room-left-unused": chapter07.NEXT_TIME | {"gpu_memory": "stays"},
    "smaller-batch": chapter07.NEXT_TIME | {"gpu_memory": "smaller batch"},
    "more-cpus": chapter07.NEXT_TIME | {"cpu_utilization": "more CPUs"},
    "idle-cpus-kept": chapter07.NEXT_TIME | {"cpu_utilization": "stays"},
    "time-kept": chapter07.NEXT_TIME | {"time_used": "stays"},
    "more-time": chapter07.NEXT_TIME | {"time_used": "more time"},
    "wrong-line": chapter07.NEXT_TIME | {"time_used": "fewer CPUs"},
}
FIRST_CHANGE_WRONG = {
    "no-dict": "workers",
    "job-missing": {"vision": "workers"},
    "two-at-once": chapter07.FIRST | {"tokens": ("larger batch", "BF16")},
    "unknown-word": chapter07.FIRST | {"tokens": "compile"},
    "workers-while-fed": chapter07.FIRST | {"tokens": "workers"},
    "grow-while-waiting": chapter07.FIRST | {"vision": "larger batch"},
    "faster-step-while-waiting": chapter07.FIRST | {"vision": "BF16"},
    "pin-while-waiting": chapter07.FIRST | {"vision": "pinned memory"},
    "more-cards": chapter07.FIRST | {"volumes": "second card"},
    "not-the-copies": chapter07.FIRST | {"volumes": "larger batch"},
    "not-the-launches": chapter07.FIRST | {"tokens": "BF16"},
}
TESTED = {"report": REPORT_CARD_WRONG, "change": FIRST_CHANGE_WRONG}
RIGHT = {"report": chapter07.NEXT_TIME, "change": chapter07.FIRST}


@pytest.mark.parametrize("id", RIGHT)
def test_the_right_answers_are_done(id: str) -> None:
    assert exercise.open(CHAPTER, id).check(RIGHT[id]).done


@pytest.mark.parametrize(("id", "mistake"), [(id, mistake) for id, wrong in TESTED.items() for mistake in wrong])
def test_a_wrong_answer_gets_its_own_hint(id: str, mistake: str) -> None:
    result = exercise.open(CHAPTER, id).check(TESTED[id][mistake])
    assert (result.done, result.attempted, result.mistake) == (False, True, mistake)
    assert len(result.hint) > 20 and "{" not in result.says


@pytest.mark.parametrize("id", TESTED)
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str) -> None:
    assert {*TESTED[id], "unforeseen"} == set(material.exercises(CHAPTER)[id].mistakes)


@pytest.mark.parametrize("id", RIGHT)
def test_every_wrong_word_is_found_and_none_without_a_hint(id: str) -> None:
    words = chapter07.WORDS if id == "report" else chapter07.CHANGES
    for name, expected in RIGHT[id].items():
        for word in words:
            result = exercise.open(CHAPTER, id).check(RIGHT[id] | {name: word})
            assert result.done is (word == expected) and result.mistake in {
                "",
                *material.exercises(CHAPTER)[id].mistakes,
            }


@pytest.mark.parametrize("id", RIGHT)
def test_a_half_filled_table_is_no_try(id: str) -> None:
    name = next(iter(RIGHT[id]))
    for stub in (dict.fromkeys(RIGHT[id], ...), RIGHT[id] | {name: ...}):
        assert not exercise.open(CHAPTER, id).check(stub).attempted
    assert progress.tally(CHAPTER, "exercise", id) == progress.Tally()


def test_the_three_reports_add_up() -> None:
    """Stall, launches, copies and utilization of each made-up job are about the whole of its time."""
    from pathlib import Path

    notebook = json.loads((Path(__file__).parents[1] / "notebooks" / "07_loop.ipynb").read_text())
    text = next("".join(c["source"]) for c in notebook["cells"] if c["id"] == "07-exercise-change")
    rows = {row.split("|")[1].strip(): row.split("|")[2:5] for row in text.splitlines() if row.startswith("| ")}
    names = ("GPU utilization", "stall", "the card waits for the next launch", "copies, with nothing beside them")
    for place, job in enumerate(chapter07.FIRST):
        parts = [int(rows[name][place].split("%")[0]) for name in names]
        assert 95 <= sum(parts) <= 105, job
        assert rows["stall"][place].strip() == chapter07.STALL[job]
