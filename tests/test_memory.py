"""The life of the memory, the batch sweep, the cure, checkpointing, and the doors of all of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest
import torch
from memory_results import CARD, GIB, cure, found, swept
from memory_results import life as life_of_a_card
from standins import fake_cuda
from standins import pynvml as fake_nvml
from torch.utils.checkpoint import checkpoint

from gpuworkshop import child
from gpuworkshop.instruments import memory, memory_axes, memory_beside, memory_checkpoint, memory_cure
from gpuworkshop.instruments.memory_faults import Fault
from gpuworkshop.instruments.memory_result import Attempt, CureResult, Moment, Probe
from gpuworkshop.instruments.memory_room import CardRoom, HostRoom, Reading
from gpuworkshop.machine import allocation
from gpuworkshop.machine.processes import OnCard, Process
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job, TrainConfig

QUICK = Plan(block_seconds=0.001, min_rounds=2, budget_seconds=0.1)


# ---------------------------------------------------------------- the life of the memory


def net(*, width: int = 32) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Sigmoid())


def life(model, optimizer, batch: torch.Tensor, **more):
    return memory.measure(model, optimizer, lambda: model(batch).sum(), device="cpu", batch_size=len(batch), **more)


def test_weights_gradients_and_state_are_counted_from_their_tensors() -> None:
    model = net()
    result = life(model, torch.optim.Adam(model.parameters()), torch.ones(4, 32))
    size = 32 * 32 * 4
    by_phase = {(m.step, m.name): m for m in result.moments}
    assert {m.weights for m in result.moments} == {size} and result.parameters == 32 * 32
    assert by_phase[1, "forward"].gradients == 0 == by_phase[1, "forward"].optimizer
    assert by_phase[1, "backward"].gradients == size and by_phase[1, "backward"].optimizer == 0
    assert by_phase[1, "update"].optimizer == 2 * size + 4  # two moments, and the number of the step
    assert by_phase[2, "gradients dropped"].gradients == 0
    assert result.last.lasting == 4 * size + 4


def test_activations_are_what_autograd_saves_and_they_go_in_backward() -> None:
    """A sigmoid saves its output, the layer before it its input; together two batches of 32 numbers a sample."""
    model, batch = net(), torch.ones(64, 32)
    result = life(model, torch.optim.SGD(model.parameters()), batch)
    kept = result.kept
    assert kept.activations == 2 * 64 * 32 * 4 and kept.peak is None and kept.context is None
    after = next(m for m in result.moments if m.name == "backward")
    assert after.activations == 64 * 32 * 4  # the batch itself, which the caller still holds


def test_checkpointing_keeps_only_what_goes_into_its_blocks() -> None:
    model = torch.nn.Sequential(*(torch.nn.Sequential(net(), net(), net()) for _ in range(4)))
    batch = torch.ones(64, 32)

    def recomputed() -> torch.Tensor:
        x = batch
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
        return x.sum()

    optimizer = torch.optim.SGD(model.parameters())
    plain = life(model, optimizer, batch)
    less = memory.measure(model, optimizer, recomputed, device="cpu", batch_size=64)
    one = 64 * 32 * 4
    assert plain.kept.activations == 13 * one and less.kept.activations == 4 * one


def test_tensors_that_share_their_memory_count_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    model[1].weight = torch.nn.Parameter(model[0].weight.data)  # two weights of one piece of memory
    assert life(model, torch.optim.SGD(model.parameters()), torch.ones(2, 8)).last.weights == 8 * 8 * 4


def test_what_a_cpu_cannot_say_reads_not_available_and_never_zero() -> None:
    model = net()
    result = life(model, torch.optim.AdamW(model.parameters()), torch.ones(4, 32))
    text = str(memory.report(result))
    assert "n/a: context, reserve, others" in text and "activations: what autograd saves for backward" in text
    assert "On a CPU no allocator counts" in text and str(result.origin) in text
    assert result.used is None and result.peak is None


def test_the_findings_of_a_life_name_peak_growth_and_the_first_step() -> None:
    titles = [finding.title for finding in memory.findings(life_of_a_card())]
    assert "The peak in tensors is 15.0 GiB, in the backward of a later step, 11% of the card" in titles
    assert "Only the activations grow with the batch: 512 MiB a sample" in titles
    assert "AdamW keeps 2.00 times the weights: 4.00 GiB" in titles
    assert "The first step peaks lower than the later ones: 11.0 GiB against 15.0 GiB" in titles


def test_memory_of_others_and_held_memory_are_told_from_the_jobs() -> None:
    last = msgspec.structs.replace(life_of_a_card().last, others=39 * GIB, reserve=20 * GIB)
    result = life_of_a_card(moments=(*life_of_a_card().moments[:-1], last))
    titles = [finding.title for finding in memory.findings(result)]
    assert "Others hold 39.0 GiB on this card" in titles and "Memory is held by PyTorch, not lost" in titles
    assert result.used == (2 + 2 + 4 + 20 + 39) * GIB + GIB // 2


class Counts:
    """What PyTorch's allocator says of a card, as far as it is asked here."""

    def __init__(self, monkeypatch, **says):
        self.says = dict(allocated=0, reserved=0, peak=0, retries=0, free=80 * GIB, total=80 * GIB, fraction=1.0) | says
        answers = {
            "memory_allocated": lambda device=None: self.says["allocated"],
            "memory_reserved": lambda device=None: self.says["reserved"],
            "max_memory_allocated": lambda device=None: self.says["peak"],
            "max_memory_reserved": lambda device=None: self.says["reserved"],
            "memory_stats": lambda device=None: {"num_alloc_retries": self.says["retries"]},
            "mem_get_info": lambda device=None: (self.says["free"], self.says["total"]),
            "get_per_process_memory_fraction": lambda device=None: self.says["fraction"],
            "set_per_process_memory_fraction": lambda share, device=None: self.says.update(fraction=share),
            "reset_peak_memory_stats": lambda device=None: None,
            "empty_cache": lambda: None,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer, raising=False)


