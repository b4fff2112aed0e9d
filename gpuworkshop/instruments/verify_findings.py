"""What verify found as a reader sees it: the five checks, what else there is to say, the cards, and where it ran."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuworkshop.instruments.verify_cause import level
from gpuworkshop.instruments.verify_checks import five, names
from gpuworkshop.instruments.verify_more import more
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.numbers import gib
from gpuworkshop.report import Finding, Report, Table

TITLE = "Verify: do you have the GPU?"


def findings(result: VerifyResult) -> Iterator[Finding]:
    """What a result says, as a pure function of it; of a partial one, what the driver said."""
    if result.partial:
        yield _driver(result)
        return
    yield from five(result)
    yield from more(result)


def report(result: VerifyResult) -> Report:
    """The findings, the cards of this job, and where it ran."""
    tables = (cards(result),) if result.cards else ()
    if result.partial:
        return Report("Verify: what the driver says", result.origin, tuple(findings(result)), tables)
    return Report(TITLE, result.origin, tuple(findings(result)), (*tables, where(result)))


def _driver(result: VerifyResult) -> Finding:
    """What can be said before PyTorch is there."""
    first = result.first
    wait = "PyTorch is asked now"
    if first.refusal:
        return Finding("notice", f"The driver's library NVML does not answer: {first.refusal.words}; {wait}")
    title = f"Driver {first.driver or 'n/a'} serves CUDA {level(first.serves)} and shows {names(result.cards)}; {wait}"
    others = f"{first.cards.others} more cards or slices are not this process's" if first.cards.others else ""
    return Finding("notice", title, others)


def cards(result: VerifyResult) -> Table:
    """This job's cards: name, UUID, memory, place."""
    rows = tuple(
        (card.name, card.uuid or "n/a", gib(card.memory_bytes), gib(result.state(card).used), card.place)
        for card in result.cards
    )
    return Table(("card", "UUID", "memory", "in use before", "place"), rows, "cards")


def where(result: VerifyResult) -> Table:
    """Where this was asked, in the words of whoever would have to look at it."""
    first, build, job = result.first, result.torch.build, result.first.job
    slurm = f"{job.id}, partition {job.partition or 'n/a'}" if job else "none" if first.slurm else ""
    rows = [
        ("host", first.host),
        ("Slurm job", slurm),
        ("CPUs", f"{first.cpus.count}, said by {first.cpus.said_by}"),
        ("driver", f"{first.driver or 'n/a'}, serves CUDA {level(first.serves)}" if first.driver else "n/a"),
        ("PyTorch", f"{build.version}{_in(build.place)}" if build else "n/a"),
        ("Python", f"{first.python}, {result.caller.python.executable}"),
    ]
    return Table(("", "here"), tuple(row for row in rows if row[1]), "where this was asked")


def _in(file: str) -> str:
    """A place as the end of a line; a recording has kept no folder, and so no place."""
    return f" in {file}" if os.path.dirname(file) else ""
