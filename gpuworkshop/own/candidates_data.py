"""Changes to the way from the data to the step, each with what it should bring to this run."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.loop.diagnose import bound
from gpuworkshop.loop.remedies import by_id
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.numbers import counted, percent
from gpuworkshop.own.facts import Candidate, Facts, without
from gpuworkshop.own.items import is_random, item_code, only_rows
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import Loader, Place
from gpuworkshop.own.roles import IN_LOADER

HANDING_SECONDS = 4e-4
"""What taking one batch from a worker costs the training process, beside copying its numbers."""

BESIDE_WORKERS = 0.6
"""How much longer everything takes on one CPU with workers beside a step on CPUs, a part of that on several: they share
CPUs, caches and memory."""

LEAST = 0.04
"""Share of the time below which no change to the data path is looked for."""

WORKS_ON_ROWS = ("TensorDataset",)


def data_candidates(facts: Facts) -> Iterator[Candidate]:
    """What could pay in the data path."""
    loader = facts.loader
    if loader is None:
        return
    if facts.shares.data >= LEAST:
        yield from _workers(facts, loader)
        yield from _less_work(facts, loader)
        yield from _rows(facts, loader)
    yield from _fewer(facts, loader)
    yield from _pin(facts, loader)


def _numbers(facts: Facts) -> str:
    seen = facts.look.starve
    return f"{seen.wait_name} {seen.wait_share:.0%}, headroom <= {seen.at_most:.2f}x"


def _at_most(facts: Facts) -> float:
    return facts.look.starve.at_most


def workers_for(facts: Facts) -> int:
    """How many workers to take: the rule, CPUs - 1; on two CPUs two, because one only moves the work away."""
    return 2 if facts.cpus <= 2 else workers_rule(facts.cpus)


def _workers(facts: Facts, loader: Loader) -> Iterator[Candidate]:
    many, now = workers_for(facts), loader.workers
    if many <= now:
        return
    values = {"num_workers": str(many)}
    if not loader.persistent_workers:
        values["persistent_workers"] = "True"
    if facts.card and not loader.pin_memory:
        values["pin_memory"] = "True"
    most = min(_at_most(facts), bound(by_id("workers"), facts.look, facts.cpus))
    why = f"{_numbers(facts)}, {counted(now, 'worker')} on {counted(facts.cpus, 'CPU')}"
    yield Candidate("workers", 1 / _with_workers(facts, now, many), most, why, loader.place, values)


def _with_workers(facts: Facts, now: int, many: int) -> float:
    """Time of a step with so many workers, in present steps: the slowest of the step, the loaders, and all CPUs."""
    data, step, cpus = facts.shares.data, facts.shares.step, facts.cpus
    work = data if now == 0 else float(min(now, cpus))  # workers that are waited for are busy all the time
    handing = HANDING_SECONDS / facts.step_seconds
    if facts.card:
        return max(step, work / min(many, max(1, cpus - 1))) + 0.3 * handing
    threads = facts.result.conditions.threads or 1
    parallel = min(threads, cpus) if (facts.shares.compute or 0.0) > step / 2 else 1
    crowded = 1 + BESIDE_WORKERS / cpus
    return crowded * max(step, work / min(many, cpus), (work + step * parallel) / cpus) + handing


def _less_work(facts: Facts, loader: Loader) -> Iterator[Candidate]:
    """Less work for each item, where the loader was seen at work in the training thread."""
    found, seen = item_code(facts.result, loader.dataset, facts.sources), False
    same = found is not None and not is_random(*found)
    own = facts.of_loader("decode", "item loop", "item")
    for kind, remedy in (("decode", "decode-once"), ("item loop", "vectorize-item"), ("item", "lighter-item")):
        role = facts.first(kind)
        if role is None:
            continue
        seen, part = True, facts.of_loader(kind)
        why = f"{percent(part)} of the loader's own time is spent there"
        if kind == "item":  # it is one line that could do less
            part = role.share / facts.share(*IN_LOADER)
            why = f"{percent(part)} of the loader's own time is spent there"
        if kind == "decode" and same:
            part, why = own, f"{why}, and nothing that follows is random"
        yield _relieved(facts, remedy, part, role.place, why)
    if same and not loader.iterable and not only_rows(found[1]):
        yield _relieved(facts, "cache-items", own if seen else 0.9, loader.place, "nothing in __getitem__ is random")
    elif found is not None and not seen and loader.workers:
        source, function = found
        place = Place(source.file, function.lineno, source.line(function.lineno).strip(), function.name)
        yield _relieved(facts, "lighter-item", 0.9, place, "its workers do not keep up")


def _relieved(facts: Facts, remedy: str, part: float, place: Place | None, why: str) -> Candidate:
    gone = facts.shares.data * part
    expected = min(without(gone * remedies()[remedy].effect), _at_most(facts))
    return Candidate(remedy, expected, _at_most(facts), f"{_numbers(facts)}; {why}", place)


def _rows(facts: Facts, loader: Loader) -> Iterator[Candidate]:
    """A data set that only takes rows out of tensors, one at a time."""
    found = item_code(facts.result, loader.dataset, facts.sources)
    rows = loader.dataset in WORKS_ON_ROWS or (found is not None and only_rows(found[1]))
    if rows and not loader.iterable and not loader.collate and loader.batch_size and loader.batch_size > 1:
        values = {"batch_size": str(loader.batch_size)}
        expected = without(facts.shares.data * remedies()["whole-batches"].effect)
        why = f"{_numbers(facts)}; {loader.dataset} only takes rows"
        yield Candidate("whole-batches", min(expected, _at_most(facts)), _at_most(facts), why, loader.place, values)


def _fewer(facts: Facts, loader: Loader) -> Iterator[Candidate]:
    """Workers that take the step's CPUs and are not needed."""
    seen = facts.look.starve
    if not loader.workers or seen.wait_share > 2 * LEAST or seen.slowed_share < 3 * LEAST:
        return
    few = 0 if facts.cpus <= 2 else max(1, workers_rule(facts.cpus) // 2)
    if few >= loader.workers:
        return
    why = f"the loader slows the step by {seen.slowed_share:.0%}, and is hardly waited for ({seen.wait_share:.0%})"
    values = {"num_workers": str(few)}
    if not few:
        values |= {"persistent_workers": "False"} if loader.persistent_workers else {}
    yield Candidate("fewer-workers", without(0.7 * seen.slowed_share), _at_most(facts), why, loader.place, values)


def _pin(facts: Facts, loader: Loader) -> Iterator[Candidate]:
    profile, copies = facts.look.traced, facts.shares.copies or 0.0
    if not facts.card or profile is None or loader.pin_memory or not profile.pageable:
        return
    up = copies * profile.to_card
    why = f"copies to the card take {percent(up)} of the time, from memory that is not pinned"
    yield Candidate("pin", without(0.6 * up), without(up), why, loader.place, {"pin_memory": "True"})
