"""Chapter 6: its checks find every typical mistake by what two ranks really do, and its texts follow the site file."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

pytest.importorskip("torch", reason="chapter 6 starts ranks of PyTorch")

from gpuworkshop.child import ChildFailed  # noqa: E402
from gpuworkshop.cluster import site  # noqa: E402
from gpuworkshop.course import exercise, lesson, material, progress, quiz, several  # noqa: E402
from gpuworkshop.course.checks import chapter06  # noqa: E402
from gpuworkshop.figures.all_reduce import all_reduce_figure  # noqa: E402
from gpuworkshop.instruments.scaling_result import efficiency_by_hand  # noqa: E402
from gpuworkshop.instruments.scaling_witness import Seen, WitnessResult  # noqa: E402
from gpuworkshop.machine.conditions import Conditions  # noqa: E402
from gpuworkshop.report import measured_here  # noqa: E402
from gpuworkshop.workloads.config import Job  # noqa: E402

CHAPTER = "06_ddp"
REPOSITORY = Path(__file__).parents[1]
HERE = Conditions("cpu", "2 CPU cores, a processor", "", "", 2, "affinity", 1, "3.11", "2.11", "0.1", "2026-12-01")
SOURCE = (REPOSITORY / "solutions" / f"{CHAPTER}.py").read_text()
SOLVED = tomllib.loads((REPOSITORY / f"gpuworkshop/course/exercises/{CHAPTER}.solutions.toml").read_text())["ddp"]

# ---------------------------------------------------------------- exercise 1: from one rank to several

JOIN, WRAP = "    dist.init_process_group()\n", "DistributedDataParallel(nn.Linear(8, 1).to(device))"
SAMPLER, SET = "DistributedSampler(dataset)", "        sampler.set_epoch(epoch)\n"
ASK, ONE_VOICE = 'device_of(int(os.environ["LOCAL_RANK"]))', "if dist.get_rank() == 0:"
LOADER, BACK = "batch_size=8, sampler=sampler", "            loss.backward()\n"
AVERAGE = (
    BACK + "            for weight in model.parameters():\n                dist.all_reduce(weight.grad)\n"
    "                weight.grad /= dist.get_world_size()\n"
)
OWN_SHARE = "torch.utils.data.SubsetRandomSampler(range(24))"
ALONE = 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n'

CHANGED = {
    "unknown-name": [(WRAP, "DDP(Net().to(device))")],
    "raised": [("nn.Linear(8, 1)", "nn.Linear(9, 1)")],
    "nccl": [(JOIN, JOIN.replace("()", '("nccl")'))],
    "card-by-name": [(ASK, '"cuda:0"')],
    "not-joined": [(JOIN, "")],
    "not-wrapped": [(WRAP, "nn.Linear(8, 1).to(device)")],
    "not-used": [(WRAP, "nn.Linear(8, 1).to(device)\n    DistributedDataParallel(model)")],
    "exchanges": [(WRAP, "nn.Linear(8, 1).to(device)"), (BACK, AVERAGE)],
    "dataparallel": [
        (JOIN, ""),
        (WRAP, "nn.DataParallel(nn.Linear(8, 1))"),
        (SAMPLER, "DistributedSampler(dataset, 2, int(os.environ['RANK']))"),
        (ONE_VOICE, "if os.environ['RANK'] == '0':"),
        ("    dist.destroy_process_group()", ""),
    ],
    "wrong-world": [(JOIN, f"    {ALONE}"), (ONE_VOICE, "if os.environ['RANK'] == '0':")],
    "no-sampler": [(LOADER, "batch_size=8, shuffle=True")],
    "shares": [(SAMPLER, OWN_SHARE), (SET, "")],
    "shuffle-and-sampler": [(LOADER, f"{LOADER}, shuffle=True")],
    "not-shuffled": [(SAMPLER, "DistributedSampler(dataset, shuffle=False)")],
    "same-order": [(SET, "")],
    "no-device": [(ASK, '"cpu"')],
    "one-card": [(ASK, "device_of(0)")],
    "all-print": [(ONE_VOICE, "if True:")],
    "nobody-prints": [(ONE_VOICE, "if False:")],
}
"""Typical wrong answers: what of the solution is something else in each, by the mistake that must be found."""

OTHERS_RIGHT = {
    "by name of the backend": [(JOIN, JOIN.replace("()", '("gloo")'))],
    "with workers": [(LOADER, f"{LOADER}, num_workers=1")],
    "the rank of a single node": [(ASK, "device_of(dist.get_rank())")],
    "without an end": [("    dist.destroy_process_group()", "    pass")],
    "imports of its own": [(JOIN, f"    import torch.distributed as d\n{JOIN.replace('dist', 'd')}")],
}
"""Other right answers."""


def text_of(changes: list[tuple[str, str]]) -> str:
    """The solution with some of its words changed."""
    text = SOLVED
    for old, new in changes:
        assert old in text, f"{old!r} is not in the solution"
        text = text.replace(old, new)
    return text


def function(text: str, folder: Path) -> Callable:
    """The function of a text, with a file in which its source is found."""
    file = folder / "answer.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("answer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train_ddp


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[WitnessResult, Path]]:
    """What two real gloo ranks did with each answer, and the folder with their notes."""
    folders, words = {}, []
    for name, changes in (CHANGED | OTHERS_RIGHT).items():
        folders[name] = tmp_path_factory.mktemp("answer")
        text = chapter06.SCRIPT.format(source=text_of(changes), name="train_ddp", folder=str(folders[name]))
        (folders[name] / "script.py").write_text(text)
        words += [str(folders[name] / "script.py"), str(free_port())]
    command = [sys.executable, str(Path(__file__).with_name("ranks_in_a_row.py"))]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([*command, str(n), *words], stdout=subprocess.PIPE, env=env) for n in range(2)]
    seen = [msgspec.json.decode(rank.communicate(timeout=240)[0], type=list[Seen]) for rank in ranks]
    each = zip(folders.items(), *seen, strict=True)
    return {name: (witnessed(*two), folder) for (name, folder), *two in each}


def witnessed(*seen: Seen) -> WitnessResult:
    return WitnessResult("train_ddp.py", len(seen), seen, HERE, HERE.origin)


@pytest.fixture
def as_it_ran(ran: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Callable]:
    """Makes the check of an answer find what the ranks did with it; gives the answer."""

    def make(name: str) -> Callable:
        result, notes = ran[name]

        def watched(text: str, script: str, folder: Path) -> WitnessResult:
            assert text_of((CHANGED | OTHERS_RIGHT)[name]).strip() in text
            for file in notes.glob("notes-*.json"):
                shutil.copy(file, folder)
            return result

        monkeypatch.setattr(several, "watched", watched)
        return function(text_of((CHANGED | OTHERS_RIGHT)[name]), tmp_path)

    return make


@pytest.mark.parametrize("mistake", CHANGED)
def test_a_wrong_way_to_several_ranks_gets_its_own_hint(as_it_ran: Callable, mistake: str) -> None:
    assert_mistake("ddp", mistake, as_it_ran(mistake))


@pytest.mark.parametrize("way", OTHERS_RIGHT)
def test_other_right_ways_are_done(as_it_ran: Callable, way: str) -> None:
    result = exercise.open(CHAPTER, "ddp").check(as_it_ran(way))
    assert result.done, result


def test_the_solution_is_done_by_two_ranks_of_torchrun(tmp_path: Path) -> None:
    """The whole way, live: the source of the function, torchrun, and what the ranks leave behind."""
    result = exercise.open(CHAPTER, "ddp").check(function(SOLVED, tmp_path))
    assert result.done and "24 of 48 samples" in result.says, result


def answers(error: ChildFailed | WitnessResult) -> Callable:
    def watched(*_: Any, **__: Any) -> WitnessResult:
        if isinstance(error, ChildFailed):
            raise error
        return error

    return watched


def test_an_answer_that_cannot_be_run_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(several, "watched", answers(ChildFailed("2 ranks on 1 CPU would only take turns")))
    result = assert_mistake("ddp", "not-run", function(SOLVED, tmp_path))
    assert "2 ranks on 1 CPU" in result.says
    monkeypatch.setattr(several, "watched", answers(witnessed(Seen(0, 2, stopped=True), Seen(1, 2))))
    assert_mistake("ddp", "never-ends", function(SOLVED, tmp_path))


def test_what_is_no_function_with_a_source_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "watched", answers(ChildFailed("it was run")))
    assert_mistake("ddp", "no-function", None)
    made: dict[str, Any] = {}
    exec(SOLVED, made)
    assert_mistake("ddp", "no-source", made["train_ddp"])
    assert_mistake("ddp", "no-source", lambda dataset, epochs: print(dataset))


def test_the_stub_is_no_try() -> None:
    def train_ddp(dataset, epochs):
        """The same as one of the ranks."""
        ...

    assert not exercise.open(CHAPTER, "ddp").check(train_ddp).attempted
    assert progress.tally(CHAPTER, "exercise", "ddp") == progress.Tally()


def test_every_mistake_with_words_has_a_typical_wrong_answer() -> None:
    told = {*CHANGED, "not-run", "never-ends", "no-function", "no-source", "unforeseen"}
    assert told == set(material.exercises(CHAPTER)["ddp"].mistakes)
    assert {*DECIDE_WRONG, "unforeseen"} == set(material.exercises(CHAPTER)["decide"].mistakes)


def assert_mistake(id: str, mistake: str, answer: Any) -> exercise.CheckResult:
    result = exercise.open(CHAPTER, id).check(answer)
    assert (result.done, result.attempted, result.mistake) == (False, True, mistake), result
    assert len(result.hint) > 20 and "{" not in result.says
    return result


# ---------------------------------------------------------------- exercise 2: four measured jobs

RIGHT = chapter06.JOBS
DECIDE_WRONG = {
    "no-dict": "more cards",
    "job-missing": {"galaxies": "more cards"},
    "unknown-word": RIGHT | {"scans": "two cards"},
    **{mistake: RIGHT | {job: word} for (job, word), mistake in chapter06.AGAINST.items()},
}


def test_the_right_decisions_are_done() -> None:
    assert exercise.open(CHAPTER, "decide").check(RIGHT).done


@pytest.mark.parametrize("mistake", DECIDE_WRONG)
def test_a_wrong_decision_gets_its_own_hint(mistake: str) -> None:
    assert_mistake("decide", mistake, DECIDE_WRONG[mistake])


def test_every_wrong_decision_has_words() -> None:
    wrong = {(job, word) for job, said in RIGHT.items() for word in chapter06.WORDS if word != said}
    assert set(chapter06.AGAINST) == wrong


def test_a_half_filled_table_is_no_try() -> None:
    for stub in (dict.fromkeys(RIGHT, ...), RIGHT | {"scans": ...}):
        assert not exercise.open(CHAPTER, "decide").check(stub).attempted


def row(name: str) -> dict[str, str]:
    """A row of the exercise's table, by job."""
    rows = (line.lstrip("# ").strip("|").split("|") for line in SOURCE.splitlines() if line.startswith("# | "))
    values = next(cells[1:] for cells in rows if cells[0].strip() == name)
    return dict(zip(RIGHT, (value.strip() for value in values), strict=True))


