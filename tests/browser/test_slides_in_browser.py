"""Every slide in Chromium at 1024 x 768: nothing overflows, every picture has words, every number a source, no request.

The deck is built once, from its sources, and printed once.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lab
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import slides_room  # noqa: E402
from slides_room import SLIDES  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

for package in ("playwright", "pypandoc"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make .venv/.slides", allow_module_level=True)
if lab.CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)
if not slides_room.REVEAL.is_dir():
    pytest.skip("reveal.js is not installed: make .venv/.slides", allow_module_level=True)

maker = slides_room.load("make")

from deck import page as pages  # noqa: E402
from deck import printed, source  # noqa: E402

PLAIN = source.plain_numbers(SLIDES / "plain.toml")
SMALLEST = 14.5
"""Pixels of the smallest letters on a slide that is 768 high."""

LOOK = """() => Reveal.getSlides().map((slide) => {
  Reveal.slide(Reveal.getIndices(slide).h);
  const shown = [...slide.querySelectorAll("*")].filter((one) => !one.closest(".notes"));
  const name = (one) => one.tagName.toLowerCase() + ": " + (one.textContent || "").trim().slice(0, 40);
  const box = slide.getBoundingClientRect(), origin = slide.querySelector(":scope > .origin");
  const floor = origin ? origin.getBoundingClientRect().top : box.bottom - 20;
  const out = shown.filter((one) => {
    const at = one.getBoundingClientRect(), block = one instanceof HTMLElement;
    if (one === origin || !at.width || one.closest("svg") && one.tagName !== "svg") return false;
    return at.right > box.right + 1 || at.bottom > floor + 1 || at.top < box.top - 1 || at.left < box.left - 1
      || block && (one.scrollWidth > one.clientWidth + 1 && one.clientWidth);
  });
  const words = shown.filter((one) => [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  const small = words.map((one) => {
    const size = parseFloat(getComputedStyle(one).fontSize);
    return [one.ownerSVGElement ? size * one.getScreenCTM().a : size, name(one)];
  });
  const alt = (one) => (one.getAttribute("aria-label") || one.getAttribute("alt") || "").trim();
  const pictures = shown.filter((one) => ["svg", "img"].includes(one.tagName.toLowerCase()));
  const copy = slide.cloneNode(true);
  copy.querySelectorAll("[data-from]").forEach((one) => one.remove());
  copy.querySelectorAll("*").forEach((one) => one.append(" "));
  const notes = copy.querySelector(".notes"), told = notes ? notes.textContent : "";
  if (notes) notes.remove();
  return {
    file: slide.dataset.file || "", title: slide.querySelector("h2")?.textContent || "",
    out: out.map(name),
    small: small.filter(([size]) => size < SMALLEST).map(([size, which]) => size.toFixed(1) + " px, " + which),
    silent: pictures.filter((one) => !alt(one)).map(name),
    words: copy.textContent,
    told,
  };
})""".replace("SMALLEST", str(SMALLEST))


def opened(browser: Browser, file: Path, scheme: str = "light") -> tuple[Page, list[str]]:
    """The page at the size of a projector, and a list to which its requests and errors come."""
    page, bad = browser.new_page(viewport={"width": 1024, "height": 768}, color_scheme=scheme), []
    page.on("request", lambda one: bad.append(one.url[:80]) if not one.url.startswith(("file:", "data:")) else None)
    page.on("console", lambda one: bad.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: bad.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady() && document.fonts.status === 'loaded'")
    return page, bad


def problems(slides: list[dict[str, Any]]) -> list[str]:
    """What is wrong with each slide, one line each."""
    found = []
    for place, one in enumerate(slides, 1):
        at = f"{one['file']}, slide {place}, {one['title']}"
        found += [f"{at}: overflows: {what}" for what in one["out"]]
        found += [f"{at}: too small: {what}" for what in one["small"]]
        found += [f"{at}: no alt text: {what}" for what in one["silent"]]
        allowed = PLAIN.get(Path(one["file"]).stem, {})
        said = source.numbers(one["words"]) + source.numbers(one["told"])
        found += [f"{at}: {number} has no source" for number in said if number not in allowed]
    return found


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both pages, made now."""
    folder = tmp_path_factory.mktemp("slides")
    maker.make(folder, pdf=False)
    return folder


@pytest.fixture(scope="module")
def deck(browser: Browser, build: Path) -> Iterator[tuple[Page, list[str]]]:
    page, bad = opened(browser, build / "slides.html")
    yield page, bad
    page.close()


def test_every_slide_fits_and_every_picture_and_number_has_its_words(deck: tuple[Page, list[str]], build: Path) -> None:
    page, bad = deck
    slides = page.evaluate(LOOK)
    assert len(slides) > 50
    assert {one["file"] for one in slides} == {path.name for path in SLIDES.glob("[0-9][0-9]_*.md")}
    assert problems(slides) == [] and bad == []
    assert (build / "slides.html").stat().st_size < 8e6


def test_the_look_finds_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    wrong = (
        '<section data-file="04_starve.md"><h2>Too much</h2>' + "<p>words and words</p>" * 30 + "</section>",
        '<section data-file="04_starve.md"><h2>Too wide</h2><pre>' + "a wide line " * 20 + "</pre></section>",
        '<section data-file="04_starve.md"><h2>Silent</h2><svg width="90" height="90"></svg></section>',
        '<section data-file="04_starve.md"><h2>Tiny</h2><p style="font-size: 9px">tiny</p></section>',
        '<section data-file="04_starve.md"><h2>By hand</h2><p>It takes 42 ms, or 50.</p></section>',
        '<section data-file="04_starve.md"><h2>Fine</h2><p>fine</p></section>',
    )
    file = tmp_path / "wrong.html"
    file.write_text(pages.deck([*wrong, '<img src="https://example.invalid/x.png" alt="asks">'], "wrong"))
    page, bad = opened(browser, file)
    found = problems(page.evaluate(LOOK))
    page.close()
    for title, says in (
        ("Too much", "overflows: p"),
        ("Too wide", "overflows: pre"),
        ("Silent", "no alt text: svg"),
        ("Tiny", "too small: 9.0 px"),
        ("By hand", "42 has no source"),
    ):
        assert any(f"{title}: " in line and says in line for line in found), (title, found)
    assert not any("Fine" in line or "50 has" in line for line in found)
    assert any("example.invalid" in one for one in bad)


def test_the_page_follows_light_and_dark(browser: Browser, deck: tuple[Page, list[str]], build: Path) -> None:
    colors = "() => ['backgroundColor', 'color'].map((what) => getComputedStyle(document.body)[what])"
    page, bad = opened(browser, build / "slides.html", "dark")
    (light_paper, light_ink), (paper, ink) = (
        [sum(map(int, re.findall(r"\d+", one)[:3])) for one in where.evaluate(colors)] for where in (deck[0], page)
    )
    page.close()
    assert light_paper > 700 > 100 > light_ink and paper < 100 < 650 < ink and bad == []


def test_the_pdfs_are_tagged_and_the_card_is_one_page(deck: tuple[Page, list[str]], build: Path) -> None:
    slides, card = build / "slides.pdf", build / "card.pdf"
    printed.pdf(deck[0].context.browser, build / "slides.html", slides, slides=True)
    printed.pdf(deck[0].context.browser, build / "card.html", card, slides=False)
    data = {file: file.read_bytes() for file in (slides, card)}
    pages_of = {file: len(re.findall(rb"/Type /Page\b(?!s)", text)) for file, text in data.items()}
    assert pages_of == {slides: deck[0].evaluate("Reveal.getTotalSlides()"), card: 1}
    assert all(b"/Marked true" in text and b"/StructTreeRoot" in text for text in data.values())
    pictures = deck[0].evaluate("document.querySelectorAll('.slides svg').length")
    assert len(re.findall(rb"/Alt ", data[slides])) >= pictures > 20


def test_a_printed_slide_looks_as_on_the_screen(browser: Browser, deck: tuple[Page, list[str]], build: Path) -> None:
    where = """(all) => all.map((one) => {
      const page = (one.closest(".pdf-page") || one.closest("section")).getBoundingClientRect();
      const at = one.getBoundingClientRect();
      return [at.left - page.left, at.top - page.top, at.width].map(Math.round);
    })"""
    page = browser.new_page(viewport={"width": 1024, "height": 768})
    page.goto(f"{(build / 'slides.html').as_uri()}?print-pdf")
    page.wait_for_selector(".pdf-page")
    page.wait_for_function("document.fonts.status === 'loaded'")
    printed_at = page.eval_on_selector_all(".pdf-page h2", where)
    page.close()
    count = deck[0].evaluate("Reveal.getTotalSlides()")
    shown_at = []
    for place in range(count):
        deck[0].evaluate(f"Reveal.slide({place})")
        shown_at += deck[0].eval_on_selector_all("section.present > h2", where)
    assert len(shown_at) == len(printed_at) == count
    near = [
        abs(a - b) <= 12
        for one, other in zip(shown_at, printed_at, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    assert all(near), list(zip(shown_at, printed_at, strict=True))
