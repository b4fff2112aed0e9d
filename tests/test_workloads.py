"""The training job that everything measures: its pictures, three data paths to one batch, its settings, its script."""

import colorsys
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from gpuworkshop.workloads import config as configs
from gpuworkshop.workloads import images, pictures, train
from gpuworkshop.workloads.config import CLASSES, Job, Preset, TrainConfig, changed

PICTURES, HELD_OUT = 192, 64
PATHS = ("cpu-decode", "card-decode", "pre-decoded")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def small(cache, monkeypatch) -> Preset:
    """The tiny preset with few pictures, kept for all tests here."""
    preset = msgspec.structs.replace(
        configs.PRESETS["tiny"], pictures=msgspec.structs.replace(configs.PRESETS["tiny"].pictures, count=PICTURES)
    )
    monkeypatch.setitem(configs.PRESETS, "tiny", preset)
    monkeypatch.setattr(pictures, "HELD_OUT", HELD_OUT)
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(cache))
    return preset


def save(folder: Path, name: str, size: tuple[int, int] = (80, 60), mode: str = "RGB", seed: int = 0) -> Path:
    """Write one small picture of noise."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(file, "JPEG")
    return file


@pytest.fixture
def own(tmp_path) -> Path:
    """A folder of twelve pictures of the learner's own, in two classes."""
    for number in range(12):
        save(tmp_path / "own", f"{'ab'[number % 2]}/{number}.jpg", seed=number)
    return tmp_path / "own"


# ---------------------------------------------------------------- the kit's own pictures


def test_a_picture_follows_from_its_number() -> None:
    script = (
        "import sys; from gpuworkshop.workloads import pictures; sys.stdout.buffer.write(pictures.draw(5).tobytes())"
    )
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert elsewhere == pictures.draw(5).tobytes() != pictures.draw(13).tobytes()
    assert pictures.draw(5).size == (500, 375)


def test_the_class_of_a_picture_is_its_hue() -> None:
    for number in range(2 * CLASSES):
        red, green, blue = np.asarray(pictures.draw(number)).reshape(-1, 3).mean(axis=0) / 255
        hue = colorsys.rgb_to_hsv(red, green, blue)[0]
        assert round(hue * CLASSES) % CLASSES == number % CLASSES


def test_the_set_is_written_once_and_held_out_pictures_are_others(cache, monkeypatch) -> None:
    shown, kept = pictures.training_set(PICTURES), pictures.held_out_set()
    assert (len(shown), len(kept)) == (PICTURES, HELD_OUT)
    assert not {Path(f).name for f in shown.files} & {Path(f).name for f in kept.files}
    assert set(shown.labels) == set(kept.labels) == set(range(CLASSES))
    assert all(int(Path(file).stem) % CLASSES == label for file, label in zip(kept.files, kept.labels, strict=True))
    assert Image.open(shown.files[3]).size == (500, 375)
    monkeypatch.setattr(pictures, "draw", None)
    assert pictures.training_set(PICTURES) == shown
    assert str(cache) in shown.files[0]


