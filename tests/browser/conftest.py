"""One browser for the tests of a module that click."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import lab
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium of its own, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=lab.CHROMIUM, args=lab.FLAGS)
        yield opened
        opened.close()
