"""Why a step failed: memory of the card, perhaps memory, memory of the host, or something else. Words, never frames.

Out of memory has many faces, and a catch of RuntimeError would swallow real bugs: so the words decide, in this order.
An exception keeps the frames it went through, and they keep their tensors: it is read, emptied and dropped.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

Kind = Literal["memory", "maybe memory", "host memory", "other"]

_HOST = re.compile(r"defaultcpuallocator|std::bad_alloc|(^|[.:] )(cannot|could not|unable to) allocate memory")
_MEMORY = re.compile(
    r"(^|[.:] )((cuda|hip)( error:)?|mps backend) out of memory|(cublas|cudnn|cusolver)_status_alloc_failed"
)
"""Words of the system begin a sentence; where somebody writes *about* memory they stand in one."""
_MAYBE = (
    "cudnn_status_not_supported",
    "cudnn_status_internal_error",
    "cublas_status_not_initialized",
    "unable to find an engine",
    "cudacachingallocator",
    "nccl error: unhandled cuda error",
)
_BATCH_NORM = "more than 1 value per channel"
_LONGEST = 300
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_UNUSED = re.compile(r"([\d.]+) (bytes|KiB|MiB|GiB) is reserved by PyTorch but unallocated")
_USED = re.compile(r"([\d.]+) (bytes|KiB|MiB|GiB) is allocated by PyTorch")
NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variable that sets up the allocator: its name now, and before. Some versions read only one of them."""
MUCH_UNUSED = 0.05
"""Share of PyTorch's memory that lies unused in pieces, above which segments that grow may help."""


class Fault(msgspec.Struct, frozen=True):
    """What went wrong in a step: its kind, the error's type and first line, where it was raised, and what to do."""

    kind: Kind
    words: str
    where: str = ""
    advice: str = ""


def fault_of(error: BaseException) -> Fault:
    """What an exception means. It holds no reference to it."""
    name, text = type(error).__name__, _text(error)
    kind = _kind(error, text.lower())
    words = f"{name}: {text[:_LONGEST]}" if text else name
    return Fault(kind, words, _where(error) if kind == "other" else "", _advice(name, text, kind))


def needs_more_samples(fault: Fault) -> bool:
    """Whether a batch was too small for BatchNorm."""
    return _BATCH_NORM in fault.words


def is_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, of the card or of the host, did not suffice."""
    return fault_of(error).kind != "other"


def forget(error: BaseException) -> None:
    """Empty the frames that an exception went through, and those behind it, so that their tensors can go."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)


def forget_last() -> bool:
    """Empty the frames of the session's last error if it was one of memory; whether there was one.

    An interactive session keeps its last error, and with it every tensor of the function that failed.
    """
    last = getattr(sys, "last_value", None)
    if not isinstance(last, BaseException) or not is_memory(last):
        return False
    forget(last)
    return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and all that it came from or came up beside."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and one not in seen:
            seen.append(one)
            left += [one.__cause__, one.__context__]
            yield one


def _text(error: BaseException) -> str:
    """The message in one line; "" where it is an error of its own."""
    try:
        return " ".join(str(error).split())
    except Exception:
        return ""


def _kind(error: BaseException, text: str) -> Kind:
    """By class where the class is certain, else by words, which count only in a class that PyTorch uses for them.

    The host's allocator comes first, for its class says nothing.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host memory"
    if type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if not isinstance(error, RuntimeError):
        return "other"
    if _HOST.search(text):
        return "host memory"
    if _MEMORY.search(text):
        return "memory"
    return "maybe memory" if any(words in text for words in _MAYBE) else "other"


def _where(error: BaseException) -> str:
    """File, line and function that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


def _advice(name: str, text: str, kind: Kind) -> str:
    if name == "CheckpointError":
        return "checkpointing and autocast disagree: enter autocast inside the checkpointed function"
    if _BATCH_NORM in text:
        return "BatchNorm needs more than one sample: DataLoader(..., drop_last=True)"
    return grow_segments(text) if kind == "memory" else ""


def grow_segments(
    text: str, env: Mapping[str, str] = os.environ, platform: str = sys.platform, virtual: bool = False
) -> str:
    """The advice about memory that lies unused in pieces; "" where it would not help.

    ``text`` is the error's. Segments that grow are for Linux and not for a virtual GPU, and help only where PyTorch
    holds much that it cannot use; whoever has them on already needs no advice.
    """
    unused, used = _size(_UNUSED, text), _size(_USED, text)
    on = any("expandable_segments:true" in env.get(name, "").replace(" ", "").lower() for name in NAMES)
    if on or virtual or platform != "linux" or unused is None or used is None:
        return ""
    if unused < MUCH_UNUSED * (unused + used):
        return ""
    value = "expandable_segments:True"
    return f"export {NAMES[0]}={value} {NAMES[1]}={value}   # before Python starts; in a notebook restart the kernel"


def _size(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) * _UNITS[found[2]] if found else None
