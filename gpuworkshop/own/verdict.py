"""From what was seen of a script to what limits it and the one change to try first: pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuworkshop.instruments.flops import speed
from gpuworkshop.loop.diagnose import FIRST, Diagnosis, diagnose
from gpuworkshop.numbers import counted, gib, percent
from gpuworkshop.own.candidates_batch import batch_candidates
from gpuworkshop.own.candidates_data import data_candidates
from gpuworkshop.own.candidates_lines import line_candidates
from gpuworkshop.own.candidates_step import step_candidates
from gpuworkshop.own.facts import Candidate, Facts, facts, look, of_all
from gpuworkshop.own.patch import change
from gpuworkshop.own.pick import Change, Limit, Pick, Verdict
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import OwnResult
from gpuworkshop.own.source import Sources
from gpuworkshop.report import Finding, Report, Table

__all__ = ["Change", "Pick", "Verdict", "findings", "look", "report", "verdict"]

WORTH = 1.10
"""A change that should bring less is not worth it."""

WORTH_TRAINING = 1.25
"""The same for a change that alters the training itself, which must be paid for with a look at the losses."""

TRAINING = 1.5
"""How many times more a change that alters the training must bring than one that does not, to be the first: samples/s
do not say how much each sample teaches."""

NEAR = 1.06
"""Changes whose expected gains differ by less are equal: then the safer one comes first."""

_SAFER = ("same", "close", "training")


def verdict(result: OwnResult, sources: Sources | None = None) -> Verdict:
    """What limits the run, why, and the first change; without ``sources`` the script's files are read from the disk."""
    sources = sources or Sources()
    known = facts(result, sources)
    if known is None:
        return Verdict("unknown", " ".join(result.not_seen) or "too little of the script was seen", None)
    found, ordered = _diagnosis(known), _ordered(known)
    worth = [one for one in ordered if one.expected >= _least(one)]
    if not worth:
        limit: Limit = "unknown" if found.limit == "unknown" else "nothing"
        return Verdict(limit, found.reason, None, _titles(ordered))
    first = worth[0]
    return Verdict(found.limit, found.reason, _pick(first, result, sources), _titles(ordered, first))


def _diagnosis(known: Facts) -> Diagnosis:
    """The loop's own diagnosis; with several processes also what their communication takes."""
    found, talking = diagnose(known.look), known.result.communication or 0.0
    if talking >= FIRST and talking > known.shares.data:
        return Diagnosis("communication", f"the processes wait for each other's gradients ({percent(talking)})")
    return found


def candidates(known: Facts) -> Iterator[Candidate]:
    """Every change that could pay here."""
    for one in (*data_candidates(known), *batch_candidates(known), *step_candidates(known)):
        yield of_all(one, known.result.beside)
    yield from line_candidates(known)


def _ordered(known: Facts) -> list[Candidate]:
    """The best of each remedy, the most promising first."""
    best: dict[str, Candidate] = {}
    for one in candidates(known):
        if one.remedy not in best or one.expected > best[one.remedy].expected:
            best[one.remedy] = one
    order = list(remedies())

    def rank(one: Candidate) -> tuple:
        gain = min(one.expected, one.at_most) / (TRAINING if remedies()[one.remedy].numerics == "training" else 1.0)
        return (
            -round(math.log(gain) / math.log(NEAR)),
            _SAFER.index(remedies()[one.remedy].numerics),
            order.index(one.remedy),
        )

    return sorted((one for one in best.values() if min(one.expected, one.at_most) > 1.03), key=rank)


def _least(one: Candidate) -> float:
    return WORTH_TRAINING if remedies()[one.remedy].numerics == "training" else WORTH


def _titles(ordered: list[Candidate], but: Candidate | None = None) -> tuple[str, ...]:
    return tuple(remedies()[one.remedy].title for one in ordered if one is not but)


def _pick(one: Candidate, result: OwnResult, sources: Sources) -> Pick:
    remedy = remedies()[one.remedy]
    return Pick(
        remedy=remedy.id,
        title=remedy.title,
        touches=remedy.touches,
        numerics=remedy.numerics,
        reason=f"{remedy.reason} Here: {one.why}.",
        at_most=one.at_most,
        expected=min(one.expected, one.at_most),
        place=one.place,
        change=change(remedy, one.place, one.values, result, sources),
    )


