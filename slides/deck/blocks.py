"""Pieces that stand alone: tables of claims and of the site, questions to the room, job scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from deck.piece import Piece
from deck.values import FORMS
from gpuworkshop.cluster.jobstats_targets import targets
from gpuworkshop.cluster.site import Site
from gpuworkshop.course import claims, faces, quiz
from gpuworkshop.loop import checklist, guide
from gpuworkshop.numbers import number
from gpuworkshop.report import Origin, escaped


def short(origin: Origin) -> Origin:
    """A mark of origin that fits under a slide: the source's name without what follows its first comma or bracket."""
    return Origin(origin.mark, re.split(r",| \(", origin.on)[0], origin.date, origin.kit)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], comes_from: str, kind: str, *origins: Origin) -> Piece:
    """A table; the first cell of a row names it. `kind` is its class."""
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{ticks(cell)}</th>' if place == 0 else f"<td>{ticks(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    inside = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    html = f'<table class="{kind}" data-from="{escaped(comes_from)}">{inside}</table>'
    return Piece(html, comes_from, origins, block=True)


def claims_table(rows: Sequence[claims.Judged]) -> Piece:
    """Claims with what was measured; the verdict in words."""
    told = [tuple(claims.cells(row)) for row in rows]
    sources = dict.fromkeys(Origin("claimed by", row.claim.source) for row in rows)
    measured = dict.fromkeys(row.origin for row in rows if row.origin)
    return table(
        ("the workshop states", "claimed", "measured", "verdict"), told, "claims.toml", "claims", *sources, *measured
    )


def question(asked: quiz.Question, chapter: str) -> Piece:
    """A question to the room: its text, and its options with letters."""
    letters = faces.letters(asked.data.options)
    options = "".join(f"<li><b>{letter}</b> <span>{ticks(one.text)}</span></li>" for letter, one in letters.items())
    unit = f'<p class="unit">an answer in {escaped(asked.data.unit)}</p>' if asked.data.unit else ""
    listed = f'<ul class="options">{options}</ul>' if options else unit
    comes_from = f"questions/{chapter}.toml"
    html = f'<div class="question" data-from="{comes_from}"><p>{ticks(asked.prompt)}</p>{listed}</div>'
    return Piece(html, comes_from, block=True)


def answer(asked: quiz.Question, chapter: str) -> Piece:
    """The right answer and what each wrong one means, for the notes."""
    data = asked.data
    if data.kind == "number":
        right = f"<b>{number(float(asked.answer))} {escaped(data.unit)}</b>. {ticks(data.right)}"
        wrong = [f"{number(slip.value)}: {ticks(slip.says)}" for slip in data.slips]
    else:
        letters = faces.letters(data.options)
        right = " ".join(f"<b>{letter}</b>. {ticks(one.says)}" for letter, one in letters.items() if one.right)
        wrong = [f"{letter}: {ticks(one.says)}" for letter, one in letters.items() if not one.right]
    comes_from = f"questions/{chapter}.toml"
    items = "".join(f"<li>{one}</li>" for one in wrong)
    return Piece(f'<div data-from="{comes_from}"><p>{right}</p><ul>{items}</ul></div>', comes_from, block=True)


def code(lines: Iterable[str], comes_from: str, *origins: Origin) -> Piece:
    """A listing."""
    html = f'<pre class="listing" data-from="{escaped(comes_from)}"><code>{escaped(chr(10).join(lines))}</code></pre>'
    return Piece(html, comes_from, origins, block=True)


def partitions(site: Site, comes_from: str) -> Piece:
    """Every partition with its cards, limit and use."""
    rows = []
    for one in site.partitions:
        families = [site.family(name) for name in one.families]
        cards = ", ".join(family.card or family.name for family in families) or "none"
        rows.append(
            (
                f"`{one.name}`",
                cards,
                FORMS["hours"](one.time_limit) if one.time_limit else "n/a",
                one.use or one.purpose,
            )
        )
    return table(("partition", "card", "limit", "for"), rows, comes_from, "facts", short(site.origin))


def cards(site: Site, comes_from: str) -> Piece:
    """Every kind of card with its memory and use."""
    rows = [
        (one.card or one.name, f"{one.memory_gb:g} GB" if one.memory_gb else "n/a", one.use) for one in site.families
    ]
    return table(("card", "memory, as advertised", "for"), rows, comes_from, "facts", short(site.origin))


def habit(site: Site, comes_from: str) -> Piece:
    """What to do in a devel session, and what in batch."""
    parts = (("in devel", site.habit.devel), ("in batch", site.habit.batch))
    html = "".join(
        f"<div><p class='head'>{name}</p><ol>{''.join(f'<li>{ticks(step)}</li>' for step in steps)}</ol></div>"
        for name, steps in parts
    )
    return Piece(
        f'<div class="columns" data-from="{escaped(comes_from)}">{html}</div>',
        comes_from,
        (short(site.origin),),
        block=True,
    )


def the_guide() -> Piece:
    """The published guide by utilization and memory, as the kit holds it."""
    between = (guide.LOW + guide.HIGH) / 2
    rungs = (
        (guide.LOW - 0.01, None), (between, guide.ROOM - 0.01), (between, guide.ENOUGH), (between, guide.EDGE + 0.01),
        (guide.HIGH + 0.01, guide.ENOUGH),
    )  # fmt: skip
    said = [guide.guide(busy, memory) for busy, memory in rungs] + [guide.guide(None, out_of_memory=True)]
    rows = [(one.rule, re.split(r"[;:] ", one.do)[0]) for one in said]
    return table(("what you see", "do"), rows, "loop/guide.py", "facts", WORKSHOP)


def the_checklist() -> Piece:
    """The ten items before batch, as the kit checks them."""
    data = msgspec.toml.decode(Path(checklist.__file__).with_suffix(".toml").read_bytes())
    items = "".join(f"<li>{ticks(item['title'])}</li>" for item in data["item"])
    return Piece(
        f'<ol class="items" data-from="loop/checklist.toml">{items}</ol>',
        "loop/checklist.toml",
        (WORKSHOP,),
        block=True,
    )


def the_targets() -> Piece:
    """What the course calls good in a report card."""
    aim = targets()
    low, high = aim.gpu_memory
    rows = (
        ("GPU utilization", f"above {aim.gpu:g}%", f"below {aim.gpu_fix_first:g}%: fix first"),
        ("GPU memory", f"{low:g} to {high:g}%", f"below {aim.gpu_memory_low:g}%: larger batch, up to the knee"),
        ("CPU", f"above {aim.cpu:g}%", "fewer cores"),
        ("host memory", f"above {aim.memory:g}%", "ask for less"),
        ("time", f"what it took and {aim.reserve:g}%", "ask for less"),
        ("several cards", f"above {aim.several_gpus:g}% on average", "try fewer"),
    )
    return table(
        ("line", "good", "else"), rows, "jobstats_targets.toml", "facts", short(Origin("claimed by", aim.source))
    )


WORKSHOP = short(Origin("claimed by", targets().source))
SITE_TABLES: dict[str, Callable[[Site, str], Piece]] = {"partitions": partitions, "cards": cards, "habit": habit}
"""What the site file says, as a whole."""
RULES: dict[str, Callable[[], Piece]] = {"guide": the_guide, "checklist": the_checklist, "targets": the_targets}
"""Rules that the kit goes by, from where it keeps them."""


def ticks(words: str) -> str:
    """Text as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(words))
