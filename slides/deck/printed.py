"""Pages as PDF, by Chromium: tagged, with an outline, in the light colors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)

SHOWN = """document.querySelectorAll(".pdf-page section").forEach((slide) => {
  slide.removeAttribute("aria-hidden");
  slide.removeAttribute("hidden");
})"""
"""reveal.js hides all slides but one from readers; a PDF has all of them, and what is hidden gets no tags."""


def pdfs(pages: Sequence[Path]) -> list[Path]:
    """Print every page beside itself; the slides one a sheet. FileNotFoundError without a browser."""
    from playwright.sync_api import sync_playwright

    made = [page.with_suffix(".pdf") for page in pages]
    with sync_playwright() as playwright, open_browser(playwright) as browser:
        for page, to in zip(pages, made, strict=True):
            pdf(browser, page, to, slides=page.stem == "slides")
    return made


@contextmanager
def open_browser(playwright: Any) -> Iterator[Any]:
    """A Chromium without a window: the machine's own, else the one that Playwright installed."""
    from playwright.sync_api import Error

    try:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
    except Error as problem:
        why = str(problem).splitlines()[0]
        raise FileNotFoundError(f"the PDFs need Chromium (apt install chromium), or --html: {why}") from None
    try:
        yield browser
    finally:
        browser.close()


def pdf(browser: Any, page_file: Path, to: Path, slides: bool) -> None:
    """Print a page of this machine to a file: a deck slide by slide, or a plain page as it is."""
    page = browser.new_page(color_scheme="light", viewport={"width": 1024, "height": 768})
    try:
        page.goto(page_file.absolute().as_uri() + ("?print-pdf" if slides else ""))
        if slides:
            page.wait_for_selector(".pdf-page")
            page.evaluate(SHOWN)
        page.wait_for_function("document.fonts.status === 'loaded'")
        page.pdf(path=to, prefer_css_page_size=True, print_background=True, tagged=True, outline=slides)
    finally:
        page.close()
