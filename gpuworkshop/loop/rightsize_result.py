"""A job script from measured numbers: what may be said by hand, and the script with the reason of every line."""

from __future__ import annotations

import shlex
import unicodedata

import msgspec

from gpuworkshop import __version__
from gpuworkshop.cluster.facts import is_name
from gpuworkshop.cluster.jobscript.rule import Fault
from gpuworkshop.report import Origin, clean
from gpuworkshop.workloads.config import MOST


class Asked(msgspec.Struct, frozen=True):
    """What was said by hand; it counts more than what was measured. Sizes in bytes; None and "" leave it open."""

    name: str = "train"
    script: tuple[str, ...] = ()
    """The training's own command, such as train.py --epochs 10; none: the kit's training with the measured settings."""
    data: str = ""
    steps: int | None = None
    step_ms: float | None = None
    cards: int | None = None
    workers: int | None = None
    host_memory: int | None = None
    card_memory: int | None = None
    family: str = ""
    partition: str = ""

    @property
    def own(self) -> str:
        """The learner's own training in one word; "" where it is the kit's."""
        if any(word.startswith("gpuworkshop.workloads") for word in self.script):
            return ""
        return next((word for word in self.script if word.endswith(".py")), next(iter(self.script), ""))

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"--name: expected a name of letters, digits, . _ + -, found {self.name[:40]!r}")
        for flag, value, most in (
            ("steps", self.steps, 10**12),
            ("cards", self.cards, 1024),
            ("host-memory", self.host_memory, 2**50),
            ("card-memory", self.card_memory, 2**50),
        ):
            if value is not None and not 0 < value <= most:
                raise ValueError(f"--{flag} is {value}: above 0 and at most {most}")
        if self.workers is not None and not 0 <= self.workers <= MOST["workers"]:
            raise ValueError(f"--workers is {self.workers}: between 0 and {MOST['workers']}")
        if self.step_ms is not None and not 0 < self.step_ms < 1e9:
            raise ValueError(f"--step-ms is {self.step_ms:g}: above 0 and below 1e9")
        said = "".join((*self.script, self.data))
        if self.script and not self.script[0].strip():
            raise ValueError("after --: the training's command begins with an empty word")
        if not _is_one_line(said):
            raise ValueError("the training and --data are one line of a script: no line breaks or control characters")


def comment(words: str) -> str:
    """A comment of one line, whatever a site or a result file is called."""
    words = " ".join(clean(words).split())
    return f"# {words[:1].upper()}{words[1:]}"


def _is_one_line(text: str) -> bool:
    """Whether a text stays in its line of a script, as seen by the shell and by an editor."""
    return not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text)


class Choice(msgspec.Struct, frozen=True):
    """One value with its reason. `measured` is False for a convention; `warns` says what to look at before sbatch."""

    value: str
    reason: str
    measured: bool = True
    warns: str = ""
    how: str = ""
    """The command that measures what is missing."""


class Line(msgspec.Struct, frozen=True):
    """One line of the script, or a few that belong together, with their reason."""

    text: str
    reason: str = ""


class JobScript(msgspec.Struct, frozen=True):
    """A job script: its lines with their reasons, what each number was chosen by, and the line that submits it."""

    name: str
    site: str
    choices: dict[str, Choice]
    lines: tuple[Line, ...]
    logs: str
    """The folder of its logs, "." for the present one."""
    origin: Origin
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    """What job check says of it; empty for a script that is right."""

    def submit(self, file: str) -> str:
        """How to submit it when it is in ``file``."""
        folder = f"mkdir -p {shlex.quote(self.logs)} && " if self.logs != "." else ""
        return f"{folder}sbatch {shlex.quote(file)}"

    def text(self, file: str = "") -> str:
        """The script as a file holds it. Raises ValueError for a file's name of several lines."""
        if not _is_one_line(file):
            raise ValueError("--out: no line breaks or control characters in the name of a file")
        first, *rest = self.lines
        written = f"Written for {self.site} by gpuworkshop job write {__version__}, {self.origin.date}."
        parts = [first.text, comment(f"{written} {first.reason}")]
        for line in rest:
            parts += ([comment(line.reason)] if line.reason else []) + [line.text]
        last = f"# Submit it, the folder for its logs first: {self.submit(file or self.file)}"
        return "\n".join([*parts, "", last, ""])

    @property
    def file(self) -> str:
        """Its usual name."""
        return f"{self.name}.sbatch"
