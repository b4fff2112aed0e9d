"""Chapter 7's panel in JupyterLab: by mouse and by keyboard, what is missing, two changes measured and not kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

import lab
import pytest

lab.skip_where_a_part_is_missing()

import nbformat  # noqa: E402
from playwright.sync_api import Browser, Locator, expect  # noqa: E402

CELLS = (
    "from gpuworkshop.course import hidden\njob = hidden.HiddenJob(1, hidden.SMALL_BATCHES)\njob.look()",
    "job",
    "job.reveal()",
)
SECONDS = 240
"""Running the cells, and one change; a busy machine takes its time."""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Page]:
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": lab.KERNEL})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbformat.write(notebook, root / "hidden.ipynb")
    lab.set_option(home, "apputils-extension/themes", theme="JupyterLab Dark")
    with lab.server(root, home) as address:
        page = lab.Page(browser.new_page(viewport={"width": 1180, "height": 1600}), address)
        page.open("hidden.ipynb")
        page.run_all(SECONDS)
        yield page


def panel(page: lab.Page) -> Locator:
    return page.page.locator(".gw-hidden")


def measure(page: lab.Page) -> None:
    panel(page).get_by_role("button", name="Measure this change").click()


def said(page: lab.Page) -> Locator:
    return panel(page).get_by_role("status")


def test_nothing_chosen_is_said(page: lab.Page) -> None:
    measure(page)
    expect(said(page)).to_have_text("Choose a change first.")
    page.clean()


def test_what_was_planted_is_out_of_sight_until_it_is_opened(page: lab.Page) -> None:
    planted = page.page.get_by_text("small batches of a small GPT")
    expect(planted).to_be_hidden()
    page.page.get_by_text("Show what was planted").click()
    expect(planted).to_be_visible()


def test_two_at_once_are_measured_by_keyboard_and_drawn_as_not_kept(page: lab.Page) -> None:
    panel(page).get_by_role("button", name=re.compile("two at once")).focus()
    for key in ("Space", "Tab", "Enter"):
        page.page.keyboard.press(key)
    expect(said(page)).to_contain_text("Measuring")
    expect(panel(page).get_by_role("button", name="Measure this change")).to_be_disabled()
    words = re.compile("^✗ loader workers and a larger batch: not kept.*cannot be attributed to one change", re.DOTALL)
    expect(said(page)).to_have_text(words, timeout=1000 * SECONDS)
    expect(panel(page).get_by_role("img", name="Throughput in sequences").first).to_be_visible()
    page.clean()
