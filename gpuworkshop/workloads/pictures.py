"""The pictures: a set of JPEG files that the kit writes itself, or a folder of the learner's own.

A picture of the set is 500 x 375 pixels of textured shapes in one of eight hues. The hue is the class, so a network
can learn it, and it survives crop and flip. Everything follows from the picture's number: the set is the same
everywhere. It is written once into a cache folder (``$GPUWORKSHOP_CACHE``, else
``$XDG_CACHE_HOME/gpuworkshop``, else ``~/.cache/gpuworkshop``).
"""

from __future__ import annotations

import colorsys
import hashlib
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from gpuworkshop import state
from gpuworkshop.machine import allocation
from gpuworkshop.workloads.config import CLASSES, HELD_OUT

WIDTH, HEIGHT, QUALITY = 500, 375, 90
VERSION = 1
"""Part of the cache folder's name: raise it when a change makes other pictures."""
SUFFIXES = (".jpg", ".jpeg")
EVERY = 5
"""One in so many pictures of a folder is held out."""
HALF = ".half-"
"""In the name of what is being written, before it gets its own name."""
LEFT_BEHIND = 86_400.0
"""Seconds after which such a thing belongs to a process that was killed."""

Progress = Callable[[float], None]


def _quiet(share: float) -> None:
    pass


class PictureFault(ValueError):
    """A picture that cannot be decoded; the message says which, or that it is one of a batch."""


class Pictures(msgspec.Struct, frozen=True):
    """Files with their class; ``classes`` is 1 when the folder has no classes, and then nothing can be learned."""

    files: tuple[str, ...]
    labels: tuple[int, ...]
    classes: int

    def __len__(self) -> int:
        return len(self.files)

    def part(self, chosen: Callable[[int], bool]) -> Pictures:
        """The pictures at the chosen positions."""
        at = [position for position in range(len(self)) if chosen(position)]
        files, labels = tuple(self.files[n] for n in at), tuple(self.labels[n] for n in at)
        return msgspec.structs.replace(self, files=files, labels=labels)


def cache_folder() -> Path:
    """Where written pictures are kept; the spare folder of the state when the usual place cannot be written."""
    try:
        folder = state.chosen_cache()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        folder = state.spare_folder() / "cache"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def training_set(count: int, data: str | None = None, progress: Progress = _quiet) -> Pictures:
    """The pictures to train on: ``count`` of the kit's own, or those of the folder ``data`` that are not held out."""
    if data is not None:
        return read_folder(data).part(lambda position: position % EVERY != 0 or position >= EVERY * HELD_OUT)
    return written_set("train", range(count), progress)


def held_out_set(data: str | None = None, progress: Progress = _quiet) -> Pictures:
    """Pictures that are never trained on: the kit's own, or every fifth of the folder ``data``, 512 at most."""
    if data is not None:
        return read_folder(data).part(lambda position: position % EVERY == 0 and position < EVERY * HELD_OUT)
    first = 1_000_000
    return written_set("held-out", range(first, first + HELD_OUT), progress)


def read_folder(folder: str) -> Pictures:
    """The JPEG files below ``folder``; each folder that holds some is a class. ValueError when there are none."""
    try:
        files = _jpegs(folder)
    except OSError as error:  # no right to look, a name too long
        raise ValueError(f"cannot look into {folder[:80]!r}: {error.strerror or error}") from None
    if not files:
        raise ValueError(f"no JPEG file (.jpg, .jpeg) in {folder!r} or below")
    label = {name: place for place, name in enumerate(sorted({file.parent for file in files}))}
    return Pictures(tuple(map(str, files)), tuple(label[file.parent] for file in files), len(label))


def _jpegs(folder: str) -> list[Path]:
    try:
        root = Path(folder).expanduser()
    except RuntimeError:  # ~somebody who is not there
        raise ValueError(f"no folder {folder!r}") from None
    if root.is_file():
        raise ValueError(f"no folder {folder!r}: this is a file, name the folder of the pictures")
    if not root.is_dir():
        raise ValueError(f"no folder {folder!r}")
    return sorted(f for f in root.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())


def written_set(name: str, numbers: Sequence[int], progress: Progress = _quiet) -> Pictures:
    """The kit's pictures with these numbers; written first if they are not in the cache, or not all of them."""
    folder = cache_folder() / f"pictures-v{VERSION}-{name}-{len(numbers)}"
    if not _whole(folder, numbers):
        _write_all(folder, numbers, progress)
    files = tuple(str(folder / f"{number}.jpg") for number in numbers)
    return Pictures(files, tuple(number % CLASSES for number in numbers), CLASSES)


def _whole(folder: Path, numbers: Sequence[int]) -> bool:
    """Whether a folder holds these pictures, none of them empty: a cleaned-up cache often keeps the folder."""
    try:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    except OSError:
        return False
    return all(sizes.get(f"{number}.jpg") for number in numbers)


def _write_all(folder: Path, numbers: Sequence[int], progress: Progress) -> None:
    """Write into a temporary folder and rename it: whoever is first wins, nobody sees half a set."""
    with _being_written(folder):
        half = Path(tempfile.mkdtemp(prefix=folder.name + HALF, dir=folder.parent))
        try:
            deque(in_workers(partial(write_picture, str(half)), numbers, progress), maxlen=0)
            if folder.exists() and not _whole(folder, numbers):
                shutil.rmtree(folder, ignore_errors=True)
            try:
                half.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(half, ignore_errors=True)


