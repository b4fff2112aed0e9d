"""What every verb shares: the app, exit codes, bad input, and how a result is put on stdout.

A verb is a function that returns its exit code. It imports its instrument when it runs: `--help` answers at once and
works where PyTorch is missing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import App, Parameter

from gpuworkshop import __version__

if TYPE_CHECKING:
    from gpuworkshop.child import Progress
    from gpuworkshop.report import Finding, Origin, Report

FINE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="gpuworkshop",
    help="Measure what a GPU job really does, fix one thing, and prove that it helped.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)

Switch = Annotated[bool, Parameter(negative="", show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


LONGEST = 7 * 86_400.0
"""Seconds; the longest duration that can be asked for."""


class BadInput(ValueError):
    """What was asked for makes no sense; the message is one line for the person who asked."""


@contextmanager
def bad_input(where: str = "", kind: type[Exception] = ValueError) -> Iterator[None]:
    """Turn an error of this kind about what was asked for into BadInput; one from a measurement stays a bug."""
    try:
        yield
    except kind as error:
        raise BadInput(f"{where}{error}") from error


def seconds(text: str) -> float:
    """A duration such as ``90s``, ``2m`` or ``45`` in seconds; ValueError for anything else, and for no time at all."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min)?\s*", text)
    if not found:
        raise ValueError(f"{text!r} is not a duration: write 90s or 2m")
    value = float(found[1]) * (60 if found[2] in ("m", "min") else 1)
    if not 0 < value < LONGEST:
        raise ValueError(
            f"{text[:20]!r} is {'no time at all' if value == 0 else 'longer than a week'}: write 90s or 2m"
        )
    return value


def say(words: str, to: TextIO | None = None) -> None:
    """Print words that may come from elsewhere and must not steer a terminal; on stderr if no stream is named."""
    from gpuworkshop.report import clean

    print(clean(words), file=to or sys.stderr, flush=True)


def show(instrument: ModuleType, result: Any, as_json: bool) -> int:
    """Print one result of an instrument (its `findings`, its `report`); the exit code of its findings."""
    if as_json:
        return show_json(result, result.origin, instrument.findings(result))
    return show_report(instrument.report(result))


def show_json(result: Any, origin: Origin, findings: Iterable[Finding]) -> int:
    """Print the envelope as the only thing on stdout; the exit code of its findings."""
    from gpuworkshop.report import envelope

    found = tuple(findings)
    print(envelope(result, origin, found).decode())
    return FAILED if any(finding.level == "fail" for finding in found) else FINE


def show_report(report: Report, stream: TextIO | None = None) -> int:
    """Print a report in the face that suits the stream, stdout if none is given; the exit code of its findings."""
    stream = stream or sys.stdout
    if stream.isatty():
        from rich.console import Console

        Console(file=stream).print(report)
    else:
        print(report, file=stream)
    return FAILED if report.failed else FINE


def progress_bar(title: str) -> Callable[[Progress], None] | None:
    """A progress bar where somebody watches; a log file gets none."""
    from gpuworkshop import child

    return child.Bar(title, sys.stderr) if sys.stderr.isatty() else None
