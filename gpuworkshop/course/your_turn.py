"""Chapter 8: a script of the learner's own, or the course's, through the loop: measure, change one thing, again."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuworkshop import state
from gpuworkshop.child import ChildFailed, Progress
from gpuworkshop.course.faces import Fold, Note
from gpuworkshop.machine.conditions import Conditions, known
from gpuworkshop.own import again as comparing
from gpuworkshop.own import launch, prompt, snapshot, verdict
from gpuworkshop.own.again_result import AgainResult, diff
from gpuworkshop.own.code import look
from gpuworkshop.own.pairs import Telling
from gpuworkshop.own.prompt import NoPrompt
from gpuworkshop.own.result import OwnResult
from gpuworkshop.own.snapshot import CannotCompare
from gpuworkshop.own.source import Sources
from gpuworkshop.report import Report
from gpuworkshop.timing import Rate

SUPPLIED = Path(__file__).parent / "supplied" / "train.py"
JOB = Path(__file__).parent / "supplied" / "job.sbatch"
FOLDER = "your_turn"
LONG = ("--epochs", "200")
"""For the course's script: it is stopped as soon as enough was seen."""
PLANTED = "the loader of the course's script has no workers, and its waves take time to make"
QUICK = {"least": 3, "most": 3}
"""Pairs of launches in the chapter without a card; in a terminal there are at least four."""

Show = Callable[[Progress], None]


def begin(*command: str) -> YourTurn:
    """Begin with a command of the learner's own, else with the course's script, laid out new in the state folder."""
    if command:
        return YourTurn(command)
    folder = state.folder() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for file in (SUPPLIED, JOB):
        shutil.copyfile(file, folder / file.name)
    return YourTurn((sys.executable, str(folder / SUPPLIED.name), *LONG), supplied=True)


class YourTurn:
    """One script on its way through the loop. What fails is said in a note, and the chapter goes on."""

    def __init__(self, command: Sequence[str], supplied: bool = False):
        self.command, self.supplied = tuple(command), supplied
        self.code = look(self.command)
        self.result: OwnResult | None = None
        self.compared: AgainResult | None = None

    @property
    def file(self) -> Path | None:
        """The script; None where the command names none."""
        return Path(self.code.script) if self.code.script else None

    @property
    def conditions(self) -> Conditions:
        """Where it was measured."""
        seen = self.compared or self.result
        if seen and seen.conditions:
            return seen.conditions
        from gpuworkshop.machine import allocation

        return known("cpu", [], allocation.cpus(), "")

    def listing(self, first: str = "", last: str = "") -> Note:
        """The script's text, from the line that holds ``first`` to the one that holds ``last``."""
        if not self.code.files:
            return self._nothing("was not found", f"{' '.join(self.command)} names no Python file that is here.")
        lines = self.file.read_text(encoding="utf-8").splitlines()
        begins = next((at for at, line in enumerate(lines) if first in line), 0)
        ends = next((at for at, line in enumerate(lines) if last and last in line and at >= begins), len(lines) - 1)
        return Note(
            self.file.name, text=(f"It lies in `{self.file.parent}`.",), code="\n".join(lines[begins : ends + 1])
        )

    def measure(self, progress: Show | None = None) -> Report | Note:
        """Run the script, watched, until enough was seen; the verdict."""
        self.code = look(self.command)
        try:
            seen = launch.run(self.command, tell=progress and Telling(progress))
        except ChildFailed as failed:
            return self._nothing("was not started", str(failed))
        self.result = msgspec.structs.replace(seen, planted=PLANTED if self.supplied else "")
        comparing.begin(self.result, self.code)
        return verdict.report(self.result)

    def change(self, old: str, new: str) -> Note:
        """Replace the one place in the course's script that reads ``old``. A file of the learner's own stays theirs."""
        if not self.supplied:
            why = "This is a file of your own: change it in your editor, save it, and run the next cell."
            return Note("Nothing was changed here", "hint", text=(why,))
        text = self.file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            if new in text:
                return Note("It is changed already", text=(f"`{new}` stands in `{self.file.name}`.",))
            return Note(
                "Nothing was changed", "wrong", text=(f"`{old}` stands {text.count(old)} times in the script.",)
            )
        self.file.write_text(text.replace(old, new), encoding="utf-8")
        return Note(f"Changed: {self.file.name}", "right", code=diff_of(text, text.replace(old, new)))

    def again(self, progress: Show | None = None) -> Report | Note:
        """The script as it was and as it is now, launched in turn."""
        try:
            tell = progress and Telling(progress)
            self.compared = comparing.run(self.command, tell=tell, **(QUICK if self._short else {}))
        except CannotCompare as nothing:
            return Note("Nothing was compared", "hint", text=(str(nothing),))
        except ChildFailed as failed:
            return self._nothing("was not started", str(failed))
        return comparing.report(self.compared)

    @property
    def waits(self) -> Rate | None:
        """The measured wait for data, in percent of the time."""
        return self.result.starve.wait_percent if self.result and self.result.starve else None

    @property
    def gain(self) -> Rate | None:
        """What the change brought, in times the throughput."""
        seen = self.compared.comparison if self.compared else None
        return Rate(seen.ratio, seen.low, seen.high, seen.pairs, "times") if seen else None

    def what_changed(self) -> Note:
        """The difference between the two, as it was compared."""
        if self.compared is None:
            return Note("Nothing was compared", "hint", text=("Run the cell with `.again()` first.",))
        said = "one change" if self.compared.attribution.one else "more than one change"
        title = f"What changed: {said}" if self.compared.comparison else "What changed"
        settings = tuple(str(one) for one in self.compared.changes.settings)
        return Note(title, items=settings, code=diff(self.compared))

    def prompt(self, job: str | Path | None = None) -> Note:
        """The prompt for an assistant, folded: read it before it goes anywhere."""
        job = job or (self.file.parent / JOB.name if self.supplied else "job.sbatch")
        try:
            made = prompt.prompt(snapshot.newest(self.code.script), job)
        except (CannotCompare, NoPrompt) as nothing:
            return Note("No prompt was made", "hint", text=(str(nothing),))
        where = f"In a terminal: `gpuworkshop loop --prompt {Path(job).name}` shows it, and asks before it writes."
        return Note(
            "A prompt with your numbers",
            text=(f"Replaced in it: {made.replaced}.", where),
            fold=Fold("Read the prompt", code=made.text, plain="`.prompt().fold.code` holds it."),
        )

    @property
    def _short(self) -> bool:
        """Whether the chapter must be quick: the course's script, and no card."""
        from gpuworkshop.machine import gpus

        with suppress(Exception):
            return self.supplied and not gpus.there_is_one()
        return self.supplied

    def _nothing(self, what: str, why: str) -> Note:
        return Note(f"The script {what}", "wrong", text=(why,))


def report_of_supplied(result: OwnResult) -> Report:
    """The verdict on a recorded run of the course's script, whose file may lie anywhere now."""
    return verdict.report(result, Sources({result.script: SUPPLIED.read_bytes()}))


def diff_of(old: str, new: str, name: str = SUPPLIED.name) -> str:
    """A unified diff of two texts of a script."""
    from gpuworkshop.own.changes import files_differ

    return "".join(files_differ({name: old}, {name: new}))
