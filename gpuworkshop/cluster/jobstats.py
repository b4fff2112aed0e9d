"""jobstats' report card of a job, in any form it comes in, read into one result and held to the course's targets.

jobstats is a program of Princeton Research Computing. Its output is read here; nothing of it is used.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuworkshop.cluster import jobstats_findings, jobstats_payload, jobstats_sacct, jobstats_text
from gpuworkshop.cluster.jobstats_result import Card, JobUse, NoReport
from gpuworkshop.figures.map import Track, two_axes
from gpuworkshop.numbers import gib, percent
from gpuworkshop.report import Finding, Report, Table

_MOST = 2**22
"""Bytes of a report at most."""
_OTHER = (
    "this is no report of Princeton's jobstats: neither its sections (Overall Utilization, Detailed Utilization), nor "
    "its JSON (-j), nor a JS1: payload; other programs have that name too"
)


def get(what: str) -> tuple[JobUse, ...]:
    """The jobs of a file, of stdin for "-", or of a job's number, for which sacct is asked. Raises NoReport."""
    file = Path(what)
    try:
        if what == "-":
            return read(sys.stdin.buffer.read(_MOST + 1))
        if jobstats_sacct.is_job(what) and not file.exists():
            return (jobstats_sacct.ask(what),)
        kind = file.stat().st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISFIFO(kind):
            raise NoReport(f"{what}: {'a folder' if stat.S_ISDIR(kind) else 'not a plain file'}")
        with file.open("rb") as opened:
            data = opened.read(_MOST + 1)
    except NoReport:
        raise
    except (OSError, ValueError) as error:
        raise NoReport(f"{what}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return read(data)
    except NoReport as error:
        raise NoReport(f"{what}: {error}") from error


def read(data: bytes) -> tuple[JobUse, ...]:
    """The job of a report, of JSON, of a payload, of seff's page; the jobs of sacct's rows. Raises NoReport."""
    if len(data) > _MOST:
        raise NoReport("larger than 4 MiB, that is no report of one job")
    text = _text(data)
    if not text.strip("\0 \n\r\t"):
        raise NoReport("empty: the command that was to write it printed nothing")
    if text.lstrip().startswith("{"):
        return (jobstats_payload.read_json(text),)
    if jobstats_sacct.is_rows(text):
        jobs = tuple(jobstats_sacct.rows(text))
        if not jobs:
            raise NoReport("rows of sacct without a job")
        return jobs
    lines = jobstats_text.plain(text)
    if jobstats_text.is_report(lines):
        return (jobstats_text.read(lines),)
    if "JS1:" in text:
        return (jobstats_payload.payload("".join(lines) if len(lines) < 100 else text),)
    if jobstats_sacct.is_seff(lines):
        return (jobstats_sacct.seff(lines),)
    found = jobstats_sacct.nothing(lines)
    if found is None:
        raise NoReport(_OTHER)
    return (found,)


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def findings(job: JobUse) -> Iterator[Finding]:
    """What a job's figures mean."""
    return jobstats_findings.findings(job)


def report(job: JobUse) -> Report:
    """The report card: findings, the cards and the nodes, and where each card stands on the two axes."""
    tables = [table for table in (_cards(job), _nodes(job)) if table.rows]
    placed = [(name, card) for name, card in job.cards if card.utilization is not None and card.memory is not None]
    tracks = [Track(_label(name, card), card.utilization, card.memory) for name, card in placed]
    figures = (two_axes(tracks, job.origin),) if 0 < len(tracks) <= 16 else ()
    name = f" ({job.name})" if job.name else ""
    title = f"Report card of job {job.job}{name}" if job.job else "Report card of a job"
    return Report(title, job.origin, tuple(findings(job)), tuple(tables), figures)


def _label(node: str, card: Card) -> str:
    return f"{node} GPU {card.index}"


def _cards(job: JobUse) -> Table:
    rows = [
        (
            _label(name, card),
            percent(card.utilization),
            gib(card.memory_used),
            gib(card.memory_total),
            percent(card.memory),
        )
        for name, card in job.cards
    ]
    caption = "Each GPU: utilization is an average over the whole job, memory the maximum"
    return Table(("GPU", "utilization", "memory, most", "of", "share"), tuple(rows), caption)


def _nodes(job: JobUse) -> Table:
    rows = [
        (
            *(node.name, str(node.cpus) if node.cpus else "n/a", percent(node.cpu)),
            *(gib(node.memory_used), gib(node.memory_total), percent(node.memory)),
        )
        for node in job.nodes
        if node.cpus or node.memory is not None or node.cpu is not None
    ]
    caption = "Each node: CPU utilization is an average over the whole job, memory the maximum"
    return Table(("node", "CPUs", "CPU utilization", "memory, most", "of", "share"), tuple(rows), caption)


def of_all(jobs: Sequence[JobUse]) -> tuple[Finding, ...]:
    """The findings of several jobs, each with its job in front."""
    many = len(jobs) > 1
    return tuple(
        Finding(one.level, f"job {job.job}: {one.title}" if many else one.title, one.evidence, one.fix)
        for job in jobs
        for one in findings(job)
    )
