"""Diagrams that hold no number: what follows what. In the ink of the page, like the kit's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi, sin

from gpuworkshop.figures.svg import COLORS, WIDTH, Drawing
from gpuworkshop.report import Figure

_WORDS, _SMALL = 14.0, 12.0


def checks() -> Figure:
    """The five checks of verify, one after the other."""
    steps = (
        ("CUDA", "is it reachable?"),
        ("cards", "how many, which?"),
        ("variable", "what may CUDA see?"),
        ("NVML", "does the driver agree?"),
        ("round trip", "CPU, GPU, CPU"),
    )
    alt = "Five checks in a row: CUDA reachable, the cards, the variable, NVML agrees, a round trip of a tensor."
    return _row(steps, alt, ("loader", "loader", "loader", "loader", "compute"))


def own() -> Figure:
    """What happens with a script of the learner's own."""
    steps = (
        ("your command", "as it is"),
        ("hooks", "look from inside"),
        ("what limits", "and at which line"),
        ("one change", "in your file"),
        ("again", "old against new"),
    )
    alt = "Your command runs as it is, hooks inside; they find what limits, and the line; one change; old against new."
    return _row(steps, alt, ("other", "loader", "wait", "copy", "compute"))


def journey() -> Figure:
    """Where work on a job belongs."""
    steps = (
        ("no card", "write, debug"),
        ("devel", "verify, profile, fix"),
        ("batch", "run unattended"),
        ("report card", "read jobstats"),
    )
    alt = "Write and debug without a card, profile and fix in devel, run in batch, then read the report card."
    return _row(steps, alt, ("other", "copy", "compute", "loader"))


def rungs() -> Figure:
    """Four rungs of a ladder, from the whole machine to one kernel."""
    rows = (
        ("system", "nvidia-smi, nvitop, watch", "is it busy?"),
        ("framework", "PyTorch profiler, profile", "which operator, and why the gaps?"),
        ("timeline", "Nsight Systems", "which thread, which copy, in which order?"),
        ("kernel", "Nsight Compute", "memory or computing?"),
    )
    drawing, high = Drawing(), 62
    for place, (name, tools, asks) in enumerate(rows):
        left, y = 46.0 * place, 6.0 + place * (high + 10)
        _box(drawing, left, y, 150, high, "compute" if place < 2 else "loader")
        drawing.text(left + 75, y + high / 2 + 5, name, "middle", _WORDS + 2, bold=True)
        drawing.text(left + 168, y + high / 2 - 5, asks, size=_WORDS)
        drawing.text(left + 168, y + high / 2 + 17, tools, size=_SMALL, quiet=True)
    alt = "Four rungs: system, framework, timeline, kernel. " + " ".join(f"{n}: {a}" for n, _, a in rows)
    return drawing.figure(4 * (high + 10) + 6, None, alt, alt)


def loop() -> Figure:
    """The loop as a ring."""
    steps = (
        ("measure", "compute"),
        ("find the limit", "loader"),
        ("change ONE thing", "copy"),
        ("measure in turn", "compute"),
        ("did it move?", "wait"),
        ("write it down", "other"),
    )
    drawing, across, up = Drawing(), 272.0, 168.0
    middle = (WIDTH / 2, 202.0)
    at = [
        (middle[0] + across * sin(2 * pi * place / len(steps)), middle[1] - up * cos(2 * pi * place / len(steps)))
        for place in range(len(steps))
    ]
    for (x1, y1), (x2, y2) in zip(at, [*at[1:], at[0]], strict=True):
        _between(drawing, x1, y1, x2, y2)
    for (x, y), (words, color) in zip(at, steps, strict=True):
        _box(drawing, x - 92, y - 30, 184, 60, color)
        drawing.text(x, y + 6, words, "middle", _WORDS + 3, bold=True)
    drawing.text(*middle, "until nothing pays", "middle", _WORDS, quiet=True)
    alt = "A ring: " + ", then ".join(words for words, _ in steps) + ", and again, until nothing pays."
    return drawing.figure(404, None, alt, alt)


def ranks() -> Figure:
    """A step of two ranks: own batch, own gradient, one mean, same update."""
    drawing, rows, high = Drawing(), (20.0, 130.0), 84.0
    columns = ((96.0, "own batch", "loader"), (252.0, "own gradient", "compute"), (590.0, "same update", "compute"))
    for rank, y in enumerate(rows):
        drawing.text(0, y + high / 2 + 5, ("one card", "other card")[rank], size=_WORDS, bold=True)
        for x, words, color in columns:
            _box(drawing, x, y, 132, high, color)
            drawing.text(x + 66, y + high / 2 + 5, words, "middle", _WORDS)
        for left, right in ((228, 252), (384, 422), (554, 590)):
            _arrow(drawing, left + 3, y + high / 2, right - 3, y + high / 2)
    _box(drawing, 422, rows[0], 132, rows[1] - rows[0] + high, "communication")
    drawing.text(488, 112, "all-reduce", "middle", _WORDS + 1, bold=True)
    drawing.text(488, 134, "the mean", "middle", _WORDS)
    alt = "Two cards, each with its own batch and gradient. All-reduce gives both the mean; both make the same update."
    return drawing.figure(226, None, alt, alt)


