"""Is a job script ready for batch? The course's ten items, each with the measured number that says so, or unknown.

What the script itself says counts before what was measured: the script is what will run. An item about which nothing
was measured and nothing is said is unknown, never green.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster.facts import card_words
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.cluster.jobscript.check import Checked
from gpuworkshop.cluster.site import Site
from gpuworkshop.loop.checklist_items import LOOKS, Looked, Said, State
from gpuworkshop.loop.evidence import Evidence, one_line
from gpuworkshop.numbers import counted
from gpuworkshop.report import Finding, Origin, Report, Table

_LEVEL = {"green": "ok", "red": "fail", "unknown": "unknown"}


class Item(msgspec.Struct, frozen=True):
    """One item: what it is, how it stands, the number or the line that says so, and what to do."""

    id: str
    title: str
    state: State
    why: str
    source: str = ""
    fix: str = ""


class Ready(msgspec.Struct, frozen=True):
    """The ten items for one script."""

    file: str
    site: str
    items: tuple[Item, ...]
    origin: Origin
    notes: tuple[str, ...] = ()


class _Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    title: str
    how: str
    fix: str


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item: tuple[_Words, ...]
    settings: dict[str, tuple[str, ...]]


def run(file: str, site: Site, evidence: Evidence) -> Ready:
    """Look at a script beside what was measured. Raises NoScript, in one line, for a file that cannot be read."""
    checked = check.run(file, site)
    return look(Path(file).read_bytes(), checked, site, evidence)


def look(data: bytes, checked: Checked, site: Site, evidence: Evidence) -> Ready:
    """The ten items for a script that was checked."""
    seen = Looked(data, checked, site, evidence, _data().settings)
    items = tuple(_item(words, LOOKS[words.id](seen)) for words in _data().item)
    origin = Origin("claimed by", "the sources beside each number, and the script")
    return Ready(checked.file, site.name, items, origin, tuple(_notes(seen)))


def findings(ready: Ready) -> tuple[Finding, ...]:
    """One finding for each item, then what else there is to say."""
    found = [Finding(_LEVEL[one.state], f"{one.title}: {one.state}", _evidence(one), one.fix) for one in ready.items]
    return (*found, *(Finding("notice", note) for note in ready.notes))


def report(ready: Ready) -> Report:
    """The list as a reader sees it."""
    rows = tuple((str(place), one.title, one.state, one.why) for place, one in enumerate(ready.items, 1))
    table = Table(("item", "before batch", "state", "because"), rows)
    return Report(f"Ready for batch? {ready.file}", ready.origin, findings(ready), (table,))


def _evidence(one: Item) -> str:
    return f"{one.why} ({one.source})" if one.source else one.why


def _item(words: _Words, said: Said) -> Item:
    fix = {"green": "", "red": words.fix, "unknown": words.how}[said.state]
    return Item(words.id, words.title, said.state, said.why, said.source, fix)


def _notes(seen: Looked) -> Iterator[str]:
    """What the list does not ask and a reader should know."""
    if seen.run and seen.run.conditions:
        machine = seen.run.conditions.machine
        for place in filter(None, map(seen.site.partition, seen.request.partitions)):
            cards = [family.card for name in place.families if (family := seen.site.family(name)) and family.card]
            if cards and not any(set(card_words(card)) <= set(card_words(machine)) for card in cards):
                yield f"measured on {one_line(machine)}, and {place.name} has {', '.join(cards)}: measure again there"
    theirs = seen.start is not None and not seen.start.script.startswith("-m gpuworkshop.")
    if theirs and (kits := seen.evidence.of_the_kit()):
        runs = one_line(seen.start.script or seen.start.words[0])
        yield f"the numbers are of {'; '.join(kits)}, a training of the kit, and the script runs {runs}"
    if len(workloads := seen.evidence.workloads()) > 1:
        yield f"the numbers are of different trainings: {'; '.join(workloads)}"
    others = [one for one in seen.checked.faults if one.level == "fail"]
    if others:
        yield f"job check finds {counted(len(others), 'fault')}: gpuworkshop job check {seen.checked.file}"
    devel = [place.name for place in seen.site.partitions if place.purpose == "devel"]
    yield f"then cancel the devel session ({', '.join(devel)})" if devel else "then give the devel session back"


@cache
def _data() -> _Data:
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Data)