def test_two_processes_that_write_the_set_at_once_both_have_it_whole(tmp_path) -> None:
    script = "from gpuworkshop.workloads import pictures; print(*pictures.written_set('race', range(6)).files)"
    env = os.environ | {"GPUWORKSHOP_CACHE": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    files = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert files[0] == files[1] and len(files[0]) == 6
    assert all(Image.open(file.decode()).size == (500, 375) for file in files[0])
    assert [path.name for path in tmp_path.iterdir()] == ["pictures-v1-race-6"]


def test_a_set_that_cannot_be_finished_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(tmp_path))
    monkeypatch.setattr(pictures, "draw", lambda number: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(ValueError, match="No space left on device. Set GPUWORKSHOP_CACHE"):
        pictures.written_set("none", range(4))
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert pictures.cache_folder().is_relative_to(tmp_path)
    assert pictures.cache_folder().is_dir()


def test_labels_can_be_learned(small) -> None:
    """Both losses are on pictures that are never trained on; a blind guess among eight is ln 8 = 2.08."""
    training = train.build(TrainConfig("pre-decoded"), Job(), "cpu")
    kept = training.task.held_out()
    before = training.held_out_loss(kept)
    for _, batch in zip(range(40), train.endless(training.loader), strict=False):
        training.step(*training.prepare(batch))
    assert before == pytest.approx(np.log(CLASSES), abs=0.3)
    assert training.held_out_loss(kept) < 0.7 * before


# ---------------------------------------------------------------- pictures of one's own


def test_each_folder_is_a_class(tmp_path) -> None:
    for name in ("b/deep/2.JPEG", "a/1.jpg", "a/0.JPG", "b/3.jpg"):
        save(tmp_path, name)
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    found = pictures.read_folder(str(tmp_path))
    assert [Path(file).name for file in found.files] == ["0.JPG", "1.jpg", "3.jpg", "2.JPEG"]
    assert (found.labels, found.classes) == ((0, 0, 1, 2), 3)


def test_a_folder_without_folders_has_no_classes_and_nothing_to_learn(tmp_path) -> None:
    for number in range(8):
        save(tmp_path, f"{number}.jpg", seed=number)
    training = train.build(TrainConfig(batch_size=2), Job(data=str(tmp_path)), "cpu")
    assert pictures.read_folder(str(tmp_path)).classes == 1
    assert not training.can_learn


def test_pictures_of_ones_own_are_trained_on_or_held_out_never_both(own) -> None:
    shown, kept = pictures.training_set(99, str(own)), pictures.held_out_set(str(own))
    assert not set(shown.files) & set(kept.files)
    assert sorted(shown.files + kept.files) == sorted(map(str, own.rglob("*.jpg")))
    assert len(kept) == 3


@pytest.mark.parametrize(
    "make", [lambda p: p / "none", lambda p: save(p, "a.jpg"), lambda p: p], ids=["none", "file", "empty"]
)
def test_a_folder_that_is_none_is_one_clear_line(tmp_path, make) -> None:
    folder = str(make(tmp_path))
    with pytest.raises(ValueError, match="^no (folder|JPEG file)") as caught:
        pictures.read_folder(folder)
    assert folder in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("path", PATHS)
def test_odd_sizes_and_colors_become_ordinary_batches(tmp_path, path) -> None:
    odd = [
        ((30, 300), "RGB"),
        ((300, 30), "L"),
        ((2, 3), "RGB"),
        ((80, 60), "CMYK"),
        ((65, 64), "L"),
        ((500, 375), "RGB"),
    ]
    for number, (size, mode) in enumerate(odd):
        save(tmp_path, f"{number}.jpg", size, mode)
    training = train.build(TrainConfig(path, batch_size=4), Job(data=str(tmp_path)), "cpu")
    for batch in training.loader:
        x, y = training.prepare(batch)
        assert x.shape == (4, 3, 64, 64) and x.dtype == torch.float32 and y.shape == (4,)
        assert torch.isfinite(training.step(x, y))


def broken(folder: Path, how: str) -> Path:
    """One picture that cannot be read."""
    file = save(folder, "a/1_broken.jpg")
    content = {"cut off": file.read_bytes()[:400], "no picture": b"<html>404</html>", "empty": b""}[how]
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("how", ["cut off", "no picture", "empty"])
@pytest.mark.parametrize("path", ["cpu-decode", "pre-decoded"])
def test_a_broken_picture_is_named(own, how, path) -> None:
    """One line with the file, also when it is decoded in another process, and no half result stays."""
    file = broken(own, how)
    with pytest.raises(ValueError, match="^cannot read picture ") as caught:
        list(train.build(TrainConfig(path, batch_size=2), Job(data=str(own)), "cpu").loader)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)
    assert not list(pictures.cache_folder().glob(f"*{pictures.HALF}*"))


def test_a_picture_that_went_away_is_named(own) -> None:
    with pytest.raises(ValueError, match="cannot read picture .*none.jpg': No such file"):
        pictures.open_rgb(str(own / "none.jpg"))


@pytest.mark.parametrize("path", PATHS)
def test_a_data_set_smaller_than_a_batch_is_one_clear_line(own, path) -> None:
    with pytest.raises(ValueError, match="9 pictures, fewer than one batch of 32.*use batch_size <= 9") as caught:
        train.build(TrainConfig(path), Job(data=str(own)), "cpu")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- three paths to one batch


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("workers", [0, 1])
def test_every_path_gives_the_same_kind_of_batch(path, workers) -> None:
    training = train.build(TrainConfig(path, workers=workers), Job(), "cpu")
    assert len(training.loader) == PICTURES // 32
    x, y = training.prepare(next(iter(training.loader)))
    assert x.shape == (32, 3, 64, 64) and x.dtype == torch.float32
    assert y.shape == (32,) and y.dtype == torch.int64
    assert abs(float(x.mean())) < 1 and 0.5 < float(x.std()) < 2, "normalized"


def test_undecoded_pictures_take_one_file_descriptor_a_batch() -> None:
    """One for each picture would soon be too many, and PyTorch waits for ever for what it cannot send."""
    training = train.build(TrainConfig("card-decode"), Job(), "cpu")
    lengths, data, labels = next(iter(training.loader))
    assert lengths.shape == labels.shape == (32,)
    assert data.dtype == torch.uint8 and len(data) == int(lengths.sum())


