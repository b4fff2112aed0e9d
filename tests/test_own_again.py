"""Again: a changed script against its snapshot, in turn; what changed, whether it is one change, what is kept."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import msgspec
import own_runs
import pytest

from gpuworkshop import cli
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.loop import evidence, ledger
from gpuworkshop.own import again, changes, code, learned, snapshot
from gpuworkshop.own.changes import Attribution, Changes, Differs
from gpuworkshop.own.pairs import Pairs
from gpuworkshop.own.result import OwnResult, Place, Wait
from gpuworkshop.own.staged import staged

OLD = "import helper\nloader = DataLoader(data, batch_size=32)\n"
NEW = "import helper\nloader = DataLoader(data, batch_size=32, num_workers=4, persistent_workers=True)\n"
FASTER = own_runs.with_loader(workers=4, persistent_workers=True, prefetch_factor=2)
COMMAND = ("python", "train.py", "--lr", "3")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, a module of its own and data; it is the present one."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "helper.py").write_text("import json\n")
    (folder / "train.py").write_text(OLD)
    monkeypatch.chdir(folder)
    return folder


def begun(folder: Path, **how: Any) -> None:
    """The first run, measured and kept."""
    result = own_runs.result(**{"command": COMMAND, **how})
    assert again.begin(result, code.look(result.command))


def wobble(new: OwnResult, old: OwnResult | None = None) -> own_runs.Launches:
    """Launches of the old and the new script whose rates differ a little each time."""
    noise = itertools.cycle((1.0, 0.99, 1.01, 1.0, 0.98))

    def seen(text: str) -> OwnResult:
        one = (old or own_runs.result()) if text == OLD else new
        if one.rate is None:
            return one
        share = next(noise)
        return msgspec.structs.replace(one, rate=msgspec.structs.replace(one.rate, value=one.rate.value * share))

    return own_runs.Launches(seen)


def compared(new: OwnResult, old: OwnResult | None = None, **how: Any) -> again.AgainResult:
    return again.run(start=wobble(new, old), **how)


def told(result: again.AgainResult) -> str:
    return " ".join(str(again.report(result)).split())


# The whole of it


def test_one_change_that_pays_is_kept_in_the_ledger_and_the_next_comparison_is_with_it(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    found = compared(own_runs.result(300.0, FASTER))
    assert found.comparison.verdict == "faster" and 2.8 < found.comparison.ratio < 3.2 and found.kept
    assert found.attribution == Attribution(True, "loader workers", "workers")
    assert "num_workers=4" in found.changes.files[0] and found.changes.files[0].startswith("--- a/train.py")
    assert "workers 0 -> 4" in told(found) and "Learns as before" in told(found)
    kept = ledger.of_run(ledger.read()[0], ledger.read()[0][0].run)
    assert [(one.kind, one.kept, one.remedy) for one in kept] == [
        ("baseline", True, ""),
        ("change", True, "loader workers"),
    ]
    assert kept[1].own.settings["workers"] == "4" and kept[1].own.before["workers"] == "0" and kept[1].config is None
    assert snapshot.newest().texts["train.py"] == NEW
    assert "as it was" in str(again.report(found).figures[0]) and "loader workers" in str(
        again.report(found).figures[0]
    )


def test_both_are_launched_in_turn_the_old_one_from_its_snapshot_beside_the_same_data(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    launches = wobble(own_runs.result(300.0, FASTER))

    def seen(command: tuple[str, ...], **how: Any) -> OwnResult:
        file = Path(how["cwd"], command[1])
        assert (file.parent / "data").is_dir() and (file.parent / "helper.py").read_text() == "import json\n"
        assert command[2:] == ("--lr", "3") and how["only"] == ("baseline",) and Path(how["cwd"]) == project
        return launches(command, **how)

    found = again.run(start=seen, least=2)
    texts = [text for text, _ in launches.started]
    assert texts[:4] == [NEW, OLD, OLD, NEW] and found.launches == len(texts)


def test_a_change_that_does_not_pay_is_not_kept_and_the_next_comparison_is_with_the_run_before(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    found = compared(own_runs.result(100.0, FASTER))
    assert found.comparison.verdict == "no real difference" and not found.kept
    assert "Take the change back" in told(found)
    assert snapshot.newest().texts["train.py"] == OLD and len(snapshot.read_all()) == 2


def test_two_changes_at_once_cannot_be_attributed_and_are_not_kept(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    both = msgspec.structs.replace(FASTER, precision="bf16", autocast=True)
    found = compared(own_runs.result(300.0, both))
    assert found.comparison.verdict == "faster" and not found.kept and not found.attribution.one
    assert "cannot be attributed" in told(found) and "Take all but one of them back" in told(found)


def test_a_faster_run_that_learns_worse_is_not_kept(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    found = compared(own_runs.result(300.0, FASTER, losses=own_runs.losses(1.9)))
    assert found.learning.ok is False and not found.kept and "not kept: it learns worse" in told(found)


def test_another_card_is_not_comparable(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    other = msgspec.structs.replace(own_runs.CARD, uuid="GPU-2", machine="another card")
    found = compared(own_runs.result(300.0, FASTER, conditions=other))
    assert found.comparison is None and "Not comparable" in told(found) and len(ledger.read()[0]) == 1


def test_a_snapshot_from_another_card_lends_no_numbers(project: Path) -> None:
    begun(project, conditions=msgspec.structs.replace(own_runs.CARD, uuid="GPU-2", machine="another card"))
    (project / "train.py").write_text(NEW)
    found = compared(own_runs.result(300.0, FASTER))
    assert "not comparable" in told(found) and "another card -> a card of a test" in told(found)
    assert found.comparison.verdict == "faster" and len(found.records) == 1 and not again.report(found).figures


def test_rates_of_different_units_are_not_comparable(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    steps = own_runs.result(300.0, FASTER)
    found = compared(msgspec.structs.replace(steps, rate=msgspec.structs.replace(steps.rate, unit="steps/s")))
    assert found.comparison is None and "samples/s before, steps/s now" in told(found)


def test_the_command_shows_the_difference_then_the_report_or_json_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    begun(project)
    assert cli.main(["loop", "--again"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "nothing changed" in shown.err and shown.err.count("\n") == 1
    (project / "train.py").write_text(NEW)
    (project / "printed.txt").write_text("epoch 1")
    output = str(project / "printed.txt")
    monkeypatch.setattr("gpuworkshop.own.launch.run", wobble(own_runs.result(100.0, FASTER, output=output)))
    assert cli.main(["loop", "--again", "--budget", "90s", "--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("epoch 1") < shown.index("+++ b/train.py") < shown.index("Again: train.py")
    assert cli.main(["loop", "--again", "--json"]) == 0
    whole = msgspec.json.decode(capsys.readouterr().out)
    assert whole["result"]["comparison"]["verdict"] == "no real difference" and whole["findings"]
    assert msgspec.convert(whole["result"], again.AgainResult).attribution.one


# Bad input


def test_without_a_snapshot_the_first_command_is_named(project: Path) -> None:
    with pytest.raises(again.NoSnapshot, match="gpuworkshop loop -- COMMAND"):
        again.run()
    begun(project)
    (project / "other.py").write_text("")
    with pytest.raises(again.NoSnapshot, match=r"other.py was not measured yet.*train.py"):
        again.run(("python", "other.py"))


def test_a_script_that_is_gone_is_named(project: Path) -> None:
    begun(project)
    (project / "train.py").unlink()
    with pytest.raises(again.ScriptGone, match=r"train.py is not there any more: it was measured on 20"):
        again.run()


def test_nothing_changed_starts_nothing(project: Path) -> None:
    begun(project)
    for command in ((), COMMAND):
        with pytest.raises(again.NothingChanged, match=r"nothing changed: train.py.*Make one change first"):
            again.run(command, start=lambda *a, **k: pytest.fail("was started"))


def test_a_script_that_now_fails_says_so_in_its_own_words(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    broken = own_runs.result(None, None, ended="error", exit_code=1, own_words="Traceback\nNameError: no such loader")
    launches = wobble(broken)
    found = again.run(start=launches)
    assert len(launches.started) == 1, "it goes first, so that it shows at once"
    assert again.report(found).failed and "fails with exit code 1" in told(found) and "NameError" in told(found)
    assert len(snapshot.read_all()) == 1 and len(ledger.read()[0]) == 1


def test_an_old_script_that_no_longer_runs_is_told_apart(project: Path) -> None:
    begun(project)
    (project / "train.py").write_text(NEW)
    gone = own_runs.result(None, None, ended="error", exit_code=1, own_words="FileNotFoundError: data.npy")
    found = compared(own_runs.result(300.0, FASTER), gone)
    assert found.failed == "before" and "may have moved" in told(found) and "data.npy" in told(found)


def test_a_command_that_hides_the_script_is_refused(project: Path) -> None:
    (project / "run.sh").write_text("python train.py\n")
    begun(project, command=("bash", "run.sh"))
    (project / "train.py").write_text(NEW)
    with pytest.raises(again.NoSnapshot, match="does not name the script"):
        again.run()


# What changed


def differ(**settings: tuple[str, str]) -> Changes:
    return Changes(("diff",), (), tuple(Differs(name, *values) for name, values in settings.items()))


@pytest.mark.parametrize(
    ("seen", "title"),
    [
        (differ(workers=("0", "4"), persistent_workers=("off", "on"), prefetch_factor=("n/a", "2")), "loader workers"),
        (differ(workers=("8", "0"), prefetch_factor=("2", "n/a")), "no workers"),
        (differ(pin_memory=("off", "on")), "pinned memory"),
        (differ(precision=("fp32", "bf16 autocast")), "BF16 autocast"),
        (differ(precision=("fp32", "tf32")), "TF32"),
        (differ(precision=("bf16 autocast", "fp32")), "precision"),
        (differ(batch_size=("32", "128")), "batch at the knee"),
        (differ(batch_size=("32", "128"), accumulation=("4", "1")), "fewer and larger micro-batches"),
        (differ(compiled=("off", "on"), model=("Net", "OptimizedModule")), "torch.compile"),
        (differ(reads_loss=("item in each step", "rarely")), "the loss is read rarely"),
        (differ(batch_size=("32", "512"), reads_loss=("rarely", "item in each step")), "batch at the knee"),
        (differ(ranks=("1", "2 DDP"), model=("Net", "DistributedDataParallel")), "ranks"),
        (Changes(("@@ -1 +1 @@",), (), ()), "a change of the code"),
        (Changes((), (Differs("--lr", "1", "2"),), ()), "--lr"),
        (Changes((), (Differs("--num-workers", "0", "4"),), (Differs("workers", "0", "4"),)), "loader workers"),
    ],
)
def test_what_one_remedy_touches_is_one_change(seen: Changes, title: str) -> None:
    found = changes.attribute(seen)
    assert found.one and found.title == title


@pytest.mark.parametrize(
    "seen",
    [
        differ(workers=("0", "4"), batch_size=("32", "64")),
        differ(precision=("fp32", "bf16"), memory_format=("contiguous", "channels_last")),
        Changes((), (Differs("--lr", "1", "2"),), (Differs("workers", "0", "4"),)),
        Changes((), (Differs("--lr", "1", "2"), Differs("--steps", "1", "2")), ()),
        Changes(("@@ -1 +1 @@",), (Differs("--lr", "1", "2"),), ()),
        differ(workers=("8", "0"), pin_memory=("on", "off")),
    ],
)
def test_more_than_that_cannot_be_attributed(seen: Changes) -> None:
    found = changes.attribute(seen)
    assert not found.one and "at once" in found.why


def test_settings_are_told_as_the_remedies_call_them() -> None:
    words = changes.in_words(own_runs.SETTINGS)
    assert (words["workers"], words["batch_size"], words["precision"]) == ("0", "32", "fp32")
    waits = (Wait(Place("train.py", 9), "item", 1.0), Wait(Place("train.py", 12), "cpu", 0.1))
    slow = msgspec.structs.replace(own_runs.SETTINGS, waits=waits)
    assert changes.in_words(slow)["reads_loss"] == "item in each step" and words["reads_loss"] == "rarely"
    assert changes.in_words(None) == {}
    cut = msgspec.structs.replace(own_runs.SETTINGS, accumulation=3.97)
    assert changes.in_words(cut)["accumulation"] == "4" and words["accumulation"] == "1"


def test_arguments_are_compared_by_option_whatever_their_order() -> None:
    before = ("--lr", "3", "--amp", "data", "--size=4")
    assert not changes.arguments_differ(before, ("--size", "4", "--lr=3", "--amp", "data"))
    seen = changes.arguments_differ(("in", *before), ("out", "--lr", "4", "--size=4"))
    told = ["argument 1 in -> out", "--lr 3 -> 4", "--amp data -> not given"]
    assert [str(one) for one in seen] == told


# The snapshot


def test_a_snapshot_holds_the_script_and_what_it_imports_from_its_folder(project: Path) -> None:
    (project / "parts").mkdir()
    (project / "parts" / "__init__.py").write_text("")
    (project / "parts" / "net.py").write_text("from . import blocks\nimport os\n")
    (project / "parts" / "blocks.py").write_text("x = 1\n")
    (project / "unused.py").write_text("")
    (project / "train.py").write_text("from parts.net import Net\ndef f():\n    import helper\n")
    files = code.look(COMMAND).files
    assert set(files) == {"train.py", "helper.py", "parts/__init__.py", "parts/net.py", "parts/blocks.py"}
    old = snapshot.of(own_runs.result(), ledger.now(), code.look(COMMAND), run="1")
    (project / "parts" / "blocks.py").write_text("x = 2\n")
    words, _ = staged(old, project.parent / "before")
    assert (Path(words[1]).parent / "parts" / "blocks.py").read_text() == "x = 1\n"
    assert (Path(words[1]).parent / "unused.py").is_symlink()


def test_a_module_is_found_and_started_from_the_folder_of_the_old_one(project: Path) -> None:
    (project / "pack").mkdir()
    (project / "pack" / "run.py").write_text("import helper\n")
    found = code.look(("python", "-m", "pack.run", "--x", "conf.py"))
    assert set(found.files) == {"pack/run.py", "helper.py"} and found.root == str(project)
    old = snapshot.of(own_runs.result(command=("python", "-m", "pack.run")), ledger.now(), found, run="1")
    words, cwd = staged(old, project.parent / "before")
    assert words == ("python", "-m", "pack.run") and (cwd / "pack" / "run.py").is_file() and cwd != project


def test_a_file_with_settings_that_the_command_names_is_part_of_the_run(project: Path) -> None:
    """A change of the config alone is a change; the old run gets the old config, wherever it lies."""
    inside, outside = project / "run.yaml", project.parent / "more.json"
    inside.write_text("lr: 1")
    outside.write_text("{}")
    command = ("python", "train.py", "--config=run.yaml", str(outside))
    begun(project, command=command)
    inside.write_text("lr: 2")
    outside.write_text("[]")
    seen: list[tuple[str, str]] = []

    def started(words: tuple[str, ...], **how: Any) -> OwnResult:
        config, more = Path(how["cwd"], words[2].partition("=")[2]), Path(words[3])
        seen.append((config.read_text(), more.read_text()))
        return own_runs.result(100.0, command=tuple(words))

    found = again.run(start=started, least=2)
    assert seen[:2] == [("lr: 2", "[]"), ("lr: 1", "{}")] and not found.changes.arguments
    assert [text.splitlines()[0] for text in found.changes.files] == [f"--- a/{outside}", "--- a/run.yaml"]


def test_a_script_in_another_encoding_is_kept_to_the_byte(project: Path) -> None:
    data = "# -*- coding: latin-1 -*-\r\nname = 'caf\u00e9'\r\n".encode("latin-1")
    (project / "train.py").write_bytes(data)
    old = snapshot.of(own_runs.result(), ledger.now(), code.look(COMMAND), run="1")
    snapshot.keep(old)
    words, _ = staged(snapshot.newest(), project.parent / "before")
    assert Path(words[1]).read_bytes() == data and "caf" in old.texts["train.py"]


def test_torchrun_s_own_module_is_not_the_script(project: Path) -> None:
    found = code.look(("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"))
    assert Path(found.script).name == "train.py"


def test_old_snapshots_go_and_a_broken_one_is_skipped(project: Path) -> None:
    begun(project)
    found = code.look(COMMAND)
    for number in range(snapshot.KEPT + 3):
        one = snapshot.of(own_runs.result(), f"2026-12-02T10:00:{number:02}+00:00", found, run="1", counts=False)
        place = snapshot.keep(one)
    (place / "snapshot.json").write_text('{"when": 3}')
    assert len(snapshot.read_all()) == snapshot.KEPT and snapshot.newest().counts


# Learning and pairs


def test_learning_is_judged_at_equal_samples_or_not_at_all() -> None:
    usual, wide = own_runs.losses(0.4), own_runs.losses(0.4, steps=15, batch=128)
    assert learned.learned([usual], [wide], "training").ok
    assert learned.learned([usual], [own_runs.losses(1.95)], "same").ok is False
    for other in (None, own_runs.losses(0.4, steps=4)):
        assert learned.learned([usual], [other], "same").ok is None
    flat = own_runs.losses(1.9)
    found = learned.learned([flat], [flat], "same")
    assert found.ok is None and "too little to compare" in found.says
    broken = msgspec.structs.replace(usual, values=(*usual.values[:-1], math.nan))
    assert learned.learned([usual], [broken], "same") == Judgement(
        False, learned.learned([usual], [broken], "same").says
    )


def test_the_width_decides_when_to_stop_and_the_budget_ends_it(project: Path) -> None:
    quiet = own_runs.Launches(lambda text: own_runs.result(200.0))
    steady = Pairs(None, None, quiet, again.Tell())
    steady.measure((("python", "train.py"), project), (("python", "train.py"), project))
    assert steady.launches == 8
    noisy = wobble(own_runs.result(200.0, FASTER))
    short = Pairs(0.0, None, noisy, again.Tell())
    short.measure((("python", "train.py"), project), (("python", "train.py"), project))
    assert short.launches == 4


def test_the_ledger_s_own_run_gives_a_job_its_workers_and_its_batch(project: Path) -> None:
    begun(project, rate=100.0)
    found = evidence.gather().run()
    assert (found.workers, found.batch, found.workload, found.config) == (0, 32, "train.py", None)
