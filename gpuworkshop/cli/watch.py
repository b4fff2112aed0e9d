"""The verb watch: look at the cards while a command runs, or while somebody looks.

The command keeps its streams, its signals and its exit code. What is ours goes to stderr, so that its stdout stays
clean; with --json the command's stdout goes to stderr instead, and stdout holds the JSON alone.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuworkshop.cli.base import AsJson, BadInput, app, bad_input, say, show, show_json, show_report

if TYPE_CHECKING:
    from gpuworkshop.instruments.watch import Watch

EVERY = 1.0
"""Seconds between two lines in a terminal; a log file gets ten in all, and at least one every ten times as long."""


@app.command
def watch(
    *command: Annotated[str, Parameter(show_default=False)],
    interval: float = 0.2,
    seconds: float | None = None,
    as_json: AsJson = False,
) -> int:
    """What do this job's cards do while COMMAND runs? Write it last: gpuworkshop watch -- python train.py

    COMMAND keeps its input, its output and its signals, and its exit code becomes ours: 128 + n after signal n, 127
    when there is no such command. The summary goes to stderr. Without COMMAND a line is printed each second until
    Ctrl-C; where there is no card, of what your processes take of the CPUs.

    Parameters
    ----------
    command
        What to run, with its arguments, after --
    interval
        Seconds between two looks, 0.2 at the least.
    seconds
        Without COMMAND: end by itself after so long.
    as_json
        Print the result as JSON on stdout, and nothing else there: what COMMAND prints goes to stderr.
    """
    _check(command, interval, seconds)
    return _run(command, interval, as_json) if command else _live(interval, seconds, as_json)


def _check(command: tuple[str, ...], interval: float, seconds: float | None) -> None:
    """BadInput for what makes no sense."""
    from gpuworkshop.instruments import watch as instrument

    with bad_input("--interval: "):
        instrument.checked(interval)
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise BadInput(f"--seconds: must be above 0, not {seconds:g}")
    if command and seconds is not None:
        raise BadInput("--seconds is for a watch without a command; with one, the command's end is the end")
    if not command and seconds is None and not sys.stdout.isatty():
        raise BadInput("say what to run: gpuworkshop watch -- COMMAND; or for how long to look: --seconds 60")


def _run(command: tuple[str, ...], interval: float, as_json: bool) -> int:
    from gpuworkshop.instruments import watch as instrument

    try:
        result = instrument.run(command, interval=interval, stdout_to_stderr=as_json, adopt=True)
    except instrument.CannotStart as error:
        say("gpuworkshop: " + " ".join(str(error).split()))
        return error.status
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C was for the command
    with suppress(OSError):  # the terminal is gone, or nobody reads any more
        if as_json:
            show_json(result, result.origin, instrument.findings(result))
        else:
            print(file=sys.stderr)
            show_report(instrument.report(result), sys.stderr)
    return result.status


def _live(interval: float, seconds: float | None, as_json: bool) -> int:
    from gpuworkshop.instruments import watch as instrument

    with instrument.Watch(interval, what="this job's cards", whole_user=True) as seen, _until_asked_to_end():
        _lines(seen, seconds, quiet=as_json)
    return show(instrument, seen.result, as_json)


@contextmanager
def _until_asked_to_end():
    """Let Ctrl-C, or a kill, end the enclosed lines."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _lines(seen: Watch, seconds: float | None, quiet: bool) -> None:
    """A line now and then until time is up."""
    from gpuworkshop.instruments.watch_report import line

    began = time.monotonic()
    every = EVERY if sys.stdout.isatty() else min(10 * EVERY, max(EVERY, (seconds or 0) / 10))
    shown, due = 0.0, began + every
    while seconds is None or time.monotonic() < began + seconds:
        time.sleep(max(0.0, min(0.1, due - time.monotonic())))
        if time.monotonic() < due:
            continue
        due += every
        samples = seen.samples
        fresh = [sample for sample in samples if sample.at > shown]
        if fresh and (said := line(fresh, seen.watched)):
            shown = fresh[-1].at
            if not quiet:
                print(said, flush=True)
