"""A small drawing: SVG written by hand, in the ink of the page around it.

Text and lines are `currentColor` on a transparent ground, so a picture suits light and dark. Every
word is escaped. The output depends on nothing but the input.
"""

import textwrap

from gpuworkshop.report import Figure, Origin, clean, escaped

WIDTH = 740
SMALL = 11
COVERED = 9  # pixels; an interval shorter than this is narrower than its dot
QUIET = 0.72  # opacity of the second voice; still AA on a light and on a dark page
HOLLOW = "fill:var(--gw-paper,none)"
COLORS = {  # Okabe-Ito; the same color for the same thing in every picture
    "loader": "#0072B2",
    "copy": "#E69F00",
    "compute": "#009E73",
    "wait": "#D55E00",
    "slowed": "#0072B2",
    "communication": "#CC79A7",
    "other": "#999999",
}


class Drawing:
    """Collects shapes; `figure` closes the drawing. Lengths are in pixels at full width."""

    def __init__(self) -> None:
        self._shapes: list[str] = []

    def shape(self, tag: str, words: str = "", **attributes: float | str | None) -> None:
        """Add one SVG element. `_` in a name becomes `-`; None drops the attribute."""
        kept = {name: value for name, value in attributes.items() if value is not None}
        given = "".join(f' {name.replace("_", "-")}="{_value(value)}"' for name, value in kept.items())
        self._shapes.append(f"<{tag}{given}>{escaped(words)}</{tag}>" if words else f"<{tag}{given}/>")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        size: float | None = None,
        bold: bool = False,
        quiet: bool = False,
        fill: str | None = None,
    ) -> None:
        """Words with their baseline at y; `anchor` is start, middle or end."""
        self.shape(
            "text",
            words,
            x=x,
            y=y,
            text_anchor=None if anchor == "start" else anchor,
            font_size=size,
            font_weight="bold" if bold else None,
            fill_opacity=QUIET if quiet else None,
            fill=fill,
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        color: str = "currentColor",
        width: float = 1,
        opacity: float | None = None,
        dash: str | None = None,
    ) -> None:
        """A straight line."""
        self.shape(
            "line",
            x1=x1,
            y1=y1,
            x2=x2,
            y2=y2,
            stroke=color,
            stroke_width=width,
            stroke_opacity=opacity,
            stroke_dasharray=dash,
        )

    def whisker(self, low: tuple[float, float], high: tuple[float, float], cap: float = 4) -> None:
        """An interval, level or upright, with a cap at each end; none if a dot would cover it."""
        (x1, y1), (x2, y2) = low, high
        if max(abs(x2 - x1), abs(y2 - y1)) < COVERED:
            return
        across = (0, cap) if y1 == y2 else (cap, 0)
        self.line(x1, y1, x2, y2, width=1.5)
        for x, y in (low, high):
            self.line(x - across[0], y - across[1], x + across[0], y + across[1], width=1.5)

    def dot(self, x: float, y: float, color: str = "currentColor", hollow: bool = False) -> None:
        """The mark of one measured value."""
        if hollow:
            self.shape("circle", cx=x, cy=y, r=4, style=HOLLOW, stroke="currentColor", stroke_width=1.5)
        else:
            self.shape("circle", cx=x, cy=y, r=4.5, fill=color)

    def cross(self, x: float, y: float) -> None:
        """The mark of something that could not be measured."""
        self.line(x - 4, y - 4, x + 4, y + 4, width=1.5)
        self.line(x - 4, y + 4, x + 4, y - 4, width=1.5)

    def figure(self, height: float, origin: Origin | None, alt: str, text: str) -> Figure:
        """Close the drawing: the origin goes into the lower right corner and below the text version.

        Only a drawing without numbers has no origin.
        """
        for place, line in enumerate(lines(str(origin), 110) if origin else ()):
            height += SMALL + 3 if place else 0
            self.text(WIDTH, height - 4, line, "end", SMALL, quiet=True)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_value(height)}" width="{WIDTH}" '
            f'style="max-width:100%;height:auto" role="img" aria-label="{escaped(alt)}" '
            'font-family="\'DejaVu Sans\', Verdana, sans-serif" font-size="12" fill="currentColor">'
        )
        return Figure(head + "".join(self._shapes) + "</svg>", clean(alt), f"{text}\n{origin}" if origin else text)


def wide(words: str, size: float = 12) -> float:
    """About how wide `words` are, in pixels; on the large side."""
    return len(words) * size * 0.6


def lines(words: str, width: int) -> list[str]:
    """`words` broken into lines of at most `width` characters; a percent sign stays with its number."""
    return textwrap.wrap(words.replace(" %", "\u00a0%"), width)


def _value(value: float | str) -> str:
    return escaped(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
