"""The slides: one page that needs no network, one PDF, and the quick-reference card, all into slides/build/.

``python slides/make.py`` (``make slides``) makes them from the Markdown here, with every number and picture from the
recordings and the site file. ``--html`` leaves the PDFs out.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deck import page, printed, resolve
from deck.piece import Wrong
from deck.source import Source, plain_numbers, read

HERE = Path(__file__).parent
TITLE = "Optimizing GPU usage"


def html(folder: Path = HERE) -> dict[str, str]:
    """The pages by name: slides and card, from the sources in `folder`. Raises Wrong, a line for each problem."""
    plain = plain_numbers(folder / "plain.toml")
    *chapters, card = sources([*resolve.chapters(folder), folder / "card.md"], plain)
    return {"slides": page.deck(map(page.sections, chapters), TITLE), "card": page.card(card, TITLE)}


def sources(files: list[Path], plain: dict[str, dict[str, str]]) -> list[Source]:
    """Every source, read; all their problems are told at once."""
    found, problems = [], []
    for file in files:
        try:
            found.append(read(file, resolve.resolve, plain.get(file.stem, {})))
        except Wrong as problem:
            problems.append(str(problem))
    if problems:
        raise Wrong("\n".join(problems))
    return found


def make(build: Path, pdf: bool = True) -> list[Path]:
    """Write everything into the folder `build`; the paths of what is there now."""
    build.mkdir(exist_ok=True)
    made = []
    for name, text in html().items():
        made.append(build / f"{name}.html")
        made[-1].write_text(text, encoding="utf-8")
    return made + (printed.pdfs(made) if pdf else [])


def main(arguments: list[str]) -> int:
    """Make everything; 2 with a line for each thing that is wrong in a source, or that is missing here."""
    try:
        made = make(HERE / "build", pdf="--html" not in arguments)
    except (Wrong, ImportError, FileNotFoundError) as problem:
        print(problem, file=sys.stderr)
        return 2
    for file in made:
        print(f"{file.relative_to(HERE.parent)}, {file.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
