"""The bits of the number formats: sign, exponent, mantissa, and the range and the step that follow from them."""

from collections.abc import Sequence

import msgspec

from gpuworkshop.figures.svg import QUIET, SMALL, Drawing, wide
from gpuworkshop.numbers import number
from gpuworkshop.report import Figure, Origin, Table

_LEFT, _CELL, _HIGH, _ROW = 84, 11, 22, 62
_FACTS = _LEFT + 32 * _CELL + 20


class NumberFormat(msgspec.Struct, frozen=True):
    """A floating-point format with one sign bit. Its range and step are computed from its bits."""

    name: str
    exponent: int
    mantissa: int
    has_infinity: bool = True
    """Whether the largest exponent is kept for infinity, as IEEE 754 does. E4M3 uses it for numbers."""

    @property
    def bits(self) -> int:
        """All bits that count; TF32 lies in 32 and uses 19 of them."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """What is taken off the exponent's bits."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def step(self) -> float:
        """From 1 to the next larger number; the relative error of a rounding is at most half of it."""
        return 2.0**-self.mantissa

    @property
    def largest(self) -> float:
        """The largest number."""
        if self.has_infinity:
            return (2 - self.step) * 2.0**self.bias
        return (2 - 2 * self.step) * 2.0 ** (self.bias + 1)  # all ones is not a number

    @property
    def smallest(self) -> float:
        """The smallest positive number with all of its digits; below it they are lost one by one."""
        return 2.0 ** (1 - self.bias)

    @property
    def digits(self) -> int:
        """Decimal digits that surely survive."""
        return len(str(2**self.mantissa)) - 1


FORMATS = (
    NumberFormat("FP32", 8, 23),
    NumberFormat("TF32", 8, 10),
    NumberFormat("BF16", 8, 7),
    NumberFormat("FP16", 5, 10),
    NumberFormat("FP8 E4M3", 4, 3, has_infinity=False),
    NumberFormat("FP8 E5M2", 5, 2),
)
DEFINED = Origin("claimed by", "the formats' definitions: IEEE 754, NVIDIA (TF32), Google Brain (BF16), OCP (FP8)")


def number_formats(formats: Sequence[NumberFormat] = FORMATS, origin: Origin = DEFINED) -> Figure:
    """One row of bits for each format, with what it can hold: exponent bits make the range, mantissa bits the step."""
    drawing = Drawing()
    _legend(drawing)
    for place, one in enumerate(formats):
        _row(drawing, one, 40.0 + _ROW * place)
    return drawing.figure(40.0 + _ROW * len(formats) + 22, origin, _alt(formats), _text(formats))


def _legend(drawing: Drawing) -> None:
    x = float(_LEFT)
    for words, opacity in (("sign", 0.0), ("exponent: the range", QUIET), ("mantissa: the step", 0.22)):
        _cell(drawing, x, 4, opacity, 14)
        drawing.text(x + _CELL + 6, 15, words, size=SMALL)
        x += _CELL + 30 + wide(words, SMALL)


def _row(drawing: Drawing, one: NumberFormat, y: float) -> None:
    drawing.text(_LEFT - 12, y + 15, one.name, "end", bold=True)
    opacities = [0.0] + [QUIET] * one.exponent + [0.22] * one.mantissa
    for place, opacity in enumerate(opacities):
        _cell(drawing, _LEFT + _CELL * place, y, opacity)
    under = y + _HIGH + 13
    drawing.text(_LEFT + _CELL * (1 + one.exponent / 2), under, str(one.exponent), "middle", SMALL)
    drawing.text(_LEFT + _CELL * (1 + one.exponent + one.mantissa / 2), under, str(one.mantissa), "middle", SMALL)
    drawing.text(_FACTS, y + 11, f"{_written(one.smallest)} to {_written(one.largest)}")
    drawing.text(_FACTS, y + 27, f"after 1 comes 1 + 1/{2**one.mantissa:,}", size=SMALL, quiet=True)


def _cell(drawing: Drawing, x: float, y: float, opacity: float, high: float = _HIGH) -> None:
    drawing.shape(
        "rect", x=x, y=y, width=_CELL - 1, height=high, fill="currentColor" if opacity else "none",
        fill_opacity=opacity or None, stroke="currentColor", stroke_opacity=QUIET,
    )  # fmt: skip


def _written(value: float) -> str:
    """A number from a very wide range: 65,504, 0.0156, 1.18e-38."""
    return number(value) if 1e-3 <= value < 1e6 else f"{value:.3g}"


def _alt(formats: Sequence[NumberFormat]) -> str:
    said = (
        f"{f.name} {f.exponent} exponent and {f.mantissa} mantissa bits, up to {_written(f.largest)}" for f in formats
    )
    return f"The bits of the number formats, beside one sign bit each. {'; '.join(said)}."


def _text(formats: Sequence[NumberFormat]) -> str:
    columns = ("format", "exponent", "mantissa", "smallest", "largest", "step at 1")
    rows = tuple(
        (f.name, str(f.exponent), str(f.mantissa), _written(f.smallest), _written(f.largest), f"1/{2**f.mantissa:,}")
        for f in formats
    )
    return str(Table(columns, rows, "Bits of the number formats, and one sign bit each"))
