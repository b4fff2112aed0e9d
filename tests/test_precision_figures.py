"""The bits of the formats against PyTorch's own facts, and the bars of the rates with their text versions."""

import re

import pytest
import torch

from gpuworkshop.figures.bits import FORMATS, number_formats
from gpuworkshop.figures.rates import RateBar, rate_bars
from gpuworkshop.report import Origin
from gpuworkshop.timing import Rate

HERE = Origin("measured here", "a card", "2026-12-01", "0.1.0")
KINDS = {
    "FP32": torch.float32,
    "BF16": torch.bfloat16,
    "FP16": torch.float16,
    "FP8 E4M3": torch.float8_e4m3fn,
    "FP8 E5M2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", KINDS)
def test_range_and_step_follow_from_the_bits_as_pytorch_has_them(name) -> None:
    (one,) = (found for found in FORMATS if found.name == name)
    facts = torch.finfo(KINDS[name])
    assert (one.largest, one.smallest, one.step, one.bits) == (facts.max, facts.tiny, facts.eps, facts.bits)


def test_tf32_has_the_range_of_fp32_and_the_step_of_fp16() -> None:
    by_name = {one.name: one for one in FORMATS}
    assert (by_name["TF32"].exponent, by_name["TF32"].bits) == (8, 19)
    assert by_name["TF32"].smallest == by_name["FP32"].smallest == by_name["BF16"].smallest
    assert by_name["TF32"].step == by_name["FP16"].step


def cells(svg: str) -> int:
    return len(re.findall(r"<rect", svg))


def test_every_bit_is_drawn_and_written() -> None:
    figure = number_formats()
    assert cells(figure.svg) == sum(one.bits for one in FORMATS) + 3  # and the legend's
    for one in FORMATS:
        assert one.name in figure.svg and one.name in figure.text and one.name in figure.alt
        assert f"1/{2**one.mantissa:,}" in figure.text
    assert "65,504" in figure.text and "3.4e+38" in figure.text and "448" in figure.text


def places(svg: str) -> list[float]:
    return [float(wide) for wide in re.findall(r'<rect x="170"[^>]*width="([\d.]+)"', svg)]


def test_bars_start_at_zero_and_are_as_long_as_their_rates() -> None:
    bars = [RateBar("FP32", Rate(10, 9, 11, 8)), RateBar("BF16", Rate(60, 55, 65, 8), "6.0x FP32")]
    figure = rate_bars(bars, "sequences/s", HERE)
    short, long = places(figure.svg)
    assert long / short == pytest.approx(6, rel=0.02), "also where the rates are far apart"
    assert "6.0x FP32" in figure.svg and "60.0 (55.0 to 65.0)" in figure.text
    assert "measured here" in figure.svg


@pytest.mark.parametrize("rate", [None, Rate(float("nan"), 1, 2, 8)])
def test_a_bar_that_is_not_known_reads_so_and_is_none(rate) -> None:
    figure = rate_bars([RateBar("TF32", rate, "<no> TF32 units"), RateBar("FP32", Rate(5, 4, 6, 8))], "images/s", HERE)
    assert len(places(figure.svg)) == 1
    assert "n/a" in figure.svg and "n/a" in figure.text and "<no>" not in figure.svg
    assert rate_bars([], "images/s", HERE).text
