"""What a step computes: counted as by hand, once, whatever recomputes or compiles; a peak only where there is one."""

import pytest
import torch
from standins import fake_cuda
from standins import pynvml as fake_nvml

from gpuworkshop.instruments import flops
from gpuworkshop.instruments.flops import Flops, Peak
from gpuworkshop.machine import specs
from gpuworkshop.timing import Clock, Rate
from gpuworkshop.workloads import tf32
from gpuworkshop.workloads.config import PRESETS, Job
from gpuworkshop.workloads.train import build

GIB = 2**30
GPT_TINY = PRESETS["gpt-tiny"]
START, SHAPE = GPT_TINY.start, GPT_TINY.text
TOKENS = START.batch_size * SHAPE.context


def counted(**changes) -> Flops:
    return flops.count(build(START.with_(**changes), Job("gpt-tiny"), "cpu"))


def by_hand() -> tuple[int, int]:
    """Of the whole step, and of a second forward pass through the blocks, which ends before each one's last layer.

    Weights: two operations forward and four backward a token. Attention: two products forward, five backward. Of 12
    squares of the width in a block, the last layer has 4; its result is not needed again.
    """
    weights, needed = (SHAPE.blocks * squares * SHAPE.width**2 for squares in (12, 8))
    attention = 2 * TOKENS * SHAPE.context * SHAPE.width * SHAPE.blocks
    whole = 6 * TOKENS * (weights + SHAPE.width * SHAPE.vocabulary) + 7 * attention
    return whole, 2 * TOKENS * needed + 2 * attention


def test_a_gpt_counts_what_its_sizes_say() -> None:
    found = counted()
    assert (found.total, found.recomputed) == (by_hand()[0], 0)
    assert found.samples == START.batch_size and found.per_sample == found.total / START.batch_size
    assert sum(found.by_operator.values()) == found.total
    assert found.whole and found.uncounted == ()


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16"}, {"compiled": True}], ids=str)
def test_what_is_computed_again_is_counted_apart(changes) -> None:
    found = counted(checkpointing=True, **changes)
    assert (found.total, found.recomputed) == by_hand()
    assert 0.2 < found.again < 0.34


def test_the_formats_are_those_of_the_results() -> None:
    assert counted().share("float32") == 1.0
    assert counted(precision="bf16").share("bfloat16") == 1.0


def test_an_autocast_of_another_device_does_nothing_and_shows() -> None:
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    with pytest.warns(UserWarning):  # PyTorch says that there is no such device

        def step():
            with torch.autocast("cuda", torch.bfloat16):
                layer(x)

        found = flops.count_step(step, 4, "cpu")
    assert found.share("bfloat16") == 0 and found.total == 2 * 4 * 8 * 8


@torch.library.custom_op("gpuworkshop_tests::hidden_product", mutates_args=())
def hidden_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.cumsum(0) @ b


@pytest.mark.parametrize(
    ("operator", "name"),
    [(lambda a: hidden_product(a, a), "gpuworkshop_tests::hidden_product"), (lambda a: torch.mv(a, a[0]), "aten::mv")],
)
def test_what_cannot_be_counted_is_named_and_no_share_of_a_peak_is_told(operator, name) -> None:
    a, small = torch.randn(300, 300), torch.randn(2, 2)
    found = flops.count_step(lambda: (operator(a), small @ small), 1, "cpu")
    assert found.uncounted == (name,) and found.uncounted_share > flops.UNCOUNTED
    says = flops.achieved(found, Rate(10, 9, 11, 8), peak=Peak(1e12, "a card"))
    assert says.of_peak is None and name in says.why and says.rate is not None


@pytest.mark.parametrize("name", ["aten::add", "aten::native_layer_norm", "profiler::_record", "aten::_foreach_mul"])
def test_what_does_no_products_hides_none(name) -> None:
    from gpuworkshop.instruments.flops_counter import multiplies

    assert not multiplies(name)


def test_a_step_without_products_has_no_speed() -> None:
    x = torch.ones(8)
    found = flops.count_step(lambda: x.add_(1), 8, "cpu")
    assert not found.whole
    assert flops.achieved(found, Rate(10, 9, 11, 8)).rate is None


def test_shares_are_told_of_what_was_counted() -> None:
    says = flops.achieved(Flops(2_000, 2), Rate(50, 40, 60, 8), Rate(1e6, 1e6, 1e6, 8), Peak(2e5, "a card"))
    assert (says.rate.value, says.rate.low, says.rate.unit) == (50_000, 40_000, "FLOP/s")
    assert (says.of_product, says.of_peak) == (0.05, 0.25)
    edge = Flops(2_000, 2, uncounted=("x",), uncounted_share=flops.UNCOUNTED)
    assert flops.achieved(edge, Rate(50, 40, 60, 8), peak=Peak(2e5, "a card")).of_peak == 0.25


