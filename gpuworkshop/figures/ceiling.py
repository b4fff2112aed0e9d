"""The batch ceiling: what each tried size took, the straight line through it, and the room there was."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuworkshop.figures.axis import Scale, axis_for, in_bytes
from gpuworkshop.figures.svg import COLORS, SMALL, Drawing
from gpuworkshop.numbers import amount
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 600, 44, 290


class _Plot(msgspec.Struct, frozen=True):
    """Where sizes and bytes lie, in pixels."""

    batches: Scale
    sizes: Scale
    unit: str

    def x(self, batch: float) -> float:
        return self.batches.at(batch)

    def y(self, size: float) -> float:
        return self.sizes.at(size)


def batch_ceiling(
    probes: Sequence[Any],
    ceiling: int | None,
    room: int | None,
    line: Any,
    origin: Origin,
    counts: str = "most in tensors",
) -> Figure:
    """Dots for the sizes that fitted, crosses at the top for those that did not.

    `probes` have `.batch`, `.fits` and `.allocated` (bytes or None); `line` has `.base`, `.slope` and `.at(batch)` in
    bytes, or is None. `room` are the bytes that there were, and `counts` says what a probe's bytes are.
    """
    plot, drawing = _plot(probes, room), Drawing()
    _axes(drawing, plot, counts)
    _room(drawing, plot, room)
    _line(drawing, plot, probes, room, line)
    if ceiling:
        drawing.line(plot.x(ceiling), _TOP - 6, plot.x(ceiling), _BOTTOM, COLORS["compute"], 2)
        drawing.text(plot.x(ceiling), _TOP - 12, f"ceiling: {ceiling:,}", "middle", SMALL, bold=True)
    for probe in probes:
        if probe.fits and probe.allocated is not None:
            drawing.dot(plot.x(probe.batch), plot.y(probe.allocated), COLORS["compute"])
        elif not probe.fits:
            drawing.cross(plot.x(probe.batch), plot.y(room) if room else _TOP)
    return drawing.figure(_BOTTOM + 62, origin, _alt(probes, ceiling), _text(probes, ceiling, room, counts))


def _plot(probes: Sequence[Any], room: int | None) -> _Plot:
    sizes = [probe.allocated for probe in probes if probe.fits and probe.allocated is not None]
    most = max([*sizes, room or 0])
    batches = axis_for([0.0, *(float(probe.batch) for probe in probes)])
    return _Plot(Scale(batches, _LEFT, _RIGHT), *in_bytes(most, _BOTTOM, _TOP))


def _axes(drawing: Drawing, plot: _Plot, counts: str) -> None:
    drawing.text(0, 14, f"{counts}, {plot.unit}", bold=True)
    for y, said in plot.sizes.ticks():
        drawing.line(_LEFT, y, _RIGHT, y, opacity=0.14)
        drawing.text(_LEFT - 8, y + 4, said, "end", SMALL, quiet=True)
    plot.batches.draw_below(drawing, _BOTTOM, "batch size, samples", gap=38)


def _room(drawing: Drawing, plot: _Plot, room: int | None) -> None:
    if room is None:
        drawing.text(_RIGHT + 8, _TOP + 4, "room: n/a", quiet=True)
        return
    drawing.line(_LEFT, plot.y(room), _RIGHT, plot.y(room), COLORS["wait"], 2)
    drawing.text(_RIGHT + 8, plot.y(room) + 4, "room", bold=True)
    drawing.text(_RIGHT + 8, plot.y(room) + 19, amount(room), size=SMALL)


def _line(drawing: Drawing, plot: _Plot, probes: Sequence[Any], room: int | None, line: Any) -> None:
    """The straight line, from no samples to where the room ends or the largest size stands."""
    if line is None or line.slope <= 0:
        return
    most = max(probe.batch for probe in probes)
    stop = most if room is None else min(most, (room - line.base) / line.slope)
    start = max(0.0, -line.base / line.slope)
    if stop > start:
        ends = plot.x(start), plot.y(line.at(start)), plot.x(stop), plot.y(line.at(stop))
        drawing.line(*ends, width=1.5, dash="6 4", opacity=0.7)


def _alt(probes: Sequence[Any], ceiling: int | None) -> str:
    said = ", ".join(f"{probe.batch} {'fits' if probe.fits else 'does not fit'}" for probe in probes)
    return f"Memory over the batch size: {said or 'n/a'}. Ceiling {ceiling or 'n/a'}."


def _text(probes: Sequence[Any], ceiling: int | None, room: int | None, counts: str) -> str:
    rows = tuple((f"{p.batch:,}", "fits" if p.fits else "does not", amount(p.allocated)) for p in probes)
    table = Table(("batch", "three steps", counts), rows, "Sizes in the order they were tried")
    return f"{table}\nRoom: {amount(room)}. Ceiling: {f'{ceiling:,}' if ceiling else 'n/a'}."
