"""The course in JupyterLab behind a base URL: mouse, keyboard, reload, themes, and no widget manager."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)
for needed in ("jupyterlab", "ipywidgets", "playwright", "nbformat"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

import lab  # noqa: E402
import nbformat  # noqa: E402
from playwright.sync_api import Browser, Locator, expect, sync_playwright  # noqa: E402

CELLS = (
    "from gpuworkshop.course import exercise, predict, progress, quiz",
    'quiz.ask("04_starve", "what-can-help")',
    'quiz.ask("04_starve", "loaded-not-running")',
    'quiz.ask("04_starve", "one-worker")',
    'quiz.ask("04_starve", "need-workers")',
    'quiz.ask("04_starve", "wasted-share")',
    'predict.guess("wait", "Which share of its time will this machine wait for data?", "%", 0, 100)',
    'exercise.open("04_starve", "knobs")',
    'exercise.open("04_starve", "knobs").check(...)',
    'progress.chapter("04_starve")',
)


def small_notebook(folder: Path) -> Path:
    """A notebook with all kinds of course cells and nothing to measure."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbformat.write(notebook, folder / "small.ipynb")
    return folder / "small.ipynb"


def chapter(name: str) -> Callable[[Path], Path]:
    """A copy of a student notebook of the course."""
    return lambda folder: Path(shutil.copy(lab.REPOSITORY / "notebooks" / f"{name}.ipynb", folder))


