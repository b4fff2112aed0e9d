"""What each kind of placeholder asks for. Everything comes from the course's own files, with its mark of origin."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from deck import blocks, pictures, values
from deck.piece import Piece, Wrong
from gpuworkshop.cluster import site as sites
from gpuworkshop.course import claims, material, quiz, replay
from gpuworkshop.course import script as scripts
from gpuworkshop.report import Figure, Origin, escaped

SITE = os.environ.get(sites.VARIABLE, "aicr")
"""The site that the slides are about."""


@cache
def recording(name: str) -> Any:
    """The recording of this name, such as sweep-h200. Raises Wrong."""
    what, _, card = name.partition("-")
    found = replay.load(what, card) if what in replay.KINDS and card else None
    if found is None:
        known = ", ".join(f"{one.what}-{one.card}" for one in replay.available())
        raise Wrong(f"no recording is called {name!r}: there are {known}")
    return found


@cache
def place() -> sites.Site:
    """The site that the slides are about."""
    return sites.load(SITE)


def _number(argument: str) -> Piece:
    name, _, path = argument.partition(" ")
    result = recording(name)
    return _inline(values.written(result, path), f"recordings/{name}.json", result.origin)


def _site(argument: str) -> Piece:
    site = place()
    made = {
        "request": lambda: " \\\n  ".join(textwrap.wrap(site.interactive(), 54)),
        "modules": lambda: "\n".join(site.module_lines()),
    }
    words = made[argument]() if argument in made else values.written(site, argument)
    return _inline(words or "n/a", f"sites/{SITE}", blocks.short(site.origin))


def _claim(argument: str) -> Piece:
    name, _, what = argument.partition(" ")
    row = _judged().get(name)
    if row is None:
        raise Wrong(f"no claim is called {name!r}: there are {', '.join(_judged())}")
    cells = dict(zip(("words", "claimed", "measured", "verdict"), claims.cells(row), strict=True))
    cells["value"] = cells["measured"].partition(" (")[0]
    if what not in cells:
        raise Wrong(f"a claim has {', '.join(cells)}, not {what!r}")
    own = Origin("claimed by", row.claim.source) if what in ("words", "claimed") else row.origin
    return _inline(cells[what], f"claims.toml {name}", *([own] if own else []))


def _claims(argument: str) -> Piece:
    chapter, *names = argument.split()
    known = {name: row for name, row in _judged().items() if str(row.claim.chapter) == chapter}
    if not known or not known.keys() >= set(names):
        raise Wrong(f"chapter {chapter} has the claims {', '.join(known)}")
    return blocks.claims_table([known[name] for name in names or known])


def _question(argument: str) -> Piece:
    return blocks.question(_asked(argument), argument.split()[0])


def _answer(argument: str) -> Piece:
    return blocks.answer(_asked(argument), argument.split()[0])


def _asked(argument: str) -> quiz.Question:
    chapter, _, name = argument.partition(" ")
    try:
        return quiz.ask(chapter, name)
    except (KeyError, OSError) as problem:
        raise Wrong(str(problem.args[0]) if isinstance(problem, KeyError) else f"no chapter {chapter!r}") from None


def _figure(argument: str) -> Piece:
    """The picture of a recording's report (its number after the name), or one that pictures.DRAWN makes."""
    name, *which = argument.split()
    if name in pictures.DRAWN:
        try:
            return pictures.piece(pictures.DRAWN[name](recording, *which), f"drawn {name}")
        except (KeyError, TypeError) as problem:
            raise Wrong(str(problem.args[0])) from None
    result = recording(name)
    figures: tuple[Figure, ...] = replay.REPORTS[type(result)](result).figures
    place = int(which[0]) if which and which[0].isdigit() else 0
    if place >= len(figures):
        raise Wrong(f"the report of {name} has {len(figures)} figures")
    return pictures.piece(figures[place], f"recordings/{name}.json", result.origin)


def _table(argument: str) -> Piece:
    if argument in blocks.RULES:
        return blocks.RULES[argument]()
    if argument not in blocks.SITE_TABLES:
        known = ", ".join([*blocks.SITE_TABLES, *blocks.RULES])
        raise Wrong(f"no table is called {argument!r}: there are {known}")
    return blocks.SITE_TABLES[argument](place(), f"sites/{SITE}")


def _script(argument: str) -> Piece:
    if argument != "minimal":
        raise Wrong(f"no script is called {argument!r}: there is minimal")
    return blocks.code(scripts.minimal(place()).lines, f"sites/{SITE}", blocks.short(place().origin))


def _exercise(argument: str) -> Piece:
    chapter, _, name = argument.partition(" ")
    known = material.exercises(chapter)
    if name not in known:
        raise Wrong(f"chapter {chapter} has no exercise {name!r}: there are {', '.join(known)}")
    one = known[name]
    return _inline(f"{one.title}, {one.minutes} minutes", f"exercises/{chapter}.toml")


def _inline(words: str, comes_from: str, *origins: Origin) -> Piece:
    return Piece(f'<span data-from="{escaped(comes_from)}">{escaped(words)}</span>', comes_from, origins)


@cache
def _judged() -> dict[str, claims.Judged]:
    return {row.claim.id: row for row in claims.judged(replay.load("claims"))}


KINDS: dict[str, Callable[[str], Piece]] = {
    "number": _number,
    "site": _site,
    "claim": _claim,
    "claims": _claims,
    "question": _question,
    "answer": _answer,
    "figure": _figure,
    "table": _table,
    "script": _script,
    "exercise": _exercise,
}
"""The kinds of placeholders. `number: RECORDING path | form`, `site: path | form`, `claims: CHAPTER IDs`,
`claim: ID words|claimed|measured|value|verdict`, `question:` and `answer: CHAPTER ID`, `exercise: CHAPTER ID`,
`figure: RECORDING which` or a name of pictures.DRAWN, `table: NAME`, `script: minimal`."""


def resolve(kind: str, argument: str) -> Piece:
    """The piece that a placeholder asks for. Raises Wrong with one line that says what there is."""
    if kind not in KINDS:
        raise Wrong(f"no placeholder is called {kind!r}: there are {', '.join(KINDS)}")
    return KINDS[kind](argument)


def chapters(folder: Path) -> list[Path]:
    """The sources of the deck in their order."""
    return sorted(folder.glob("[0-9][0-9]_*.md"))