@pytest.mark.parametrize("path", PATHS)
def test_labels_stay_with_their_pictures_on_every_path(path) -> None:
    """The hue of a prepared picture is that of its label."""
    training = train.build(TrainConfig(path), Job(), "cpu")
    x, labels = training.prepare(next(iter(training.loader)))
    colors = (x * training.prepare.std + training.prepare.mean).mean(dim=(2, 3)).clamp(0, 1)
    hues = [round(colorsys.rgb_to_hsv(*color)[0] * CLASSES) % CLASSES for color in colors.tolist()]
    assert np.mean([hue == label for hue, label in zip(hues, labels.tolist(), strict=True)]) > 0.9


def test_decoded_pictures_are_kept_and_made_again_when_a_file_changes(own, monkeypatch) -> None:
    given = pictures.read_folder(str(own))
    file = pictures.pre_decode(given, 16)
    rows = np.load(file)
    assert rows.shape == (12, 3, 16, 16) and rows.dtype == np.uint8
    assert all((row == pictures.square(16, name)).all() for row, name in zip(rows, given.files, strict=True))
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "in_workers", None)
        assert pictures.pre_decode(given, 16) == file
    save(own, "a/0.jpg", (40, 40), seed=99)
    again = pictures.pre_decode(pictures.read_folder(str(own)), 16)
    assert again != file and not (np.load(again)[0] == rows[0]).all()


def test_a_picture_is_cut_from_its_middle() -> None:
    image = Image.new("RGB", (300, 100))
    image.paste((255, 0, 0), (100, 0, 200, 100))
    file = Path(pictures.cache_folder()) / "middle.jpg"
    image.save(file, quality=95, subsampling=0)
    red, green, _ = pictures.square(50, str(file))
    assert red[5:-5, 5:-5].min() > 230 and green.max() < 60


@pytest.mark.parametrize("path", PATHS)
def test_a_planted_wait_is_really_waited(path, monkeypatch) -> None:
    waits: list[float] = []
    training = train.build(TrainConfig(path, batch_size=8), Job(storage_wait_ms=250), "cpu")
    monkeypatch.setattr("time.sleep", waits.append)
    next(iter(training.loader))
    assert waits == [0.25] * (1 if path == "pre-decoded" else 8)


# ---------------------------------------------------------------- the random crop


def gradient(height: int = 60, width: int = 80) -> torch.Tensor:
    """A picture that says where a pixel was: red is its column, green its row, from 0 to 255."""
    columns, rows = torch.arange(width) * 255 / (width - 1), torch.arange(height) * 255 / (height - 1)
    return torch.stack(
        [columns.expand(height, width), rows[:, None].expand(height, width), torch.zeros(height, width)]
    ).byte()


def test_a_crop_has_the_right_shape_and_makes_up_no_pixel() -> None:
    white = torch.full((64, 3, 40, 50), 255, dtype=torch.uint8)
    cut = images.random_crop(white, 24)
    assert cut.shape == (64, 3, 24, 24) and cut.dtype == torch.float32
    assert float(cut.min()) == pytest.approx(255) and float(cut.max()) == pytest.approx(255)


def test_crops_are_random_stay_inside_and_cover_the_picture() -> None:
    torch.manual_seed(0)
    cut = images.random_crop(gradient().expand(600, -1, -1, -1), 32)
    assert 0 <= float(cut.min()) and float(cut.max()) <= 255
    columns, rows = cut[:, 0, 16, :], cut[:, 1, :, 16]
    wide = (columns.amax(1) - columns.amin(1)) / 255
    tall = (rows.amax(1) - rows.amin(1)) / 255
    assert float(columns.min()) < 5 and float(columns.max()) > 250
    assert float(rows.min()) < 5 and float(rows.max()) > 250
    for middles in (columns.mean(1), rows.mean(1)):
        assert float(middles.mean()) == pytest.approx(127.5, abs=6), "no corner is preferred"
        assert float(middles.min()) < 90 and float(middles.max()) > 165
    area = wide * tall
    assert 0.2 < float(area.min()) < 0.35 and float(area.max()) > 0.8
    flipped = (columns[:, 0] > columns[:, -1]).float().mean()
    assert float(flipped) == pytest.approx(0.5, abs=0.1)
    assert bool((rows[:, 0] < rows[:, -1]).all()), "never upside down"
    assert len(torch.unique(wide)) > 500, "each picture has its own"


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"persistent_workers": True}, "persistent_workers needs workers"),
        ({"prefetch_factor": 2}, "prefetch_factor needs workers"),
        ({"prefetch_factor": 0, "workers": 1}, "prefetch_factor is 0"),
        ({"precision": "fp8"}, "precision is 'fp8': one of fp32, tf32, bf16|'fp8' .*precision"),
        ({"data_path": "predecoded"}, "data_path is 'predecoded': one of cpu-decode, .*|'predecoded' .*data_path"),
        ({"memory_format": "nhwc"}, "memory_format is 'nhwc'|'nhwc' .*memory_format"),
    ],
)
def test_settings_that_make_no_sense_are_one_clear_line(settings, says) -> None:
    for make in (TrainConfig, TrainConfig().with_):
        with pytest.raises(ValueError, match=says) as caught:
            make(**settings)
        assert "\n" not in str(caught.value)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="wokers"):
        TrainConfig().with_(wokers=2)


