"""Attacks on scale: settings of another job in the environment, flags that nobody reads, numbers that are none."""

import math
from types import SimpleNamespace

import pytest
from test_hostile_memory import ODD

from gpuworkshop import child, cli
from gpuworkshop.child import ChildFailed
from gpuworkshop.course import exercise
from gpuworkshop.course.checks import chapter02, chapter06
from gpuworkshop.instruments import scaling
from gpuworkshop.instruments.scaling_faults import in_one_line
from gpuworkshop.instruments.scaling_result import efficiency_by_hand


@pytest.fixture
def script(tmp_path):
    """A script that may be there; it is never run."""
    file = tmp_path / "train.py"
    file.write_text("print('trained')")
    return str(file)


def test_options_that_another_job_left_for_torchrun_are_taken_away(monkeypatch) -> None:
    """PET_NNODES=2, as a scheduler of training jobs sets it, made the ranks wait for a second node without a word."""
    for name, value in {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "other:1", "NOT_PET_": "stays"}.items():
        monkeypatch.setenv(name, value)
    seen = SimpleNamespace(launcher=())

    def run(target, request, *, launcher, **more):
        seen.launcher = launcher

    monkeypatch.setattr(child, "run", run)
    scaling.launch("gpuworkshop.instruments.scaling_rank:in_rank", {}, 1, type=dict, launcher=("srun",))
    words = seen.launcher
    assert words[:6] == ("srun", "env", "-u", "PET_NNODES", "-u", "PET_RDZV_ENDPOINT")
    assert "NOT_PET_" not in words and words[6:] == scaling.torchrun(1)
    assert scaling.unset_defaults({"PATH": "/bin"}) == ()


@pytest.mark.parametrize(
    "flags", [["--straggler-ms", "5"], ["--preset", "tiny"], ["--batch-size", "8"], ["--storage-wait-ms", "1"]]
)
def test_settings_that_a_script_does_not_read_are_refused(flags, script, capsys, monkeypatch) -> None:
    monkeypatch.setattr(child, "run", lambda *words, **more: pytest.fail("nothing may start"))
    assert cli.main(["scale", *flags, "--", script, "--epochs", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "a script brings its own job" in said.err


def test_an_option_of_the_script_is_told_where_it_goes(script, capsys) -> None:
    assert cli.main(["scale", script, "--epochs", "1"]) == 2
    assert "gpuworkshop scale -- SCRIPT" in capsys.readouterr().err


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "1e9"])
def test_a_wait_that_makes_no_sense_is_one_line(wait, capsys) -> None:
    assert cli.main(["scale", "--ranks", "1", "--straggler-ms", wait]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "between 0 and 10000" in said.err


@pytest.mark.parametrize("wait", [math.nan, math.inf, -1, "5", None, True])
def test_a_wait_of_another_kind_is_bad_input_before_anything_starts(wait) -> None:
    with pytest.raises(ChildFailed, match="straggler_ms is .*: between 0 and 10000") as failed:
        scaling.run(ranks=1, straggler_ms=wait)
    assert failed.value.bad_input


@pytest.mark.parametrize(
    "numbers",
    [((), 8, 1.0, 8, 1.0), ((2, 2), 0, 1.0, 8, 1.0), ((2, 2), 8, math.nan, 8, 1.0), ((2, 2), 8, 1.0, 8, 0),
     ((2, 2), 8, 1.0, "8", 1.0), ((2, 2), 8, math.inf, 8, 1.0)],
)  # fmt: skip
def test_an_efficiency_of_nothing_is_one_line(numbers) -> None:
    with pytest.raises(ValueError, match="ranks, batches and rates are above 0"):
        efficiency_by_hand(*numbers)


def test_ranks_that_end_themselves_are_told_so_and_not_by_a_row_of_stars() -> None:
    words = child._how_it_died(0, ["the last words", "*" * 41, "  "])
    assert words.endswith("no result: the last words")
    assert "os._exit" in in_one_line(words, "*" * 41)


# ---------------------------------------------------------------- the checks of several chapters


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_a_word_of_any_type_is_none_of_the_list(odd) -> None:
    assert chapter06.decide(chapter06.JOBS | {"galaxies": odd}).mistake == "unknown-word"
    right = {name: (job.place, job.fix) for name, job in chapter02.JOBS.items()}
    name = next(iter(right))
    assert chapter02.quadrants(right | {name: (odd, odd)}).mistake == "unknown-word"
    assert chapter02.quadrants(right | {name: (odd, ...)}).mistake == "stub"


def test_a_number_that_nobody_can_write_is_still_none_of_the_list() -> None:
    shown = exercise.open("06_ddp", "decide").check(chapter06.JOBS | {"galaxies": 10**5000})
    assert shown.mistake == "unknown-word" and len(str(shown)) < 1000
