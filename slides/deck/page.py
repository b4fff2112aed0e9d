"""From sources to one page that needs nothing else: pandoc makes the sections, reveal.js and the fonts are put in."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

from deck.piece import Piece, Wrong
from deck.source import MARK, Source

HERE = Path(__file__).parents[1]
REVEAL = HERE / "node_modules" / "reveal.js"
FACES = (("regular", "400", "normal"), ("italic", "400", "italic"), ("semibold", "600", "normal"))
_SECTION = re.compile(r"<section\b.*?</section>", re.DOTALL)
_NOTES = re.compile(r'<aside class="notes">.*?</aside>', re.DOTALL)


def sections(source: Source) -> str:
    """The slides of one source as reveal.js sections, every mark replaced, each with the origins of its numbers."""
    made = _SECTION.sub(lambda found: filled(found[0], source), pandoc(source.markdown))
    if left := MARK.search(made):
        raise Wrong(f"{source.file}: {left[0]} stands outside of the slides: begin with a heading, ## Title")
    return made


def pandoc(markdown: str, to: str = "revealjs") -> str:
    """Markdown as a piece of HTML. Raises Wrong where pandoc is not there."""
    try:
        import pypandoc
    except ImportError:
        raise Wrong("pandoc is not here: pip install -e '.[slides]'") from None

    options = [
        "-f",
        "markdown-auto_identifiers-smart-tex_math_dollars-citations-subscript-superscript",
        "-t",
        to,
        "--slide-level=2",
        "--wrap=none",
        "--syntax-highlighting=none",
    ]
    command = [pypandoc.get_pandoc_path(), *options]
    done = subprocess.run(command, input=markdown, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Wrong(f"pandoc: {done.stderr.strip().splitlines()[-1]}")
    return re.sub(r"<colgroup>.*?</colgroup>", "", done.stdout, flags=re.DOTALL)


def filled(section: str, source: Source) -> str:
    """One section with its pieces; below them the origins that no figure shows, in the notes those of the notes."""
    notes = _NOTES.search(section)
    shown = section.replace(notes[0], "") if notes else section
    shown = shown.replace("</section>", f"{_origins(_used(shown, source))}</section>")
    told = notes[0].replace("</aside>", f"{_origins(_used(notes[0], source))}</aside>") if notes else ""
    whole = shown.replace("</section>", f"{told}</section>")
    return _put(whole, source.pieces).replace("<section", f'<section data-file="{source.file}"', 1)


def _used(html: str, source: Source) -> list[Piece]:
    return [source.pieces[name] for name in MARK.findall(html)]


def _origins(pieces: Iterable[Piece]) -> str:
    """The marks of origin that stand under a slide; those that a figure on it shows are not repeated."""
    pieces = list(pieces)
    shown = "".join(piece.html for piece in pieces if piece.shows_origin)
    said = dict.fromkeys(escape(str(origin)) for piece in pieces for origin in piece.origins)
    left = "; ".join(one for one in said if one not in shown)
    return f'<p class="origin" data-from="origins">{left}</p>' if left else ""


def _put(html: str, pieces: dict[str, Piece]) -> str:
    """Every mark replaced by its piece; a block leaves the paragraph that pandoc made around it."""
    html = re.sub(
        "<p>(\ue000[a-z]+\ue001)</p>", lambda found: found[1] if _piece(found[1], pieces).block else found[0], html
    )
    return MARK.sub(lambda found: pieces[found[1]].html, html)


def _piece(mark: str, pieces: dict[str, Piece]) -> Piece:
    return pieces[mark[1:-1]]


def deck(parts: Iterable[str], title: str) -> str:
    """The whole page: sections, styles, fonts, reveal.js, its licenses. Raises Wrong where reveal.js is not there."""
    if not REVEAL.is_dir():
        raise Wrong("reveal.js is not here: npm ci --prefix slides")
    read = lambda *path: REVEAL.joinpath(*path).read_text(encoding="utf-8")  # noqa: E731
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        licenses=_comment(read("LICENSE"), read("dist", "theme", "fonts", "source-sans-pro", "LICENSE")),
        styles="\n".join((read("dist", "reset.css"), read("dist", "reveal.css"), fonts(), style())),
        slides="\n".join(parts),
        scripts="".join(
            f"<script>{_script(read(*path))}</script>\n"
            for path in (("dist", "reveal.js"), ("plugin", "notes", "notes.js"))
        ),
    )


def card(source: Source, title: str) -> str:
    """The quick-reference card as a page of its own."""
    body = pandoc(source.markdown, "html")
    pieces = list(source.pieces.values())
    return Template((HERE / "card.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        styles="\n".join((fonts(), (HERE / "card.css").read_text(encoding="utf-8"))),
        body=_put(body, source.pieces) + _origins(pieces),
    )


def style() -> str:
    """The style sheet of the slides."""
    return (HERE / "slides.css").read_text(encoding="utf-8")


def fonts() -> str:
    """The faces of Source Sans Pro as part of the style sheet."""
    folder = REVEAL / "dist" / "theme" / "fonts" / "source-sans-pro"
    rules = []
    for face, weight, slant in FACES:
        data = base64.b64encode((folder / f"source-sans-pro-{face}.woff").read_bytes()).decode()
        source = f"url(data:font/woff;base64,{data}) format('woff')"
        kind = f"font-family: 'Source Sans Pro'; font-weight: {weight}; font-style: {slant}"
        rules.append(f"@font-face {{ {kind}; src: {source}; }}")
    return "\n".join(rules)


def _script(text: str) -> str:
    return text.replace("</script", r"<\/script")


def _comment(*texts: str) -> str:
    return "\n\n".join(texts).replace("--", "- -")
