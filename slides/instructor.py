"""The tables of INSTRUCTOR.md, from the notebooks, the recordings, the site file and plans.toml.

``python slides/instructor.py`` (``make tables``) writes them anew between their marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster import site as sites
from gpuworkshop.course import material, replay

HERE = Path(__file__).parent
FILE = HERE / "INSTRUCTOR.md"
NOTEBOOKS = HERE.parent / "notebooks"
_REPLAYED = re.compile(r"(?:replay\.(?:show|picture|load)|signs\.shown)\(\"(\w+)\"")


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a run, in minutes. Of a chapter, `exercises` are those that are done; None: all."""

    what: str = ""
    chapter: str = ""
    slides: int = 0
    minutes: int = 0
    exercises: tuple[str, ...] | None = None

    @property
    def length(self) -> int:
        """Minutes of the whole block."""
        return self.slides + self.hands_on

    @property
    def hands_on(self) -> int:
        """Minutes in which the room works, or rests."""
        if not self.chapter:
            return self.minutes
        left_out = (one.minutes for id, one in material.exercises(self.chapter).items() if id not in self.done)
        return chapters()[self.chapter].minutes - sum(left_out)

    @property
    def done(self) -> tuple[str, ...]:
        """The exercises that are done."""
        return tuple(material.exercises(self.chapter)) if self.exercises is None else self.exercises


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"purpose": "for"}):
    """One run of show; what its blocks leave of its minutes is spare."""

    name: str
    minutes: int
    purpose: str
    blocks: tuple[Block, ...]


class Plans(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """plans.toml: the runs, and the numbers for a room with few cards."""

    card_minutes: int
    people: int
    cards: tuple[int, ...]
    plan: tuple[Plan, ...]


class Chapter(msgspec.Struct, frozen=True):
    """A notebook: its title, its minutes, and the recordings that it shows."""

    title: str
    minutes: int
    recordings: tuple[str, ...]


@cache
def plans() -> Plans:
    """What plans.toml says."""
    return msgspec.toml.decode((HERE / "plans.toml").read_bytes(), type=Plans)


@cache
def chapters() -> dict[str, Chapter]:
    """Every notebook by the name of its file."""
    return {file.stem: _chapter(file) for file in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))}


def _chapter(file: Path) -> Chapter:
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    title = re.search(r"^# \d+\. (.*?)(?::|$)", text, re.MULTILINE)
    minutes = sum(cell["metadata"].get("minutes", 0) for cell in cells)
    replayed = dict.fromkeys(what for what in _REPLAYED.findall(text) if what in replay.KINDS)
    return Chapter(title[1] if title else file.stem, minutes, tuple(replayed))


def chapters_table() -> str:
    """Each chapter with its minutes, its exercises, and what it shows where there is no card."""
    there = {one.what for one in replay.available()}
    rows = []
    for name, chapter in chapters().items():
        exercises = ", ".join(f"{one.title} ({one.minutes})" for one in material.exercises(name).values())
        shown = ", ".join(what if what in there else f"{what}: not recorded yet" for what in chapter.recordings)
        rows.append((name[:2], chapter.title, str(chapter.minutes), exercises or "none", shown or "none"))
    return table(("", "chapter", "minutes", "exercises (minutes in it)", "recordings it can show"), rows)


def runs_table() -> str:
    """Every run of show, block by block, with the minute at which each begins."""
    return "\n\n".join(f"### {plan.name}\n\nFor {plan.purpose}.\n\n{_run(plan)}" for plan in plans().plan)


def _run(plan: Plan) -> str:
    rows, at = [], 0
    for block in plan.blocks:
        rows.append((f"{at}", _what(block), _dash(block.slides), _dash(block.hands_on), ", ".join(_done(block))))
        at += block.length
    rows.append((f"{at}", "spare", "", str(plan.minutes - at), ""))
    return table(("at minute", "what", "slides", "hands on", "exercises"), rows)


def _what(block: Block) -> str:
    return f"{block.chapter[:2]} {chapters()[block.chapter].title}" if block.chapter else block.what


def _done(block: Block) -> Iterator[str]:
    if block.chapter:
        known = material.exercises(block.chapter)
        yield from (known[id].title for id in block.done)


def _dash(minutes: int) -> str:
    return str(minutes) if minutes else ""


def seats_table() -> str:
    """How long a room waits when everybody's measuring cells visit one of a few cards."""
    known = plans()
    rows = [
        (str(cards), f"{-(-known.people // cards)}", f"{-(-known.people // cards) * known.card_minutes} minutes")
        for cards in known.cards
    ]
    alone, pairs = "people for each card", "until all have measured one chapter"
    return table((f"cards for {known.people} people", alone, pairs), rows)


def day_before_table() -> str:
    """The commands of the day before, with the site's own lines."""
    site = sites.load("aicr")
    beside = " ".join(site.srun())
    family = site.families[0].name if site.families else "NAME"
    lines = (
        ("the environment is there, on a login node", "gpuworkshop --version && gpuworkshop start"),
        ("a card comes, and it is the right one", f"{beside} gpuworkshop verify --expect {family}"),
        ("room on disk and quotas", "gpuworkshop verify"),
        ("the site file is true", f"gpuworkshop site check {site.name.lower()}"),
        ("an instrument measures beside a card", f"{beside} gpuworkshop starve --preset card"),
        ("the recordings show, for the day on which no card comes", "gpuworkshop claims --replay"),
        ("slides, PDF and card are made", "make slides"),
    )
    return table(("what must be true", "command"), [(what, f"`{command}`") for what, command in lines])


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(':--' for _ in head)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


TABLES: dict[str, Callable[[], str]] = {
    "chapters": chapters_table,
    "runs": runs_table,
    "seats": seats_table,
    "day-before": day_before_table,
}
"""By the name that stands in the text."""


def filled(text: str) -> str:
    """A text with every table between its marks made anew. KeyError for a table that is not known."""

    def fill(mark: re.Match) -> str:
        return f"<!-- table: {mark[1]} -->\n\n{TABLES[mark[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


if __name__ == "__main__":
    FILE.write_text(filled(FILE.read_text(encoding="utf-8")), encoding="utf-8")
