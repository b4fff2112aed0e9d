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
