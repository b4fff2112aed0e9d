"""Numbers as the pictures write them: three figures that matter, "n/a" for what is not known."""

import math
from collections.abc import Sequence
from typing import Any


def finite(value: float | None) -> bool:
    """Is `value` a number that can be drawn? None, NaN and infinity are not."""
    return value is not None and math.isfinite(value)


def known(rate: Any) -> bool:
    """Does `rate` (a `timing.Rate` or None) hold a value that can be drawn?"""
    return rate is not None and finite(rate.value)


def number(value: float | None) -> str:
    """`value` with three significant figures and all its whole digits; "n/a" if it is not known."""
    if not finite(value):
        return "n/a"
    if value == 0:
        return "0"
    if abs(value) >= 1e9 or abs(value) < 1e-9:
        return f"{value:.3g}"
    magnitude = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{max(0, 2 - magnitude)}f}"


def with_unit(rate: Any) -> str:
    """A rate with its unit and its interval: "182 images/s (178 to 186)", "83.0% (80.0 to 86.0)"."""
    return f"{in_unit(number(rate.value), rate.unit)} {interval(rate.low, rate.high)}" if known(rate) else "n/a"


def in_unit(text: str, unit: str) -> str:
    """A written number with its unit: "91%", "4,328 images/s"."""
    return f"{text}%" if unit == "%" else f"{text} {unit}"


def percent(share: float | None) -> str:
    """A share in percent, with two figures where it is small: "100%", "0.53%", "<0.1%", "n/a"."""
    if not finite(share):
        return "n/a"
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{float(f'{100 * share:.2g}'):g}%"


def gib(size: int | None) -> str:
    """Bytes as GiB with four figures, as MiB below 1 GiB: "139.8 GiB", "512 MiB"; "n/a" if not known."""
    if size is None:
        return "n/a"
    return f"{size / 2**30:.4g} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def amount(size: int | None) -> str:
    """Bytes with three figures in the unit that suits them: "11.8 GiB", "640 KiB", "12 bytes"; "n/a" if not known."""
    if size is None:
        return "n/a"
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{number(size / scale)} {unit}"
    return f"{size} bytes"


def counted(count: int, thing: str) -> str:
    """A number of things: "1 worker", "2 workers"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def several(names: Sequence[str], most: int = 8, longest: int = 80) -> str:
    """Names in a row, the first few of many and the beginning of a long one: "a, b and 99998 more"."""
    told = ", ".join(shortened(name, longest) for name in names[:most])
    return told if len(names) <= most else f"{told} and {len(names) - most} more"


def shortened(text: str, longest: int = 80) -> str:
    """A text of at most so many characters, its end cut off where it has more."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def times(ratio: float | None, low: float | None, high: float | None) -> str:
    """A ratio with its interval: "1.73x (1.60 to 1.90)"; "ratio n/a" if not known."""
    if not finite(ratio):
        return "ratio n/a"
    if not (finite(low) and finite(high)):
        return f"{ratio:.2f}x {interval(low, high)}"
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})"


def tick(value: float) -> str:
    """The label of an axis tick, without trailing zeros."""
    return f"{value:,.10g}"


def interval(low: float | None, high: float | None) -> str:
    """ "(178 to 186)", or "(interval n/a)" if an end is not known."""
    if not (finite(low) and finite(high)):
        return "(interval n/a)"
    return f"({number(low)} to {number(high)})"


def spread(rate: Any) -> str:
    """A rate with its interval and without its unit: "182 (178 to 186)"; "n/a" if not known."""
    return f"{number(rate.value)} {interval(rate.low, rate.high)}" if known(rate) else "n/a"


def ends(rate: Any) -> list[float]:
    """What an axis must hold to show `rate`: its value and the ends of its interval."""
    return [v for v in (rate.value, rate.low, rate.high) if finite(v)] if known(rate) else []
