"""Figures for slides: the kit's own, with larger words, and those that only the slides ask for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from deck import drawings
from deck.piece import Piece
from gpuworkshop.figures.bits import number_formats
from gpuworkshop.figures.rates import RateBar, rate_bars
from gpuworkshop.figures.waterfall import waterfall
from gpuworkshop.loop.climb_result import bars
from gpuworkshop.report import Figure, Origin, escaped

LARGER = 1.2
"""The slides' font is narrower than the one that the figures are laid out for; the words can be this much larger."""


def piece(figure: Figure, comes_from: str, *origins: Origin) -> Piece:
    """A figure as a piece; it carries its mark of origin in its corner."""
    html = f'<figure data-from="{escaped(comes_from)}">{enlarged(figure.svg)}</figure>'
    return Piece(html, comes_from, origins, shows_origin=True, block=True)


def enlarged(svg: str) -> str:
    """The same picture in the font of the page, its words larger; its size is what the page gives it."""

    def larger(size: re.Match) -> str:
        return f'font-size="{float(size[1]) * LARGER:.1f}"'

    head, tag_end, rest = svg.partition(">")
    head = re.sub(r' (?:style|font-family|width)="[^"]*"', "", head)
    return re.sub(r'font-size="([\d.]+)"', larger, head + tag_end + rest)


def _bits(recording: Callable[[str], Any]) -> Figure:
    return number_formats()


def _kept(recording: Callable[[str], Any], name: str = "loop-h200") -> Figure:
    """The waterfall of a loop without what was tried and not kept."""
    loop = recording(name)
    return waterfall([bar for bar in bars(loop.records) if bar.kept], loop.origin, loop.final.ceiling)


def _first_and_last(recording: Callable[[str], Any], name: str = "loop-h200") -> Figure:
    """The rate of a loop's first and last run, under what no loader could pass."""
    loop = recording(name)
    bars = (
        RateBar("as most scripts begin", loop.baseline.real),
        RateBar("after the loop", loop.final.real),
        RateBar("data ceiling", loop.final.ceiling),
    )
    return rate_bars(bars, loop.baseline.real.unit, loop.origin)


DRAWN: dict[str, Callable[..., Figure]] = {
    "bits": _bits,
    "kept": _kept,
    "first-and-last": _first_and_last,
    "at": lambda recording, *words: drawings.at(" ".join(words)),
    **{name: lambda recording, draw=draw: draw() for name, draw in drawings.DRAWINGS.items()},
}
"""Pictures that are no report's first figure, by name; each takes what loads a recording."""
