"""The "your turn" prompt: what was measured of a script, the script and its job script, for an assistant to look at.

It asks to measure first and to change exactly one thing. What it would say of its owner is replaced before anybody
sees it, in the code and in the job script too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpuworkshop.cluster.jobscript import text as job_text
from gpuworkshop.numbers import gib, percent
from gpuworkshop.own.changes import in_words
from gpuworkshop.own.scrub import Known, Scrubber, here
from gpuworkshop.own.snapshot import Snapshot
from gpuworkshop.own.verdict import Verdict, verdict

LARGEST_JOB = 256 * 2**10
"""Bytes of a job script."""
MOST_LINES = 600
"""Lines of a file that are put in; a longer one is cut there, which is said."""


class NoPrompt(ValueError):
    """No prompt can be made; the message is one line."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt, ready to be read before anybody gets it."""

    text: str
    replaced: str
    """What was replaced, in words, such as "3 paths, 1 user name"."""


def prompt(run: Snapshot, job: str | Path, known: Known | None = None) -> Prompt:
    """The prompt for a run and the job script that starts it. Raises NoPrompt where that cannot be read."""
    scrub = Scrubber(here() if known is None else known)
    words = _job(Path(job))
    parts = {
        "facts": "\n".join(f"- {scrub.words(line)}" for line in facts(run, verdict(run.result))),
        "script": "\n\n".join(_files(run, scrub)),
        "job": _block("bash", scrub.shell(words)),
    }
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return Prompt(re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], text), scrub.summary())


def facts(run: Snapshot, found: Verdict) -> Iterator[str]:
    """What was measured, a line each; "n/a" for what was not."""
    seen, where = run.result, run.result.conditions
    machine, torch = (where.machine, where.torch) if where else ("n/a", "n/a")
    yield f"measured on {run.when[:10]} on {machine}, PyTorch {torch}"
    yield f"started as: {shlex.join(run.command)}"
    yield f"CPUs that it may use: {where.cpus if where else 'n/a'}"
    steps = f", over {seen.steps} steps that were watched" if seen.rate else ""
    yield f"throughput, 95% interval: {seen.rate or 'n/a'}{steps}"
    yield f"time of a step: {f'{1e3 * seen.step_seconds:.3g} ms' if seen.step_seconds else 'n/a'}"
    wait = seen.starve
    yield f"{wait.wait_name if wait else 'wait for data'}: {wait.wait_percent if wait else 'n/a'}"
    at_most = f"at most {wait.at_most:.2f}x" if wait else "n/a"
    yield f"headroom, what a perfect data pipeline would bring: {at_most}"
    yield f"GPU utilization: {percent(seen.watched.busy if seen.watched else None)}"
    yield f"GPU memory, the most of a step: {gib(seen.memory_bytes)}, {percent(seen.memory)} of the card"
    yield f"of the card's peak in FLOP/s: {percent(seen.achieved.of_peak if seen.achieved else None)}"
    settings = in_words(seen.settings)
    yield f"as the program was seen to run: {', '.join(f'{name} {value}' for name, value in settings.items()) or 'n/a'}"
    yield f"what limits it, by these numbers: {found.limit}"


def _files(run: Snapshot, scrub: Scrubber) -> Iterator[str]:
    """The script first, then its own files."""
    first = Path(run.script).name
    for name, text in sorted(run.texts.items(), key=lambda pair: (pair[0] != first, pair[0])):
        python = name.endswith(".py")
        lines = (scrub.python if python else scrub.shell)(text).splitlines()
        cut = f"\n# ({len(lines) - MOST_LINES} more lines)" if len(lines) > MOST_LINES else ""
        yield f"`{scrub.words(name)}`:\n\n{_block('python' if python else '', chr(10).join(lines[:MOST_LINES]) + cut)}"


def _block(language: str, text: str) -> str:
    """A fenced block, whose fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _job(file: Path) -> str:
    try:
        if not file.is_file():
            what = "a folder" if file.is_dir() else "not a plain file" if file.exists() else "no such file"
            raise NoPrompt(f"{file}: {what}; name the job script that starts your training")
        if file.stat().st_size > LARGEST_JOB:
            raise NoPrompt(f"{file}: {file.stat().st_size} bytes are too many for a job script")
        return job_text.read(file.read_bytes()).text
    except OSError as error:
        raise NoPrompt(f"{file}: cannot be read: {error.strerror}") from error