def test_the_numbers_of_the_four_jobs_give_the_decisions() -> None:
    busy, stall, efficiency = row("GPU utilization, one card"), row("stall"), row("two cards, weak efficiency")
    faster = row("BF16 on one card, measured against FP32")
    for job, decision in RIGHT.items():
        scales = float(efficiency[job].rstrip("%"))
        if float(stall[job].rstrip("%")) > 20 or faster[job] != "in use":
            assert decision == "fix first"
        else:
            assert decision == ("more cards" if scales > 80 and float(busy[job].rstrip("%")) > 80 else "one card")
        assert float(stall[job].rstrip("%")) + float(busy[job].rstrip("%")) <= 100
    assert float(faster["proteins"].rstrip("x")) > 2 * float(efficiency["proteins"].rstrip("%")) / 100
    words = material.exercises(CHAPTER)["decide"].mistakes
    for mistake, job in (("gain-left", "galaxies"), ("below-the-bands", "letters"), ("slow-multiplied", "proteins")):
        assert f"{2 * float(efficiency[job].rstrip('%')) / 100:.2f}" in words[mistake].says
    for word in chapter06.WORDS:
        assert f'`"{word}"`' in SOURCE


# ---------------------------------------------------------------- the question with a number


def test_the_efficiency_is_that_of_the_instrument() -> None:
    question = quiz.ask(CHAPTER, "efficiency")
    given = question.data.given
    by_hand = efficiency_by_hand([4] * 4, int(given["batch"]), given["steps"], 64, given["alone_steps"])
    assert question.answer == pytest.approx(100 * by_hand.efficiency) and by_hand.mode == "strong"
    assert question.check(question.answer).right
    for slip in question.data.slips:
        assert not question.check(slip.value).right and question.check(slip.value).says == slip.says


