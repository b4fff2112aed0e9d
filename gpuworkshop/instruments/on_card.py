"""Who was on a card over a watch: each process with the most memory that it was seen with."""

from __future__ import annotations

import msgspec

from gpuworkshop.machine.processes import OnCard, Process

_OWN = ("this step's", "this job's", "my other work")


class MostSeen:
    """The processes of one card over a watch. ``whole_user``: all of this user's belong to what is watched."""

    def __init__(self) -> None:
        self._seen: dict[int, Process] = {}
        self._answered = False

    @property
    def processes(self) -> tuple[Process, ...] | None:
        """All that were seen until now; None when the driver never listed any, not even an empty list."""
        return tuple(dict(self._seen).values()) if self._answered else None

    def add(self, found: OnCard, whole_user: bool = False) -> None:
        """Take in one look. What was known of a process stays known, should it no longer be visible."""
        if found.processes is None:
            return
        self._answered = True
        for process in found.processes:
            if whole_user and process.whose in _OWN:
                process = msgspec.structs.replace(process, whose="mine")
            before = self._seen.get(process.pid)
            self._seen[process.pid] = _most(before, process) if before else process


def _most(before: Process, now: Process) -> Process:
    """Two looks at one process as one."""
    known = before if now.whose == "not visible" or not now.name else now
    memory = max((one.memory for one in (before, now) if one.memory is not None), default=None)
    return msgspec.structs.replace(known, memory=memory)
