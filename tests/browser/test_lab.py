"""The course in JupyterLab behind a base URL: mouse, keyboard, reload, themes, and no widget manager."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lab
import pytest

from gpuworkshop.course import material, quiz

lab.skip_where_a_part_is_missing()

import nbformat  # noqa: E402
from playwright.sync_api import Browser, Locator, expect  # noqa: E402

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
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": lab.KERNEL})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbformat.write(notebook, folder / "small.ipynb")
    return folder / "small.ipynb"


def chapter(name: str) -> Callable[[Path], Path]:
    """A copy of a student notebook of the course."""
    return lambda folder: Path(shutil.copy(lab.REPOSITORY / "notebooks" / f"{name}.ipynb", folder))


class Asked(NamedTuple):
    """The questions of a notebook that the tests answer, by kind and by the way in which they do it."""

    chapter: str
    by_mouse: str
    by_keys: str
    several: str
    number: str
    kept: str


ASKED_04 = Asked("04_starve", "what-can-help", "loaded-not-running", "need-workers", "wasted-share", "one-worker")
ASKED_01 = Asked("01_verify", "round-trip", "which-memory", "seen-not-used", "time-to-ask", "srun-or-sbatch")
ASKED_02 = Asked(
    "02_watch", "loaded-barely-computing", "the-other-axis", "whose-memory", "card-minutes", "what-100-says"
)
ASKED_03 = Asked("03_profile", "small-gaps", "waiting-on-top", "host-waits", "busy-when-late", "which-step-time")
ASKED_05 = Asked("05_memory_precision", "six-times", "first-cure", "what-stays", "largest-batch", "low-and-low")
NOTEBOOKS = {
    "small": (small_notebook, 60, ASKED_04),
    "01": (chapter("01_verify"), 240, ASKED_01),
    "02": (chapter("02_watch"), 240, ASKED_02),
    "03": (chapter("03_profile"), 240, ASKED_03),
    "04": (chapter("04_starve"), 240, ASKED_04),
    "05": (chapter("05_memory_precision"), 240, ASKED_05),
}
"""What is opened, the seconds that running all its cells may take, and what is asked in it."""


class Opened(lab.Page):
    """A notebook that is open, with all its cells run once."""

    def __init__(
        self, browser: Browser, address: str, home: Path, notebook: str, seconds: float, asked: Asked = ASKED_04
    ):
        super().__init__(browser.new_page(viewport={"width": 1180, "height": 1000}), address)
        self.home = home
        self.seconds = seconds
        self.asked = asked
        self.open(notebook)
        self.run_all(seconds)

    def data(self, id: str) -> material.QuestionData:
        """What the course has for one of the questions."""
        return material.questions(self.asked.chapter)[id]

    def press(self, *keys: str | tuple[str, int]) -> None:
        """Press keys, one after the other; a key with a number so many times."""
        for key in keys:
            name, times = (key, 1) if isinstance(key, str) else key
            for _ in range(times):
                self.page.keyboard.press(name)


@pytest.fixture(scope="module", params=NOTEBOOKS)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Iterator[Opened]:
    make, seconds, asked = NOTEBOOKS[request.param]
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    notebook = make(root)
    with lab.server(root, home) as address:
        page = Opened(browser, address, home, notebook.name, seconds, asked)
        yield page
        page.page.close()


def check(question: Locator) -> None:
    question.get_by_role("button", name="Check", exact=True).click()


def feedback(question: Locator, correct: bool) -> Locator:
    """The feedback once it is there, with its word and its mark."""
    found = question.get_by_role("status").and_(question.locator(f"[data-correct={str(correct).lower()}]"))
    expect(found).to_have_text(re.compile("^✓ Right" if correct else "^✗ Not yet"))
    return found


def places(data: material.QuestionData, right: bool) -> list[int]:
    """Where the right options of a question stand, or the wrong ones."""
    return [place for place, option in enumerate(data.options) if option.right is right]


def named(data: material.QuestionData, place: int) -> str:
    """An option as a button shows it."""
    return data.options[place].text.replace("`", "")


def test_a_wrong_and_a_right_answer_by_mouse(opened: Opened) -> None:
    question, data = opened.question(opened.asked.by_mouse), opened.data(opened.asked.by_mouse)
    check(question)
    expect(question.get_by_role("status")).to_have_text("Choose an answer first.")
    for correct in (False, True):
        question.get_by_role("button", name=named(data, places(data, correct)[0])).click()
        check(question)
        feedback(question, correct)
    opened.clean()


def test_a_wrong_and_a_right_answer_by_keyboard(opened: Opened) -> None:
    question, data = opened.question(opened.asked.by_keys), opened.data(opened.asked.by_keys)
    (wrong, *_), (right,) = places(data, False), places(data, True)
    to_check, back = len(data.options) - wrong, len(data.options) - right
    question.get_by_role("button", name=named(data, wrong)).focus()
    opened.press("Space", ("Tab", to_check), "Enter")  # over the other options to Check
    feedback(question, correct=False)
    opened.press(("Shift+Tab", back), "Enter", ("Tab", back), "Space")
    feedback(question, correct=True)
    opened.clean()


def test_several_answers_by_keyboard(opened: Opened) -> None:
    question, data = opened.question(opened.asked.several), opened.data(opened.asked.several)
    first, *others = places(data, True)
    question.get_by_role("checkbox", name=named(data, first), exact=True).focus()
    opened.press("Space", ("Tab", len(data.options) - first), "Enter")
    expect(feedback(question, correct=False)).to_contain_text(f"{len(others)} more")
    for place in others:
        away = len(data.options) - place
        opened.press(("Shift+Tab", away), "Space", ("Tab", away))
    opened.press("Enter")
    feedback(question, correct=True)
    opened.clean()


def test_a_number_by_keyboard(opened: Opened) -> None:
    question, data = opened.question(opened.asked.number), opened.data(opened.asked.number)
    right = quiz.ask(opened.asked.chapter, data.id).answer
    check(question)
    expect(question.get_by_role("status")).to_have_text("Enter a number first.")
    field = question.get_by_role("spinbutton", name=f"Your answer, in {data.unit}")
    for answer, correct in ((data.slips[0].value, False), (right, True)):
        field.focus()
        opened.press("Control+A")
        opened.page.keyboard.type(f"{answer:g}")
        opened.press("Tab", "Enter")
        feedback(question, correct)
    opened.clean()


def test_the_key_is_not_on_the_page_before_an_answer(opened: Opened) -> None:
    question, data = opened.question(opened.asked.kept), opened.data(opened.asked.kept)
    (right,) = places(data, True)
    expect(question.get_by_role("button", name=named(data, right))).to_be_visible()
    page = opened.page.locator(".jp-Notebook").text_content()
    assert named(data, right) in page
    assert [option.says for option in data.options if option.says.replace("`", "")[:40] in page] == []
    assert question.locator("[data-correct]").count() == 0


def test_every_text_can_be_read_in_light(opened: Opened) -> None:
    assert opened.page.locator("body").get_attribute("data-jp-theme-light") == "true"
    assert_readable(opened)


def test_a_reload_keeps_the_progress_and_every_text_can_be_read_in_dark(opened: Opened) -> None:
    question, data = opened.question(opened.asked.kept), opened.data(opened.asked.kept)
    wrong, right = (places(data, correct) for correct in (False, True))
    for place, correct in ((wrong[0], False), (right[0], True)):
        question.get_by_role("button", name=named(data, place)).click()
        check(question)
        feedback(question, correct)
    lab.set_option(opened.home, "apputils-extension/themes", theme="JupyterLab Dark")
    opened.reload()
    opened.run_all(opened.seconds)
    before = question.get_by_role("status")
    expect(before).to_have_text("✓ Answered right before, 2 tries.")
    expect(opened.page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    question.get_by_role("button", name=named(data, wrong[-1])).click()
    check(question)
    feedback(question, correct=False)
    assert_readable(opened)
    opened.clean()


@pytest.mark.parametrize("opened", ["01"], indirect=True)
def test_a_button_that_is_pressed_says_that_buttons_work(opened: Opened) -> None:
    """Chapter 1 asks for a press: nothing else proves that this page shows widgets."""
    panel = opened.page.locator(".gw-button")
    panel.get_by_role("button", name="I see a button").click()
    expect(panel.get_by_role("status")).to_have_text("✓ Buttons work here.")
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
