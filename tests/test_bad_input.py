"""What careless and hostile input does: one clear line, no process left, no half file.

The cases were found by attacking each verb, each door and each file that the kit reads.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gpuworkshop import child, cli, state
from gpuworkshop.child import ChildFailed
from gpuworkshop.cli.base import seconds
from gpuworkshop.course import exercise, material, predict, progress, quiz, replay
from gpuworkshop.instruments import starve
from gpuworkshop.instruments.feed import LoaderFault
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.loop import climb, ledger, trial
from gpuworkshop.timing import Plan, Rate, compare
from gpuworkshop.workloads import pictures, train
from gpuworkshop.workloads.config import Job, TrainConfig

QUICK = Plan(block_seconds=0.01, min_rounds=4, width=1.0, budget_seconds=1.0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of each test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(folder))
    return folder


def save(file: Path, size: tuple[int, int] = (40, 30), seed: int = 0) -> Path:
    """Write one small JPEG of noise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG")
    return file


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of twelve pictures in two classes."""
    for number in range(12):
        save(tmp_path / "own" / "ab"[number % 2] / f"{number}.jpg", seed=number)
    return tmp_path / "own"


def one_line(error: BaseException) -> str:
    """The message of an error, which must be one line of a length that can be read."""
    words = str(error)
    assert words and "\n" not in words and len(words) < 400
    return words


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": "2"}, "workers is '2': a whole number"),
        ({"workers": 2.5}, "workers is 2.5: a whole number"),
        ({"workers": True}, "workers is True: a whole number"),
        ({"workers": 10**20}, "workers is 100000000000000000000: more than 512"),
        ({"batch_size": None}, "batch_size is None: a whole number"),
        ({"batch_size": 10**20}, "batch_size is"),
        ({"workers": 1, "prefetch_factor": 10**20}, "prefetch_factor is"),
        ({"pin_memory": "no"}, "pin_memory is 'no': True or False"),
        ({"data_path": ["x"]}, r"data_path is \['x'\]: one of"),
        ({"data_path": "predecoded"}, "data_path is 'predecoded': one of cpu-decode"),
    ],
)
def test_a_setting_of_a_wrong_kind_or_size_is_named(settings, says) -> None:
    for make in (TrainConfig, TrainConfig().with_):
        with pytest.raises(ValueError, match=says) as caught:
            make(**settings)
        one_line(caught.value)


def test_a_misspelled_setting_names_the_one_that_was_meant() -> None:
    with pytest.raises(ValueError, match="no setting 'workrs': did you mean 'workers'") as caught:
        TrainConfig().with_(workrs=2)
    assert "$" not in one_line(caught.value), "no words of the library that checks types"
    with pytest.raises(ValueError, match="no setting 'zzz': there are data_path, workers"):
        TrainConfig().with_(zzz=2)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"data": ""}, "data is empty"),
        ({"data": 5}, "data is 5"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"storage_wait_ms": "4"}, "storage_wait_ms is '4'"),
        ({"storage_wait_ms": float("nan")}, "storage_wait_ms is nan"),
    ],
)
def test_a_job_of_wrong_kinds_is_named(job, says) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        Job(**job)
    one_line(caught.value)


@pytest.mark.parametrize("text", ["0", "0s", "0.0m", "9" * 400])
def test_a_budget_of_no_time_or_of_all_time_is_refused(text) -> None:
    with pytest.raises(ValueError, match="no time at all|longer than a week"):
        seconds(text)


@pytest.mark.parametrize("words", [["--max-changes", "-1"], ["--budget", "0"], ["--budget", "0s"]])
def test_limits_of_the_loop_that_make_no_sense_are_bad_input(words, capsys) -> None:
    assert cli.main(["loop", "--preset", "tiny", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and words[0] in shown.err


# ---------------------------------------------------------------- a folder of one's own


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("a" * 5000, "cannot look into"),
        ("~nobody-of-this-name/x", "no folder '~nobody-of-this-name/x'"),
        ("a\0b", "no folder"),
        (__file__, "this is a file"),
    ],
    ids=["too long", "no such home", "a zero byte", "a file"],
)
def test_a_name_that_no_folder_can_have_is_one_line(folder, says) -> None:
    with pytest.raises(ValueError, match=says):
        pictures.read_folder(folder)


def test_a_folder_too_small_to_hold_any_out_says_how_it_is_split(tmp_path) -> None:
    save(tmp_path / "one" / "a" / "1.jpg")
    with pytest.raises(ValueError, match="1 picture.*every fifth is held out") as caught:
        train.build(TrainConfig(batch_size=1), Job(data=str(tmp_path / "one")), "cpu")
    assert "<= 0" not in one_line(caught.value)


def test_one_picture_is_written_in_the_singular(tmp_path) -> None:
    for number in (1, 2):
        save(tmp_path / "two" / "a" / f"{number}.jpg")
    with pytest.raises(ValueError, match="1 picture, fewer than"):
        train.build(TrainConfig(batch_size=4), Job(data=str(tmp_path / "two")), "cpu")


def test_a_picture_made_to_fill_the_memory_is_named(own, monkeypatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # a file of 1200 is then what one of 180 million is
    with pytest.raises(ValueError, match="^cannot read picture .*a/0.jpg'"):
        pictures.open_rgb(str(own / "a" / "0.jpg"))


@pytest.mark.parametrize("broken", [b"", b"no picture", "half"], ids=["empty", "text", "half"])
def test_a_picture_that_the_card_would_decode_is_called_broken_and_no_crash(own, broken) -> None:
    for file in own.rglob("*.jpg"):
        file.write_bytes(file.read_bytes()[:300] if broken == "half" else broken)
    run = train.build(TrainConfig("card-decode", batch_size=2), Job(data=str(own)), "cpu")
    with pytest.raises(ValueError, match="cannot decode a picture of this batch") as caught:
        run.prepare(next(iter(run.loader)))
    one_line(caught.value)


def test_a_trial_that_meets_a_broken_picture_is_refused_and_the_loop_goes_on(own) -> None:
    for file in own.rglob("*.jpg"):
        file.write_bytes(b"no picture")
    job = Job(data=str(own))
    config = TrainConfig(batch_size=2)
    seen = trial.Bench(job, config, "cpu", QUICK).trial(config, config.with_(data_path="card-decode"))
    assert seen.comparison is None and not seen.kept and seen.why.startswith("not possible: cannot")


def test_names_that_are_no_text_are_names_of_files(tmp_path, own) -> None:
    odd = os.fsencode(own / "a") + b"/x\xff\n<i>\x1b[2J.jpg"
    Path(os.fsdecode(odd)).write_bytes((own / "a" / "0.jpg").read_bytes())
    run = train.build(TrainConfig("pre-decoded", batch_size=2), Job(data=str(own)), "cpu")
    assert next(iter(run.loader))[0].shape[0] == 2


def test_many_classes_do_not_take_the_square_of_the_time(tmp_path, monkeypatch) -> None:
    """A set of a thousand classes and a million files is usual; what is counted here are comparisons of names."""
    for number in range(60):
        save(tmp_path / "many" / f"c{number:02}" / "x.jpg")
    seen = []
    equal = Path.__eq__
    monkeypatch.setattr(Path, "__eq__", lambda self, other: seen.append(1) or equal(self, other))
    found = pictures.read_folder(str(tmp_path / "many"))
    assert found.labels == tuple(range(60)) and len(seen) < 60 * 60 / 4


# ---------------------------------------------------------------- the cache


def decoded(own: Path) -> DataLoader:
    return train.build(TrainConfig("pre-decoded", batch_size=2), Job(data=str(own)), "cpu").loader


@pytest.mark.parametrize("damage", ["cut off", "no array", "other size", "empty"])
def test_a_damaged_file_in_the_cache_is_made_again(own, own_cache, damage) -> None:
    wanted = sorted(int(batch[0].sum()) for batch in decoded(own))
    (file,) = own_cache.glob("decoded-*.npy")
    if damage == "cut off":
        file.write_bytes(file.read_bytes()[:2000])
    elif damage == "other size":
        np.save(file, np.zeros((3, 3, 72, 72), np.uint8))
    else:
        file.write_bytes(b"" if damage == "empty" else b"\n")
    assert sum(int(batch[0].sum()) for batch in decoded(own)) == pytest.approx(sum(wanted), rel=0.2)
    assert sum(len(batch[0]) for batch in decoded(own)) == 8


def test_a_set_in_the_cache_that_lost_pictures_is_written_again(own_cache) -> None:
    first = pictures.written_set("train", range(6), lambda share: None)
    Path(first.files[2]).unlink()
    Path(first.files[3]).write_bytes(b"")
    again = pictures.written_set("train", range(6), lambda share: None)
    assert all(pictures.open_rgb(file).size == (500, 375) for file in again.files)


def test_a_full_disk_is_one_line_that_says_where(own, own_cache, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pictures, "write_picture", full)
    with pytest.raises(ValueError, match="No space left on device.*GPUWORKSHOP_CACHE") as caught:
        pictures.written_set("train", range(4), lambda share: None)
    assert str(own_cache) in one_line(caught.value)
    assert list(own_cache.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_decoded_rows_on_a_full_disk_are_no_bus_error(own, own_cache, monkeypatch) -> None:
    """Rows written through a memory map of a file that has no room end the process; written as bytes they raise."""
    kept = open
    monkeypatch.setattr(
        "builtins.open", lambda file, *a, **k: kept("/dev/full" if "decoded" in str(file) else file, *a, **k)
    )
    with pytest.raises(ValueError, match="No space left on device"):
        decoded(own)
    monkeypatch.undo()
    assert not [file for file in own_cache.iterdir() if file.suffix == ".npy"]


def test_what_a_killed_writer_left_is_swept_and_what_is_being_written_stays(own_cache) -> None:
    own_cache.mkdir()
    old, new = own_cache / "pictures-v1-train-6.half-old", own_cache / "pictures-v1-train-6.half-new"
    for folder in (old, new):
        folder.mkdir()
        save(folder / "1.jpg")
    row = own_cache / "decoded-72px-0123.half-x"
    row.write_bytes(b"x")
    long_ago = time.time() - 2 * 86400
    for path in (old, row):
        os.utime(path, (long_ago, long_ago))
    pictures.written_set("train", range(6), lambda share: None)
    left = {path.name for path in own_cache.iterdir()}
    assert left == {new.name, "pictures-v1-train-6"}


# ---------------------------------------------------------------- launchers and children


def launcher(tmp_path: Path, script: str) -> tuple[str, ...]:
    """A launcher of one's own, as a shell script."""
    file = tmp_path / "launch.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return (str(file),)


