"""The memory that a search for the batch ceiling works in: a card's, or the host's where it is asked for.

A room is cleared before and after each probe and says what the probe took. The search knows nothing else of a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from gpuworkshop.machine.allocation import memory as host_memory
from gpuworkshop.numbers import amount

STATUS, CLEAR, MEMINFO = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
_M_MMAP_THRESHOLD = -3
MOST = 2**50
"""Bytes of the largest limit; what is beyond was not meant."""
SAFE = 0.5
"""Share of the host's free memory that a search without a limit of its own stops at."""


class Reading(msgspec.Struct, frozen=True):
    """What one probe took, in bytes: the most in tensors, the most held for them, and how often the room was too small.

    ``retries``: the allocator had to give back everything that it kept before it could go on. None is not known.
    """

    allocated: int | None = None
    reserved: int | None = None
    retries: int = 0


class Room(Protocol):
    """Memory of one device."""

    kind: Literal["card", "host"]
    growth: int
    """How many times the largest batch that fitted may be tried next, while nothing has failed."""

    def available(self) -> int | None:
        """Bytes that a step may take, now that nothing of a probe is left; None where nothing limits them."""

    def clear(self) -> None:
        """Give back everything that no tensor needs, and begin to count anew."""

    def retries(self) -> int:
        """How often since the last :meth:`clear` the room was too small."""

    def finish(self) -> None:
        """Wait until everything that was started is done; raises what it raises."""

    def read(self) -> Reading:
        """What was taken since the last :meth:`clear`."""


class CardRoom:
    """A card's memory, as PyTorch's allocator counts it. With ``limit_bytes`` the allocator may hold no more."""

    kind, growth = "card", 64

    def __init__(self, device: str, limit_bytes: int | None = None):
        import torch

        self.device, self.limit, self._cuda = device, limit_bytes, torch.cuda
        self._before = 0

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Hold the allocator to the limit inside, and let it have the whole card again after."""
        if self.limit is None:
            yield
            return
        before, total = self._allowed(), self._cuda.mem_get_info(self.device)[1]
        self._cuda.set_per_process_memory_fraction(min(before, self.limit / total), self.device)
        try:
            yield
        finally:
            self._cuda.set_per_process_memory_fraction(before, self.device)

    def available(self) -> int:
        free, total = self._cuda.mem_get_info(self.device)
        held = self._cuda.memory_reserved(self.device)
        return min(free + held, int(self._allowed() * total), total if self.limit is None else self.limit)

    def _allowed(self) -> float:
        """The share of the card that PyTorch's allocator may hold in this process."""
        ask = getattr(self._cuda, "get_per_process_memory_fraction", None)
        return ask(self.device) if ask else 1.0

    def clear(self) -> None:
        gc.collect()
        self._cuda.empty_cache()
        self._cuda.reset_peak_memory_stats(self.device)
        self._before = self._all_retries()

    def retries(self) -> int:
        return self._all_retries() - self._before

    def finish(self) -> None:
        self._cuda.synchronize(self.device)

    def read(self) -> Reading:
        most = self._cuda.max_memory_allocated(self.device), self._cuda.max_memory_reserved(self.device)
        return Reading(*most, self.retries())

    def _all_retries(self) -> int:
        return self._cuda.memory_stats(self.device).get("num_alloc_retries", 0)


class HostRoom:
    """The host's memory, by the most that this process had resident. Linux only; elsewhere nothing can be read.

    Without a limit it is no ceiling: the search then only stays away from the end of what is free. With ``limit_bytes``
    the system refuses this process more than that on top of what it has: for a child, where nothing else is lost.
    """

    kind, growth = "host", 4

    def __init__(self, limit_bytes: int | None = None):
        self.limit = limit_bytes
        if limit_bytes is not None:
            give_back_at_once()
        self._base = self._resident("VmRSS")

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Let the system refuse more than the limit inside. It counts what is asked for, used or not."""
        if self.limit is None:
            yield
            return
        import resource

        before, held = resource.getrlimit(resource.RLIMIT_DATA), self._resident("VmData") or 0
        least = held + self.limit if before[1] == resource.RLIM_INFINITY else min(held + self.limit, before[1])
        resource.setrlimit(resource.RLIMIT_DATA, (least, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    def available(self) -> int | None:
        return self.limit if self.limit is not None else safe_part()

    def clear(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError):
            CLEAR.write_text("5")  # begin the high-water mark anew

    def retries(self) -> int:
        return 0

    def finish(self) -> None:
        """The host does one thing after the other; too much of it is a MemoryError that nobody had to raise."""
        taken, most = self.read().allocated, self.available()
        if self.limit is None and taken is not None and most is not None and taken > most:
            raise MemoryError(f"stopped at {amount(taken)}, more than {SAFE:.0%} of the memory that was free")

    def read(self) -> Reading:
        most = self._resident("VmHWM")
        return Reading(None if most is None or self._base is None else max(0, most - self._base))

    @staticmethod
    def _resident(name: str) -> int | None:
        return _kib(STATUS, name)


def give_back_at_once() -> None:
    """Let glibc hand freed memory back to the system, or a limit would count what nobody uses any more."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 1 << 16)
        library.malloc_trim(0)


def safe_part() -> int | None:
    """Bytes of host memory that a measurement may fill: a part of what is free, or of what the job may use."""
    known = [size for size in (host_memory().bytes, _kib(MEMINFO, "MemAvailable")) if size]
    return int(SAFE * min(known)) if known else None


def check_limit(limit_bytes: Any) -> None:
    """ValueError for what is no number of bytes; None is no limit."""
    if limit_bytes is None:
        return
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or not 1 <= limit_bytes <= MOST:
        raise ValueError(f"a limit of {limit_bytes!r:.40}: a whole number of bytes, 1 or more, at most 1 PiB")


def _kib(file: Path, name: str) -> int | None:
    """A line of a file of Linux that counts KiB, in bytes; None where there is none."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def room_for(device: str, limit_bytes: int | None = None) -> Any:
    """The room that belongs to "cpu" or to a card. ValueError for another device, or a limit that is none."""
    if device != "cpu" and not device.startswith("cuda"):
        raise ValueError(f'device is {device!r:.40}: "cpu", or a card such as "cuda:0"')
    check_limit(limit_bytes)
    return HostRoom(limit_bytes) if device == "cpu" else CardRoom(device, limit_bytes)
