"""The search for the batch ceiling with each size in a process of its own: for memory that falls to pieces."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from gpuworkshop.child import ChildFailed, Progress
from gpuworkshop.instruments.memory_ceiling import START, Limits, Search
from gpuworkshop.instruments.memory_child import Isolated
from gpuworkshop.instruments.memory_faults import Fault
from gpuworkshop.instruments.memory_result import CeilingResult, Probe
from gpuworkshop.workloads.config import TrainConfig


def ceiling(
    ask: Callable[[int], Isolated],
    config: TrainConfig,
    seconds: float,
    progress: Callable[[Progress], None] | None,
) -> CeilingResult:
    """Search here, up to ``seconds``; ``ask(batch)`` tries one size in a child.

    A child that dies counts as too large, and is reported. ChildFailed where the first one gives no answer.
    """
    tell, answers = progress or (lambda said: None), []

    def probe(batch: int) -> Probe:
        tell(Progress(len(answers) / (len(answers) + 3), f"a batch of {batch}"))
        try:
            answers.append(ask(batch))
        except ChildFailed as error:
            if error.bad_input or not answers:
                raise
            return Probe(batch, False, fault=Fault("maybe memory", str(error)))
        return answers[-1].probe

    began = time.perf_counter()
    first = probe(min(START, config.batch_size))
    search = Search(
        lambda batch: first if not search.probes else probe(batch),
        lambda: answers[-1].room,
        Limits(first.batch, answers[0].most, seconds=seconds),
        host=answers[0].seen.conditions.device == "cpu",
    )
    found = search.run()
    tell(Progress(1.0))
    return msgspec.structs.replace(
        answers[0].seen,
        ceiling=found,
        above=search.above,
        ended=search.ended,
        probes=tuple(search.probes),
        seconds=time.perf_counter() - began,
        most=search.limits.most,
        line=search.line,
        isolated=True,
        notes=(*answers[0].seen.notes, *search.notes),
        config=config,
    )
