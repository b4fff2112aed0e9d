"""From measured numbers to a job script: every line with its reason, the number behind it and where that is from.

What was not measured takes the site's convention, and its line says so. Nothing here measures.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from gpuworkshop import __version__
from gpuworkshop.cluster import scripts
from gpuworkshop.cluster.facts import card_words
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.cluster.site import Site
from gpuworkshop.loop.evidence import Evidence, one_line
from gpuworkshop.loop.rightsize_choices import Chosen
from gpuworkshop.loop.rightsize_lines import lines
from gpuworkshop.loop.rightsize_result import Asked, Choice, JobScript, Line
from gpuworkshop.report import Finding, Origin, Report, Table

__all__ = ["Asked", "Choice", "JobScript", "Line", "findings", "report", "write"]

_LOGS = ("log-folder", "log-folder-unknown")
"""Faults that the last line of the script answers."""


def write(evidence: Evidence, site: Site, asked: Asked | None = None) -> JobScript:
    """The script for one training. Raises ValueError, in one line, for a family or partition that the site lacks."""
    asked = asked or Asked()
    chosen = Chosen(evidence, site, asked)
    choices = {
        "partition": chosen.where,
        "cards": chosen.cards,
        "CPUs": chosen.cpus,
        "host memory": chosen.memory,
        "time": chosen.time,
        "staging": chosen.staging,
    }
    today = datetime.date.today().isoformat()
    origin = Origin("claimed by", f"the sources beside each number, and the site file {site.name}", today, __version__)
    made = JobScript(asked.name, site.name, choices, tuple(lines(chosen)), scripts.logs_folder(site), origin)
    checked = check.check(made.text().encode(), site, made.file)
    faults = tuple(one for one in checked.faults if one.rule not in _LOGS)
    return JobScript(made.name, made.site, choices, made.lines, made.logs, origin, tuple(_notes(chosen)), faults)


def _notes(chosen: Chosen) -> Iterator[str]:
    """What the reader must know beside the lines."""
    run, asked = chosen.run, chosen.asked
    if run and run.from_ledger and asked.script:
        yield f"the ledger's numbers are of {one_line(run.workload)}: is that your training? If not, add --no-ledger"
    if asked.own and (kits := chosen.evidence.of_the_kit()):
        theirs = f"the numbers are of {'; '.join(kits)}, a training of the kit, and the job runs {one_line(asked.own)}"
        yield f"{theirs}: give what your own takes with --step-ms, --workers, --card-memory"
    if len(workloads := chosen.evidence.workloads()) > 1:
        yield f"the numbers are of different trainings: {'; '.join(workloads)}"
    machine = run.conditions.machine if run and run.conditions else ""
    card = chosen.family.card if chosen.family else ""
    elsewhere = machine and card and not set(card_words(card)) <= set(card_words(machine))
    if elsewhere and chosen.step_source == run.source:
        yield f"the time was measured on {one_line(machine)}, the job runs on {card}: measure 50 steps there first"
    if f"source {scripts.ACTIVATE}" in scripts.activation(chosen.site) and not _is_there(scripts.ACTIVATE):
        yield f"{scripts.ACTIVATE} is not on this machine, and the job ends there: write your own environment's line"
    if asked.data and asked.script and not any("DATA" in word for word in asked.script):
        yield 'the training does not read the copied data: give it "$DATA", in single quotes on this command line'


def _is_there(file: str) -> bool:
    try:
        return Path(file).expanduser().is_file()
    except (OSError, RuntimeError):  # no home folder is known
        return False


def findings(script: JobScript) -> tuple[Finding, ...]:
    """What to look at before sbatch: warnings, what was not measured, and what job check says of the script."""
    found = [Finding("warning", note) for note in script.notes]
    for what, one in script.choices.items():
        if one.warns:
            found.append(Finding("warning", f"{what}: {one.warns}", one.reason))
        elif not one.measured and what != "staging":
            said = f"{one.value}, not measured" if one.value else "not known"
            found.append(Finding("notice", f"{what}: {said}", one.reason, one.how))
    for one in script.faults:
        where = f"line {one.line}: " if one.line else ""
        found.append(Finding(one.level, f"job check says, {where}{one.title}", one.cause, one.fix))
    if not script.faults:
        found.append(Finding("ok", "job check finds no fault in it"))
    return tuple(found)


def report(script: JobScript, file: str = "") -> Report:
    """The script's numbers, each with its reason, and how to submit it where it is in ``file``."""
    rows = tuple((what, one.value or "n/a", one.reason) for what, one in script.choices.items())
    written = (Finding("ok", f"Written: {file}", fix=script.submit(file)),) if file else ()
    table = Table(("what", "value", "why"), rows)
    return Report(f"Job script {script.name} for {script.site}", script.origin, (*findings(script), *written), (table,))
