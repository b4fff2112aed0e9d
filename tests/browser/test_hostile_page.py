"""Hostile text in every face of the kit, on one page of a real browser: nothing of it runs."""

from __future__ import annotations

import lab
import pytest

lab.skip_where_a_part_is_missing()

from hostile_faces import HOSTILE, faces, html  # noqa: E402
from playwright.sync_api import Browser  # noqa: E402

HEAD = "<!doctype html><meta charset='utf-8'><script>window.hits = []; window.hit = (n) => hits.push(n)</script>"


def hits(browser: Browser, body: str) -> tuple[list[int], int]:
    """What ran on a page with this body, also after each element was pointed at; and how many sections it has."""
    page = browser.new_page()
    try:
        page.set_content(HEAD + body, wait_until="load")
        page.evaluate("""document.querySelectorAll("details").forEach((one) => one.open = true)""")
        page.evaluate("""for (const one of document.querySelectorAll("*"))
          for (const kind of ["mouseover", "focus", "click", "toggle", "error", "animationstart"])
            if (one.tagName !== "A") one.dispatchEvent(new Event(kind, { bubbles: true }))""")
        page.wait_for_timeout(300)
        return page.evaluate("window.hits"), page.locator("section.a-face").count()
    finally:
        page.close()


def test_nothing_of_a_hostile_text_runs(browser) -> None:
    pages = {name: html(name) for name in faces()}
    whole = "".join(f"<section class='a-face'>{page}</section>" for page in pages.values())
    ran, sections = hits(browser, whole)
    if ran:  # which one?
        pytest.fail(str([name for name, page in pages.items() if hits(browser, page)[0]]))
    assert sections == len(pages), "a face closed what it stands in"


def test_the_page_would_notice(browser) -> None:
    ran, _ = hits(browser, f"<section class='a-face'><p>{HOSTILE}</p></section>")
    assert set(ran) == {1, 2, 3}
