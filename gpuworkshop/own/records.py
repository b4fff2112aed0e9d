"""What the hooks of a run have written: one file a process, JSON lines, of which only whole ones count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOING = {
    "hello": (0.02, "starting"),
    "torch": (0.05, "importing"),
    "first step": (0.1, "first steps"),
    "warm-up": (0.15, "warming up"),
    "baseline": (0.2, "plain steps"),
    "pairs": (0.4, "real and replayed batches in turn"),
    "stacks": (0.75, "looking at the script's lines"),
    "profile": (0.8, "profiling"),
    "count": (0.95, "counting"),
    "end": (1.0, "measured"),
}


class Process:
    """The records of one process."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All records of a kind, in order."""
        return [one for one in self.records if one.get("kind") == kind]

    def one(self, kind: str) -> dict[str, Any]:
        """The last record of a kind; empty where there is none."""
        found = self.of(kind)
        return found[-1] if found else {}

    @property
    def sums(self) -> dict[str, Any]:
        """What was counted by its end, ours or its own; empty where it was ended from outside."""
        return self.one("end") or self.one("sums")

    @property
    def trains(self) -> bool:
        """Whether a step was seen in it."""
        return bool(self.of("first step"))

    @property
    def rank(self) -> int:
        """As PyTorch says it, else the launcher; 0 for one process."""
        said = self.one("settings").get("rank")
        return said if said is not None else (self.one("hello").get("rank") or 0)


class Records:
    """All records of a run; :meth:`more` reads what is new."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: dict[str, Process] = {}
        self._read: dict[Path, int] = {}
        self.last_at = self.first_at = self.ended_at = 0.0
        self.share, self.doing = 0.0, ""

    def more(self) -> None:
        """Read the whole lines that came since the last call."""
        for file in sorted(self.folder.glob("records-*.jsonl")):
            with file.open("rb") as lines:
                lines.seek(self._read.get(file, 0))
                text = lines.read()
            whole = text.rfind(b"\n") + 1
            self._read[file] = self._read.get(file, 0) + whole
            process = self.processes.setdefault(file.name, Process())
            for line in text[:whole].splitlines():
                self._take(process, line)

    def _take(self, process: Process, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:  # another program wrote into our file
            return
        if not isinstance(record, dict):
            return
        process.records.append(record)
        self.last_at = max(self.last_at, float(record.get("at") or 0.0))
        kind = record.get("name") if record.get("kind") == "phase" else record.get("kind")
        share, doing = DOING.get(str(kind), (0.0, ""))
        if share > self.share:
            self.share, self.doing = share, doing
        if record.get("kind") == "first step":
            self.first_at = self.first_at or float(record["at"])
        over = record.get("kind") == "end" or (record.get("kind") == "fault" and record.get("fatal"))
        if over and not process.rank:
            self.ended_at = float(record["at"])

    @property
    def main(self) -> Process | None:
        """The process whose steps count: of those that train, rank 0, and there the first."""
        return min((one for one in self.processes.values() if one.trains), key=lambda one: one.rank, default=None)

    @property
    def trained(self) -> list[Process]:
        """All processes in which steps were seen, by rank."""
        return sorted((one for one in self.processes.values() if one.trains), key=lambda one: one.rank)
