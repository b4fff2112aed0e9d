"""The pictures of README, made from the recordings: docs/live.svg and docs/waterfall.svg.

``python solutions/pictures.py README.md`` (``make tables``) writes them anew, and their alt texts into README. A page
shows such a file as an image, whose words cannot take the ink of the page. So it brings its own ground, light or dark
by the setting of whoever looks at it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from gpuworkshop.course import replay
from gpuworkshop.figures.live import live_strip
from gpuworkshop.figures.waterfall import waterfall
from gpuworkshop.instruments import idle, live_rows
from gpuworkshop.instruments.samples import CardSample, Sample
from gpuworkshop.instruments.watch_result import CardWatch
from gpuworkshop.loop.climb_result import bars
from gpuworkshop.report import Figure

FOLDER = Path(__file__).parents[1] / "docs"
MOMENT, WINDOW = 30.0, 40.0  # seconds: when the live chart is shown, and how much of the past
MARGIN = 12  # pixels of ground around a figure
PAPER, INK = ("#ffffff", "#1f2328"), ("#0d1117", "#e6edf3")
STYLE = (
    "<style>svg{{color:{ink};--gw-paper:{paper}}}.ground{{fill:{paper}}}"
    "@media(prefers-color-scheme:dark){{svg{{color:{dark_ink};--gw-paper:{dark}}}.ground{{fill:{dark}}}}}</style>"
).format(paper=PAPER[0], ink=PAPER[1], dark=INK[0], dark_ink=INK[1])


def live() -> Figure:
    """The live chart as it stood while the recorded job trained, drawn by what draws it in a notebook."""
    seen = replay.load("watch")
    (card,) = seen.cards
    samples, meter = _samples(card), idle.IdleMeter(idle.Policy())
    meter.add(samples)
    rows = live_rows.rows([card.card], samples)
    return live_strip(rows, meter.read([card.card]), seen.origin, f"{MOMENT:g} s after the job began", WINDOW)


def _samples(card: CardWatch) -> list[Sample]:
    """The recorded path of a card until then, as the samples that it was made of."""
    path = [point for point in card.path if point.at <= MOMENT]
    before = (0.0, *(point.at for point in path))
    return [
        Sample(
            point.at,
            (
                CardSample(
                    card.card.uuid,
                    busy=point.busy,
                    covered=0.0 if point.busy is None else point.at - began,
                    sm=point.sm,
                    memory_used=None if point.memory is None else round(point.memory * (card.memory_total or 0)),
                    memory_total=card.memory_total,
                ),
            ),
        )
        for point, began in zip(path, before, strict=False)
    ]


def climbed() -> Figure:
    """The waterfall of the recorded loop."""
    loop = replay.load("loop")
    return waterfall(bars(loop.records), loop.origin, loop.final.ceiling)


PICTURES: dict[str, Callable[[], Figure]] = {"live": live, "waterfall": climbed}
"""By the name of the file; README shows one between ``<!-- picture: NAME -->`` and ``<!-- end -->``."""

SHOWS = {"live": "The live chart of a watched training job.", "waterfall": "The waterfall of a loop."}
"""What a picture is, the first words of its alt text."""


def standing_alone(figure: Figure) -> str:
    """The figure as a file of its own: with a ground, and with ink for a light and a dark page."""
    head, _, rest = figure.svg.partition(">")
    _, _, width, height = (float(part) for part in head.partition('viewBox="')[2].partition('"')[0].split())
    wide, high = width + 2 * MARGIN, height + 2 * MARGIN
    head = head.replace(f'viewBox="0 0 {width:g} {height:g}"', f'viewBox="{-MARGIN} {-MARGIN} {wide:g} {high:g}"')
    head = head.replace(f' width="{width:g}"', f' width="{wide:g}"')
    ground = f'<rect class="ground" x="{-MARGIN}" y="{-MARGIN}" width="{wide:g}" height="{high:g}" rx="6"/>'
    return f"{head}>{STYLE}{ground}{rest}\n"


def filled(text: str) -> str:
    """A text with every image and its alt text between their marks made anew. KeyError for an unknown picture."""

    def fill(mark: re.Match) -> str:
        alt = re.sub(r"([\[\]\\])", r"\\\1", f"{SHOWS[mark[1]]} {PICTURES[mark[1]]().alt}")
        return f"<!-- picture: {mark[1]} -->\n\n![{alt}](docs/{mark[1]}.svg)\n\n<!-- end -->"

    return re.sub(r"<!-- picture: ([\w-]+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(standing_alone(draw()), encoding="utf-8")
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
