"""Number formats compared: what each arm really does, what a device without units changes, and what is said of it."""

import msgspec
import pytest
import torch
from precision_results import made, one
from standins import fake_cuda
from standins import pynvml as fake_nvml

from gpuworkshop.child import Tell
from gpuworkshop.instruments import flops, precision, precision_measured, precision_memory
from gpuworkshop.instruments.flops import Achieved
from gpuworkshop.instruments.precision_arms import of_training
from gpuworkshop.instruments.precision_findings import findings, report
from gpuworkshop.instruments.precision_result import (
    ARMS,
    PAIRS,
    ArmResult,
    PrecisionResult,
    Support,
    arm,
)
from gpuworkshop.instruments.precision_support import of_card, of_cpu, support
from gpuworkshop.timing import Plan, Rate
from gpuworkshop.workloads import config as configs
from gpuworkshop.workloads import tf32
from gpuworkshop.workloads.config import PRESETS, Job

QUICK = Plan(block_seconds=0.02, budget_seconds=0.2)
START = PRESETS["gpt-tiny"].start.with_(reads_loss="rarely")
GPT_JOB = Job("gpt-tiny")


@pytest.fixture(autouse=True)
def short_products(monkeypatch):
    monkeypatch.setattr(precision_measured, "PRODUCT_SECONDS", 0.05)


# ---------------------------------------------------------------- what a device has

SAYS_YES = Support("Tesla T4", True, False, False, True, (7, 5), "compute capability 7.5", pytorch_says=True)


def on_a_card(monkeypatch, name: str, major: int, minor: int, **node) -> Support:
    memory = {"total": 2**34, "used": 0, "free": 2**34}
    where = {"name": name, "bus_id": "00000000:1B:00.0"}
    fake_nvml.install({"devices": [where | {"uuid": "GPU-1a", "memory": memory}]}, monkeypatch)
    fake_cuda.install({"devices": [where | {"uuid": "1a", "major": major, "minor": minor}]} | node, monkeypatch)
    return support("cuda:0")


def test_m08_bf16_on_a_t4_is_emulated_whatever_pytorch_says(monkeypatch) -> None:
    """MakazhanAlpamys/Soup#387, pytorch/pytorch#124996, pytorch/pytorch#148322, openxla/xla#12429."""
    can = on_a_card(monkeypatch, "Tesla T4", 7, 5)
    assert torch.cuda.is_bf16_supported() is True, "as PyTorch does, because it counts emulation"
    assert (can.bf16, can.tf32, can.fp16, can.pytorch_says) == (False, False, True, True)
    assert precision.default_arms(can) == (*precision.USUAL, "fp16")
    said = [found for found in findings(made(support=can)) if found.level == "warning"]
    assert len(said) == 1
    assert "emulated" in said[0].title and "FP16 with a scaler" in said[0].title
    assert "7.5" in said[0].evidence and "0.80x" in said[0].evidence and "GradScaler" in said[0].fix


def test_m08_a_v100_too_and_an_older_card_is_not_sent_to_fp16() -> None:
    assert of_card("V100", (7, 0)).bf16 is False
    old = of_card("Tesla P100", (6, 0))
    assert (old.bf16, old.fp16) == (False, False)
    assert precision.default_arms(old) == precision.USUAL
    said = next(found for found in findings(made(support=old)) if found.level == "warning")
    assert "FP32" in said.title and not said.fix


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_newer_cards_have_all_of_them(capability) -> None:
    can = of_card("card", capability)
    assert can.bf16 and can.tf32 and can.fp16
    assert precision.default_arms(can) == precision.USUAL


def test_a_card_that_does_not_say_is_unknown(monkeypatch) -> None:
    assert of_card("card", None).bf16 is None
    failing = {"properties_error": {"type": "RuntimeError", "text": "lost"}}
    assert on_a_card(monkeypatch, "NVIDIA H200", 9, 0, **failing).bf16 is None
    assert [found.level for found in findings(made(support=of_card("card", None)))].count("unknown") == 1


