"""The slides: one page that needs no network, one PDF, and the quick-reference card, all into slides/build/.

``python slides/make.py`` (``make slides``) makes them from the Markdown here, with every number and picture from the
recordings and the site file. ``--html`` leaves the PDFs out.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deck import page, printed, resolve
from deck.piece import Wrong
from deck.source import plain_numbers, read

HERE = Path(__file__).parent
TITLE = "Optimizing GPU usage"


def html(folder: Path = HERE) -> str:
    """The deck of the sources in `folder`. Raises Wrong with file and line."""
    plain = plain_numbers(folder / "plain.toml")
    sources, problems = [], []
    for file in resolve.chapters(folder):
        try:
            sources.append(read(file, resolve.resolve, plain.get(file.stem, {})))
        except Wrong as problem:
            problems.append(str(problem))
    if problems:
        raise Wrong("\n".join(problems))
    return page.deck(map(page.sections, sources), TITLE)


def main(arguments: list[str]) -> int:
    """Write everything into build/; 2 with one line where a source is wrong or a part is missing."""
    build = HERE / "build"
    build.mkdir(exist_ok=True)
    try:
        (build / "slides.html").write_text(html(), encoding="utf-8")
    except (Wrong, ImportError, FileNotFoundError) as problem:
        print(problem, file=sys.stderr)
        return 2
    print(build / "slides.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
