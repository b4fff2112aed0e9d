"""Reads a PyTorch trace file into columns: what ran on the card, what the host did, and what launched what.

Any trace in Chrome's JSON format is read, plain or gzipped, also one that a batch job wrote with another version of
PyTorch. The file is decoded in pieces, so that memory is bounded by the number of events and not by the text. A torn
file gives the events before the tear, and says so.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from gpuworkshop.instruments.intervals import Intervals, union

PIECE = 16 * 2**20
MOST_EVENTS = 10_000_000
"""Events kept at most; adding them up takes about 160 bytes each. What is left out of a longer trace is said."""
LONGEST_TEXT = 2**26
"""Bytes that are held in search of the first event, or of the end of one: no trace needs as many."""
LONGEST_NAME = 5000
"""Characters kept of a name; templates of kernels come near it."""
LATEST = 1e18
"""Microseconds: what is longer, or later, is no time."""

OP, LABEL, CALL, KERNEL, COPY, SET, DEVICE_LABEL = range(7)
_CATEGORIES = {
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": LABEL,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": SET,
    "memset": SET,
    "gpu_user_annotation": DEVICE_LABEL,
}
ON_DEVICE = (KERNEL, COPY, SET)


class _Args(msgspec.Struct, gc=False):
    stream: int | float | str | None = None
    device: int | float | str | None = None
    correlation: int | float | str | None = None
    bytes: int | float | str | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float | str | None = None
    dur: float | str | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: _Args | None = None


class Events(msgspec.Struct, frozen=True):
    """Events in columns, one row an event, ordered by start.

    ``name``: row of ``Trace.names``. ``kind``: OP, LABEL, ... ``lane``: thread or stream, numbered across the trace.
    ``device``: -1 for the host. ``start`` and ``duration`` in microseconds, start counted from the trace's first event.
    ``correlation`` joins a call of the host with what it launched; -1 without one. ``bytes``: of a copy, else 0.
    """

    name: np.ndarray
    kind: np.ndarray
    lane: np.ndarray
    device: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    correlation: np.ndarray
    bytes: np.ndarray

    def __len__(self) -> int:
        return len(self.name)

    @property
    def end(self) -> np.ndarray:
        """Microseconds."""
        return self.start + self.duration

    def times(self, mask: np.ndarray) -> Intervals:
        """When at least one of the rows of a mask was at work."""
        return union(self.start[mask], self.end[mask])

    def where(self, mask: np.ndarray) -> Events:
        """The rows of a mask or of an index array."""
        return Events(*(getattr(self, column)[mask] for column in self.__struct_fields__))


class Trace(msgspec.Struct, frozen=True):
    """One trace file. ``notes`` say in words what was left out or repaired; no note, nothing of that."""

    file: str
    names: tuple[str, ...]
    host: Events
    device: Events
    rank: int | None = None
    world_size: int | None = None
    card: str = ""
    """Name of the first card in the trace; "" where it does not say."""
    text_bytes: int = 0
    notes: tuple[str, ...] = ()

    def named(self, events: Events) -> list[str]:
        """The names of some events, in order."""
        return [self.names[row] for row in events.name]


class NoTrace(ValueError):
    """The file is not a trace that can be read; the message is one line that says what it is instead."""


def read(file: str | Path) -> Trace:
    """Read a trace file. NoTrace for one that cannot be opened or is none."""
    file = Path(file)
    if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe or a device would never end
        raise NoTrace(f"{file}: not a plain file")
    pieces, columns = _Pieces(file), _Columns()
    try:
        for events in pieces:
            columns.take(events)
            if columns.full:
                pieces.notes.append(f"only the first {MOST_EVENTS:,} events were read: profile fewer steps")
                break
    except OSError as error:
        raise NoTrace(f"{file}: {error.strerror or error}") from None
    if not len(columns):
        raise NoTrace(f"{file}: {pieces.emptiness(columns.notes())}")
    host, device = columns.tables()
    about = pieces.head
    return Trace(
        str(file),
        tuple(columns.names),
        host,
        device,
        rank=about.number("rank"),
        world_size=about.number("world_size"),
        card=about.card,
        text_bytes=pieces.text_bytes,
        notes=tuple(pieces.notes + columns.notes()),
    )


# Text into events


class _Head(msgspec.Struct):
    """What stands before the events."""

    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815

    @property
    def card(self) -> str:
        """The name of the first card; "" where none is said."""
        match self.deviceProperties:
            case [{"name": str(name)}, *_]:
                return name[:LONGEST_NAME]
        return ""

    def number(self, name: str) -> int | None:
        """A rank or a count of ranks; None where ``distributedInfo`` says none."""
        value = self.distributedInfo.get(name) if isinstance(self.distributedInfo, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


_EVENTS = msgspec.json.Decoder(list[_Event])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_ONE = msgspec.json.Decoder(_Event)
_OPENS = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid|dur|args|s|id)"\s*:)')
_CLOSES = re.compile(rb"\}\s*\]")
_NO_NUMBER = re.compile(rb":\s*-?(?:inf|nan|Infinity|NaN)\b")
_PAIR = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_A_PAIR = re.compile(rb"(" + _PAIR + rb")|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROL = bytes(range(32)), b" " * 32
_TRIES = 40
_NOT_JSON = (msgspec.DecodeError, RecursionError)
"""What cannot be decoded; the second where something is nested without end."""
_WRITE_ONE = "PyTorch writes one with prof.export_chrome_trace(file)"
_OTHERS = (
    (b"SQLite format 3", f"a database, such as Nsight Systems exports; {_WRITE_ONE}"),
    (b"NVIDIA", "a report of Nsight: open it with nsys or ncu"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd: unpack it first"),
    (b"\xfd7zXZ\x00", "packed with xz: unpack it first"),
    (b"BZh", "packed with bzip2: unpack it first"),
    (b"\x1f\x8b", "packed twice: unpack it once"),
    (b"\xff\xfe", "UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16: save it as UTF-8"),
)
"""How files begin that are sometimes taken for a trace, and what they are."""


class _Pieces:
    """The events of a file, in pieces of about :data:`PIECE` bytes of text."""

    def __init__(self, file: Path):
        self.file, self.head, self.notes = file, _Head(), []
        self.text_bytes, self.unreadable, self._torn, self._opened, self._begins = 0, 0, False, False, b""

    def __iter__(self) -> Iterator[list[_Event]]:
        with _open(self.file) as text:
            rest = self._begin(text)
            ended = not self._opened
            while not ended:
                more = self._more(text)
                ended = not more
                rest += more
                ended = ended or len(rest) > LONGEST_TEXT  # no event ends in all of it
                events, rest, closed = self._events(rest, ended)
                if events:
                    yield events
                ended = ended or closed
        if self._torn:
            self.notes.append("the file ends in the middle, or is damaged there: only what stands before that was read")
        if self.unreadable:
            self.notes.append(f"{_events(self.unreadable)} could not be read and left out")

    def emptiness(self, left_out: list[str]) -> str:
        """Why no event was found, in words."""
        if self.text_bytes == 0:
            return "its gzip data is damaged: copy it again" if self._torn else "the file is empty"
        if not self._opened:
            other = next((words for begins, words in _OTHERS if self._begins.startswith(begins)), "")
            return f"not a trace: {other or f'no traceEvents in it; {_WRITE_ONE}'}"
        found = [*self.notes, *left_out]
        return "no events of PyTorch in it" + "".join(f"; {note}" for note in found) + f"; {_WRITE_ONE}"

    def _more(self, text: BinaryIO | _Unpacked) -> bytes:
        piece = text.read(PIECE)
        self.text_bytes += len(piece)
        self._torn = self._torn or getattr(text, "torn", False)
        return piece

    def _begin(self, text: BinaryIO | _Unpacked) -> bytes:
        """Read as far as the events begin; what was read behind that point."""
        first = self._more(text)
        self._begins = first[:16]
        if first.lstrip()[:1] == b"[":
            self._opened = True
            return first.lstrip()[1:]
        while not (found := _OPENS.search(first)):
            more = self._more(text)
            if not more or len(first) > LONGEST_TEXT:
                return b""
            first += more
        self._opened = True
        before = first[: found.start()].rstrip().rstrip(b",")
        try:
            self.head = msgspec.json.decode(before + b"}", type=_Head)
        except _NOT_JSON:
            pass
        return first[found.end() :]

    def _events(self, text: bytes, ended: bool) -> tuple[list[_Event], bytes, bool]:
        """The events that are whole in ``text``, what is left of it, and whether the list is closed."""
        if text.lstrip()[:1] == b"]" or not text.strip():
            return [], b"", True
        if ended:
            for found in _last(_CLOSES, text):
                events = self._decode(text[: found.start() + 1])
                if events is not None:
                    return events, b"", True
            self._torn = True
        for found in _last(_NEXT, text):
            events = self._decode(text[: found.start() + 1])
            if events is not None:
                return events, text[found.end() :], False
        for found in _last(_CLOSES, text) if not ended else ():
            events = self._decode(text[: found.start() + 1])
            if events is not None:
                return events, b"", True
        return [], b"" if ended else text, ended

    def _decode(self, text: bytes) -> list[_Event] | None:
        """A run of events, without those that do not fit; None where the text is not whole."""
        whole = b"[" + text + b"]"
        try:
            return _EVENTS.decode(whole)
        except _NOT_JSON:
            pass
        for written in (lambda: whole, lambda: _mended(whole)):
            try:
                raw = _RAW.decode(written())
            except msgspec.DecodeError:
                continue
            except RecursionError:
                raw = [each + b"}" for each in _NEXT.split(text[:-1])]
            return [event for each in raw if (event := self._one(each)) is not None]
        return None

    def _one(self, raw: msgspec.Raw | bytes) -> _Event | None:
        try:
            return _ONE.decode(raw)
        except _NOT_JSON:
            self.unreadable += 1
            return None


def _events(count: int) -> str:
    return f"{count:,} event" if count == 1 else f"{count:,} events"


def _mended(text: bytes) -> bytes:
    """Text without what is no JSON: inf and nan, as Kineto writes them, half a letter, line breaks in a name."""
    text = _NO_NUMBER.sub(b":null", text).translate(bytes.maketrans(*_CONTROL))
    return _HALF_A_PAIR.sub(lambda found: found[1] or b"\\ufffd", text)


def _open(file: Path) -> BinaryIO | _Unpacked:
    """The text of a file, unpacked if it is gzipped, whatever its name says."""
    raw = file.open("rb")
    packed = raw.read(2) == _GZIPPED
    raw.seek(0)
    return _Unpacked(raw) if packed else raw


class _Unpacked:
    """A gzipped file that gives all that stands before a tear, where the gzip module keeps back the last piece."""

    def __init__(self, raw: BinaryIO):
        self._raw, self._unpack, self.torn = raw, _gunzip(), False

    def read(self, size: int) -> bytes:
        """``size`` bytes while there are as many; never more, however well they are packed."""
        found: list[bytes] = []
        while size > 0 and not self.torn:
            packed = self._unpack.unconsumed_tail or self._unpack.unused_data or self._raw.read(2**16)
            if packed and self._unpack.eof:  # another part begins, or filler
                packed += self._raw.read(2**16) if len(packed) < len(_GZIPPED) else b""
                if not packed.startswith(_GZIPPED):
                    break
                self._unpack = _gunzip()
            try:
                text = self._unpack.decompress(packed, size)
            except zlib.error:
                self.torn = True
                break
            if not packed and not text:
                break
            found.append(text)
            size -= len(text)
        if size > 0 and not self._unpack.eof:
            self.torn = True
        return b"".join(found)

    def __enter__(self) -> _Unpacked:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()


_GZIPPED = b"\x1f\x8b"


def _gunzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _last(pattern: re.Pattern, text: bytes) -> Iterator[re.Match]:
    """Matches in the last part of a text, the last one first; a few."""
    for size in (2**16, 2**20, len(text)):
        found = list(pattern.finditer(text, max(0, len(text) - size)))
        if found:
            yield from reversed(found[-_TRIES:])
            return


# Events into columns


class _Columns:
    """Events gathered into columns, piece by piece."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._kinds: dict[str | None, int | None] = {}
        self._lanes: dict[tuple, int] = {}
        self._pieces: list[Events] = []
        self._count = self._odd = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= MOST_EVENTS

    def take(self, events: list[_Event]) -> None:
        """Keep what is an event with a time: operators, labels, calls, and what ran on a device."""
        kept = [event for event in events if event.ph == "X" and self._kind(event.cat) is not None]
        start = _floats([event.ts for event in kept])
        duration = _floats([event.dur for event in kept])
        usable = (np.abs(start) <= LATEST) & (duration <= LATEST) & (duration >= 0)
        if not usable.all():
            self._odd += int((~usable).sum())
            kept = [event for event, good in zip(kept, usable, strict=True) if good]
            start, duration = start[usable], duration[usable]
        if kept:
            self._pieces.append(self._piece(kept, start, duration))
            self._count += len(kept)

    def notes(self) -> list[str]:
        return [f"{_events(self._odd)} without a usable time left out"] if self._odd else []

    def tables(self) -> tuple[Events, Events]:
        """Host and device, each ordered by start; times from the first event on."""
        columns = [np.concatenate([getattr(piece, column) for piece in self._pieces]) for column in _TYPES]
        self._pieces.clear()
        whole = Events(*columns)
        whole = whole.where(np.argsort(whole.start, kind="stable"))
        whole = msgspec.structs.replace(whole, start=whole.start - whole.start[0])
        on_device = whole.kind >= KERNEL
        return whole.where(~on_device), whole.where(on_device)

    def _kind(self, category: str | None) -> int | None:
        if category not in self._kinds:
            self._kinds[category] = _CATEGORIES.get((category or "").lower())
        return self._kinds[category]

    def _piece(self, kept: list[_Event], start: np.ndarray, duration: np.ndarray) -> Events:
        kind = np.array([self._kinds[event.cat] for event in kept], dtype=_TYPES["kind"])
        args = [event.args or _NO_ARGS for event in kept]
        device = _whole([each.device for each in args], -1, MOST_CARDS)
        by_process = _whole([event.pid for event in kept], 0, MOST_CARDS)
        names, lanes = self.names, self._lanes
        streams = [event.tid if each.stream is None else each.stream for event, each in zip(kept, args, strict=True)]
        return Events(
            name=np.array(
                [names.setdefault(event.name[:LONGEST_NAME], len(names)) for event in kept], dtype=_TYPES["name"]
            ),
            kind=kind,
            lane=np.array(
                [
                    lanes.setdefault((event.pid, stream if on_device else event.tid), len(lanes))
                    for event, stream, on_device in zip(kept, streams, kind >= KERNEL, strict=True)
                ],
                dtype=_TYPES["lane"],
            ),
            device=np.where(kind >= KERNEL, np.where(device < 0, by_process, device), -1).astype(_TYPES["device"]),
            start=start,
            duration=duration,
            correlation=_whole([each.correlation for each in args], -1),
            bytes=_whole([each.bytes for each in args], 0, MOST_BYTES),
        )


_TYPES = {
    "name": np.int32,
    "kind": np.int8,
    "lane": np.int32,
    "device": np.int32,
    "start": np.float64,
    "duration": np.float64,
    "correlation": np.int64,
    "bytes": np.int64,
}


_NO_ARGS = _Args()


def _floats(values: list) -> np.ndarray:
    """Numbers, or texts of numbers, as one column; NaN for what is none."""
    try:
        return np.array(values, dtype=np.float64)
    except (ValueError, OverflowError):
        return np.array([_float(value) for value in values], dtype=np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


MOST_CARDS, MOST_BYTES = 2**15, 2**43
"""What is no number of a card in a machine, and no size of one copy."""


def _whole(values: list, otherwise: int, most: int = 2**53) -> np.ndarray:
    """Whole numbers from 0 to below ``most`` as one column; ``otherwise`` for what is none."""
    numbers = _floats(values)
    usable = (numbers >= 0) & (numbers < most)
    return np.where(usable, numbers, otherwise).astype(np.int64)