def test_on_a_card_the_allocator_says_what_is_beside_the_models_own_tensors(monkeypatch) -> None:
    from gpuworkshop.instruments.memory_life import Life

    Counts(monkeypatch, allocated=10 * GIB, reserved=12 * GIB, peak=11 * GIB)
    model = net()
    optimizer = torch.optim.SGD(model.parameters())
    told = Life(model, optimizer, "cuda:0", SimpleNamespace(ask=lambda held: (GIB // 2, held // 4)))
    monkeypatch.setattr(told, "_size", lambda tensors: GIB * len(list(tensors)))
    last = told.run(lambda: model(torch.ones(4, 32)).sum())[-1]
    assert (last.weights, last.gradients, last.optimizer) == (GIB, GIB, 0)
    assert (last.activations, last.reserve, last.peak) == (8 * GIB, 2 * GIB, 11 * GIB)
    assert (last.context, last.others) == (GIB // 2, 3 * GIB)


def test_a_cards_room_is_what_is_free_and_what_pytorch_holds_already(monkeypatch) -> None:
    counts = Counts(monkeypatch, free=40 * GIB, reserved=5 * GIB)
    assert CardRoom("cuda:0").available() == 45 * GIB
    counts.says["fraction"] = 0.5
    assert CardRoom("cuda:0").available() == 40 * GIB  # no more than this process may have
    assert CardRoom("cuda:0", 8 * GIB).available() == 8 * GIB


def test_a_planted_limit_is_held_by_the_allocator_and_taken_back(monkeypatch) -> None:
    counts = Counts(monkeypatch, fraction=0.75)
    with pytest.raises(KeyError), CardRoom("cuda:0", 8 * GIB).limited():
        assert counts.says["fraction"] == 0.1
        raise KeyError
    assert counts.says["fraction"] == 0.75


def test_retries_of_a_card_are_counted_from_the_last_clearing(monkeypatch) -> None:
    counts = Counts(monkeypatch, retries=7, peak=3 * GIB, reserved=4 * GIB)
    room = CardRoom("cuda:0")
    room.clear()
    assert room.retries() == 0
    counts.says["retries"] = 9
    assert room.read() == Reading(3 * GIB, 4 * GIB, 2)


# ---------------------------------------------------------------- the two axes


def test_the_pairs_of_the_published_table() -> None:
    assert [(row[0], row[1], row[2]) for row in memory_axes.table().rows] == [
        ("low", "low", "doing nothing"),
        ("low", "high", "loaded, not running"),
        ("high", "low", "memory to spare"),
        ("high", "high", "good"),
        ("any", "none left", "out of memory"),
    ]
    assert memory_axes.table().rows[-1][3] == "BF16, then checkpointing, then a smaller batch"


@pytest.mark.parametrize(
    ("busy", "full", "level", "first"),
    [
        (0.1, 0.1, "warning", "is CUDA used?"),
        (0.12, 0.91, "warning", "fix the data path"),
        (0.95, 0.12, "notice", "up to the knee"),
        (0.9, 0.8, "ok", "leave both alone"),
    ],
)
def test_a_watched_card_has_its_place_and_what_to_do_first(busy, full, level, first) -> None:
    watched = SimpleNamespace(cards=(SimpleNamespace(label="cuda:0", busy=busy, memory=full, busy_why=""),))
    (finding,) = memory_axes.findings(watched)
    assert finding.level == level and first in finding.fix
    report = memory.report(life_of_a_card(), watched)
    assert [row[-1] for row in report.tables[-1].rows].count("here") == 1


def test_a_card_without_one_of_the_two_numbers_is_not_judged() -> None:
    card = SimpleNamespace(label="cuda:0", busy=None, memory=0.5, busy_why="MIG")
    (finding,) = memory_axes.findings(SimpleNamespace(cards=(card,)))
    assert finding.level == "unknown" and "utilization n/a" in finding.title and finding.evidence == "MIG"


# ---------------------------------------------------------------- the sweep


def test_a_sweep_measures_each_size_in_turn_and_knows_its_knee() -> None:
    seen = []
    result = memory.sweep(lambda batch: seen.append(batch), [4, 1, 2, 2], device="cpu", plan=QUICK, unit="rows/s")
    assert [point.batch for point in result.points] == [1, 2, 4] and set(seen) == {1, 2, 4}
    assert result.points[0].against_smallest is None and result.points[-1].against_smallest.pairs >= 2
    assert {point.rate.unit for point in result.measured} == {"rows/s"}


def test_a_sweep_stops_growing_where_the_memory_ends() -> None:
    def step(batch: int) -> None:
        if batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    result = memory.sweep(step, [1, 2, 4, 8], device="cpu", plan=QUICK)
    assert [(point.batch, bool(point.rate)) for point in result.points] == [(1, True), (2, True), (4, False)]
    assert "A batch of 4 does not fit" in [finding.title for finding in memory.findings(result)]


def test_a_sweep_lets_other_errors_through_and_refuses_where_nothing_fits() -> None:
    with pytest.raises(ZeroDivisionError):
        memory.sweep(lambda batch: 1 / 0, [1, 2], device="cpu", plan=QUICK)

    def full(batch: int) -> None:
        raise MemoryError

    with pytest.raises(ValueError, match="not even a batch of 2 fits: MemoryError"):
        memory.sweep(full, [2, 4], device="cpu", plan=QUICK)
    with pytest.raises(ValueError, match="batch sizes to try"):
        memory.sweep(full, [], device="cpu")


def test_the_knee_is_the_smallest_within_five_percent() -> None:
    result = swept(b64=6442, b128=11930, b256=13073, b512=13644, b1024=13883, b2048=13870)
    assert result.knee == 512 and not result.still_rising
    (finding,) = memory.findings(result)
    assert finding.title.startswith("The knee is a batch of 512") and finding.fix == "batch_size=512"
    assert "changes the training" in finding.evidence


def test_a_rate_that_still_rises_is_no_knee() -> None:
    (finding,) = memory.findings(swept(b8=870, b16=1800, b32=3600))
    assert finding.level == "notice" and "still rises" in finding.title and "--ceiling" in finding.fix


# ---------------------------------------------------------------- the ceiling's advice


def test_the_knee_is_recommended_with_the_published_rule_beside_it() -> None:
    result = found(knee=swept(b64=2000, b128=4600, b256=4700, b512=4710))
    first, second = memory.findings(result)
    assert first.title == "The batch ceiling is 3,200: three full steps without an allocator retry"
    assert "3,264 does not fit, though it ran" in first.evidence and "138 GiB free at the start" in first.evidence
    assert second.title.startswith("Take the knee: a batch of 128") and second.fix == "batch_size=128"
    assert "70% to 85% of the ceiling, says 2,240 to 2,720" in second.evidence


def test_without_a_knee_the_rule_stands_alone_and_says_how_to_find_one() -> None:
    _, second = memory.findings(found())
    assert "a batch of 2,240 to 2,720, or at the knee" in second.title and "--sweep" in second.fix


def test_a_rate_that_rises_to_the_end_is_followed_to_the_rule() -> None:
    _, second = memory.findings(found(knee=swept(b8=870, b16=1800)))
    assert second.title == "Throughput still rises at 16: try up to 2,720"


def test_m15_a_ceiling_of_a_shared_card_is_for_now_only() -> None:
    """cornellius-gp/gpytorch#529, pytorch/pytorch#103243: half the card is another's, and the result forgets it."""
    result = found(others=39 * GIB, room=41 * GIB, total=80 * GIB)
    finding = next(memory.findings(result))
    assert finding.level == "warning" and finding.title == "39.0 GiB used by others: this ceiling is for now only"
    assert finding.evidence == "41.0 GiB were free of 80.0 GiB"
    assert msgspec.json.decode(msgspec.json.encode(result), type=memory.CeilingResult) == result


def test_m15_what_is_free_at_the_start_is_asked_and_kept(monkeypatch) -> None:
    """As a driver that lists nobody tells it: 80 GiB in all, 41 free."""
    free, total = 41 * GIB, 80 * GIB
    uuid = "7c1d8a52-0000-4000-8000-000000000001"
    card = {"name": "NVIDIA A100-SXM4-80GB", "uuid": uuid, "free": free, "total": total}
    fake_cuda.install({"devices": [card]}, monkeypatch)
    fake_nvml.install({"devices": [{"name": card["name"], "uuid": f"GPU-{uuid}"}]}, monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device=None: {"num_alloc_retries": 0})
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device=None: 1.0)
    result = memory.ceiling(lambda batch: None, device="cuda:0", most=64)
    assert (result.room, result.total, result.others) == (free, total, total - free)
    assert "39.0 GiB used by others" in next(memory.findings(result)).title


def test_m15_who_comes_during_the_search_is_said(monkeypatch) -> None:
    used = iter([(80 * GIB, GIB // 2), (80 * GIB, 40 * GIB)])
    monkeypatch.setattr(memory_beside, "on_card", lambda device: None)
    monkeypatch.setattr(memory_beside, "beside_torch", lambda device: next(used))
    monkeypatch.setattr("gpuworkshop.instruments.memory_room.room_for", lambda device, limit: HostRoom())
    monkeypatch.setattr("gpuworkshop.machine.conditions.conditions", lambda device: CARD)
    result = memory.ceiling(lambda batch: None, device="cuda:0", most=8)
    assert result.others == 0 and "took 39.5 GiB of the card during the search" in result.notes[0]


# ---------------------------------------------------------------- company on the card


def stranger(whose: str = "my other work", **facts) -> OnCard:
    return OnCard((Process(4711, whose, "python", 39 * GIB, **facts),), 40 * GIB)


def test_a_search_is_refused_while_somebody_else_computes_on_the_card(monkeypatch) -> None:
    monkeypatch.setattr(memory_beside, "on_card", lambda device: stranger())
    with pytest.raises(memory.SharedCard, match="python 4711, my other work, 39.0 GiB.*anyway=True"):
        memory._ceiling(None, None, "cuda:0", None, False, "a test", child.Tell())


@pytest.mark.parametrize(
    "seen", [None, OnCard(None, 3 * GIB), OnCard((Process(1, "mine", "python", GIB),), GIB), stranger(kind="graphics")]
)
def test_who_is_alone_or_cannot_see_is_not_refused(seen) -> None:
    memory_beside.refuse_company("cuda:0", seen)


def test_what_is_beside_the_allocator_is_told_apart_by_what_was_there_before(monkeypatch) -> None:
    uuid = "7c1d8a52-0000-4000-8000-000000000001"
    spec = {"devices": [{"uuid": f"GPU-{uuid}", "memory": {"total": 80 * GIB, "used": 10 * GIB, "free": 70 * GIB}}]}
    fake_nvml.install(spec, monkeypatch)
    from gpuworkshop.machine import gpus
    from gpuworkshop.machine.nvml import Nvml

    nvml = Nvml()
    (card,) = gpus.cards({}, nvml=nvml).mine
    assert memory_beside.Beside(nvml, card, before=3 * GIB).ask(reserved=6 * GIB) == (GIB, 3 * GIB)
    assert memory_beside.Beside(nvml, card).ask(reserved=6 * GIB) == (None, 4 * GIB)  # the driver lists nobody
    spec["devices"][0]["processes"] = [{"pid": "self", "used": 7 * GIB}, {"pid": 1, "used": 3 * GIB}]
    fake_nvml.install(spec, monkeypatch)
    monkeypatch.setattr(memory_beside.Beside, "_mine", lambda self: 7 * GIB)
    assert memory_beside.Beside(Nvml(), card).ask(reserved=6 * GIB) == (GIB, 3 * GIB)


def test_one_context_is_nobody_else() -> None:
    assert memory_beside.somebody(GIB // 2) == 0 and memory_beside.somebody(39 * GIB) == 39 * GIB


# ---------------------------------------------------------------- the cure


def test_the_order_of_the_cure_is_the_taught_one() -> None:
    steps = list(memory_cure.ladder(TrainConfig(batch_size=4), Job("gpt-tiny")))
    assert [change for change, _ in steps] == ["", "BF16", "checkpointing", "a batch of 2", "a batch of 1"]
    last = steps[-1][1]
    assert last.precision == "bf16" and last.checkpointing and last.batch_size == 1
    assert [change for change, _ in memory_cure.ladder(TrainConfig(batch_size=2), Job("tiny"))] == [
        "", "BF16", "a batch of 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fits", "says"),
    [
        ((False, True), "Cured: BF16"),
        ((False, False, True), "Cured: BF16 + checkpointing"),
        ((False, False, False, True), "Cured: BF16 + checkpointing + a batch of 32"),
    ],
)
def test_a_cure_names_what_was_changed(fits, says) -> None:
    result = cure(*fits)
    findings = list(memory.findings(result))
    assert findings[-1].level == "ok" and findings[-1].title == says and result.cured is result.attempts[-1]
    assert findings[0].title.startswith("Planted:") and "Out of memory at a batch of 64" in str(memory.report(result))


def test_another_failure_is_no_want_of_a_cure() -> None:
    """oneDNN's words on a CPU where it gets no memory are not told from other faults."""
    ill = cure(False, False)
    fault = Fault("other", "RuntimeError: could not create a primitive")
    last = msgspec.structs.replace(ill.attempts[-1], fault=fault)
    finding = list(memory.findings(msgspec.structs.replace(ill, attempts=(ill.attempts[0], last))))[-1]
    assert (
        finding.level == "unknown" and finding.title.startswith("Stopped at BF16") and "primitive" in finding.evidence
    )


def test_a_cure_that_ends_its_process_says_what_to_do(monkeypatch, capsys) -> None:
    """Without a card and a preset it is a GPT's: a CPU's convolutions end the process where they get no memory."""
    from gpuworkshop.cli import main

    asked = []

    def ends(what, config, job, kind, **more):
        asked.append(job.preset)
        raise child.ChildFailed("the measuring process was ended by SIGSEGV")

    monkeypatch.setattr(memory, "_ask", ends)
    assert main(["memory", "--oom"]) == 1 and main(["memory", "--oom", "--preset", "tiny"]) == 1
    assert asked == ["gpt-small", "tiny"] and capsys.readouterr().err.count("--preset gpt-small shows the cure") == 2


def test_no_cure_and_no_illness_are_said() -> None:
    assert list(memory.findings(cure(False, False)))[-1].level == "fail"
    assert list(memory.findings(cure(True)))[-1].title == "The job did not run out of memory"


def test_out_of_memory_is_real_in_a_child_and_cured_there() -> None:
    """On a CPU the system holds the limit; BF16 halves most of what this model keeps."""
    result = memory.cured(TrainConfig(batch_size=1024), Job("gpt-tiny"), share=0.85)
    first, cured = result.attempts[0], result.cured
    assert first.fault.kind == "host memory" and not first.fits and cured.config.precision == "bf16"
    assert cured.peak < result.needed and result.limit == int(0.85 * result.needed)


@pytest.mark.parametrize("share", [0, 1, 1.5, -1])
def test_a_share_that_makes_no_sense_is_refused(share) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        memory.cured(share=share)


# ---------------------------------------------------------------- checkpointing


class Net(torch.nn.Module):
    """A block in the middle that may be computed again, with what is special put into it."""

    def __init__(self, *special: torch.nn.Module):
        super().__init__()
        self.block = torch.nn.Sequential(torch.nn.Linear(8, 8), *special, torch.nn.Tanh())
        self.head = torch.nn.Linear(8, 1)

    def compared(self, x: torch.Tensor, **how) -> memory_checkpoint.CheckpointResult:
        return memory_checkpoint.compare(
            self, lambda: self.head(self.block(x)).sum(), lambda: self.head(checkpoint(self.block, x, **how)).sum()
        )


def test_checkpointing_as_it_should_be_changes_nothing() -> None:
    model = Net()
    model.head.weight.grad = torch.full((1, 8), 7.0)
    result = model.compared(torch.randn(4, 8), use_reentrant=False)
    (finding,) = memory_checkpoint.findings(result)
    assert finding.level == "ok" and result.missing == result.different == result.batch_norm == ()
    assert bool((model.head.weight.grad == 7).all()) and model.block[0].weight.grad is None  # put back


@pytest.mark.filterwarnings("ignore")
def test_m10_the_reentrant_variant_leaves_weights_untrained() -> None:
    """pytorch/pytorch#65537, mlfoundations/open_clip#573: inputs that need no gradient."""
    result = Net().compared(torch.randn(4, 8), use_reentrant=True)
    assert set(result.missing) == {"block.0.weight", "block.0.bias"}
    finding = next(memory_checkpoint.findings(result))
    assert finding.level == "fail" and "use_reentrant=False" in finding.fix and "block.0.weight" in finding.evidence


def test_m11_batchnorm_is_counted_twice_and_said() -> None:
    """pytorch/pytorch#96136: losses and gradients match, so it is only seen in evaluation."""
    model = Net(torch.nn.BatchNorm1d(8))
    result = model.compared(torch.randn(4, 8), use_reentrant=False)
    assert result.batch_norm == ("block.1",) and result.different == ()
    assert int(model.block[1].num_batches_tracked) == 0  # put back
    assert [f.level for f in memory_checkpoint.findings(result)] == ["ok", "warning"]


def test_m11_a_cure_by_checkpointing_names_it_too() -> None:
    result = cure(False, False, True, batch_norm=("layer1.0.bn1",))
    assert "BatchNorm's running statistics twice" in list(memory.findings(result))[-1].title


def test_m12_dropout_drawn_again_is_found_by_its_gradients() -> None:
    """allenai/OLMo-core#828: gradients of another mask, quietly worse."""
    x = torch.randn(64, 8)
    kept = Net(torch.nn.Dropout(0.5)).compared(x, use_reentrant=False)
    assert kept.different == () and kept.dropout == ("block.1",)
    lost = Net(torch.nn.Dropout(0.5)).compared(x, use_reentrant=False, preserve_rng_state=False)
    finding = next(memory_checkpoint.findings(lost))
    assert finding.level == "fail" and "dropout was drawn again" in finding.title
    assert "preserve_rng_state" in finding.fix


# ---------------------------------------------------------------- the second door, and the report


@pytest.fixture(scope="module")
def tiny() -> memory.MemoryResult:
    return memory.run(TrainConfig(batch_size=16), Job("gpt-tiny"))


def test_m14_the_life_of_a_built_in_workload_comes_from_a_child_without_a_card(tiny) -> None:
    """pytorch/pytorch#33655: on a CPU the lesson goes through from end to end."""
    assert tiny.conditions.device == "cpu" and tiny.by == "saved tensors" and tiny.config.batch_size == 16
    assert tiny.last.optimizer > 1.9 * tiny.last.weights and tiny.kept.activations > tiny.last.weights
    assert [m.name for m in tiny.moments] == [
        "model on the device", "forward", "backward", "update", "gradients dropped", "forward", "backward", "update",
    ]  # fmt: skip


def test_j04_the_limit_of_the_jobs_memory_is_said_before_it_is_met(tiny) -> None:
    """FoNDUE-HTR/Documentation#5, jannis-baum/Jupyviv#28: the system ends a kernel that uses it up, silently."""
    limit = allocation.memory()
    assert (tiny.host, tiny.host_said_by) == (limit.bytes, limit.said_by)
    job = msgspec.structs.replace(tiny, host=32 * GIB, host_said_by="SLURM_MEM_PER_NODE")
    told = next(one for one in memory.findings(job) if "Host memory" in one.title)
    assert "32.0 GiB at most, said by SLURM_MEM_PER_NODE" in told.title and "without a word" in told.evidence
    assert not any("Host memory" in one.title for one in memory.findings(msgspec.structs.replace(tiny, host=None)))


def test_a_result_survives_json_and_its_report_has_three_faces(tiny) -> None:
    again = msgspec.json.decode(msgspec.json.encode(tiny), type=memory.MemoryResult)
    assert again == tiny
    for result in (tiny, life_of_a_card(), swept(b8=1, b16=2), found(knee=swept(b8=1, b16=2)), cure(False, True)):
        report = memory.report(result)
        faces = report._repr_mimebundle_()
        assert (
            str(result.origin) in faces["text/plain"] and "<svg" in faces["text/html"] or isinstance(result, CureResult)
        )
        json.dumps(msgspec.to_builtins(list(memory.findings(result))))


def test_each_size_in_a_process_of_its_own_finds_the_same(monkeypatch) -> None:
    """A child that dies counts as too big; without one answer there is nothing to go on."""
    asked = []

    def answer(what, config, job, type, sizes, **more):
        (batch,) = sizes
        asked.append(batch)
        if batch > 500:
            raise child.ChildFailed("the measuring process was ended by SIGABRT")
        probe = Probe(batch, True, 1.0, batch * GIB // 20, batch * GIB // 20)
        return memory.Isolated(probe, 50 * GIB, 4096, found(ceiling=None, above=None, probes=(probe,)))

    monkeypatch.setattr(memory, "_ask", answer)
    result = memory.run_ceiling(job=Job("gpt-tiny"), isolate=True)
    assert 0.97 * 500 <= result.ceiling <= 500 and result.isolated and len(asked) == len(set(asked))
    assert any("may not mean memory" in finding.title for finding in memory.findings(result))


def test_a_child_that_dies_at_the_first_size_is_no_ceiling(monkeypatch) -> None:
    def dead(*args, **more):
        raise child.ChildFailed("the measuring process was ended by SIGKILL")

    monkeypatch.setattr(memory, "_ask", dead)
    with pytest.raises(child.ChildFailed):
        memory.run_ceiling(job=Job("gpt-tiny"), isolate=True)


# ---------------------------------------------------------------- figures


def test_the_stack_names_what_is_there_and_escapes_the_rest() -> None:
    from gpuworkshop.figures.memory_stack import memory_stack

    bad = Moment("<b>forward</b>", 1, GIB, GIB, 2 * GIB, 3 * GIB, GIB, None, None, 8 * GIB)
    figure = memory_stack([bad], CARD.origin, 80 * GIB)
    assert "<b>" not in figure.svg and "&lt;b&gt;" in figure.svg
    assert "of 80.0 GiB that the card has" in figure.svg and "n/a: context, others" in figure.svg
    assert "8.00 GiB" in figure.text and "activations 3.00 GiB" in figure.alt and str(CARD.origin) in figure.svg
    assert memory_stack([bad], CARD.origin, 80 * GIB) == figure


def test_the_bars_of_the_stack_are_to_scale() -> None:
    import re

    from gpuworkshop.figures.memory_stack import memory_stack

    moment = Moment("forward", 1, 2 * GIB, 0, 4 * GIB, 6 * GIB)
    svg = memory_stack([moment], CARD.origin).svg
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="22"', svg)]
    assert len(widths) == 3 and widths[1] == pytest.approx(2 * widths[0], abs=0.3)
    assert widths[2] == pytest.approx(3 * widths[0], abs=0.4)


def test_the_pictures_over_the_batch_say_the_same_in_words() -> None:
    from gpuworkshop.figures.batches import batch_sweep
    from gpuworkshop.figures.ceiling import batch_ceiling

    result = found()
    picture = batch_ceiling(result.probes, result.ceiling, result.room, result.line, result.origin)
    assert "ceiling: 3,200" in picture.svg and "3264 does not fit" in picture.alt and "138 GiB" in picture.text
    rates = swept(b8=100, b16=200)
    sweep = batch_sweep(rates.points, 16, CARD.origin, "images/s", (2240, 2720))
    assert "knee: 16 or more<" in sweep.svg and "Knee: 16 or more." in sweep.alt, "nothing larger was measured"
    assert "knee: 8<" in batch_sweep(swept(b8=100, b16=101).points, 8, CARD.origin, "images/s").svg
    assert "2,240 to 2,720" in sweep.text and "8 100 (99.0 to 101)" in sweep.alt
    assert batch_sweep([], None, CARD.origin, "images/s").svg and batch_ceiling([], None, None, None, CARD.origin).svg


def test_a_title_names_the_number_format_where_it_is_known() -> None:
    assert memory.report(found(config=TrainConfig(precision="bf16"))).title == "Batch ceiling: a test, BF16"
    assert memory.report(found()).title == "Batch ceiling: a test"


def test_no_words_of_a_cure_stand_across_its_limit() -> None:
    import re

    from gpuworkshop.figures.cure import cure as picture

    def at(peak: int) -> float:
        attempt = Attempt("BF16", TrainConfig(), False, peak)
        svg = picture([attempt], 100 * GIB, CARD.origin).svg
        return float(re.search(r'<text x="([\d.]+)"[^>]*>out of memory', svg)[1])

    assert at(90 * GIB) == at(80 * GIB) > at(40 * GIB), "behind the line where it would cross it"


# ---------------------------------------------------------------- the verb


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--sweep --ceiling", "ask for one of them"),
        ("--oom --sweep", "ask for one of them"),
        ("--isolate", "--isolate goes with --ceiling"),
        ("--anyway --oom", "--anyway goes with --ceiling"),
        ("--limit 8GiB", "--limit goes with --ceiling or --oom"),
        ("--ceiling --limit eight", "'eight' is not a size: write 8GiB or 500MiB"),
        ("--ceiling --limit 0GiB", "is not a size"),
        ("--preset tiny --checkpointing", "checkpointing is for resnet50 and GPTs"),
        ("--preset gpt", "needs a GPU, and there is none here"),
        ("--ceiling --preset gpt-tiny", "a batch ceiling needs a GPU"),
    ],
)
def test_what_does_not_go_together_is_one_line_and_exit_code_2(words, says, capsys) -> None:
    from gpuworkshop.cli import main

    assert main(["memory", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.count("\n") == 1


def test_the_verb_prints_the_envelope_alone(capsys) -> None:
    from gpuworkshop.cli import main

    assert main(["memory", "--preset", "gpt-tiny", "--batch-size", "4", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    result = msgspec.convert(whole["result"], memory.MemoryResult)
    assert result.batch_size == 4 and whole["origin"]["mark"] == "measured here"


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * GIB), ("500M", 500 * 2**20), ("1.5 gb", 3 * GIB // 2), ("20mib", 20 * 2**20)]
)
def test_sizes_are_read_as_people_write_them(text, size) -> None:
    from gpuworkshop.cli.memory import _bytes

    assert _bytes(text) == size


def test_the_doors_need_no_pytorch_in_the_caller() -> None:
    import subprocess
    import sys

    code = "import sys, gpuworkshop.instruments.memory, gpuworkshop.cli.memory; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