# What a reader sees


def findings(result: OwnResult, sources: Sources | None = None) -> Iterator[Finding]:
    """What a run says, the verdict first."""
    if result.planted:
        yield Finding("notice", f"Planted: {result.planted}")
    if result.ended in ("error", "signal", "timed out"):
        yield _ended(result)
    made = verdict(result, sources)
    yield _limit(made, result)
    if made.pick:
        yield _first(made.pick)
    if made.others:
        yield Finding("notice", "Then, and only after measuring again: " + ", ".join(made.others[:5]))
    if known := facts(result, sources or Sources()):
        yield from _same_samples(known)
    for one in result.not_seen:
        yield Finding("unknown", one)


def _ended(result: OwnResult) -> Finding:
    """A script that did not end as it should, in its own words."""
    status = "" if result.exit_code is None else f" with exit code {result.exit_code}"
    how = {"signal": f"was ended{status}", "timed out": f"was stopped after {result.seconds:.0f} s"}
    before = "" if result.rate else ", before it could be measured"
    last = "\n".join(result.own_words.strip().splitlines()[-12:])
    words = "its own last words:" if last else "it printed nothing"
    title = f"The script {how.get(result.ended, f'failed{status}')}{before}"
    return Finding("warning" if result.rate else "fail", title, words, last)


def _same_samples(known: Facts) -> Iterator[Finding]:
    """Ranks that each go through all of the data; where it is divided otherwise, the words for it are looked for."""
    used = known.settings
    if used.world < 2 or used.framework or not used.loaders or known.sources.get(known.result.script) is None:
        return
    if not any(known.written(words) for words in DIVIDED):
        title = "Each rank may train on the same samples: no DistributedSampler in the script"
        fix = "DataLoader(..., sampler=DistributedSampler(dataset))   # and sampler.set_epoch(epoch) in each epoch"
        yield Finding("warning", title, f"{used.world} processes train together, {used.ddp or 'without DDP'}", fix)


DIVIDED = ("DistributedSampler", "split_dataset_by_node", "get_rank", "RANK", "prepare(", "num_replicas")
"""Words of a script that gives each rank data of its own."""


def _limit(made: Verdict, result: OwnResult) -> Finding:
    if made.limit == "nothing":
        return Finding("ok", "Nothing worth changing", made.reason)
    if made.limit == "unknown":
        title = "What limits it is not known" if result.settings else "Nothing was measured"
        return Finding("unknown", title, made.reason)
    return Finding("notice" if made.pick is None else "warning", f"Limit: {made.limit}", made.reason)


def _first(pick: Pick) -> Finding:
    most = f"<= {pick.at_most:.2f}x" if math.isfinite(pick.at_most) else "no bound is known"
    training = " It alters the training: compare the losses." if pick.numerics == "training" else ""
    return Finding("notice", f"Change first: {pick.title} ({most})", pick.reason + training, pick.change.text)


def report(result: OwnResult, sources: Sources | None = None) -> Report:
    """The verdict, the change, and the numbers."""
    title = f"Your script: {' '.join(result.command)}"
    return Report(title, result.origin, tuple(findings(result, sources)), (table(result),))


def table(result: OwnResult) -> Table:
    """The measured numbers, "n/a" for what is not known."""
    seen, busy = result.starve, result.watched.busy if result.watched else None
    done = result.achieved
    rows = (
        ("throughput", str(result.rate) if result.rate else "n/a"),
        ("step", f"{1e3 * result.step_seconds:.3g} ms" if result.step_seconds else "n/a"),
        (seen.wait_name if seen else "loader wait", str(seen.wait_percent) if seen else "n/a"),
        ("headroom", f"<= {seen.at_most:.2f}x" if seen else "n/a"),
        ("card busy, by the driver", percent(busy)),
        ("memory, the most", f"{gib(result.memory_bytes)} ({percent(result.memory)} of the card)"),
        ("achieved", speed(done.rate if done else None)),
        ("of the published peak (MFU)", percent(done.of_peak) if done else "n/a"),
        ("communication alone", percent(result.communication)),
        ("watched", f"{counted(result.steps, 'step')} in {result.seconds:.0f} s"),
    )
    return Table(("measured", "value"), rows)