NOTEBOOKS = {
    "small": (small_notebook, 60),
    "04": (chapter("04_starve"), 240),
}
"""What is opened, and the seconds that running all its cells may take."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=lab.FLAGS)
        yield browser
        browser.close()


class Opened(lab.Page):
    """A notebook that is open, with all its cells run once."""

    def __init__(self, browser: Browser, address: str, home: Path, notebook: str, seconds: float):
        super().__init__(browser.new_page(viewport={"width": 1180, "height": 1000}), address)
        self.home = home
        self.seconds = seconds
        self.open(notebook)
        self.run_all(seconds)


@pytest.fixture(scope="module", params=NOTEBOOKS)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Iterator[Opened]:
    make, seconds = NOTEBOOKS[request.param]
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    notebook = make(root)
    with lab.server(root, home) as address:
        page = Opened(browser, address, home, notebook.name, seconds)
        yield page
        page.page.close()


def check(question: Locator) -> None:
    question.get_by_role("button", name="Check").click()


def feedback(question: Locator, correct: bool) -> Locator:
    """The feedback once it is there, with its word and its mark."""
    found = question.get_by_role("status").and_(question.locator(f"[data-correct={str(correct).lower()}]"))
    expect(found).to_have_text(re.compile("^✓ Right" if correct else "^✗ Not yet"))
    return found


def test_a_wrong_and_a_right_answer_by_mouse(opened: Opened) -> None:
    question = opened.question("what-can-help")
    check(question)
    expect(question.get_by_role("status")).to_have_text("Choose an answer first.")
    question.get_by_role("button", name="A bigger model").click()
    check(question)
    feedback(question, correct=False)
    question.get_by_role("button", name="More loader workers").click()
    check(question)
    feedback(question, correct=True)
    opened.clean()


def test_a_wrong_and_a_right_answer_by_keyboard(opened: Opened) -> None:
    question, keys = opened.question("loaded-not-running"), opened.page.keyboard
    question.get_by_role("button", name="The batch is too small").focus()
    for key in ("Space", "Tab", "Tab", "Tab", "Tab", "Enter"):  # first option, over the others to Check
        keys.press(key)
    feedback(question, correct=False)
    for key in ("Shift+Tab", "Shift+Tab", "Enter", "Tab", "Tab", "Space"):  # back to the third option
        keys.press(key)
    feedback(question, correct=True)
    opened.clean()


def test_several_answers_by_keyboard(opened: Opened) -> None:
    question, keys = opened.question("need-workers"), opened.page.keyboard
    question.get_by_role("checkbox", name="persistent_workers").focus()
    for key in ("Space", "Tab", "Tab", "Tab", "Tab", "Enter"):
        keys.press(key)
    expect(feedback(question, correct=False)).to_contain_text("1 more")
    for key in ("Shift+Tab", "Shift+Tab", "Space", "Tab", "Tab", "Enter"):
        keys.press(key)
    feedback(question, correct=True)
    opened.clean()


def test_a_number_by_keyboard(opened: Opened) -> None:
    question, keys = opened.question("wasted-share"), opened.page.keyboard
    check(question)
    expect(question.get_by_role("status")).to_have_text("Enter a number first.")
    field = question.get_by_role("spinbutton", name="Your answer, in %")
    for answer, correct in (("20", False), ("80", True)):
        field.focus()
        keys.press("Control+A")
        keys.type(answer)
        keys.press("Tab")
        keys.press("Enter")
        feedback(question, correct)
    opened.clean()


def test_the_key_is_not_on_the_page_before_an_answer(opened: Opened) -> None:
    question = opened.question("one-worker")
    expect(question.get_by_role("button", name="It changes almost nothing")).to_be_visible()
    page = opened.page.locator(".jp-Notebook").inner_html()
    assert "handing over each batch costs a little" not in page
    assert question.locator("[data-correct]").count() == 0


def test_every_text_can_be_read_in_light(opened: Opened) -> None:
    assert opened.page.locator("body").get_attribute("data-jp-theme-light") == "true"
    assert_readable(opened)


def test_a_reload_keeps_the_progress_and_every_text_can_be_read_in_dark(opened: Opened) -> None:
    question = opened.question("one-worker")
    for option, correct in (("It about doubles", False), ("It changes almost nothing", True)):
        question.get_by_role("button", name=option).click()
        check(question)
        feedback(question, correct)
    lab.set_option(opened.home, "apputils-extension/themes", theme="JupyterLab Dark")
    opened.reload()
    opened.run_all(opened.seconds)
    before = question.get_by_role("status")
    expect(before).to_have_text("✓ Answered right before, 2 tries.")
    expect(opened.page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    question.get_by_role("button", name="It makes training").click()
    check(question)
    feedback(question, correct=False)
    assert_readable(opened)
    opened.clean()


def assert_readable(opened: Opened) -> None:
    contrasts = opened.page.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert {text: contrast for text, contrast in contrasts if contrast < 4.5} == {}


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colors) => {  // paint the colors over each other and read the pixel
    colors.forEach((color) => { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); });
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = [...document.querySelectorAll(".gw-report *")].filter(
    (one) => one.checkVisibility() && !one.closest("style, svg") &&
      [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return texts.map((one) => {
    const papers = [];
    for (let at = one; at; at = at.parentElement) papers.unshift(getComputedStyle(at).backgroundColor);
    const paper = light(over(["white", ...papers]));
    const ink = light(over(["white", ...papers, getComputedStyle(one).color]));
    const [low, high] = [paper, ink].sort((a, b) => a - b);
    return [one.textContent.trim().slice(0, 60), (high + 0.05) / (low + 0.05)];
  });
}"""
"""Each text of the course on the page with the contrast of its ink to its paper (WCAG 2.2)."""


def test_a_server_without_a_widget_manager_shows_the_static_face(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    notebook = small_notebook(root)
    with lab.server(root, home, widget_manager=False) as address:
        opened = Opened(browser, address, home, notebook.name, 60)
        face = opened.page.get_by_role("region", name="Question: What can help at all")
        expect(face.get_by_role("listitem")).to_have_count(4)
        answer = face.get_by_text("The 50 ms set the pace")
        expect(answer).to_be_hidden()
        face.get_by_text("Show the answer").click()
        expect(answer).to_be_visible()
        assert opened.page.get_by_text("VBox(children=").count() == 0
        assert (opened.elsewhere, opened.failed) == ([], [])
        assert set(opened.errors) <= {"Exception opening new comm"}  # JupyterLab's own word for no manager
        opened.page.close()