def asked(launcher: tuple[str, ...], request: object = None, **more: object) -> object:
    """A child of which an answer with one number is expected."""
    return child.run("gpuworkshop.none:none", request, type=dict[str, int], launcher=launcher, **more)


@pytest.mark.parametrize("words", ["nosuchprogram", '""', "/", "/etc/passwd"])
def test_a_launcher_that_cannot_start_is_bad_input(words, capsys) -> None:
    assert cli.main(["starve", "--preset", "tiny", "--launcher", words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "could not start" in shown.err


def test_an_answer_of_another_kind_is_a_failed_child(tmp_path) -> None:
    other = launcher(tmp_path, """echo '{"type":"result","value":{"x":"many"}}'""")
    with pytest.raises(ChildFailed, match="answered with something else.*another version") as caught:
        asked(other)
    assert not caught.value.bad_input and "\n" not in str(caught.value)


def test_a_record_of_another_kind_is_left_out_of_the_ledger(tmp_path) -> None:
    other = launcher(
        tmp_path, """echo '{"type":"record","value":{"x":1}}'; echo '{"type":"record","value":5}'; exit 3"""
    )
    before = ledger.read()
    with pytest.raises(ChildFailed, match="status 3"):
        climb.run(Job(), launcher=other)
    assert ledger.read() == before


@pytest.mark.parametrize("request_", ["\udcff", ...], ids=["no text", "a stub"])
def test_what_cannot_be_sent_is_bad_input_before_anything_starts(tmp_path, request_) -> None:
    started = tmp_path / "started"
    with pytest.raises(ChildFailed) as caught:
        asked(launcher(tmp_path, f"touch {started}"), {"data": request_})
    assert caught.value.bad_input and "cannot be sent" in one_line(caught.value)
    assert not started.exists()


def test_a_stub_instead_of_a_config_is_one_line() -> None:
    for what in (..., 5, "x", None):
        with pytest.raises(TypeError, match="try_one needs two TrainConfig"):
            climb.try_one(TrainConfig(), what)


def test_a_launcher_that_never_ends_its_line_takes_no_memory(tmp_path) -> None:
    before = psutil.Process().memory_info().rss
    endless = launcher(tmp_path, "head -c 300000000 /dev/zero | tr '\\\\0' x; exit 3")
    with pytest.raises(ChildFailed, match="status 3") as caught:
        asked(endless)
    one_line(caught.value)
    assert len(caught.value.log) < 100_000
    assert psutil.Process().memory_info().rss - before < 150_000_000


def test_what_a_launcher_prints_cannot_steer_the_terminal(tmp_path, capsys) -> None:
    bad = launcher(tmp_path, r"""printf '\033[2J\033]0;owned\007 no such partition\n' >&2; exit 3""")
    assert cli.main(["starve", "--preset", "tiny", "--launcher", str(bad[0])]) == 1
    shown = capsys.readouterr()
    assert "\x1b" not in shown.err and "\x07" not in shown.err and "no such partition" in shown.err


def test_a_child_that_said_nothing_leaves_no_empty_line(tmp_path, capsys) -> None:
    silent = launcher(tmp_path, "exit 0")
    assert cli.main(["starve", "--preset", "tiny", "--launcher", str(silent[0])]) == 1
    assert capsys.readouterr().err.count("\n") == 1


STUBBORN = "trap '' TERM INT HUP; echo $$ > {pid}; while :; do sleep 0.2; done"


def wait_for(true, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_verb_that_is_ended_leaves_no_process_behind_a_stubborn_launcher(tmp_path, number, status) -> None:
    """A launcher that waits in a queue reads no stdin and may ignore signals; the job must not start later."""
    pid = tmp_path / "pid"
    stubborn = launcher(tmp_path, STUBBORN.format(pid=pid))
    words = [sys.executable, "-m", "gpuworkshop", "starve", "--preset", "tiny", "--launcher", stubborn[0]]
    heard = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731  also where these tests run under nohup
    verb = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    try:
        assert wait_for(lambda: pid.exists() and pid.read_text().strip())
        waiting = int(pid.read_text())
        verb.send_signal(number)
        out, err = verb.communicate(timeout=30)
        assert verb.returncode == status and out == "" and "Traceback" not in err
        assert wait_for(lambda: not psutil.pid_exists(waiting)), "the launcher is still there"
    finally:
        verb.kill()
        if pid.exists() and psutil.pid_exists(int(pid.read_text() or 0)):
            os.kill(int(pid.read_text()), signal.SIGKILL)


# ---------------------------------------------------------------- stdout and stderr


def verb(words: str, stdout: str = "/dev/null", **env: str) -> subprocess.CompletedProcess:
    """The command, run by a shell with its stdout somewhere."""
    line = f"{sys.executable} -m gpuworkshop {words} {stdout}"
    return subprocess.run(["sh", "-c", line], env=os.environ | env, stderr=subprocess.PIPE, text=True, timeout=60)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version", "starve --help"])
def test_a_full_disk_under_stdout_is_one_line(words) -> None:
    seen = verb(words, "> /dev/full")
    assert seen.returncode == 1 and "Traceback" not in seen.stderr
    assert seen.stderr.count("\n") == 1 and "No space left" in seen.stderr


SHOW = "import sys; from gpuworkshop.cli import base, main, app; from gpuworkshop.course import replay\n"
SHOW += "app.command(lambda: base.show_report(replay.show('loop')) * 0 or print('x' * 200000) or 0, name='shown')\n"
SHOW += "sys.exit(main(['shown']))"


@pytest.mark.parametrize(
    ("after", "status"), [("| head -1 > /dev/null", 0), (">&-", 0), ("2>&- > /dev/null", 0), ("> /dev/full", 1)]
)
def test_a_report_into_a_pipe_that_closes_is_no_crash(tmp_path, after, status) -> None:
    file = tmp_path / "show.py"
    file.write_text(SHOW)
    seen = subprocess.run(["sh", "-c", f"{sys.executable} {file} {after}"], stderr=subprocess.PIPE, text=True)
    assert seen.returncode == status and "Traceback" not in seen.stderr and "Exception ignored" not in seen.stderr


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_terminal_that_knows_only_ascii_still_gets_the_report(tmp_path, env) -> None:
    file = tmp_path / "show.py"
    file.write_text(SHOW)
    seen = subprocess.run([sys.executable, file], env=os.environ | env, capture_output=True, timeout=60)
    assert seen.returncode == 0 and b"recorded on NVIDIA H200" in seen.stdout and b"Traceback" not in seen.stderr


def test_a_name_that_is_no_text_is_one_line_in_any_locale() -> None:
    line = f"{sys.executable} -m gpuworkshop starve --preset tiny --data '\udcff\udcfe'"
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    seen = subprocess.run(["sh", "-c", os.fsencode(line)], env=env, capture_output=True, text=True, errors="replace")
    assert seen.returncode == 2 and seen.stderr.count("\n") == 1 and seen.stdout == ""


# ---------------------------------------------------------------- loaders and steps of one's own


ROWS = TensorDataset(torch.randn(64, 4), torch.zeros(64))


def nothing(batch: object) -> None:
    """A step that takes no time."""


class Dies(Dataset):
    """Its worker ends in the given way at one sample."""

    def __init__(self, how: str):
        self.how = how

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7 and torch.utils.data.get_worker_info():
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)
        return torch.zeros(3)


@pytest.mark.parametrize(("how", "says"), [("killed", "host memory used up"), ("left", "ended itself with status 3")])
def test_a_dead_worker_is_told_once_and_by_how_it_died(how, says) -> None:
    with pytest.raises(LoaderFault, match=says) as caught:
        starve.measure(DataLoader(Dies(how), 4, num_workers=2), nothing, plan=QUICK, device="cpu")
    assert one_line(caught.value).count("a worker") == 1
    if how == "left":
        assert "memory" not in str(caught.value)


@pytest.mark.parametrize(
    "loader", [5, None, "abc", b"abc", {"a": 1}, ROWS, Dies("never"), nothing], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("door", ["measure", "compare"])
def test_what_is_no_loader_is_named_and_not_measured(loader, door) -> None:
    """A data set can be iterated too, and would be measured as batches of so many samples as one sample has numbers."""
    with pytest.raises(LoaderFault, match="is no loader.*DataLoader") as caught:
        if door == "measure":
            starve.measure(loader, nothing, plan=QUICK, device="cpu")
        else:
            starve.compare(DataLoader(ROWS, 4), loader, nothing, plan=QUICK, device="cpu")
    one_line(caught.value)


@pytest.mark.parametrize("step", [None, 3, "model"])
def test_a_step_that_cannot_be_called_is_named_before_the_loader_starts(step) -> None:
    with pytest.raises(TypeError, match=r"step is .*step\(batch\)"):
        starve.measure(DataLoader(Dies("left"), 4, num_workers=1), step, plan=QUICK, device="cpu")
    with pytest.raises(TypeError, match=r"step is .*step\(batch\)"):
        starve.compare(DataLoader(ROWS, 4), DataLoader(ROWS, 4), step, plan=QUICK, device="cpu")


def test_batches_without_samples_are_named() -> None:
    hollow = DataLoader(ROWS, 4, collate_fn=lambda samples: torch.zeros(0, 3))
    for door in (
        lambda: starve.measure(hollow, nothing, plan=QUICK, device="cpu"),
        lambda: starve.compare(hollow, hollow, nothing, plan=QUICK, device="cpu"),
    ):
        with pytest.raises(ValueError, match="no samples") as caught:
            door()
        one_line(caught.value)


def test_a_step_that_empties_its_batch_is_named() -> None:
    """The data ceiling uses the same batches again: a step that takes them apart would be measured on nothing."""
    with pytest.raises(ValueError, match="step changes its batch") as caught:
        starve.measure(DataLoader(ROWS, 4), lambda batch: batch.clear(), plan=QUICK, device="cpu")
    one_line(caught.value)


def test_a_device_may_be_an_object() -> None:
    seen = starve.measure(DataLoader(ROWS, 4), nothing, plan=QUICK, device=torch.device("cpu"))
    assert seen.conditions.device == "cpu"
    assert starve.compare(
        DataLoader(ROWS, 4), DataLoader(ROWS, 4), nothing, plan=QUICK, device=torch.device("cpu")
    ).pairs


# ---------------------------------------------------------------- answers of a learner


KNOBS = ("04_starve", "knobs")


def test_a_forgotten_return_is_a_mistake_with_its_own_words() -> None:
    def make_loader(dataset, batch_size, workers):
        DataLoader(dataset, batch_size, shuffle=True, num_workers=workers)

    result = exercise.open(*KNOBS).check(make_loader)
    assert (result.attempted, result.done, result.mistake) == (True, False, "returns-nothing")
    assert "returns nothing" in result.says and "return" in result.hint


def loader_of(**more) -> object:
    """A right answer but for some settings."""

    def make_loader(dataset, batch_size, workers):
        only = {"persistent_workers": True, "prefetch_factor": 2} if workers else {}
        pinned = torch.cuda.is_available()
        return DataLoader(
            **{
                "dataset": dataset,
                "batch_size": batch_size,
                "shuffle": True,
                "num_workers": workers,
                "pin_memory": pinned,
            }
            | only
            | more
        )

    return make_loader


def test_another_data_set_is_found_without_going_through_all_of_it() -> None:
    class Large(Dataset):
        seen = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> int:
            Large.seen += 1
            return index

    result = exercise.open(*KNOBS).check(loader_of(dataset=Large()))
    assert result.mistake == "samples-lost" and Large.seen < 1000


@pytest.mark.parametrize(
    ("collate", "says"), [(lambda samples: 1 / 0, "ZeroDivisionError"), (lambda samples: {"x": samples}, "samples")]
)
def test_a_loader_whose_batches_cannot_be_read_is_told_so(collate, says) -> None:
    result = exercise.open(*KNOBS).check(loader_of(collate_fn=collate))
    assert not result.done and says in result.says and "nothing else" not in result.hint


class Unspeakable(Exception):
    """Its message is an error of its own."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(3), Unspeakable(), ValueError("x" * 9000), ValueError("{0} {kind}")])
def test_whatever_an_answer_raises_is_told_in_a_line_that_can_be_read(error) -> None:
    def make_loader(dataset, batch_size, workers):
        raise error

    result = exercise.open(*KNOBS).check(make_loader)
    assert result.mistake == "raised" and type(error).__name__ in result.says and len(result.says) < 500


def test_an_interrupt_goes_through_a_check() -> None:
    def make_loader(dataset, batch_size, workers):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise.open(*KNOBS).check(make_loader)


def test_a_hint_names_its_exercise() -> None:
    one = exercise.open(*KNOBS)
    notes = [one.hint() for _ in range(len(one.data.hints) + 1)]
    assert all(one.data.title in note.title for note in notes)


@pytest.mark.parametrize("answer", [10**400, -(10**400)])
def test_a_number_too_large_for_one_is_no_answer(answer) -> None:
    feedback = quiz.ask("04_starve", "wasted-share").submit(answer)
    assert not feedback.counts and "number" in feedback.says


@pytest.mark.parametrize(("answer", "right"), [("80%", True), (" 80 % ", True), ("20%", False), (True, None)])
def test_a_number_may_carry_its_unit_and_true_is_no_number(answer, right) -> None:
    feedback = quiz.ask("04_starve", "wasted-share").check(answer)
    assert (feedback.right if feedback.counts else None) is right


@pytest.mark.parametrize("answer", [" b ", "b)", "B.", "b,"])
def test_a_letter_may_carry_what_stands_beside_it_on_the_page(answer) -> None:
    assert quiz.ask("04_starve", "one-worker").check(answer).right


def test_what_is_no_answer_is_not_called_wrong() -> None:
    feedback = quiz.ask("04_starve", "one-worker").check("zz")
    assert "Not yet" not in str(feedback) and "Answer with a letter" in str(feedback)
    assert "Not yet" not in feedback._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("value", [40, 1e9, "many"])
def test_a_kept_guess_reads_as_words_everywhere(value) -> None:
    status = predict.guess("wait", "How much?", "%", 0, 100).save(value)
    bundle = status._repr_mimebundle_()
    for face in (str(status), bundle["text/plain"]):
        assert face == status.says
    assert "Status(" not in bundle["text/html"] and 'role="status"' in bundle["text/html"]


def test_true_is_no_guess() -> None:
    assert "number" in predict.guess("wait", "How much?", "%", 0, 100).save(True).says
    assert predict.prediction("wait") is None


def test_two_remedies_at_once_are_no_step_on_the_ladder_whatever_was_measured(monkeypatch) -> None:
    seen = compare([0.5, 0.51] * 4)
    rounds = SimpleNamespace(compare=lambda *_: seen, rate=lambda name: Rate(100.0, 99.0, 101.0, 8))
    bench = trial.Bench(Job(), before := TrainConfig(), "cpu")
    monkeypatch.setattr(bench, "_in_turn", lambda *_: (rounds, 0.0))
    monkeypatch.setattr(bench, "judge", lambda *_: Judgement(True, "learns as before"))
    for changes, mistake in (
        (dict(workers=2, batch_size=64), "other-ladder"),
        (dict(workers=2, data_path="pre-decoded"), "two-changes"),
    ):
        found = bench.trial(before, before.with_(**changes))
        assert not found.kept and found.comparison == seen and "cannot be attributed" in found.why
        assert exercise.open("04_starve", "ladder").check(found).mistake == mistake


# ---------------------------------------------------------------- files that others wrote


FOREIGN = (
    b"""{"chapter": {}, "kind": [], "id": null, "right": 1}
{"chapter": "04_starve", "kind": "exercise", "id": ["a"], "right": true}
{"id": "wait", "event": "guess", "value": true, "when": null}
{"id": "wait", "event": "guess", "value": 1e999, "when": {}}
{"id": ["wait"], "event": "shown"}
{"when": "2026", "run": 1}
5
null
\xff\xfe
"""
    + b"[" * 100_000
    + b"\n"
    + b'{"torn":'
)


@pytest.fixture
def foreign(own_state: Path) -> Path:
    """A state folder whose files hold lines of somebody else."""
    own_state.mkdir()
    for name in (progress.FILE, predict.FILE, ledger.FILE):
        (own_state / name).write_bytes(FOREIGN)
    return own_state


def test_foreign_lines_are_skipped_and_what_is_ours_is_found(foreign) -> None:
    assert progress.record("04_starve", "exercise", "knobs", True)
    assert progress.tally("04_starve", "exercise", "knobs") == progress.Tally(1, True)
    assert "skipped" in str(progress.chapter("04_starve"))
    assert predict.prediction("wait") is None
    predict.guess("wait", "?", "%", 0, 100).save(40)
    assert predict.prediction("wait").value == 40
    mine = [record for record in ledger.read()[0] if record.run == "1"]
    assert mine == []


def test_a_line_nested_without_end_is_a_broken_one(own_state) -> None:
    own_state.mkdir()
    (own_state / "x.jsonl").write_bytes(b"[" * 100_000 + b'\n{"n": 1}\n')
    assert state.read_lines("x.jsonl") == ([{"n": 1}], 1)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a chapter's file of questions or exercises, from the one that is there, and read it."""
    for room in ("questions", "exercises"):
        (tmp_path / room).mkdir()
    real = material._HERE
    monkeypatch.setattr(material, "_HERE", tmp_path)
    readers = {"questions": material.questions, "exercises": material.exercises}

    def write(room: str, change) -> dict:
        text = (real / room / "04_starve.toml").read_bytes()
        (tmp_path / room / "04_starve.toml").write_bytes(change(text))
        readers[room].cache_clear()
        return readers[room]("04_starve")

    yield write
    for reader in readers.values():
        reader.cache_clear()


BROKEN_MATERIAL = {
    "no TOML": ("questions", lambda text: b"[[question]]\nid=", ""),
    "no text": ("questions", lambda text: b"\xff\xfe", ""),
    "nothing": ("questions", lambda text: b"", "question"),
    "a key that is missing": ("questions", lambda text: b'[[question]]\nid="a"', "title"),
    "a key too many": ("questions", lambda text: text.replace(b"unit =", b"unitt ="), "unitt"),
    "a wrong type": ("questions", lambda text: text.replace(b"tolerance = 0.5", b'tolerance = "x"'), "tolerance"),
    "the same id twice": ("questions", lambda text: text + b"\n" + text, "wasted-share"),
    "no right option": ("questions", lambda text: text.replace(b"right = true, ", b""), "what-can-help"),
    "no options": ("questions", lambda text: b'[[question]]\nid="a"\ntitle="t"\nkind="choice"\nprompt="p"', "'a'"),
    "an unknown brace": ("questions", lambda text: text.replace(b"{loader_ms}", b"{loader}"), "loader"),
    "an exercise twice": ("exercises", lambda text: text + b"\n" + text, "knobs"),
    "a difficulty of 9": ("exercises", lambda text: text.replace(b"difficulty = 1", b"difficulty = 9"), "difficulty"),
    "words with a slip": (
        "exercises",
        lambda text: text.replace(b'says = "The check needs the f', b'sayss = "The f'),
        "sayss",
    ),
}


@pytest.mark.parametrize(("room", "change", "key"), BROKEN_MATERIAL.values(), ids=BROKEN_MATERIAL)
def test_a_wrong_file_of_the_course_is_named_with_its_key(written, room, change, key) -> None:
    with pytest.raises(ValueError, match=f"{room}/04_starve.toml") as caught:
        written(room, change)
    assert key in one_line(caught.value)


def test_a_mistake_without_words_is_still_one_answer(written) -> None:
    written("exercises", lambda text: text.replace(b"mistakes.no-function]", b"mistakes.nofunction]"))
    result = exercise.open(*KNOBS).check(5)
    assert not result.done and "no-function" in result.says


def test_a_brace_that_nobody_fills_is_shown_as_it_stands(written) -> None:
    written("exercises", lambda text: text.replace(b"{kind}", b"{nokind}"))
    assert "{nokind}" in exercise.open(*KNOBS).check(5).says


def test_a_recording_of_a_newer_kit_says_so(tmp_path) -> None:
    good = json.loads((replay.FOLDER / "starve-h200.json").read_bytes())
    newer = good | {"kit": "99.0", "more": 1}
    (tmp_path / "starve-x.json").write_text(json.dumps(newer))
    with pytest.raises(ValueError, match="starve-x.json.*kit 99.0.*newer") as caught:
        replay.load("starve", folder=tmp_path)
    one_line(caught.value)


@pytest.mark.parametrize("data", [b"", b"null", b'{"kit": 5}', b'{"kit": "0', b"\xff", b"[" * 100_000], ids=range(6))
def test_a_recording_that_is_none_is_named_in_one_line(tmp_path, data) -> None:
    (tmp_path / "starve-x.json").write_bytes(data)
    with pytest.raises(ValueError, match="starve-x.json is not a recording") as caught:
        replay.load("starve", folder=tmp_path)
    one_line(caught.value)


def test_a_launcher_as_one_text_is_told_how_to_write_it() -> None:
    with pytest.raises(ChildFailed, match=r"launcher is one text.*\('srun', '--gres=gpu:1'\)") as caught:
        starve.run(launcher="srun --gres=gpu:1")
    assert caught.value.bad_input
