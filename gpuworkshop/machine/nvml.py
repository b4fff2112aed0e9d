"""NVML, the driver's own monitoring library: every question is guarded by itself, and nothing here raises.

What cannot be answered is None, never 0. Why it could not is kept by name, so that a report can say it once.
A driver may also not answer at all; ``in_time`` opens a session that then gives up.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

LIMIT = 20.0
"""Seconds: a driver that must first be loaded takes several of them on a node with eight cards."""
NOT_AVAILABLE = 2**64 - 1
"""NVML's number of bytes for one that it does not know."""
Cause = Literal[
    "no library",
    "no driver",
    "version mismatch",
    "no permission",
    "lost",
    "not supported",
    "not found",
    "did not answer",
    "other",
]

_CAUSES: dict[str, Cause] = {
    "NVMLError_LibraryNotFound": "no library",
    "NVMLError_DriverNotLoaded": "no driver",
    "NVMLError_LibRmVersionMismatch": "version mismatch",
    "NVMLError_NoPermission": "no permission",
    "NVMLError_GpuIsLost": "lost",
    "NVMLError_NotSupported": "not supported",
    "NVMLError_FunctionNotFound": "not supported",
    "NVMLError_NotFound": "not found",
}


class Refusal(msgspec.Struct, frozen=True):
    """Why NVML did not answer: the cause where it is a known one, and NVML's own words."""

    cause: Cause
    words: str


class Nvml:
    """One open session. ``problem`` is why there is none; every question is then answered by None.

    With a ``limit`` in seconds, a question that is not answered in that time ends the session: ``problem`` then has the
    cause "did not answer". Without one, questions are asked in the calling thread and cost less.
    """

    _library: Any = None
    _thread: _Thread | None = None

    def __init__(self, limit: float | None = None) -> None:
        self.refused: dict[str, Refusal] = {}
        """The last refusal of each function that was refused, by its name."""
        self.problem: Refusal | None = None
        self._limit = limit
        try:
            self._library = self._answer("nvmlInit", _open)
        except Exception as error:  # no module, no library, no driver, a broken node: all are answers
            self.problem = self.problem or refusal(error)

    def ask(self, function: str, *arguments: Any) -> Any:
        """What ``pynvml.function(*arguments)`` answers, bytes as text; None when it does not answer."""
        library = self._library
        if library is None or any(argument is None for argument in arguments):
            return None
        try:
            answer = self._answer(function, lambda: getattr(library, function)(*arguments))
        except Exception as error:  # also AttributeError: bindings older than the function
            self.refused[function] = refusal(error)
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def _answer(self, function: str, question: Callable[[], Any]) -> Any:
        """The answer, from the asking thread where there is a limit; raises what the question raises."""
        if self._limit is None:
            return question()
        if self._thread is None or self._thread.pid != os.getpid():  # threads do not survive a fork
            self._thread = _Thread()
            weakref.finalize(self, self._thread.end)
        try:
            return self._thread.ask(question, self._limit)
        except queue.Empty:
            self._library = None
            self.problem = Refusal("did not answer", f"{function} did not answer within {self._limit:g} s")
            raise TimeoutError(self.problem.words) from None

    def constant(self, name: str) -> Any:
        """A constant of the bindings; None where they do not have it."""
        return getattr(self._library, name, None)

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Every card that NVML shows: its number there and its handle, None for one that does not answer."""
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            yield index, self.ask("nvmlDeviceGetHandleByIndex", index)

    def slices(self, handle: Any) -> Iterator[Any]:
        """The handles of the MIG slices of a card, None for one that does not answer."""
        function = "nvmlDeviceGetMigDeviceHandleByIndex"
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            self.refused.pop(function, None)
            found = self.ask(function, handle, index)
            refused = self.refused.get(function)
            if found is not None or refused is None or refused.cause != "not found":  # a number without a slice
                yield found

    def handle(self, uuid: str) -> Any:
        """The handle of a card or slice by its UUID; None when NVML does not know it."""
        return self.ask("nvmlDeviceGetHandleByUUID", uuid) if uuid else None

    def memory(self, handle: Any) -> tuple[int, int] | None:
        """Bytes in use and in all, without what the driver keeps for itself where the driver can tell it apart.

        None too where the card has no memory of its own, as on parts that share the machine's.
        """
        version = self.constant("nvmlMemory_v2")
        seen = self.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        seen = seen or self.ask("nvmlDeviceGetMemoryInfo", handle)
        used, total = number(getattr(seen, "used", None)), number(getattr(seen, "total", None))
        return (used, total) if used is not None and total else None

    def close(self) -> None:
        """End the session; it may be closed twice."""
        self.ask("nvmlShutdown")
        self._library = None
        if self._thread:
            self._thread.end()

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Thread:
    """Asks the driver, so that whoever waits for it can stop waiting. A daemon: it may never come back."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._questions,), name="nvml", daemon=True).start()

    def ask(self, question: Callable[[], Any], seconds: float) -> Any:
        """The answer to a question; queue.Empty when none came in time."""
        reply: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._questions.put((question, reply))
        answer, error = reply.get(timeout=seconds)
        if error is not None:
            raise error
        return answer

    def end(self) -> None:
        """End the thread when it is next free."""
        self._questions.put(None)


def _serve(questions: queue.SimpleQueue[Any]) -> None:
    while (asked := questions.get()) is not None:
        question, reply = asked
        try:
            reply.put((question(), None))
        except Exception as error:
            reply.put((None, error))


def _open() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def in_time(seconds: float = LIMIT) -> Nvml:
    """A session that waits at most so long for any one answer, and then ends."""
    return Nvml(seconds)


def number(value: Any) -> int | None:
    """A number that NVML gave, such as bytes; None where it is none, or the one that stands for "not known"."""
    return value if isinstance(value, int) and 0 <= value < NOT_AVAILABLE else None


def refusal(error: Exception) -> Refusal:
    """What an exception of the bindings means."""
    if isinstance(error, ImportError):
        return Refusal("no library", "the Python package nvidia-ml-py is not installed")
    cause = "did not answer" if isinstance(error, TimeoutError) else _CAUSES.get(type(error).__name__, "other")
    return Refusal(cause, " ".join(str(error).split()) or type(error).__name__)
