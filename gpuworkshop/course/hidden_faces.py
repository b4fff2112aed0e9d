"""What the learner sees of a round of chapter 7: measurements without a verdict, outcomes, the answer at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gpuworkshop.course import faces
from gpuworkshop.course.controls import Status
from gpuworkshop.course.faces import Note
from gpuworkshop.course.hidden_child import Seen
from gpuworkshop.instruments.starve_report import strip
from gpuworkshop.loop import guide
from gpuworkshop.loop.climb_result import alters_training, bars
from gpuworkshop.loop.diagnose import diagnose
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.remedies import Remedy, explaining
from gpuworkshop.numbers import counted, number, percent
from gpuworkshop.report import Figure, Finding, Report, Table
from gpuworkshop.workloads.planted import Planted

if TYPE_CHECKING:
    from gpuworkshop.course.hidden import Choice, HiddenJob

NAMES = {"batch": "a larger batch"}
"""Where the remedy's own name would promise what is not measured here."""


def name(remedy: Remedy) -> str:
    """A change as the learner chooses it."""
    return NAMES.get(remedy.id, remedy.title)


def names(remedies: Sequence[Remedy]) -> str:
    """One change, or several at once, as the learner chooses them."""
    return " and ".join(map(name, remedies))


# Measurements


def measured(title: str, seen: Seen, kept: int) -> Report:
    """What was measured of one run, without a word on what it means."""
    from gpuworkshop.figures.strip import step_strip

    starve = seen.look.starve
    now, ceiling = strip(starve)
    after = f", after {counted(kept, 'change')}" if kept else ", as it is"
    table = Table(("what", "measured"), (*_starved(seen), *_profiled(seen)))
    return Report(f"{title}{after}", starve.origin, (), (table,), (step_strip(now, starve.origin, ceiling),))


def _starved(seen: Seen) -> Iterator[tuple[str, str]]:
    starve, cpus = seen.look.starve, seen.look.starve.conditions.cpus
    yield "throughput now", str(starve.real)
    yield "one step", f"{number(1000 * starve.batch_size / starve.real.value)} ms, a batch of {starve.batch_size}"
    yield "data ceiling: the same step on batches that lie ready", str(starve.ceiling)
    yield "headroom", f"<= {starve.at_most:.2f}x"
    yield f"{starve.wait_name}", percent(starve.wait_share)
    yield "work on the batch before the step", percent(starve.data_work_share)
    yield f"of the {counted(cpus, 'CPU')} in use", percent(seen.cpu)


def _profiled(seen: Seen) -> Iterator[tuple[str, str]]:
    traced, watched, memory = seen.look.traced, seen.look.watched, seen.look.memory
    if watched:
        yield "GPU utilization", percent(watched.busy)
        yield "GPU memory, the most", percent(memory)
    if traced is None:
        yield "profile", "n/a"
        return
    thing = "operators" if traced.busy is None else "kernels"
    yield f"{thing} in a step", f"{traced.calls:,.0f}, the median takes {number(traced.median)} us"
    if traced.busy is not None:
        shares = seen.look.shares
        yield "the card waits for the next launch", percent(shares.launches)
        yield "it waits because the host waited for it", percent(shares.synchronizing)
        yield "copies, with nothing beside them", percent(shares.copies)
    done = seen.look.achieved
    if done and done.rate and done.of_product:
        yield "of the FLOP/s of a large matrix product", percent(done.of_product)


def waterfall(records: Sequence[Record], seen: Seen) -> Figure:
    """The changes of the round as the recurring picture."""
    from gpuworkshop.figures.waterfall import waterfall as drawn

    first, *rest = bars(records)
    starve = seen.look.starve
    return drawn((msgspec.structs.replace(first, label="as it was"), *rest), starve.origin, starve.ceiling)


# Outcomes

CLEAR = 0.10
"""A change that shows no difference is settled when an effect as small as this would have been seen."""


def left_open(record: Record) -> bool:
    """Whether noise hides even a sizable effect, so that measuring once more is no waste."""
    seen = record.comparison
    return seen is not None and seen.verdict in ("no real difference", "unknown") and seen.smallest > CLEAR


def outcome(record: Record) -> Status:
    """What became of one change, in one line."""
    if not record.kept:
        again = " The machine is noisy just now: press once more to measure it again." if left_open(record) else ""
        return Status(f"✗ {record.remedy}: not kept. {_sentence(record.why)}{_alone(record)}{again}", False, "wrong")
    said = [f"✓ {record.remedy}: kept. {_sentence(str(record.comparison))}"]
    if record.learning:
        said.append(_sentence(record.learning.says))
    if alters_training(record) or record.remedy in NAMES.values():
        said.append("It alters the training itself: compare the losses.")
    if record.paid_once_seconds >= 1:
        said.append(f"Paid once: {record.paid_once_seconds:.0f} s.")
    said.append("Did the bottleneck move? Read the table again.")
    return Status(" ".join(said), True, "right")


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


def several(record: Record) -> bool:
    """Whether more than one change was made at once."""
    return bool(record.changed) and explaining(record.before, record.config) is None


