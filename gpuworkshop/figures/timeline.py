"""One step on a timeline: the host above, the card below, to scale in milliseconds."""

from typing import Any

from gpuworkshop.figures.axis import Scale, axis_for
from gpuworkshop.figures.svg import COLORS, SMALL, Drawing
from gpuworkshop.numbers import number
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _LANE, _BAR = 120, 720, 40, 24
NAMES = {
    "loader": "in the DataLoader",
    "wait": "waiting for the card",
    "other": "operators and launches",
    "compute": "computing",
    "copy": "copying",
    "communication": "communicating",
    "between": "between calls: Python, in no row",
    "unseen": "no operator: other code, or no CPU core free",
}


def step_timeline(timeline: Any, origin: Origin) -> Figure:
    """A `Timeline`: one lane for the host and one for each kind of work of the card; pale where work has gaps."""
    lanes = list(dict.fromkeys(bar.lane for bar in timeline.bars)) or ["host"]
    scale = Scale(axis_for([0.0, timeline.milliseconds]), _LEFT, _RIGHT)
    drawing, y = Drawing(), 30.0
    _key(drawing, list(dict.fromkeys(bar.kind for bar in timeline.bars)))
    for lane in lanes:
        drawing.text(_LEFT - 10, y + 16, lane, "end", bold=True)
        drawing.line(_LEFT, y + _BAR, _RIGHT, y + _BAR, opacity=0.3)
        for bar in (bar for bar in timeline.bars if bar.lane == lane):
            left, right = scale.at(bar.start), scale.at(bar.end)
            shade = None if bar.covered == 1 else bar.covered
            drawing.shape(
                "rect", x=left, y=y, width=right - left, height=_BAR, fill=COLORS[bar.kind], fill_opacity=shade
            )
        y += _LANE
    scale.draw_below(drawing, y, "time in one profiled step, ms")
    return drawing.figure(y + 60, origin, _alt(timeline), _text(timeline))


def _key(drawing: Drawing, kinds: list[str]) -> None:
    x = float(_LEFT)
    for kind in kinds:
        drawing.shape("rect", x=x, y=6, width=11, height=11, fill=COLORS[kind])
        drawing.text(x + 16, 16, NAMES[kind], size=SMALL)
        x += 30 + 6.6 * len(NAMES[kind])
    drawing.text(x, 16, "pale: with gaps", size=SMALL, quiet=True)


def _alt(timeline: Any) -> str:
    said = [f"{total.lane}: {NAMES[total.kind]} {number(total.milliseconds)} ms" for total in timeline.totals]
    return f"One profiled step of {number(timeline.milliseconds)} ms. {'; '.join(said) or 'Nothing was recorded'}."


def _text(timeline: Any) -> str:
    rows = tuple(
        (total.lane, NAMES[total.kind], f"{number(total.milliseconds)} ms", _share(total.milliseconds, timeline))
        for total in timeline.totals
    )
    return str(Table(("lane", "what", "time", "share"), rows, f"One profiled step, {number(timeline.milliseconds)} ms"))


def _share(milliseconds: float, timeline: Any) -> str:
    return f"{milliseconds / timeline.milliseconds:.0%}" if timeline.milliseconds else "n/a"