@pytest.mark.parametrize(
    ("text", "bf16"),
    [
        ("flags\t: fpu avx512f avx512_bf16 amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t: fpu avx2\n", False),
        ("processor : 0\n", None),
    ],
)
def test_a_cpu_tells_in_its_flags(tmp_path, text, bf16) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    can = of_cpu(file)
    assert (can.card, can.bf16, can.tf32) == (False, bf16, False)
    assert of_cpu(tmp_path / "none").bf16 is None
    assert any("This is a CPU" in found.title for found in findings(made(support=can)))


# ---------------------------------------------------------------- the arms, for real


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))


BATCHES = [(torch.randn(16, 32), torch.randint(0, 8, (16,))) for _ in range(3)]


def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def checkpointed(model):
    from torch.utils.checkpoint import checkpoint

    inner = torch.nn.Sequential(*model)

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    return Checkpointed()


@pytest.fixture(scope="module")
def own() -> tuple[PrecisionResult, torch.nn.Module, dict]:
    """A small model of somebody's, measured in all formats that a CPU has."""
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    arms = ("fp32", "tf32", "bf16", "bf16-checkpointing", "fp16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_measured, "PRODUCT_SECONDS", 0.05)
        torch.set_float32_matmul_precision("medium")
        result = precision.measure(model, loss, BATCHES, checkpointed=checkpointed, arms=arms, device="cpu", plan=QUICK)
        assert torch.get_float32_matmul_precision() == "medium", "the switches are put back"
        torch.set_float32_matmul_precision("highest")
    return result, model, before


def test_each_arm_multiplies_in_its_format(own) -> None:
    result = own[0]
    lower = {one.arm.id: one.flops.by_format for one in result.arms if one.rate}
    assert set(lower["fp32"]) == {"float32"}
    assert set(lower["bf16"]) == set(lower["bf16-checkpointing"]) == {"bfloat16"}
    assert set(lower["fp16"]) == {"float16"}
    assert all(one.active for one in result.arms if one.rate)
    assert set(result.products) == {"fp32", "bf16", "fp16"}


def test_the_model_that_was_handed_over_is_as_it_was(own) -> None:
    _, model, before = own
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_all_arms_start_from_the_same_weights_and_do_the_same_work(own) -> None:
    result = own[0]
    losses = [one.first_loss for one in result.arms if one.rate]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=0.02)
    assert len({one.flops.total for one in result.arms if one.rate}) == 1
    assert not [found for found in findings(result) if "same work" in found.title]


def test_checkpointing_keeps_less_and_computes_more(own) -> None:
    result = own[0]
    assert 0 < result.checkpointing_saves <= 1
    assert 0 < result.checkpointing_computes < 0.4
    ratio, low, high = result.checkpointing_takes
    assert low < ratio < high
    assert {one.memory.by for one in result.arms if one.memory} == {"saved tensors"}


def test_a_cpu_has_no_tf32_and_every_pair_is_there(own) -> None:
    result = own[0]
    tf32_arm = next(one for one in result.arms if one.arm.id == "tf32")
    assert tf32_arm.rate is None and "TF32" in tf32_arm.note
    measured = {"fp32", "bf16", "bf16-checkpointing", "fp16"}
    assert {(pair.over, pair.arm) for pair in result.pairs} == {pair for pair in PAIRS if set(pair) <= measured}
    assert result.bf16_over_fp32 and result.bf16_over_tf32 is None


def test_a_result_survives_json_and_its_report_says_the_same(own) -> None:
    result = own[0]
    again = msgspec.json.decode(msgspec.json.encode(result), type=PrecisionResult)
    assert again == result and str(report(again)) == str(report(result))
    text = str(report(result))
    assert "FP16 + scaler" in text and "claimed by the workshop" in text and "no MFU" in text


def step_under(kind: str, lower: torch.dtype | None = torch.bfloat16):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        with torch.autocast(kind, lower, enabled=lower is not None):
            value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    return step


