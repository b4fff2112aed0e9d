"""Runs somebody's own training script with the hooks in it, follows what they write, and ends all of it surely."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuworkshop import state
from gpuworkshop.child import ChildFailed, Tell
from gpuworkshop.own import ending
from gpuworkshop.own.command import Understood, understand
from gpuworkshop.own.driver import Driver
from gpuworkshop.own.read import Run, read
from gpuworkshop.own.records import Records
from gpuworkshop.own.result import OwnResult

HOOKS = Path(__file__).with_name("hooks")
LOOK = 0.1
"""Seconds between two looks at the records."""
AFTER = 5.0
"""Seconds that a run has to end by itself after everything was measured."""
PATIENCE = 600.0
"""Seconds without a step or a batch after which a script without a budget counts as hanging."""
BEGINS = 60.0
"""Seconds that a script with a budget has at least until its first step."""
LEAST = 0.4
"""Share of a budget that the hooks take for measuring, however long the script took to begin."""
KEPT_RUNS = 10
PARTS = ("baseline", "headroom", "profile", "flops")


def run(
    command: Sequence[str],
    *,
    budget_seconds: float | None = None,
    only: Sequence[str] = (),
    tell: Tell | None = None,
    cwd: str | Path | None = None,
) -> OwnResult:
    """Run ``command``, which starts a PyTorch training script, until everything is measured; then end it.

    ``only``: which of :data:`PARTS` to measure, () for all. The script's own output goes to a file that the result
    names; its stdin is ours. With a budget fewer steps are taken, and the run is given up some time after it. Raises
    ChildFailed for a command that cannot be started. On an interrupt everything is ended before it goes on.
    """
    unknown = set(only) - set(PARTS)
    if unknown:
        raise ValueError(f"nothing is called {sorted(unknown)[0]!r} here: {', '.join(PARTS)}")
    folder, tell = _folder(), tell or Tell()
    began = time.time()
    _request(folder, began, budget_seconds, only)
    what = understand(command, str(folder), str(folder / "hooks"), os.environ)
    process, guard = _start(what, folder, cwd)
    records, driver, timed_out = Records(folder), Driver(what.env), False
    try:
        timed_out = _follow(process, records, driver, tell, budget_seconds, began)
    except BaseException:
        ending.end(process.pid, str(folder), asked=signal.SIGINT)
        raise
    finally:
        driver.end()
        ending.end(process.pid, str(folder))
        _wait(process)
        guard.communicate(b".")
    records.more()
    tell.progress(1.0)
    status = None if timed_out else process.returncode
    over = Run(tuple(command), what, folder, status, timed_out, time.time() - began, budget_seconds, driver.watched)
    return read(over, records)


def _folder() -> Path:
    """A new folder for this run, beside those of the last few."""
    place = state.folder() / "own"
    place.mkdir(parents=True, exist_ok=True)
    for old in sorted(place.glob("run-*"))[: -KEPT_RUNS + 1]:
        shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("run-%Y%m%d-%H%M%S-"), dir=place)).resolve()
    shutil.copytree(HOOKS, folder / "hooks", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _request(folder: Path, began: float, budget: float | None, only: Sequence[str]) -> None:
    asked = {"folder": str(folder), "began": began, "budget": budget, "only": list(only)}
    (folder / "request.json").write_bytes(msgspec.json.encode(asked))


def _start(what: Understood, folder: Path, cwd: str | Path | None) -> tuple[subprocess.Popen, subprocess.Popen]:
    output = (folder / "output.txt").open("wb")
    how = dict(env=what.env, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        process = subprocess.Popen(list(what.words), **how)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ChildFailed(f"could not start {what.words[0]!r}: {why}", bad_input=True) from None
    finally:
        output.close()
    beside = [sys.executable, "-I", "-S", str(Path(ending.__file__)), str(process.pid), str(folder)]
    nothing = subprocess.DEVNULL
    guard = subprocess.Popen(beside, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True)
    return process, guard


def _follow(
    process: subprocess.Popen, records: Records, driver: Driver, tell: Tell, budget: float | None, began: float
) -> bool:
    """Until the command has ended, or everything was measured; True where it was given up."""
    while process.poll() is None:
        time.sleep(LOOK)
        records.more()
        driver.follow(records)
        tell.progress(records.share, records.doing)
        now = time.time()
        if records.ended_at:
            if now > records.ended_at + AFTER:
                return False
        elif budget is not None and now > _latest(began, records.first_at, budget):
            return True
        elif budget is None and now > max(began, records.last_at) + PATIENCE:
            return True
    return False


def _latest(began: float, first_step: float, budget: float) -> float:
    """When a run with a budget is given up: its hooks end it in time, unless the script hangs or never makes a step."""
    if not first_step:
        return began + max(BEGINS, 2 * budget)
    return max(began + budget, first_step + LEAST * budget) + max(20.0, 0.5 * budget)


def _wait(process: subprocess.Popen) -> None:
    try:
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        pass