def _alone(record: Record) -> str:
    """What to do after several changes at once."""
    if not several(record):
        return ""
    return " One of them may bring nothing, or hide what the other costs. Measure each alone."


def nothing_to_change(remedy: Remedy) -> Status:
    """A change that this run has already."""
    return Status(f"✗ {name(remedy)}: nothing to change. This run does so already.", tone="wrong")


def tried_before(remedies: Sequence[Remedy], record: Record) -> Status:
    """A change that was measured from here and not kept."""
    return Status(f"✗ {names(remedies)}: measured from here already. {_sentence(record.why)}", tone="wrong")


def so_far(changes: Sequence[Record]) -> Status:
    """How many changes were measured."""
    kept = sum(record.kept for record in changes)
    return Status(f"Measured so far: {counted(len(changes), 'change')}, {kept} kept.")


# The panel and its static face


def head() -> Note:
    """What stands above the buttons."""
    text = (
        "Which one change do you try? It is measured in turn with the run before it, in a process of its own, "
        "and kept if it is faster beyond the noise and the model still learns.",
    )
    return Note("Your next change", text=text)


def standing(job: HiddenJob) -> str:
    """The waterfall and the run as it stands, as HTML; "" before the first change."""
    if not job.changes:
        return ""
    return "".join(face._repr_mimebundle_()["text/html"] for face in (job.waterfall(), job.measured()))


def static(choices: Sequence[Choice]) -> Note:
    """The panel where there are no widgets."""
    items = tuple(f"{choice.says}: `{', '.join(map(repr, choice.ids))}`" for choice in choices)
    how = "Measure one with `print(job.choose('workers'))` in a cell of its own, with the name of your choice."
    return Note("Your next change", text=(*head().text, how), items=items)


class Folded(msgspec.Struct, frozen=True):
    """A report that is opened on purpose; `plain` is what a face that cannot hide anything says instead."""

    summary: str
    report: Report
    plain: str

    def __str__(self) -> str:
        return f"{self.summary}: {self.plain}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        inside = self.report._repr_mimebundle_()["text/html"]
        folded = f"<details><summary>{faces.inline(self.summary)}</summary>{inside}</details>"
        html = f'<section class="gw-report gw-note" aria-label="{faces.inline(self.summary)}">{folded}</section>'
        return {"text/html": faces.styled(html), "text/plain": str(self)}


# The answer


def answer(
    title: str,
    planted: Planted,
    seen: Sequence[Seen],
    changes: Sequence[Record],
    fitting: Sequence[Remedy],
    whose: str = "Your first change",
) -> Report:
    """What was planted, whether the measurement shows it, what the guide says, and how the learner's way went.

    ``whose`` the first change was: the learner's, or the usual advice.
    """
    first, last = seen[0].look, seen[-1].look
    found = [
        Finding("notice", f"Planted: {planted.says}", "a real cause, put there on purpose; nothing is pretended"),
        _diagnosed(planted, diagnose(first)),
        guide.beside(first, diagnose(first).limit),
        _fits(planted, fitting),
        *_your_way(planted, changes, fitting, whose),
    ]
    if len(seen) > 1:
        end = diagnose(last)
        moved = "moved" if end.limit != planted.limit else "stayed"
        found.append(Finding("notice", f"The bottleneck {moved}: now {end.reason}", f"{last.starve.real}"))
    return Report(f"{title}. What was planted: {planted.name}", first.starve.origin, tuple(found))


def _diagnosed(planted: Planted, found: Any) -> Finding:
    if found.limit == planted.limit:
        return Finding("ok", f"The measurement says so: {found.limit}", found.reason)
    again = "begin again with another seed, or measure on a quiet machine"
    title = f"This measurement does not show it: it says {found.limit}, planted is {planted.limit}"
    return Finding("unknown", title, found.reason, again)


def _fits(planted: Planted, fitting: Sequence[Remedy]) -> Finding:
    named = ", ".join(map(name, fitting)) or "none of the list"
    codes = "\n".join(one.code for one in fitting if "{" not in one.code)
    return Finding("notice", f"What is meant against {planted.limit}: {named}", "the measurement decides", codes)


def _your_way(planted: Planted, changes: Sequence[Record], fitting: Sequence[Remedy], whose: str) -> Iterator[Finding]:
    if not changes:
        yield Finding("notice", "No change was measured yet")
        return
    kept, first = [record for record in changes if record.kept], changes[0]
    fits = first.remedy in map(name, fitting)
    title = f"{whose}, {first.remedy}, is{'' if fits else ' not'} one against {planted.limit}"
    if several(first):
        title = f"{whose} was more than one: {first.remedy}"
    yield Finding("ok" if fits else "notice", title, _sentence(first.why))
    gain = 1.0
    for record in kept:
        gain *= record.comparison.ratio
    title = f"{counted(len(changes), 'change')} measured, {len(kept)} kept" + (f", in all {gain:.1f}x" if kept else "")
    yield Finding("notice", title, "each with its own interval in the waterfall")