@pytest.mark.filterwarnings("ignore:CUDA is not available", "ignore:User provided device_type of 'cuda'")
def test_m09_an_autocast_that_does_nothing_is_said_and_makes_no_ratio() -> None:
    """LuxImagingAI/DBSegment#1, facebookresearch/fairchem#930, pytorch/tutorials#3331."""
    steps = {"fp32": step_under("cpu", None), "bf16": step_under("cuda")}
    result = precision.measure_steps(steps, BATCHES, device="cpu", plan=QUICK)
    assert result.arm("bf16").active is False and result.arm("fp32").active is True
    assert result.bf16_over_fp32 is None and result.bf16_saves is None
    warnings = [found for found in findings(result) if found.level == "warning"]
    assert len(warnings) == 1 and "not active" in warnings[0].title
    assert 'torch.autocast("cpu", torch.bfloat16)' in warnings[0].fix and "no GradScaler" in warnings[0].fix
    steps["bf16"] = step_under("cpu")
    right = precision.measure_steps(steps, BATCHES, device="cpu", plan=QUICK)
    assert right.arm("bf16").active and right.bf16_over_fp32


def by_hand(lower: torch.dtype | None):
    """A step without an optimizer: the stand-in for a card has none of the driver that PyTorch's would ask."""
    weight = torch.ones(32, 8, requires_grad=True)

    def step(batch):
        with torch.autocast("cpu", lower, enabled=lower is not None):
            value = (batch[0] @ weight).square().mean()
        value.backward()
        weight.grad = None
        return value

    return step


@pytest.mark.parametrize(("name", "version", "in_turn"), [("Tesla T4", (7, 5), 2), ("NVIDIA H200", (9, 0), 3)])
def test_on_a_card_the_allocator_is_asked_and_only_its_formats_run(monkeypatch, name, version, in_turn) -> None:
    on_a_card(monkeypatch, name, *version)
    monkeypatch.setitem(flops.SIDE, "card", 32)
    steps = {"fp32": by_hand(None), "tf32": by_hand(None), "bf16": by_hand(torch.bfloat16)}
    result = precision.measure_steps(steps, BATCHES, device="cuda:0", plan=QUICK)
    assert (result.conditions.machine, result.support.capability) == (name, version)
    measured = [one for one in result.arms if one.rate]
    assert len(measured) == len(result.products) == in_turn
    assert {one.memory.by for one in measured} == {"allocator"}
    assert bool(result.bf16_over_tf32) == (in_turn == 3) and result.bf16_over_fp32


def test_a_step_that_does_other_work_is_said(own) -> None:
    result = own[0]
    odd = tuple(
        msgspec.structs.replace(one, first_loss=2 * one.first_loss) if one.arm.id == "bf16" else one
        for one in result.arms
    )
    said = [found for found in findings(msgspec.structs.replace(result, arms=odd)) if "same work" in found.title]
    assert [found.title.split(":")[0] for found in said] == ["BF16 does not do the same work"]


@pytest.mark.parametrize("id", ["bf16", "bf16-checkpointing", "fp16"])
def test_the_arms_of_a_built_in_run_end_near_each_other(id) -> None:
    """Checkpointing changes nothing but the order of roundings, and a lower format only rounds."""
    made_arms = [of_training(arm(one), START, GPT_JOB, "cpu") for one in ("fp32", "bf16", id)]
    torch.manual_seed(3)
    batches = [made_arms[0].training.task.random_batch() for _ in range(5)]
    ends = [[float(running.step(batch)) for batch in batches] for running in made_arms]
    assert ends[2] == pytest.approx(ends[0], rel=0.01)
    if id == "bf16-checkpointing":
        assert ends[2] == pytest.approx(ends[1], rel=1e-3)


