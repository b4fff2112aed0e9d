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

import msgspec
import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gpuworkshop import child, cli, state
from gpuworkshop.child import ChildFailed
from gpuworkshop.course import exercise, material, predict, progress, quiz, replay
from gpuworkshop.instruments import starve
from gpuworkshop.instruments.feed import Feed, LoaderFault
from gpuworkshop.loop import climb, ledger, trial
from gpuworkshop.timing import Plan
from gpuworkshop.workloads import images, pictures, train
from gpuworkshop.workloads.config import Job, TrainConfig, seconds

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
    verb = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
