"""Pages as PDF, by Chromium: tagged, with an outline, in the light colors."""

from __future__ import annotations

import shutil
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


def open_browser(playwright: Any) -> Any:
    """A Chromium without a window: the machine's own, else the one that Playwright installed."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


def pdf(browser: Any, page_file: Path, to: Path, slides: bool) -> None:
    """Print a page of this machine to a file: a deck slide by slide, or a plain page of A4."""
    page = browser.new_page(color_scheme="light")
    try:
        page.goto(page_file.absolute().as_uri() + ("?print-pdf" if slides else ""))
        if slides:
            page.wait_for_selector(".pdf-page")
            page.wait_for_function("document.fonts.status === 'loaded'")
        page.pdf(path=to, prefer_css_page_size=True, print_background=True, tagged=True, outline=True)
    finally:
        page.close()