# ---------------------------------------------------------------- the request


@pytest.mark.parametrize("name", site.shipped())
def test_the_request_is_one_task_with_the_cpus_of_all_ranks(name: str) -> None:
    here = site.load(name)
    shown = several.request(here)
    cards = next(int(line.rpartition(":")[2]) for line in shown.lines if "--gres" in line)
    assert f"#SBATCH --cpus-per-task={cards * here.conventions.cpus_per_card}" in shown.lines
    assert "#SBATCH --ntasks-per-node=1" in shown.lines and "torchrun" in shown.text
    assert shown.about[0].startswith(f"{cards} ranks x ({here.conventions.cpus_per_card - 1} workers + 1)")


def test_a_site_of_other_numbers_gets_them() -> None:
    aicr = site.load("aicr")
    other = msgspec.structs.replace(aicr, conventions=msgspec.structs.replace(aicr.conventions, cpus_per_card=12))
    assert "--cpus-per-task=48" in several.request(other).text and "11 workers" in str(several.request(other))


@pytest.mark.parametrize("name", site.shipped())
def test_both_changed_scripts_are_found_and_nothing_else(name: str) -> None:
    multiplied, plain = several.multiplied(site.load(name)), several.plain(site.load(name))
    assert [one.level for one in multiplied.findings] == ["fail"] and "16 processes" in multiplied.findings[0].title
    assert [one.level for one in plain.findings] == ["warning"] and "one process" in plain.findings[0].title