def chapters() -> Figure:
    """The eight chapters and the question that each answers."""
    return _eight([(name, asks) for name, asks, _ in CHAPTERS], "Eight chapters")


def instruments() -> Figure:
    """The eight questions and the command that answers each."""
    return _eight([(asks, f"gpuworkshop {verb}") for _, asks, verb in CHAPTERS], "Eight questions and their commands")


CHAPTERS = (
    ("verify", "Do I have the GPU?", "verify"),
    ("watch", "Is it busy?", "watch -- COMMAND"),
    ("profile", "Where does the time go?", "profile"),
    ("starve", "Does it wait for data?", "starve"),
    ("memory, precision", "Does it use what it has?", "memory, precision"),
    ("DDP", "Do more cards pay?", "scale"),
    ("the loop", "What next, and did it help?", "loop"),
    ("your turn", "And my own script?", "loop -- COMMAND"),
)
"""Name, question and verb of each chapter."""


def _eight(rows: Sequence[tuple[str, str]], what: str) -> Figure:
    """Eight boxes in two columns, each with a line in bold and one below it."""
    drawing, high = Drawing(), 82.0
    for place, (first, second) in enumerate(rows):
        x, y = 376.0 * (place // 4), 4 + (high + 10) * (place % 4)
        _box(drawing, x, y, 364, high, "compute" if place in (0, 6, 7) else "loader")
        drawing.text(x + 18, y + 36, first, size=_WORDS + 3, bold=True)
        drawing.text(x + 18, y + 62, second, size=_WORDS + 1)
    alt = f"{what}: " + "; ".join(f"{first}, {second}" for first, second in rows)
    return drawing.figure(4 * (high + 10), None, alt, alt)


STATIONS = ("verify", "watch", "profile", "starve", "memory", "DDP", "the loop", "your turn")


def at(station: str) -> Figure:
    """The way through the chapters, and where we are on it. KeyError for a station that is none."""
    if station not in STATIONS:
        raise KeyError(f"no chapter is called {station!r}: there are {', '.join(STATIONS)}")
    drawing, gap = Drawing(), 8.0
    wide = (WIDTH - gap * (len(STATIONS) - 1)) / len(STATIONS)
    for place, name in enumerate(STATIONS):
        x, here = place * (wide + gap), name == station
        drawing.shape("rect", x=x, y=2, width=wide, height=8, rx=2, fill=COLORS["compute" if here else "other"])
        drawing.text(x, 30, name, size=_SMALL, bold=here, quiet=not here)
    return drawing.figure(38, None, f"The chapters in their order; this is {station}.", station)


def _row(steps: Sequence[tuple[str, str]], alt: str, colors: Sequence[str]) -> Figure:
    """Boxes from left to right with arrows between them; what they ask stands below."""
    drawing, gap = Drawing(), 26.0
    wide = (WIDTH - gap * (len(steps) - 1)) / len(steps)
    for place, ((name, asks), color) in enumerate(zip(steps, colors, strict=True)):
        x = place * (wide + gap)
        _box(drawing, x, 6, wide, 84, color)
        drawing.text(x + wide / 2, 53, name, "middle", _WORDS, bold=True)
        for line, words in enumerate(_two(asks)):
            drawing.text(x + wide / 2, 114 + 19 * line, words, "middle", _SMALL + 1)
        if place:
            _arrow(drawing, x - gap + 2, 48, x - 2, 48)
    return drawing.figure(142, None, alt, alt)


def _two(words: str) -> list[str]:
    """Words in one line, or in two where they are long."""
    if len(words) <= 15:
        return [words]
    cut = min((place for place, one in enumerate(words) if one == " "), key=lambda at: abs(at - len(words) / 2))
    return [words[:cut], words[cut + 1 :]]


def _box(drawing: Drawing, x: float, y: float, wide: float, high: float, color: str) -> None:
    drawing.shape(
        "rect", x=x, y=y, width=wide, height=high, rx=4, fill=COLORS[color], fill_opacity=0.24,
        stroke=COLORS[color], stroke_width=2,
    )  # fmt: skip


def _between(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    """An arrow in the free middle of the way from one box to another."""
    start, end = (0.42, 0.58) if abs(y2 - y1) < abs(x2 - x1) else (0.3, 0.7)
    dx, dy = x2 - x1, y2 - y1
    _arrow(drawing, x1 + start * dx, y1 + start * dy, x1 + end * dx, y1 + end * dy)


def _arrow(drawing: Drawing, x1: float, y1: float, x2: float, y2: float) -> None:
    length = max(1e-6, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    drawing.line(x1, y1, x2, y2, width=2)
    for side in (1, -1):
        drawing.line(x2 - 8 * ux + side * 5 * uy, y2 - 8 * uy - side * 5 * ux, x2, y2, width=2)


DRAWINGS: dict[str, Callable[[], Figure]] = {
    one.__name__: one for one in (checks, own, journey, rungs, loop, ranks, chapters, instruments)
}
"""Every diagram by its name."""
