"""A report says the same in its three faces, and nothing from outside can break out of one."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

import gpuworkshop
from gpuworkshop.report import WIDTH, Figure, Finding, Origin, Report, Table, clean, envelope

CSS = (Path(gpuworkshop.__file__).parent / "figures" / "page.css").read_text(encoding="utf-8")
HERE = Origin("measured here", "NVIDIA H200", "2026-12-01")
LEVELS = ("ok", "notice", "warning", "fail", "unknown")
HOSTILE = "<script>alert('x')</script> \" & ]]> </style>"
STEERING = "job\x1b[2J\x07\x9bname\u202eevil\udc80"


def report(text: str = "The card waits", level: str = "fail") -> Report:
    return Report(
        title=text,
        origin=msgspec.structs.replace(HERE, on=text),
        findings=(Finding(level, text, f"412 images/s. {text}", f"num_workers=7\n    # {text}"),),
        tables=(Table(("workers", text), (("0", text), ("2", "790 (775 to 804)")), caption=text),),
        figures=(Figure("<svg></svg>", alt=text, text=f"{text}\n1  2"),),
    )


def html(shown: Report | Figure) -> str:
    return shown._repr_mimebundle_()["text/html"]


def terminal(shown: Report, width: int = 90) -> str:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system="truecolor").print(shown)
    return stream.getvalue()


def without_colors(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


class Tree(HTMLParser):
    """Tags with their attributes, text by element, and whether every element is closed in order."""

    VOID = ("line", "rect", "circle", "path")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[tuple[str, str]] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.words.append((self.open[-1] if self.open else "", data))


# The origin


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (HERE, "measured here · NVIDIA H200 · 2026-12-01"),
        (Origin("recorded on", "H200", "2026-12-01", "0.1.0"), "recorded on H200 · 2026-12-01 · kit 0.1.0"),
        (Origin("claimed by", "the published workshop"), "claimed by the published workshop"),
    ],
)
def test_the_origin_is_one_line(origin: Origin, words: str) -> None:
    assert str(origin) == words


@pytest.mark.parametrize("face", [html, str, terminal], ids=["html", "plain", "terminal"])
def test_the_origin_stands_with_the_title_in_every_face(face) -> None:
    shown = face(Report("Starvation", HERE))
    assert shown.index("Starvation") < shown.index(str(HERE))


# What every face says


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("face", [html, str, terminal], ids=["html", "plain", "terminal"])
def test_every_face_says_level_title_evidence_and_fix(face, level: str) -> None:
    shown = face(report(level=level))
    for words in (level, "The card waits", "412 images/s", "num_workers=7", "790 (775 to 804)", "1  2"):
        assert words in shown


def test_a_level_is_a_word_and_a_symbol_of_its_own() -> None:
    symbols = set()
    for level in LEVELS:
        words = [data for tag, data in Tree(html(report(level=level))).words if tag == "span"]
        assert words[1] == level
        symbols.add(words[0])
    assert len(symbols) == len(LEVELS)


def test_only_a_finding_of_level_fail_fails() -> None:
    assert report(level="fail").failed
    assert not any(report(level=level).failed for level in LEVELS if level != "fail")
    assert not Report("nothing found", HERE).failed


def test_an_empty_report_is_title_and_origin_only() -> None:
    assert str(Report("Title", HERE)) == f"Title\n{HERE}"
    assert {tag for tag, _ in Tree(html(Report("Title", HERE))).tags} == {"section", "style", "p"}


# HTML


def test_hostile_text_stays_text() -> None:
    tree = Tree(html(report(HOSTILE)))
    assert tree.open == []
    assert not [tag for tag, _ in tree.tags if tag == "script"]
    assert not [name for _, attrs in tree.tags for name in attrs if name.startswith("on")]
    lines = [data for tag, data in tree.words if tag in ("p", "td", "th", "caption")]
    assert HOSTILE in lines, "the words must arrive as they are"


def test_the_page_is_well_formed_and_carries_its_style_once() -> None:
    tree = Tree(html(report()))
    assert tree.open == []
    assert [tag for tag, _ in tree.tags].count("style") == 1
    assert tree.tags[0] == ("section", {"class": "gw-report", "aria-label": "The card waits"})


def test_a_table_has_a_caption_and_scopes() -> None:
    tree = Tree(html(report()))
    scopes = [attrs["scope"] for tag, attrs in tree.tags if tag == "th"]
    assert scopes == ["col", "col", "row", "row"]
    assert ("caption", "The card waits") in tree.words


def test_a_figure_has_alt_and_a_text_version() -> None:
    tree = Tree(html(Figure("<svg></svg>", "a rising line", "0  412")))
    assert ("div", {"role": "img", "aria-label": "a rising line"}) in tree.tags
    assert ("pre", "0  412") in tree.words and ("summary", "This figure as text") in tree.words


def test_a_fix_is_shown_as_code() -> None:
    words = Tree(html(report())).words
    assert any(tag == "code" and data.startswith("num_workers=7\n") for tag, data in words)


# Plain text and terminal


def test_plain_text_fits_the_width_and_keeps_code_lines_whole() -> None:
    long = "waits " * 60
    code = "loader = DataLoader(dataset, " + "x" * 100 + ")"
    table = Table(("n", "note", "why"), (("0", long, long),), long)
    lines = str(Report(long, HERE, (Finding("fail", long, long, code),), (table,))).splitlines()
    assert max(len(line) for line in lines if code not in line) <= WIDTH <= 100
    assert sum(code in line for line in lines) == 1


def test_numbers_are_aligned_right_and_words_left() -> None:
    table = Table(("num_workers", "note"), (("0", "a"), ("16", "longer")))
    assert str(table).splitlines() == [
        "num_workers  note",
        "-----------  ------",
        "          0  a",
        "         16  longer",
    ]


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError):
        str(Table(("a", "b"), (("1",),)))


def test_a_name_from_outside_cannot_steer_a_face() -> None:
    hostile = report(STEERING)
    for shown in (str(hostile), without_colors(terminal(hostile)), html(hostile)):
        assert "job\ufffd[2J\ufffd\ufffdname\ufffdevil\ufffd" in shown
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", shown)


def test_rich_markup_from_outside_stays_text() -> None:
    shown = without_colors(terminal(report("[bold red]job[/]"), width=200))
    assert shown.count("job") == shown.count("[bold red]job[/]") == 9


def test_clean_keeps_lines_tabs_and_other_scripts() -> None:
    assert clean("a\tb\nc é 世界 ✓") == "a\tb\nc é 世界 ✓"
    assert clean("\x00\x1b\u200f") == "\ufffd" * 3


# JSON


def test_the_envelope_names_kit_origin_result_and_findings() -> None:
    found = Finding("ok", "fine")
    content = json.loads(envelope({"rate": 412.0, "missing": float("nan")}, HERE, [found]))
    assert content == {
        "kit": gpuworkshop.__version__,
        "origin": {"mark": "measured here", "on": "NVIDIA H200", "date": "2026-12-01", "kit": ""},
        "result": {"rate": 412.0, "missing": None},
        "findings": [{"level": "ok", "title": "fine", "evidence": "", "fix": ""}],
    }


def test_the_envelope_refuses_what_is_no_data() -> None:
    with pytest.raises(TypeError):
        envelope(object(), HERE, ())


# Light to load


def test_report_and_figures_load_nothing_heavy() -> None:
    code = (
        "import sys, gpuworkshop.report, gpuworkshop.figures.sweep, gpuworkshop.figures.strip,"
        " gpuworkshop.figures.waterfall, gpuworkshop.figures.prediction;"
        "print(sorted({'rich', 'numpy', 'matplotlib', 'torch', 'IPython'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# Colors


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The WCAG 2 contrast ratio of two #rrggbb colors."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(ink: str, paper: str, share: float) -> str:
    pairs = [(int(ink[i : i + 2], 16), int(paper[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def colors(selector: str) -> dict[str, str]:
    """The --gw- colors set in the block that starts with `selector`; of var(), the fallback."""
    block = CSS.split(selector + " {", 1)[1].split("}", 1)[0]
    return dict(re.findall(r"--gw-([a-z]+): (?:var\([\w-]+, )?(#[0-9a-f]{6})", block))


def test_the_contrast_formula_knows_its_ends() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


BLOCKS = {
    "light": ("\n.gw-report", "#ffffff"),
    "dark by browser": ("(prefers-color-scheme: dark) {\n  .gw-report", "#111111"),
    "light by JupyterLab": ('[data-jp-theme-light="true"] .gw-report', "#ffffff"),
    "dark by JupyterLab": ('[data-jp-theme-light="false"] .gw-report', "#111111"),
}


@pytest.mark.parametrize(("selector", "paper"), BLOCKS.values(), ids=BLOCKS.keys())
def test_every_level_has_aa_contrast(selector: str, paper: str) -> None:
    found = colors(selector)
    for level in LEVELS:
        assert contrast(found[level], paper) >= 4.5, f"{level} {found[level]} on {paper}"


@pytest.mark.parametrize("name", ["light", "dark by browser"])
def test_ink_quiet_ink_and_code_have_aa_contrast(name: str) -> None:
    selector, paper = BLOCKS[name]
    found = colors(selector)
    share = int(re.search(r"--gw-quiet: color-mix\(in srgb, var\(--gw-ink\) (\d+)%", CSS)[1]) / 100
    assert found["paper"] == paper
    assert contrast(found["ink"], paper) >= 4.5 and contrast(found["ink"], found["code"]) >= 4.5
    assert contrast(mixed(found["ink"], paper, share), paper) >= 4.5


def test_jupyterlab_decides_over_the_browser() -> None:
    light, dark = colors(BLOCKS["light"][0]), colors(BLOCKS["dark by browser"][0])
    by_lab_light, by_lab_dark = (colors(BLOCKS[f"{name} by JupyterLab"][0]) for name in ("light", "dark"))
    assert by_lab_light == {level: light[level] for level in LEVELS}
    assert by_lab_dark == {level: dark[level] for level in LEVELS}
    assert CSS.index('[data-jp-theme-light="true"]') > CSS.index("@media (prefers-color-scheme")


def test_the_style_sheet_stays_at_home() -> None:
    assert not re.search(r"https?:|url\(|@import|@font-face", CSS)
    rules = re.sub(r"/\*.*?\*/|@media[^{]*\{", "", CSS, flags=re.S)
    selectors = [part.strip() for head in re.findall(r"([^{}]+)\{", rules) for part in head.split(",")]
    assert len(selectors) > 20
    assert all(re.search(r"^(\[data-jp-theme-light=\"\w+\"\] )?\.gw-", part) for part in selectors)