def test_the_answer_to_the_question_is_folded() -> None:
    bundle = several.folded(several.multiplied(site.load("aicr")))._repr_mimebundle_()
    assert "<details><summary>" in bundle["text/html"] and "16 processes" not in bundle["text/plain"]


def test_no_fact_of_a_site_stands_in_the_chapter() -> None:
    facts = [part.name for part in site.load("aicr").partitions] + [m.name for m in site.load("aicr").modules]
    for file in (SOURCE, *(Path(m).read_text() for m in (several.__file__, chapter06.__file__))):
        assert not [fact for fact in facts if fact in file]


# ---------------------------------------------------------------- what the chapter shows


def test_cards_are_hidden_only_from_what_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "3"):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if before is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        with pytest.raises(RuntimeError), several.on_cpus():
            assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
            raise RuntimeError
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_a_script_that_cannot_be_run_is_a_note_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "watched", answers(ChildFailed("2 ranks on 1 CPU would only take turns")))
    assert "2 ranks on 1 CPU" in str(several.witness("", "plain.py"))


def test_the_picture_has_each_rank_s_number_and_their_mean() -> None:
    own, mean = ((0.5, 9.0), (-1.5, 9.0), (0.25, 9.0)), (-0.25, 9.0)
    figure = all_reduce_figure(own, mean, measured_here("a processor"))
    ElementTree.fromstring(figure.svg)
    for value in ("+0.5000", "+0.2500", "mean of 3", "rank 2"):
        assert value in figure.svg
    assert figure.svg.count("\u22120.2500") == 4 and "-0.2500" in figure.text and "measured here" in figure.text


def test_without_a_card_the_measurement_is_short() -> None:
    assert several.plan(Job("gpt-tiny")) == several.QUICK and several.plan(Job("gpt")) is None


def test_one_card_has_nothing_to_scale_to() -> None:
    from test_scaling import made

    assert "One card" in str(several.effect(made(1, weak_1=0.105)))
    assert "shows it" in str(several.effect(made(weak_2=0.105)))
    assert "does not show it" in str(several.effect(made(weak_2=0.2)))


def test_cards_that_were_held_together_are_counted_together() -> None:
    from test_scaling import made

    cards = Conditions("cuda", "a card of a test", "", "", 16, "affinity", 1, "3.11", "2.11", "0.1", "2026-12-01")
    told = []
    for count, weak in ((1, {"weak_1": 0.1}), (4, {"weak_4": 0.125})):
        clock = iter((0.0, 60.0))
        seen = made(count, here=cards, **weak)
        told.append(str(lesson.Lesson(now=lambda clock=clock: next(clock)).cost(seen)))
    assert "Used: 1.0 card-minutes" in told[0] and "Used: 4.0 card-minutes" in told[1]
    assert re.search(r"4 ranks together lose 20% of what each does alone \(\d+% to \d+%\)", told[1])
    assert "together lose" not in told[0]