def test_an_arm_that_a_workload_has_not_is_left_out_with_the_reason(monkeypatch) -> None:
    start = Job().sizes.start
    monkeypatch.setattr("gpuworkshop.instruments.precision_measured.plan_for", lambda device: QUICK)
    result = precision.in_child(precision.Request(config=start, job=Job()), Tell())
    notes = {one.arm.id: one.note for one in result.arms if one.note}
    assert set(notes) == {"tf32", "bf16-checkpointing"} and "resnet50" in notes["bf16-checkpointing"]
    assert result.bf16_over_fp32 and result.workload == Job().title and result.config == start
    assert sum("not measured" in found.title for found in findings(result)) == 2


def test_every_arm_is_judged_against_fp32_at_equal_samples(monkeypatch) -> None:
    few = msgspec.structs.replace(PRESETS["gpt-tiny"], learning_samples=512, learning_rate=1e-2)
    monkeypatch.setitem(configs.PRESETS, "gpt-tiny", few)
    monkeypatch.setattr("gpuworkshop.instruments.precision_measured.plan_for", lambda device: QUICK)
    request = precision.Request(config=START, job=GPT_JOB, arms=("fp32", "fp16"), learn=True, device="cpu")
    result = precision.in_child(msgspec.to_builtins(request), Tell())
    fp32, fp16 = result.arm("fp32"), result.arm("fp16")
    assert fp32.learning is None, "it is the measure"
    assert "held-out loss" in fp16.learning.says and fp16.learning.ok is not False, fp16.learning.says
    assert any(found.title.startswith("FP16 + scaler: ") and "loss" in found.title for found in findings(result))
    assert "learns" in str(report(result))


# ---------------------------------------------------------------- memory


def test_what_autograd_keeps_is_counted_once_and_let_go() -> None:
    weight = torch.randn(50, 50, requires_grad=True)
    x = torch.randn(10, 50)
    saved = precision_memory.Saved([x])
    with saved:
        hidden = (x @ weight.t()).exp()  # keeps exp's result; not the batch, not the weight behind a view
        assert saved.peak == hidden.numel() * 4
        twice = hidden * hidden  # keeps the same memory again
        assert saved.peak == hidden.numel() * 4
        twice.sum().backward()
        del hidden, twice
        assert saved._now == 0
    assert weight.grad is not None


def test_an_arm_without_room_is_left_out_and_the_others_are_measured() -> None:
    def full(batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    steps = {"fp32": step_under("cpu", None), "bf16": full, "fp16": step_under("cpu", None)}
    result = precision.measure_steps(steps, BATCHES, device="cpu", plan=QUICK)
    assert [one.arm.id for one in result.arms if one.rate] == ["fp32", "fp16"]
    assert "does not fit" in next(one.note for one in result.arms if one.arm.id == "bf16")


def test_arms_that_fit_alone_and_not_together_give_way_from_the_last() -> None:
    told, plain = [], step_under("cpu", None)

    def crowded(batch):  # full as soon as the other arm has run too, and until that one is gone
        told.append(None)
        if len(told) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(batch)

    steps = {"fp32": crowded, "bf16": step_under("cpu"), "fp16": step_under("cpu", torch.float16)}
    result = precision.measure_steps(steps, BATCHES, device="cpu", plan=QUICK)
    assert [one.arm.id for one in result.arms if one.rate] == ["fp32", "bf16"]
    assert "does not fit" in next(one for one in result.arms if one.arm.id == "fp16").note


def test_another_error_of_a_step_passes() -> None:
    def broken(batch):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        precision.measure_steps({"fp32": broken}, BATCHES, device="cpu", plan=QUICK)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: precision.measure(net(), loss, [], device="cpu"), ValueError, "no batch"),
        (lambda: precision.measure(net(), loss, torch.ones(4, 32), device="cpu"), TypeError, "one tensor"),
        (lambda: precision.measure(net().state_dict(), loss, BATCHES, device="cpu"), TypeError, "torch.nn.Module"),
        (lambda: precision.measure(net(), loss, BATCHES, arms=["fp8"], device="cpu"), ValueError, "there are fp32"),
        (lambda: precision.measure_steps({"bf32": print}, BATCHES, device="cpu"), ValueError, "there are fp32"),
        (lambda: precision.measure_steps({"fp32": "step"}, BATCHES, device="cpu"), TypeError, "hand over a function"),
        (lambda: precision.measure(net(), loss, BATCHES, arms=["tf32"], device="cpu"), ValueError, "no TF32"),
        (lambda: precision.run(START.with_(precision="bf16"), GPT_JOB), ValueError, "leave it out"),
        (lambda: precision.run(START, GPT_JOB, arms=["double"]), ValueError, "no arm 'double'"),
    ],
)
def test_bad_input_is_one_clear_line(call, kind, words) -> None:
    with pytest.raises(kind, match=words) as error:
        call()
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- what is said, of results made here


