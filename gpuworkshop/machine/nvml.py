"""NVML, the driver's own monitoring library: every question is guarded by itself, and nothing here raises.

What cannot be answered is None, never 0. Why it could not is kept by name, so that a report can say it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

Cause = Literal["no library", "no driver", "version mismatch", "no permission", "lost", "other"]

_CAUSES: dict[str, Cause] = {
    "NVMLError_LibraryNotFound": "no library",
    "NVMLError_DriverNotLoaded": "no driver",
    "NVMLError_LibRmVersionMismatch": "version mismatch",
    "NVMLError_NoPermission": "no permission",
    "NVMLError_GpuIsLost": "lost",
}


class Refusal(msgspec.Struct, frozen=True):
    """Why NVML did not answer: the cause where it is a known one, and NVML's own words."""

    cause: Cause
    words: str


class Nvml:
    """One open session. ``problem`` is why there is none; every question is then answered by None."""

    def __init__(self) -> None:
        self.refused: dict[str, Refusal] = {}
        """The last refusal of each function that was refused, by its name."""
        self.problem: Refusal | None = None
        self._library: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._library = pynvml
        except Exception as error:  # no module, no library, no driver, a broken node: all are answers
            self.problem = refusal(error)

    def ask(self, function: str, *arguments: Any) -> Any:
        """What ``pynvml.function(*arguments)`` answers, bytes as text; None when it does not answer."""
        if self._library is None or any(argument is None for argument in arguments):
            return None
        try:
            answer = getattr(self._library, function)(*arguments)
        except Exception as error:  # also AttributeError: bindings older than the function
            self.refused[function] = refusal(error)
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def constant(self, name: str) -> Any:
        """A constant of the bindings; None where they do not have it."""
        return getattr(self._library, name, None)

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Every card that NVML shows: its number there and its handle, None for one that does not answer."""
        for index in range(self.ask("nvmlDeviceGetCount") or 0):
            yield index, self.ask("nvmlDeviceGetHandleByIndex", index)

    def slices(self, handle: Any) -> Iterator[Any]:
        """The MIG slices of a card that NVML shows."""
        for index in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            found = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if found is not None:
                yield found

    def handle(self, uuid: str) -> Any:
        """The handle of a card or slice by its UUID; None when NVML does not know it."""
        return self.ask("nvmlDeviceGetHandleByUUID", uuid) if uuid else None

    def memory(self, handle: Any) -> tuple[int, int] | None:
        """Bytes in use and in all. Without what the driver keeps for itself, where the driver can tell it apart."""
        version = self.constant("nvmlMemory_v2")
        seen = self.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        seen = seen or self.ask("nvmlDeviceGetMemoryInfo", handle)
        return (int(seen.used), int(seen.total)) if seen else None

    def close(self) -> None:
        """End the session; it may be closed twice."""
        self.ask("nvmlShutdown")
        self._library = None


def refusal(error: Exception) -> Refusal:
    """What an exception of the bindings means."""
    if isinstance(error, ImportError):
        return Refusal("no library", "the Python package nvidia-ml-py is not installed")
    return Refusal(_CAUSES.get(type(error).__name__, "other"), " ".join(str(error).split()) or type(error).__name__)
