"""The memory stack: what lies in the memory at the end of each phase of a training step, one bar a phase, to scale."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuworkshop.figures.axis import Scale, in_bytes
from gpuworkshop.figures.svg import SMALL, WIDTH, Drawing, lines, wide
from gpuworkshop.numbers import amount
from gpuworkshop.report import Figure, Origin, Table

KINDS: Mapping[str, str] = {
    "context": "CUDA's own: context, kernels, libraries",
    "weights": "the model's numbers",
    "gradients": "one for each weight",
    "optimizer": "what it remembers of each weight",
    "activations": "what forward keeps for backward, and the batch",
    "reserve": "held by PyTorch, free for its next tensors",
    "others": "everybody else on the card",
}
"""What lies in a card's memory, in the order of the stack, and what each is."""

_COLORS = {  # Okabe-Ito
    "context": "#999999",
    "weights": "#56B4E9",
    "gradients": "#F0E442",
    "optimizer": "#CC79A7",
    "activations": "#009E73",
    "reserve": "none",
    "others": "#D55E00",
}
_LEFT, _RIGHT, _BAR, _ROW, _GAP = 204, 660, 22, 30, 10
_STEPS = {0: "before", 1: "first step", 2: "a later step"}


def memory_stack(moments: Sequence[Any], origin: Origin, total: int | None = None, by: str = "") -> Figure:
    """One bar for each moment, with the highest point of its phase as a mark.

    A moment has `.name`, `.step` (0 before the first, 1 in it, 2 later), `.part(kind)` and `.peak` in bytes, None for
    what is not known. `total` is what the card has. `by` says who counted the activations.
    """
    (scale, unit), drawing, y, step = _scale(moments), Drawing(), 4.0, None
    for moment in moments:
        if moment.step != step:
            step = moment.step
            y += _GAP
            drawing.text(0, y + 15, _STEPS[step], bold=True)
        _bar(drawing, scale, moment, y)
        y += _ROW
    of = f", of {amount(total)} that the card has" if total else ""
    scale.draw_below(drawing, y + 2, f"memory, {unit}{of}")
    y = _key(drawing, moments, y + 52, by)
    return drawing.figure(y + 14, origin, _alt(moments), _text(moments, total, by))


def _scale(moments: Sequence[Any]) -> tuple[Scale, str]:
    """Where bytes lie, and the unit of their axis."""
    most = max((max(_sum(moment), moment.peak or 0) for moment in moments), default=0)
    return in_bytes(most, _LEFT, _RIGHT)


def _sum(moment: Any) -> int:
    return sum(moment.part(kind) or 0 for kind in KINDS)


def _bar(drawing: Drawing, scale: Scale, moment: Any, y: float) -> None:
    """One phase: its parts side by side, the peak in tensors as a mark, and all of it in words."""
    drawing.text(_LEFT - 8, y + 15, _short(moment.name), "end", SMALL)
    start = 0
    for kind in KINDS:
        size = moment.part(kind)
        if not size:
            continue
        left, right = scale.at(start), scale.at(start + size)
        dashed = "3 2" if kind == "reserve" else None
        drawing.shape(
            "rect",
            x=left,
            y=y,
            width=right - left,
            height=_BAR,
            fill=_COLORS[kind],
            stroke="currentColor",
            stroke_width=0.8 if right - left > 3 else 0,
            stroke_dasharray=dashed,
        )
        if right - left > wide(kind, SMALL) + 6:
            ink = None if kind == "reserve" else "#000"
            drawing.text((left + right) / 2, y + 15, kind, "middle", SMALL, fill=ink)
        start += size
    end = scale.at(max(start, _top(moment)))
    if moment.peak is not None:
        _peak(drawing, scale.at(_top(moment)), y)
    drawing.text(end + 8, y + 15, amount(start), size=SMALL)


def _top(moment: Any) -> int:
    """Where the peak in tensors stands in the bar, on top of what lies below tensors."""
    return 0 if moment.peak is None else moment.peak + (moment.part("context") or 0)


def _peak(drawing: Drawing, x: float, y: float) -> None:
    drawing.line(x, y - 3, x, y + _BAR + 3, width=2.5)


def _short(name: str) -> str:
    return name.replace("model on the device", "model loaded")


def _key(drawing: Drawing, moments: Sequence[Any], y: float, by: str) -> float:
    """What each color is, what the mark is, and what could not be known; returns the y below."""
    for kind, words in KINDS.items():
        known = [moment.part(kind) for moment in moments if moment.part(kind) is not None]
        if not any(known):
            continue
        dashed = "3 2" if kind == "reserve" else None
        drawing.shape("rect", x=_LEFT, y=y, width=14, height=11, fill=_COLORS[kind], stroke="currentColor",
                      stroke_width=0.8, stroke_dasharray=dashed)  # fmt: skip
        drawing.text(_LEFT + 22, y + 10, kind, size=SMALL, bold=True)
        drawing.text(_LEFT + 112, y + 10, words, size=SMALL, quiet=True)
        y += 17
    if any(moment.peak is not None for moment in moments):
        drawing.line(_LEFT + 7, y - 2, _LEFT + 7, y + 13, width=2.5)
        drawing.text(_LEFT + 22, y + 10, "peak", size=SMALL, bold=True)
        drawing.text(_LEFT + 112, y + 10, "the most in tensors during the phase", size=SMALL, quiet=True)
        y += 17
    for note in filter(None, (_unknown(moments), by)):
        for line in lines(note, int((WIDTH - _LEFT) / (SMALL * 0.6))):
            drawing.text(_LEFT, y + 10, line, size=SMALL, quiet=True)
            y += 15
    return y + 4


def _unknown(moments: Sequence[Any]) -> str:
    """The kinds that nothing could measure; "" for none."""
    missing = [kind for kind in KINDS if moments and all(moment.part(kind) is None for moment in moments)]
    return f"n/a: {', '.join(missing)}" if missing else ""


def _alt(moments: Sequence[Any]) -> str:
    said = []
    for moment in moments:
        parts = ", ".join(f"{kind} {amount(moment.part(kind))}" for kind in KINDS if moment.part(kind))
        said.append(f"{_STEPS[moment.step]}, {moment.name}: {parts or 'nothing'}")
    return "Memory at the end of each phase. " + "; ".join(said) + "."


def _text(moments: Sequence[Any], total: int | None, by: str) -> str:
    columns = ("step", "phase", *KINDS, "peak")
    rows = tuple(
        (_STEPS[m.step], _short(m.name), *(amount(m.part(kind)) for kind in KINDS), amount(m.peak)) for m in moments
    )
    shown = [n for n, name in enumerate(columns) if name not in KINDS or any(row[n] != "n/a" for row in rows)]
    table = Table(tuple(columns[n] for n in shown), tuple(tuple(row[n] for n in shown) for row in rows),
                  "Memory at the end of each phase")  # fmt: skip
    of = f"The card has {amount(total)}." if total else ""
    return "\n".join(filter(None, (str(table), _unknown(moments), by, of)))