def test_bf16_is_told_against_both() -> None:
    said = list(findings(made()))
    (bf16,) = (found for found in said if found.title.startswith("BF16:"))
    assert bf16.title == "BF16: 6.2x FP32, 1.8x TF32" and bf16.level == "ok"
    assert any("TF32 alone: 3.4x FP32" in found.title for found in said)


def test_claims_stand_beside_what_was_measured() -> None:
    result = made()
    by_title = {found.title.split(":")[0]: found for found in findings(result)}
    assert "2-4x faster" in by_title["A large matrix product in BF16"].evidence
    assert by_title["A large matrix product in BF16"].title.endswith("15x FP32, 1.9x TF32")
    assert "28% less" in by_title["Activation memory in BF16"].title
    assert "about half" in by_title["Activation memory in BF16"].evidence
    assert "56% less activation memory, +53% time" in by_title["Checkpointing"].title
    assert "60-70%" in by_title["Checkpointing"].evidence
    assert result.bf16_saves == pytest.approx(1 - 5.9 / 8.2, abs=1e-3)
    assert result.checkpointing_takes[0] == pytest.approx(470 / 308, rel=1e-3)


def test_a_missing_arm_leaves_its_findings_out_and_breaks_nothing() -> None:
    whole = made()
    for missing in [found.arm.id for found in whole.arms]:
        left = tuple(
            ArmResult(found.arm, note="not possible") if found.arm.id == missing else found for found in whole.arms
        )
        pairs = tuple(pair for pair in whole.pairs if missing not in (pair.over, pair.arm))
        result = msgspec.structs.replace(whole, arms=left, pairs=pairs)
        said = [found.title for found in findings(result)]
        assert any("not measured" in title for title in said)
        assert "n/a" in str(report(result)) and "nan" not in str(report(result))
        assert any(title.startswith("BF16: ") and "x " in title for title in said) == (missing != "bf16")


def test_the_fastest_arm_has_its_shares_or_the_reason_for_none() -> None:
    assert any("40% of the peak (MFU)" in found.evidence for found in findings(made()))
    why = Achieved(Rate(1e12, 1e12, 1e12, 8, "FLOP/s"), 0.5, None, "12% of the multiplying time is not counted: x::y")
    result = made(arms=(one("fp32", 5.0, 1.0, achieved=why),), pairs=())
    (said,) = (found for found in findings(result) if "computes at" in found.title)
    assert "no MFU: 12%" in said.evidence


def test_every_arm_has_a_title_of_its_own_and_ids_are_unique() -> None:
    assert len({one.id for one in ARMS}) == len({one.title for one in ARMS}) == len(ARMS)
    assert all({a, b} <= {one.id for one in ARMS} for a, b in PAIRS)


def test_what_comes_from_outside_is_escaped() -> None:
    hostile = made(workload="<script>alert(1)</script>", planted="<b>wait</b>")
    page = report(hostile)._repr_mimebundle_()["text/html"]
    assert "<script>alert" not in page and "<b>wait" not in page


@pytest.mark.parametrize("allowed", [True, False])
def test_an_arm_sets_its_own_switches_before_its_block(allowed) -> None:
    running = of_training(arm("tf32" if allowed else "bf16"), START, GPT_JOB, "cpu")
    with tf32.kept():
        tf32.allow(not allowed)
        running.in_turn([running.training.task.random_batch()]).resume()
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
