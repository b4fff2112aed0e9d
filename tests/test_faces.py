"""No text from outside becomes code or markup in any face; a face that nobody fills here fails this test."""

from __future__ import annotations

from html.parser import HTMLParser

import hostile_faces
import pytest
from hostile_faces import HOSTILE, faces, html

FACES = faces()
RUNS = {"script", "iframe", "object", "embed", "base", "meta", "link", "form", "img"}
"""Elements that run or load something; the kit writes none of them."""


class Markup(HTMLParser):
    """What a page would run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in RUNS:
            self.runs.append(tag)
        for name, value in attrs:
            address = "".join((value or "").lower().split())
            if name.startswith("on") or (name in ("href", "src") and not address.startswith(("#", "https://"))):
                self.runs.append(f"{tag} {name}={value!r}")


def runs(page: str) -> list[str]:
    """Everything in a page that a browser would run, or load from elsewhere."""
    found = Markup()
    found.feed(page)
    return found.runs


def test_what_runs_is_seen() -> None:
    assert runs(f"<p>{HOSTILE}</p>") == ["script", "img", "img src='x'", "img onerror='hit(2)'", "svg onload='hit(3)'"]
    assert runs("<a href=' java\nscript:hit()'>x</a>") and runs('<p title=""onclick="hit()">')
    assert not runs("<p title='&lt;script&gt;'><a href='#x'>y</a></p>")


@pytest.mark.parametrize("name", FACES)
def test_hostile_text_stays_text(name) -> None:
    page = html(name)
    assert runs(page) == [] and "\x1b" not in page


def test_the_texts_do_arrive() -> None:
    """Most faces show the hostile text; else this module would prove nothing."""
    shown = [name for name in FACES if "&lt;script&gt;hit(1)" in html(name)]
    assert len(shown) > len(FACES) / 2
    assert {"instruments.watch_report.report", "cluster.site_show.report", "loop.climb_result.report"} <= set(shown)


def test_what_is_made_by_hand_is_there() -> None:
    assert set(hostile_faces.MADE) <= set(FACES)