def test_what_changed_is_named_in_the_order_of_the_fields() -> None:
    before = TrainConfig()
    assert changed(before, before.with_(batch_size=64, workers=2)) == ("workers", "batch_size")
    assert changed(before, before.with_()) == ()
    assert before == TrainConfig(), "a config never changes in place"


@pytest.mark.parametrize(
    ("job", "says"), [({"preset": "huge"}, "no preset 'huge'"), ({"storage_wait_ms": -1}, "storage_wait_ms")]
)
def test_a_job_that_makes_no_sense_is_refused(job, says) -> None:
    with pytest.raises(ValueError, match=says):
        Job(**job)


def test_a_title_names_what_is_planted_and_whose_pictures_they_are() -> None:
    assert Job().title == "small-cnn at 64 px"
    assert "own pictures" in Job(data="x").title
    assert Job(storage_wait_ms=20).title.endswith("planted wait")
    assert Job(storage_wait_ms=20).planted == "every file read really waits 20 ms" and not Job().planted


# ---------------------------------------------------------------- the run and its script


@pytest.mark.parametrize("setting", [{"precision": "bf16"}, {"memory_format": "channels_last"}, {"precision": "tf32"}])
def test_settings_reach_the_step(setting) -> None:
    training = train.build(TrainConfig("pre-decoded", **setting), Job(), "cpu")
    training.use_precision()
    x, y = training.prepare(next(iter(training.loader)))
    seen = []
    training.model[0].register_forward_hook(lambda layer, given, out: seen.append((given[0], out)))
    assert torch.isfinite(training.step(x, y))
    ((given, out),) = seen
    assert (out.dtype == torch.bfloat16) == (setting.get("precision") == "bf16")
    assert given.is_contiguous(memory_format=torch.channels_last) == ("memory_format" in setting)
    assert (torch.backends.cuda.matmul.fp32_precision == "tf32") == (setting.get("precision") == "tf32")


def test_a_step_learns_and_a_seed_repeats_it() -> None:
    weights = []
    for seed in (0, 0, 1):
        training = train.build(TrainConfig("pre-decoded"), Job(seed=seed), "cpu")
        before = [weight.clone() for weight in training.model.parameters()]
        training.step(*training.prepare(next(iter(training.loader))))
        assert any(not torch.equal(old, new) for old, new in zip(before, training.model.parameters(), strict=True))
        weights.append(training.model[0].weight.detach())
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_loss_on_held_out_pictures_leaves_the_model_as_it_is(small) -> None:
    training = train.build(TrainConfig("pre-decoded"), Job(), "cpu")
    kept = training.task.held_out()
    before = [weight.clone() for weight in training.model.parameters()]
    assert training.held_out_loss(kept) == pytest.approx(training.held_out_loss(kept))
    assert all(torch.equal(old, new) for old, new in zip(before, training.model.parameters(), strict=True))


def test_every_setting_is_a_flag_of_the_script(capsys) -> None:
    words = "--data-path pre-decoded --workers 2 --prefetch-factor 3 --pin-memory --persistent-workers"
    words += " --batch-size 16 --precision bf16 --memory-format channels_last --storage-wait-ms 1 --seed 7 --steps 9"
    training, steps = train.parse([*words.split(), "--device", "cpu"])
    assert training.config == TrainConfig("pre-decoded", 2, 3, True, True, 16, "bf16", "channels_last")
    assert training.job == Job(storage_wait_ms=1, seed=7) and steps == 9
    with pytest.raises(SystemExit) as ended:
        train.parse(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in shown for name in TrainConfig.__struct_fields__)


def test_without_flags_the_script_is_the_naive_start() -> None:
    training, _ = train.parse(["--device", "cpu"])
    assert training.config == configs.PRESETS["tiny"].start == TrainConfig()


def test_the_script_trains_and_prints_its_loss(capsys) -> None:
    train.main("--data-path pre-decoded --steps 12 --device cpu".split())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["10", "12"]
    assert all("loss" in line and "images/s" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--persistent-workers", "persistent_workers needs workers"),
        ("--precision fp7", "fp7"),
        ("--data no/such/folder", "no folder 'no/such/folder'"),
        ("--batch-size 5000", "fewer than one batch of 5000"),
    ],
)
def test_the_script_refuses_bad_input_in_one_line(capsys, words, says) -> None:
    with pytest.raises(SystemExit) as ended:
        train.main([*words.split(), "--device", "cpu"])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
