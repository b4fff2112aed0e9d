"""What a process on a card means for whoever needs that card, and how to end one of one's own."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.machine.processes import OnCard, Process
from gpuworkshop.numbers import gib
from gpuworkshop.report import Finding

CONTEXT = 2**30
"""Bytes that an idle driver and one CUDA context take at most; what is in use beyond that belongs to somebody."""

_WHO = {
    "mine": "this process itself",
    "this step's": "another task of this step",
    "this job's": "another process of this job",
    "my other work": "another process of yours",
    "another's": "another user's process",
    "not visible": "a process that cannot be seen from here",
}


def finding(process: Process, where: str, elsewhere: str = "") -> Finding:
    """That a process holds a card; ``where`` is the card's name, ``elsewhere`` how to get away from other people's."""
    holds = f"holds {gib(process.memory)}" if process.memory is not None else "is on the card, memory n/a"
    if process.whose == "mine":
        evidence = f"process {process.pid}"
        return Finding("notice", f"{where}: {_WHO['mine']} {holds}", evidence, "# restart this kernel")
    if process.whose in ("another's", "not visible"):
        title = f"{where} is shared: {_WHO[process.whose]} ({process.pid}) {holds}"
        maybe = (
            "another user's, or one outside of this container" if process.whose == "not visible" else process.command
        )
        evidence = "; ".join(filter(None, (maybe, "what is measured on a shared card is not judged")))
        return Finding("warning", title, evidence, elsewhere)
    who = "a forgotten notebook kernel of yours?" if process.is_kernel else _WHO[process.whose]
    return Finding("warning", f"{where}: {who} ({process.pid}) {holds}", process.command[:200], end(process))


def unseen(found: OnCard, where: str) -> Iterator[Finding]:
    """Memory in use that nobody who can be seen accounts for."""
    if found.unseen is not None and found.unseen > CONTEXT:
        title = f"{where}: {gib(found.unseen)} in use by nobody that can be seen from here"
        evidence = (
            f"of {gib(found.used)} in use; a process outside of this job or container, whose memory the card counts "
            "all the same, or a driver that keeps it"
        )
        yield Finding("notice", title, evidence)


def end(process: Process) -> str:
    """How to end a process of one's own."""
    if process.is_kernel:
        return f"kill {process.pid}   # a notebook kernel of yours; or in JupyterLab: Running > Kernels > shut down"
    return f"kill {process.pid}   # yours: {process.command[:60]}"
