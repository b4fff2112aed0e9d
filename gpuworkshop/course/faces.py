"""A small note to the learner with three faces (HTML, terminal, plain text), and a widget before them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import msgspec

from gpuworkshop.report import WIDTH, clean, css, escaped

T = TypeVar("T")
Tone = Literal["plain", "right", "wrong", "hint"]

_SYMBOL = {"plain": "", "right": "✓ ", "wrong": "✗ ", "hint": "→ "}
_TERMINAL = {"plain": "bold", "right": "bold green", "wrong": "bold yellow", "hint": "bold blue"}


class Fold(msgspec.Struct, frozen=True):
    """What a learner opens on purpose: a hidden answer or solution. `plain` is what a face that
    cannot hide anything says instead."""

    summary: str
    text: tuple[str, ...] = ()
    code: str = ""
    plain: str = ""


class Note(msgspec.Struct, frozen=True):
    """A title and what stands under it: named facts, paragraphs, lettered items, code, a fold.

    Text may mark code with backticks; everything is escaped in HTML.
    """

    title: str
    tone: Tone = "plain"
    facts: tuple[tuple[str, str], ...] = ()
    text: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    code: str = ""
    fold: Fold | None = None

    def __str__(self) -> str:
        facts = (f"{name}: {value}" for name, value in self.facts)
        blocks = [_SYMBOL[self.tone] + self.title, *facts, *self.text]
        blocks += [f"{letter}. {item}" for letter, item in letters(self.items).items()]
        parts = [_wrap(block) for block in blocks]
        if self.code:
            parts.append(textwrap.indent(clean(self.code), "    "))
        if self.fold and self.fold.plain:
            parts.append(_wrap(self.fold.plain))
        return "\n".join(parts)

    def __rich__(self) -> Any:
        from rich.text import Text

        head, _, rest = str(self).partition("\n")
        return Text.assemble((head, _TERMINAL[self.tone]), "\n" * bool(rest), rest)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": styled(self.html()), "text/plain": str(self)}

    def html(self) -> str:
        """The note as HTML, without its style sheet."""
        title = f'<p class="gw-note-title">{_SYMBOL[self.tone]}{inline(self.title)}</p>'
        facts = "".join(f"<dt>{inline(name)}</dt><dd>{inline(value)}</dd>" for name, value in self.facts)
        items = "".join(f"<li>{inline(item)}</li>" for item in self.items)
        body = title + (f'<dl class="gw-facts">{facts}</dl>' if facts else "") + _paragraphs(self.text)
        body += (f'<ol type="a">{items}</ol>' if items else "") + _code(self.code)
        if self.fold:
            inside = _paragraphs(self.fold.text) + _code(self.fold.code)
            body += f"<details><summary>{inline(self.fold.summary)}</summary>{inside}</details>"
        return f'<section class="gw-report gw-note gw-{self.tone}" aria-label="{escaped(self.title)}">{body}</section>'


def letters(items: Iterable[T]) -> dict[str, T]:
    """The items by letter: a, b, c, ..."""
    return {chr(ord("a") + place): item for place, item in enumerate(items)}


def inline(text: str) -> str:
    """Escaped text in which `backticks` have become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))


def styled(html: str) -> str:
    """HTML with the style sheets of reports and of the course before it."""
    return f"<style>{_css()}</style>{html}"


def widgets() -> ModuleType | None:
    """ipywidgets if the kernel has it."""
    try:
        import ipywidgets
    except ImportError:
        return None
    return ipywidgets


def bundle(box: Any, note: Note) -> dict[str, Any]:
    """The faces to hand to the front end: the widget `box` (or None), and the note for a front
    end that has no widget manager."""
    faces = note._repr_mimebundle_()
    if box is None:
        return faces
    own = box._repr_mimebundle_() or {}
    own = own[0] if isinstance(own, tuple) else own
    return {**own, **faces}


@cache
def _css() -> str:
    return css() + Path(__file__).with_name("course.css").read_text(encoding="utf-8")


def _paragraphs(text: tuple[str, ...]) -> str:
    return "".join(f"<p>{inline(one)}</p>" for one in text)


def _code(code: str) -> str:
    return f"<pre><code>{escaped(code)}</code></pre>" if code else ""


def _wrap(text: str) -> str:
    lines = clean(text).strip().splitlines()
    return "\n".join(textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in lines)