def test_a_speed_is_written_with_the_prefix_that_suits_it() -> None:
    assert flops.speed(Rate(7.79e14, 7.7e14, 7.9e14, 8)).startswith("779 TFLOP/s")
    assert flops.speed(Rate(3.2e9, 3.1e9, 3.3e9, 8)).startswith("3.20 GFLOP/s")
    assert flops.speed(None) == "n/a"


@pytest.mark.parametrize("format", ["fp32", "bf16"])
def test_the_measured_product_does_what_it_counts(format, monkeypatch) -> None:
    monkeypatch.setitem(flops.SIDE, "cpu", 64)
    product = flops.Product("cpu", format)
    seen = flops.count_step(lambda: product.step(Clock()), 1, "cpu")
    assert seen.total == product.step(Clock()) == 2 * 64**3
    assert seen.share({"fp32": "float32", "bf16": "bfloat16"}[format]) == 1.0
    rate = flops.matrix_product("cpu", format, seconds=0.05)
    assert rate.low < rate.value < rate.high and rate.unit == "FLOP/s"


def newer() -> list[str]:
    return [backend.fp32_precision for backend in (*tf32.CARD, *tf32.CPU)]


def older() -> list:
    """What the older way says; an error's type where PyTorch refuses to say."""
    asked = []
    for ask in (lambda: torch.backends.cuda.matmul.allow_tf32, lambda: torch.backends.cudnn.allow_tf32):
        try:
            asked.append(ask())
        except RuntimeError as error:
            asked.append(type(error))
    return asked


def touched_by_the_older_way() -> None:
    torch.set_float32_matmul_precision("medium")


def touched_by_the_newer_way() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


def touched_for_everything() -> None:
    torch.backends.fp32_precision = "tf32"


@pytest.fixture
def switches():
    """All switches as PyTorch starts, and so again afterwards."""
    torch.backends.fp32_precision = "none"
    with tf32.kept():
        yield
    torch.backends.fp32_precision = "none"


TOUCHED = [lambda: None, touched_by_the_older_way, touched_by_the_newer_way, touched_for_everything]


@pytest.mark.parametrize("touched", TOUCHED)
def test_the_switches_are_put_back_whatever_was_set_and_whatever_happens(switches, touched) -> None:
    touched()
    before = newer(), older()
    with pytest.raises(RuntimeError, match="in the middle"), tf32.kept():
        tf32.allow(True)
        raise RuntimeError("in the middle")
    assert (newer(), older()) == before


@pytest.mark.parametrize("touched", TOUCHED)
@pytest.mark.parametrize(("allowed", "mode"), [(True, "tf32"), (False, "ieee")])
def test_both_ways_to_ask_agree_so_that_a_model_can_be_compiled(switches, touched, allowed, mode) -> None:
    """pytorch/pytorch#166387: after the newer way alone, compiling refuses to work on a card."""
    touched()
    tf32.allow(allowed)
    assert newer() == [mode, mode, mode, "ieee"]
    assert older() == [allowed, allowed]
    assert torch.get_float32_matmul_precision() == {True: "high", False: "highest"}[allowed]


@pytest.fixture
def here(monkeypatch):
    """``here("h200-sxm")``: this machine has such a card, as it reports itself; fields of the device may differ."""

    def install(spec_id: str, **changes):
        spec = next(one for one in specs.known() if one.id == spec_id)
        gib = sum(spec.memory) / 2
        name, uuid = f"NVIDIA {spec.names[0]}", "7c1d5a20-0000-4000-8000-000000000001"
        memory = {"total": int(gib * GIB), "used": 0, "free": int(gib * GIB)}
        driver = {"name": name, "uuid": f"GPU-{uuid}", "bus_id": "00000000:1B:00.0", "memory": memory}
        device = {
            "name": name, "uuid": uuid, "total": int(gib * GIB), "sm": spec.multiprocessors,
            "bus_id": driver["bus_id"],
            "clock_khz": int(spec.clock * 1000), "memory_clock_khz": int(sum(spec.memory_clock) / 2 * 1000),
            "bus_bits": spec.bus,
        }  # fmt: skip
        fake_nvml.install({"devices": [driver | {"power_default": int(spec.power * 1000)}]}, monkeypatch)
        fake_cuda.install({"devices": [device | changes]}, monkeypatch)
        return spec

    return install


def test_the_peak_is_that_of_the_card_and_the_format(here) -> None:
    spec = here("h200-sxm")
    for format in ("fp32", "tf32", "bf16", "fp16"):
        assert flops.peak("cuda:0", format) == Peak(getattr(spec.peaks, format) * 1e12, spec.title)


def test_a_card_that_contradicts_its_entry_or_has_no_such_unit_has_no_peak(here) -> None:
    here("h200-sxm", sm=66)
    assert flops.peak("cuda:0", "bf16").value is None
    here("t4")
    assert flops.peak("cuda:0", "bf16") == Peak(None, "T4 has no BF16 units")
    assert flops.peak("cuda:0", "fp16").value == 65e12


def test_a_cpu_has_no_peak() -> None:
    assert flops.peak("cpu", "bf16").value is None
