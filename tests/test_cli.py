"""The command line: what each verb asks its instrument for, what it prints where, and its exit code."""

import json
import sys
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from gpuworkshop import child, cli
from gpuworkshop.__main__ import VERBS, shows_verbs
from gpuworkshop.__main__ import main as command
from gpuworkshop.cli import measure
from gpuworkshop.cli.base import seconds
from gpuworkshop.machine import gpus
from gpuworkshop.report import Finding, Origin, Report
from gpuworkshop.workloads.config import PRESETS, TrainConfig

ORIGIN = Origin("measured here", "a test machine")


class Answer(msgspec.Struct, frozen=True):
    """A result as small as can be."""

    rate: float
    origin: Origin = ORIGIN


class FakeInstrument:
    """Stands where a verb imports its instrument: notes what it is asked for, then answers or raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple, dict[str, Any]]] = []
        self.level = "ok"
        self.error: BaseException | None = None

    def _answer(self, door: str, *args: Any, **kwargs: Any) -> Answer:
        self.asked.append((door, args, kwargs))
        if self.error:
            raise self.error
        return Answer(rate=12.0)

    def run(self, *args: Any, **kwargs: Any) -> Answer:
        return self._answer("run", *args, **kwargs)

    def run_sweep(self, *args: Any, **kwargs: Any) -> Answer:
        return self._answer("run_sweep", *args, **kwargs)

    def findings(self, result: Answer) -> tuple[Finding, ...]:
        return (Finding(self.level, "The step waits"),)

    def report(self, result: Answer) -> Report:
        return Report("Starve", ORIGIN, self.findings(result))


@pytest.fixture
def instrument(monkeypatch: pytest.MonkeyPatch) -> FakeInstrument:
    """One fake instead of every instrument that a verb can import."""
    from gpuworkshop import instruments, loop

    fake = FakeInstrument()
    for room, name in ((instruments, "starve"), (loop, "climb")):
        monkeypatch.setitem(sys.modules, f"{room.__name__}.{name}", fake)
        monkeypatch.setattr(room, name, fake, raising=False)
    monkeypatch.setattr(gpus, "there_is_one", lambda: False)
    return fake


def test_starve_asks_for_the_naive_start_of_the_preset_that_suits(instrument, monkeypatch) -> None:
    assert cli.main(["starve"]) == 0
    monkeypatch.setattr(gpus, "there_is_one", lambda: True)
    assert cli.main(["starve"]) == 0
    ((_, (config, tiny), how), (_, (_, card), _)) = instrument.asked
    assert config == PRESETS["tiny"].start
    assert (tiny.preset, card.preset) == ("tiny", "card")
    assert how["launcher"] == ()


def test_every_setting_reaches_the_config(instrument) -> None:
    words = "--data-path pre-decoded --workers 3 --prefetch-factor 4 --pin-memory --persistent-workers"
    words += " --batch-size 64 --precision bf16 --memory-format channels_last"
    assert cli.main(["starve", *words.split()]) == 0
    ((_, (config, _), _),) = instrument.asked
    assert config == TrainConfig("pre-decoded", 3, 4, True, True, 64, "bf16", "channels_last")


def test_the_flags_are_the_fields_of_the_config() -> None:
    assert tuple(measure.Settings.__annotations__) == TrainConfig.__struct_fields__
    presets = get_args(get_args(measure.Where.__annotations__["preset"])[0])
    assert set(presets) == set(PRESETS)


def test_a_setting_of_zero_is_a_setting(instrument) -> None:
    assert cli.main(["starve", "--workers", "0"]) == 0
    assert cli.main(["starve", "--batch-size", "0"]) == 2


def test_where_it_runs_reaches_the_instrument(instrument) -> None:
    words = ["--preset", "card", "--data", "my pictures", "--storage-wait-ms", "20"]
    assert cli.main(["starve", "--sweep", *words, "--launcher", "srun --gres=gpu:1 -J 'my job'"]) == 0
    ((door, (_, job), how),) = instrument.asked
    assert door == "run_sweep"
    assert (job.preset, job.data, job.storage_wait_ms) == ("card", "my pictures", 20)
    assert how["launcher"] == ("srun", "--gres=gpu:1", "-J", "my job")


def test_loop_passes_its_limits_on(instrument) -> None:
    assert cli.main(["loop", "--budget", "2m", "--max-changes", "3"]) == 0
    ((_, (job,), how),) = instrument.asked
    assert (how["budget_seconds"], how["max_changes"], job.preset) == (120.0, 3, "tiny")


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warning", 0), ("unknown", 0), ("fail", 1)])
@pytest.mark.parametrize("words", [["starve"], ["starve", "--json"]], ids=["text", "json"])
def test_only_a_finding_of_level_fail_ends_with_one(instrument, words, level, code) -> None:
    instrument.level = level
    assert cli.main(words) == code


def test_text_shows_the_report(instrument, capsys) -> None:
    cli.main(["starve"])
    assert "The step waits" in capsys.readouterr().out


def test_json_is_one_envelope_and_nothing_else(instrument, capsys) -> None:
    cli.main(["loop", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["result"]["rate"] == 12.0
    assert shown["origin"]["on"] == "a test machine"
    assert shown["findings"][0]["title"] == "The step waits"
    assert shown.keys() == {"kit", "origin", "result", "findings"}


BAD = {
    "no such verb": (["slove"], "slove"),
    "no such flag": (["starve", "--wokers", "3"], "--wokers"),
    "not a number": (["starve", "--workers", "many"], "many"),
    "not a choice": (["starve", "--precision", "fp7"], "fp7"),
    "a word too many": (["starve", "now"], "now"),
    "settings that clash": (["starve", "--persistent-workers"], "workers"),
    "a negative wait": (["starve", "--storage-wait-ms", "-5"], "storage_wait_ms"),
    "no duration": (["loop", "--budget", "soon"], "--budget: 'soon'"),
    "an open quote": (["starve", "--preset", "tiny", "--launcher", "srun 'x"], "--launcher"),
    "a launcher without a preset": (["starve", "--launcher", "srun"], "--preset"),
}


@pytest.mark.parametrize(("words", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_clear_line(instrument, capsys, words, says) -> None:
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("gpuworkshop: ") and says in shown.err
    assert instrument.asked == []


def test_a_failed_child_is_one_clear_line(instrument, capsys) -> None:
    instrument.error = child.ChildFailed("no folder 'pictures'", log="Traceback ...", bad_input=True)
    assert cli.main(["starve", "--json"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "gpuworkshop: no folder 'pictures'\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["start", "/some/folder"], '"/some/folder" has no option in front; gpuworkshop start --help'),
        (["site", "show", "aicr", "more"], '"more" has no option in front; gpuworkshop site show --help'),
        (["watch", "python", "-c", "1"], "goes after --: gpuworkshop watch -- COMMAND"),
        (["watch", "--secnds", "3"], "Did you mean --seconds?"),
    ],
)
def test_words_that_do_not_fit_are_told_where_they_belong(capsys, words, says) -> None:
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_a_child_that_crashed_is_no_bad_input_and_shows_its_log(instrument, capsys) -> None:
    instrument.error = child.ChildFailed("KeyError: 'x'", log="Traceback of the child")
    assert cli.main(["starve", "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err == "Traceback of the child\ngpuworkshop: KeyError: 'x'\n"


def test_an_interrupt_is_one_line_and_130(instrument, capsys) -> None:
    instrument.error = KeyboardInterrupt()
    assert cli.main(["loop"]) == 130
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "interrupted" in shown.err


@pytest.mark.parametrize("error", [ValueError("not the learner's fault"), RuntimeError("nor this")])
def test_a_bug_is_not_called_bad_input(instrument, error) -> None:
    instrument.error = error
    with pytest.raises(type(error), match=str(error)):
        cli.main(["starve"])


def test_native_windows_is_refused_clearly(monkeypatch, capsys) -> None:
    monkeypatch.setattr(cli.sys, "platform", "win32")
    assert cli.main(["--help"]) == 2
    assert "WSL2" in capsys.readouterr().err


def test_the_list_of_verbs_names_each_and_fits_a_terminal(capsys, monkeypatch) -> None:
    assert set(VERBS) == {name for name in cli.app if not name.startswith("-")}
    for words in ([], ["--help"], ["-h"]):
        monkeypatch.setattr(sys, "argv", ["gpuworkshop", *words])
        assert command() == 0
        text = capsys.readouterr().out
        assert all(f"  {verb} " in text for verb in VERBS) and max(map(len, text.splitlines())) <= 80


def test_a_stdout_that_is_gone_is_left_to_the_command_line(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert not shows_verbs()


@pytest.mark.parametrize(("text", "value"), [("90s", 90), ("2m", 120), (" 45 ", 45), ("1.5 min", 90)])
def test_durations(text, value) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-3s", "2h", "1m30s"])
def test_what_is_no_duration_is_refused(text) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)


def test_help_wraps_by_the_terminal_and_not_by_the_source(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["scale", "--help"]) == 0
    assert "they work together, or does each do the same work?" in capsys.readouterr().out


class NvmlFault(Exception):
    """What the driver library raises."""


@pytest.mark.parametrize(
    ("visible", "count", "has"),
    [
        (None, 2, True),
        ("0", 2, True),
        (None, 0, False),
        ("", 2, False),
        ("-1", 2, False),
        (None, None, False),
    ],
)
def test_a_card_is_one_that_the_driver_shows(monkeypatch, visible, count, has) -> None:
    def init() -> None:
        if count is None:
            raise NvmlFault("driver not loaded")

    fake = SimpleNamespace(
        nvmlInit=init, nvmlDeviceGetCount=lambda: count, nvmlDeviceGetHandleByIndex=str, NVMLError=NvmlFault
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.there_is_one() is has