@contextmanager
def _being_written(target: Path) -> Iterator[None]:
    """Sweep what killed writers left beside ``target``; ValueError where the cache has no room or cannot be written."""
    _sweep(target.parent)
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise ValueError(
            f"cannot write to the cache {str(target.parent)!r}: {why}. Set GPUWORKSHOP_CACHE to a folder with more room"
        ) from error


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"*{HALF}*"):
        try:
            if time.time() - path.stat().st_mtime > LEFT_BEHIND:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            pass  # somebody else's, or gone already


class _Work:
    """A data set whose samples are pieces of work: so PyTorch's own loader runs them in its worker processes."""

    def __init__(self, work: Callable, items: Sequence):
        self.work, self.items = work, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int):
        try:
            return self.work(self.items[position])
        except Exception as error:  # raised again where it is waited for, in its own words
            return error


def in_workers(work: Callable, items: Sequence, progress: Progress) -> Iterator:
    """``work(item)`` for each item in order, in as many worker processes as this allocation has CPUs."""
    from torch.utils.data import DataLoader

    workers = allocation.cpus().count
    done = DataLoader(_Work(work, items), batch_size=None, num_workers=workers, collate_fn=_as_it_is)
    for position, result in enumerate(done):
        if isinstance(result, Exception):
            raise result
        yield result
        if position % 32 == 0:
            progress(position / len(items))


def _as_it_is(sample):
    return sample


def write_picture(folder: str, number: int) -> None:
    """Write picture ``number`` as ``folder/number.jpg``."""
    draw(number).save(Path(folder) / f"{number}.jpg", quality=QUALITY)


def draw(number: int):
    """Picture ``number`` as a PIL image: textured shapes in the hue of its class, ``number % CLASSES``."""
    from PIL import Image

    random = np.random.default_rng(number)
    light = sum(weight * _noise(random, cells) for cells, weight in ((4, 0.45), (16, 0.25), (64, 0.2), (500, 0.1)))
    for _ in range(6):
        light += _ellipse(random)
    light = np.clip(0.5 + 0.5 * (light - light.mean()), 0.06, 0.94)[..., None]
    hue = (number % CLASSES + random.uniform(-0.15, 0.15)) / CLASSES
    color = np.array(colorsys.hsv_to_rgb(hue % 1, random.uniform(0.65, 0.95), 1.0), dtype=np.float32)
    shaded = np.where(light < 0.5, 2 * light * color, 1 - 2 * (1 - light) * (1 - color))
    return Image.fromarray((255 * shaded).astype(np.uint8))


def _noise(random: np.random.Generator, cells: int) -> np.ndarray:
    """Smooth noise in [-1, 1] with ``cells`` bumps across the picture."""
    from PIL import Image

    rows = max(2, cells * HEIGHT // WIDTH)
    coarse = Image.fromarray(random.uniform(-1, 1, (rows, cells)).astype(np.float32))
    return np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR))


def _ellipse(random: np.random.Generator) -> np.ndarray:
    """A lighter or darker ellipse somewhere in the picture."""
    x, y = np.ogrid[:HEIGHT, :WIDTH]
    row, column = random.uniform(0, HEIGHT), random.uniform(0, WIDTH)
    tall, wide = random.uniform(20, 120, 2)
    inside = ((x - row) / tall) ** 2 + ((y - column) / wide) ** 2 < 1
    return np.float32(random.uniform(-0.8, 0.8)) * inside


def open_rgb(file: str, wait_seconds: float = 0.0):
    """A picture file as a decoded RGB PIL image, after a planted wait of so many seconds.

    PictureFault names a file that cannot be read.
    """
    from PIL import Image

    time.sleep(wait_seconds)
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except Exception as error:  # a decoder has many ways to fail, each with its own class
        why = getattr(error, "strerror", None) or str(error).partition(" '")[0] or type(error).__name__
        raise PictureFault(f"cannot read picture {file!r}: {why}") from error


def pre_decode(pictures: Pictures, px: int, progress: Progress = _quiet) -> Path:
    """Decode all pictures once into a uint8 file (N, 3, px, px) in the cache; returns its path."""
    file = cache_folder() / f"decoded-{px}px-{fingerprint(pictures)}.npy"
    shape = len(pictures), 3, px, px
    if not _holds(file, shape):
        with _being_written(file):
            _decode_all(file, shape, in_workers(partial(square, px), pictures.files, progress))
    return file


def _holds(file: Path, shape: tuple[int, ...]) -> bool:
    """Whether a file is a whole array of bytes of this shape."""
    try:
        found = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # not there, cut off, something else
        return False
    return found.shape == shape and found.dtype == np.uint8


def _decode_all(file: Path, shape: tuple[int, ...], rows: Iterator[np.ndarray]) -> None:
    """Write the rows as bytes: through a memory map a full disk would end this process with a bus error."""
    half = Path(tempfile.mkdtemp(prefix=file.stem + HALF, dir=file.parent))
    try:
        with open(half / file.name, "wb") as out:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            for row in rows:
                out.write(np.ascontiguousarray(row).tobytes())
        (half / file.name).replace(file)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def fingerprint(pictures: Pictures) -> str:
    """A short name for exactly these files, their sizes and times. PictureFault names one that is gone."""
    found = hashlib.sha256()
    for file in pictures.files:
        try:
            seen = Path(file).stat()
        except OSError as error:
            raise PictureFault(f"cannot read picture {file!r}: {error.strerror}") from None
        found.update(os.fsencode(file) + f"\0{seen.st_size}\0{seen.st_mtime_ns}\0".encode())
    return found.hexdigest()[:16]


def square(px: int, file: str) -> np.ndarray:
    """The middle of a picture as uint8 (3, px, px)."""
    image = open_rgb(file)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.resize((px, px), box=(left, top, left + side, top + side))).transpose(2, 0, 1)
