"""Where recorded parts are kept: lines in the learner's state folder, or one file that is sent elsewhere.

A file is an envelope like every recording, written whole after each part: what was done is kept, and no reader ever
meets half of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpuworkshop import __version__, state
from gpuworkshop.child import ChildFailed
from gpuworkshop.course import claims
from gpuworkshop.course.claims_result import ClaimsResult, Part, merged
from gpuworkshop.numbers import shortened
from gpuworkshop.report import Origin, envelope

NAME = "claims.jsonl"


class _Envelope(msgspec.Struct, frozen=True):
    kit: str
    origin: Origin
    result: ClaimsResult


class Recorded(msgspec.Struct, frozen=True):
    """What a recording came to: the result, which parts were there before, and which failed with what words."""

    result: ClaimsResult | None
    before: tuple[str, ...] = ()
    failed: dict[str, str] = {}


class InState:
    """Parts of one machine and this kit in the state folder; those of others stay there, and are not shown."""

    def __init__(self, machine: str):
        self.machine = machine

    def read(self) -> ClaimsResult | None:
        """What was recorded here; of a part the newest. Torn and foreign lines are skipped."""
        parts = [part for line in state.read_lines(NAME)[0] if (part := _part(line)) and self.takes(part)]
        return merged(parts) if parts else None

    def takes(self, part: Part) -> bool:
        """Whether a part is of this machine and this kit."""
        return (part.conditions.machine, part.conditions.kit) == (self.machine, __version__)

    def add(self, part: Part) -> ClaimsResult | None:
        """Keep a part. OSError where it can be written nowhere."""
        if not state.append(NAME, part):
            raise OSError(f"the part {part.name} cannot be kept: {state.problem() or 'no folder can be written'}")
        return self.read()


class InFile:
    """Parts in one file. ValueError for a file that is no recording of claims, or one of another card or kit."""

    def __init__(self, file: Path, machine: str):
        self.file, self.machine = _meant(file), machine
        self._writable()
        result = self.read()
        here = result.parts[0].conditions if result and result.parts else None
        if here and (here.machine, here.kit) != (machine, __version__):
            raise ValueError(
                f"{file} holds the claims of {shortened(here.machine)} with kit {shortened(here.kit, 20)}, and this is "
                f"{shortened(machine)} with kit {__version__}: name another file"
            )

    def read(self) -> ClaimsResult | None:
        """What the file holds; None where there is none yet."""
        return load(self.file) if self.file.exists() else None

    def add(self, part: Part) -> ClaimsResult:
        """Write the file anew, with this part instead of the one of the same name; another process may do so too.

        OSError where it cannot be written any more: the file is as it was.
        """
        with _alone(self.file.parent):
            old = self.read()
            result = merged([*(old.parts if old else ()), part])
            try:
                _write(self.file, envelope(result, result.origin, claims.findings(result)) + b"\n")
            except OSError as error:
                raise OSError(f"the part {part.name} cannot be kept in {self.file}: {error.strerror}") from None
        return result

    def _writable(self) -> None:
        """Ask before the measurement, not after it."""
        try:
            if self.file.exists() and not self.file.is_file():
                raise IsADirectoryError(0, "it is a folder" if self.file.is_dir() else "it is no usual file")
            if self.file.exists() and not os.access(self.file, os.W_OK):
                raise PermissionError(0, "it is read-only")
            with tempfile.NamedTemporaryFile(dir=self.file.parent, prefix=f".{self.file.name}-"):
                pass
        except OSError as error:
            raise ValueError(f"{self.file} cannot be written: {error.strerror}; name another place") from None


def load(file: Path) -> ClaimsResult:
    """The result in a file. ValueError, in one line, for one that cannot be read or is torn."""
    file = _meant(file)
    try:
        if file.is_char_device() and not file.samefile("/dev/stdin"):
            raise OSError(0, "it is a device")
        result = msgspec.json.decode(file.read_bytes(), type=_Envelope).result
        return merged(result.parts)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        words = shortened(str(error), 120)
        raise ValueError(f"{file} is no whole recording of claims: {words}; move it away, and record anew") from None


def record(
    names: Sequence[str],
    store: InState | InFile,
    measure: Callable[[str], Part],
    *,
    again: bool = False,
    done: Callable[[Part], None] = lambda part: None,
) -> Recorded:
    """Measure parts one after the other, each kept as soon as it is there; a part that is there is not measured anew.

    ``again`` measures it all the same. A part whose instrument fails does not keep the others from being measured.
    ValueError for a part of another machine than the store's.
    """
    result = store.read()
    there = {part.name for part in result.parts if not part.sources} if result and not again else set()
    failed: dict[str, str] = {}
    for name in names:
        if name in there:
            continue
        try:
            part = measure(name)
        except ChildFailed as error:
            failed[name] = str(error)
            continue
        if part.conditions.machine != store.machine:
            raise ValueError(f"this is {shortened(store.machine)}, and the part {name} came from another machine")
        result = store.add(part)
        done(part)
    return Recorded(result, tuple(name for name in names if name in there), failed)


def which(asked: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The parts that are meant, in their order; "all" means every one. ValueError for a name that there is none of."""
    wanted = list(asked)
    strange = [name for name in wanted if name not in (*known, "all")]
    if strange:
        raise ValueError(f'there is no part "{shortened(strange[0], 40)}": there are {", ".join(known)}, and all')
    return tuple(known) if "all" in wanted else tuple(name for name in known if name in wanted)


def _part(line: dict) -> Part | None:
    try:
        return msgspec.convert(line, Part)
    except msgspec.ValidationError:
        return None


def _meant(file: Path) -> Path:
    """The file, where its name begins with the home of somebody who is known here."""
    try:
        return file.expanduser()
    except RuntimeError:
        return file


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others that record into a file of this folder waiting, as far as its file system knows locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with state.locked(handle):
            yield
    finally:
        os.close(handle)


def _write(file: Path, data: bytes) -> None:
    """Put a whole file in the place of the old one."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "wb") as part:
            part.write(data)
            part.flush()
            os.fsync(part.fileno())
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
