"""Scaling: worlds in turn, live with gloo ranks; weak and strong, bands, stragglers, and what the words say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpuworkshop import cli
from gpuworkshop.child import ChildFailed
from gpuworkshop.figures.scaling import scaling_figure
from gpuworkshop.instruments import scaling
from gpuworkshop.instruments.scaling_plan import Request, arm_names, refusal, refused_before, sizes
from gpuworkshop.instruments.scaling_rank import check_cards, loopback
from gpuworkshop.instruments.scaling_read import Measured, read
from gpuworkshop.instruments.scaling_result import ALONE, FLOOR, REDUCE, ScalingResult, band, efficiency_by_hand
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.machine.device import Card, Cards
from gpuworkshop.machine.visible import visible
from gpuworkshop.timing import Block, Plan, Rounds
from gpuworkshop.workloads import ranks, train
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.ranks import Rank, begin_epoch, order

HERE = Conditions("cpu", "2 CPU cores, a processor", "", "", 2, "affinity", 1, "3.11", "2.11", "0.1", "2026-12-01")
QUICK = Plan(block_seconds=0.05, min_rounds=4, width=1.0, budget_seconds=1.0, max_warm_up_blocks=2)
MIB = 2**20
NAMES = {"floor": FLOOR, "reduce": REDUCE}


# ---------------------------------------------------------------- results, made from blocks


def made(
    count: int = 2,
    batch: int = 32,
    rounds: int = 8,
    straggler: float = 1.0,
    here: Conditions = HERE,
    **seconds: float,
) -> ScalingResult:
    """A result from blocks of ten steps; ``seconds`` a step of each arm, with "_" for " "."""
    asked = Request(TrainConfig(batch_size=batch), Job(), count)
    took = {ALONE: 0.1, FLOOR: 0.1, REDUCE: 0.02} | {
        NAMES.get(name, name.replace("_", " ")): value for name, value in seconds.items()
    }
    names = arm_names(asked)
    kept, each = Rounds(names, "images/s"), {}
    for name in names:
        mode, _, size = name.partition(" ")
        members = 1 if name == ALONE else int(size) if mode in ("weak", "strong") else count
        own = batch // members if mode == "strong" else batch
        for turn in range(rounds):
            step = took.get(name, 0.1) * (1 + 0.002 * (-1) ** turn)
            times = [10 * step] * (members - 1) + [10 * step * (straggler if name == FLOOR else 1.0)]
            spans = {"wait": 0.1 * max(times), "data work": 0.0}
            kept.blocks[name].append(Block(max(times), 10, 10 * own * members, spans))
            each.setdefault(name, []).append(times)
    cards = [f"GPU-{number}" for number in range(count)]
    return read(asked, Measured(kept, each, 100 * MIB, cards), here)


def titles(result: ScalingResult) -> str:
    """All that the findings say."""
    return "\n".join(f"{f.level}: {f.title} | {f.evidence}" for f in scaling.findings(result))


def test_efficiency_is_throughput_over_ranks_times_one_alone() -> None:
    result = made(weak_2=0.125, strong_2=0.0625)
    weak, strong = result.world("weak"), result.world("strong")
    assert weak.efficiency.value == pytest.approx(80, rel=0.01)
    assert weak.efficiency.low < weak.efficiency.value < weak.efficiency.high
    assert strong.efficiency.value == pytest.approx(80, rel=0.01), "half a batch in 5/8 of the time"
    assert (weak.batch, strong.batch) == (32, 16)


def test_weak_and_strong_are_never_confused() -> None:
    result = made(weak_2=0.11, strong_2=0.09)
    said = titles(result)
    assert "Weak scaling, 32 samples a step in each of 2 ranks: 90" in said
    assert "Strong scaling, 32 samples a step shared by 2 ranks: 55" in said
    assert "ok: Weak" in said and "warning: Strong" in said


@pytest.mark.parametrize(
    ("share", "name"),
    [(0.81, "pays"), (0.80, "acceptable"), (0.70, "acceptable"), (0.69, "does not pay"), (1.2, "pays")],
)
def test_the_course_has_three_bands(share: float, name: str) -> None:
    assert band(share) == name


def test_an_interval_over_two_bands_is_not_called_one() -> None:
    world = made(weak_2=0.125).world("weak")
    assert set(world.bands) == {"pays", "acceptable"}
    blurred = msgspec.structs.replace(world, speedup=msgspec.structs.replace(world.speedup, low=1.3, high=1.8))
    result = msgspec.structs.replace(made(), worlds=(blurred,))
    assert [f.level for f in scaling.findings(result) if "Weak" in f.title] == ["unknown"], "three bands are no verdict"
    certain = made(weak_2=0.105).world("weak")
    assert certain.bands == ("pays",)


def test_communication_is_what_nothing_hides() -> None:
    result = made(weak_2=0.11)
    assert result.exposed_seconds == pytest.approx(0.01, rel=0.05)
    assert result.hidden == pytest.approx(0.5, abs=0.05), "10 of 20 ms of all-reduce are seen"
    assert made(weak_2=0.1).hidden == pytest.approx(1.0, abs=0.05)
    assert made(weak_2=0.2).hidden == 0.0
    assert "50% of it runs behind" in titles(result) or "49% of it runs behind" in titles(result)
    assert "runs behind" not in titles(made(weak_2=0.1)), "a share of what cannot be seen is no number"


def test_the_bandwidth_of_all_reduce_is_of_this_gradient() -> None:
    result = made(4)
    assert result.bandwidth.value == pytest.approx(100 * MIB / 1e9 / 0.02, rel=0.01)
    assert result.bus_bandwidth.value == pytest.approx(1.5 * result.bandwidth.value), "2 (n - 1) / n with four"
    assert result.bandwidth.low < result.bandwidth.value < result.bandwidth.high


def test_a_rank_slower_than_the_others_is_named() -> None:
    said = titles(made(4, straggler=1.2))
    assert "rank 3 (GPU-3): slower than the others" in said
    assert "rank 0" not in said.partition("slower than the others")[0].rpartition("\n")[2]
    assert "slower than the others" not in titles(made(4))
    assert made(2, straggler=1.2).members[1].against.ratio == pytest.approx(1 / 1.2), "over the others, not over all"


def test_ranks_that_take_from_each_other_are_told_from_communication() -> None:
    result = made(weak_2=0.125, floor=0.125)
    assert "Side by side each rank reaches 80" in titles(result)
    assert "Communication adds nothing that shows" in titles(result)


def test_what_is_to_be_measured_again_is_the_same_job() -> None:
    wide = msgspec.structs.replace(made(weak_2=0.1), workload=f"{Job('gpt-small').title}, somehow")
    world = wide.world("weak")
    unsure = msgspec.structs.replace(world.speedup, ratio=1.5, low=1.2, high=1.8)
    world = msgspec.structs.replace(world, speedup=unsure)
    result = msgspec.structs.replace(wide, worlds=(world,))
    (fix,) = [one.fix for one in scaling.findings(result) if one.fix.startswith("gpuworkshop scale")]
    assert fix.startswith("gpuworkshop scale --preset gpt-small --ranks 2   #")


def test_a_starved_rank_comes_first() -> None:
    result = msgspec.structs.replace(made(), alone_wait=0.6)
    first = next(f for f in scaling.findings(result) if f.level == "warning")
    assert "waits 60% of its time for data: 2 ranks waste 2 times as much" in first.title
    assert "starve" in first.fix


def test_one_rank_stands_by_itself() -> None:
    result = made(1, weak_1=0.105)
    said = titles(result)
    assert "DDP itself leaves 95.2%" in said and "Strong" not in said and "slower than" not in said
    assert result.bandwidth is None and result.hidden is None and result.members[0].against is None
    assert "n/a" not in said


def test_worlds_between_are_measured_too() -> None:
    assert sizes(1) == (1,) and sizes(2) == (2,) and sizes(3) == (2, 3) and sizes(8) == (2, 4, 8)
    result = made(4, weak_2=0.11, weak_4=0.12)
    assert [(w.size, w.mode) for w in result.worlds] == [(2, "weak"), (4, "weak"), (2, "strong"), (4, "strong")]


def test_a_batch_that_cannot_be_shared_is_said() -> None:
    result = made(4, batch=3)
    assert result.world("strong") is None and result.world("strong", 2).batch == 1
    assert any("strong scaling to 4 ranks is n/a" in note for note in result.notes)
    assert any("2 x 1 samples a step instead of 3" in note for note in result.notes)


def test_r13_efficiency_of_the_wrong_thing() -> None:
    """Lightning-AI/pytorch-lightning#13605, #5276, mila-iqia/milabench#60: samples/s in a stated mode, or nothing."""
    four = efficiency_by_hand([4] * 4, 64, 8.5, 64, 10.0)
    assert (four.mode, four.samples_a_second) == ("weak", 2176) and four.efficiency == pytest.approx(0.85)
    shared = efficiency_by_hand([4] * 4, 16, 20.0, 64, 10.0)
    assert (shared.mode, shared.samples_a_second) == ("strong", 1280) and shared.efficiency == pytest.approx(0.5)
    assert "more than 100%" in efficiency_by_hand([2, 2], 64, 12.5, 64, 10.0).remark
    assert not four.remark
    with pytest.raises(ValueError, match="4 ranks ran and say that their world has 2"):
        efficiency_by_hand([2] * 4, 64, 9.8, 64, 10.0)


def test_r13_more_than_all_is_a_warning() -> None:
    """milabench#60: above 100% something else was measured."""
    finding = next(f for f in scaling.findings(made(weak_2=0.08)) if "Weak" in f.title)
    assert finding.level == "warning" and "more than 100%" in finding.evidence


def test_r13_a_throughput_that_does_not_rise_with_the_ranks_is_a_warning() -> None:
    """Lightning-AI/pytorch-lightning#13605: four ranks that together do what one does; the slowest rules them."""
    result = made(4, weak_4=0.4, straggler=1.2)
    assert result.world("weak", 4).rate.value == pytest.approx(result.alone.value, rel=0.02)
    finding = next(f for f in scaling.findings(result) if "Weak" in f.title)
    assert finding.level == "warning" and "does not pay" in finding.title and "images/s" in finding.evidence
    slow = next(f for f in scaling.findings(result) if "slower than the others" in f.title)
    assert slow.level == "warning" and "rank 3 (GPU-3)" in slow.title


def test_r05_the_report_shows_the_card_of_each_rank() -> None:
    """mila-iqia/mila-docs#245, maccallumlab/meld#114: which rank is on which card, by UUID."""
    (shown,) = [table for table in scaling.report(made(4)).tables if table.columns[0] == "rank"]
    assert [row[:2] for row in shown.rows] == [(str(number), f"GPU-{number}") for number in range(4)]


def test_the_result_survives_json() -> None:
    result = made(2, straggler=1.3)
    assert msgspec.json.decode(msgspec.json.encode(result), type=ScalingResult) == result


# ---------------------------------------------------------------- the figure


def test_the_figure_has_bands_marks_and_a_text_version() -> None:
    result = made(4, weak_2=0.11, weak_4=0.14)
    picture = scaling_figure(result.worlds, result.origin)
    root = ElementTree.fromstring(picture.svg)
    words = " ".join("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))
    for word in ("> 80%", "70-80%", "< 70%", "weak", "strong", "measured here", "ranks", "71.4"):
        assert word in words
    assert "71.4" in picture.text and "does not pay" in picture.text and "71.4" in picture.alt
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 4 + 2, "four worlds, and one mark of each mode to name it"


def test_the_figure_says_what_is_not_known() -> None:
    result = made()
    nothing = msgspec.structs.replace(result.worlds[0].speedup, ratio=math.nan, low=math.nan, high=math.nan)

    class Unknown:
        size, mode, batch, bands = 2, "weak", 32, ()
        efficiency = msgspec.structs.replace(result.worlds[0].efficiency, value=math.nan)

    assert nothing.ratio != nothing.ratio
    for picture in (scaling_figure([Unknown()], result.origin), scaling_figure([], result.origin)):
        ElementTree.fromstring(picture.svg)
        assert "n/a" in picture.alt + picture.svg


def test_a_hostile_name_is_escaped() -> None:
    result = made()
    bad = msgspec.structs.replace(result.origin, on="<script>alert(1)</script>")
    report = scaling.report(msgspec.structs.replace(result, origin=bad, workload="<b>x</b>"))
    html = report._repr_mimebundle_()["text/html"]
    assert "<script>" not in html and "<b>x" not in html


# ---------------------------------------------------------------- how many ranks


def cards(*made: Card) -> Cards:
    """What the driver says of these cards."""
    return Cards(visible({}), tuple(made))


def test_never_more_ranks_than_cards() -> None:
    assert "4 ranks need 4 cards, and this job has 2" in refusal(4, 2, 64)
    assert refusal(2, 2, 1) == "" and refusal(2, 0, 2) == ""
    assert "3 ranks on 2 CPUs" in refusal(3, 0, 2)
    two = cards(Card("NVIDIA H200", "GPU-1"), Card("NVIDIA H200", "GPU-2"))
    assert refused_before(2, two, 8) == "" and "this job has 2" in refused_before(3, two, 8)


def test_v02_two_slices_are_one_rank() -> None:
    """pytorch/pytorch#102715: a process gets one MIG slice, so two ranks are not planned on two of them."""
    slices = [Card("NVIDIA A100 MIG 1g.10gb", f"MIG-{n}", mig=True, parent="GPU-1") for n in range(2)]
    assert "MIG" in refused_before(2, cards(*slices), 8)
    assert refused_before(1, cards(slices[0]), 8) == ""


def test_cards_that_nobody_is_sure_of_are_left_to_the_ranks() -> None:
    unsure = msgspec.structs.replace(cards(), unknown=("cuda:0", "cuda:1"))
    assert refused_before(2, unsure, 1) == ""


def test_r05_every_rank_sees_one_card_called_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACEsuit/mace#435: with --gpus-per-task=1 the third rank's card is number 0 too; two on the same are refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert ranks.own_device({"LOCAL_RANK": "3", "SLURM_LOCALID": "3", "CUDA_VISIBLE_DEVICES": "0"}) == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert ranks.own_device({"LOCAL_RANK": "3"}) == "cuda:3"
    assert check_cards(["GPU-a", "GPU-b"], "cuda:0") == ["GPU-a", "GPU-b"]
    with pytest.raises(ValueError, match=r"ranks 0 and 2 have the same card \(GPU-a\)"):
        check_cards(["GPU-a", "GPU-b", "GPU-a"], "cuda:0")


@pytest.mark.parametrize("many", [0, -1, 5000, True, 2.0, "2"])
def test_what_is_no_number_of_ranks_is_refused_at_once(many) -> None:
    with pytest.raises(ChildFailed, match="ranks is") as caught:
        scaling.run(ranks=many)
    assert caught.value.bad_input


def test_the_verb_says_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scale", "--ranks", "900", "--preset", "tiny"]) == 2
    assert cli.main(["scale", "--straggler-ms", "-1"]) == 2
    assert cli.main(["scale", "--", "no-such-script.py"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 3
    assert "900 ranks" in said[0] and "between 0 and 10000" in said[1] and "no script no-such-script.py" in said[2]


def test_no_torchrun_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Without:
        submodule_search_locations = [str(tmp_path)]

    monkeypatch.setattr(scaling, "find_spec", lambda name: Without())
    with pytest.raises(ChildFailed, match="comes without torchrun") as caught:
        scaling.run(ranks=1)
    assert caught.value.bad_input
    monkeypatch.setattr(scaling, "find_spec", lambda name: None)
    assert "not installed" in scaling.no_torchrun()


def test_r01_a_function_of_a_notebook_is_refused() -> None:
    """Lightning-AI/pytorch-lightning#7550, #61, #7842: a rank cannot import it; the advice is to write a file."""

    def rank_main(number: int) -> None:
        pass

    with pytest.raises(ChildFailed, match="write it to a file") as caught:
        scaling.launch(rank_main, {}, 2, type=int)
    assert caught.value.bad_input


# ---------------------------------------------------------------- the data of each rank


def test_r09_every_epoch_has_another_order() -> None:
    """pytorch/pytorch#31771: without set_epoch the shares come in the same order each time."""
    data = TensorDataset(torch.arange(20))
    loader = DataLoader(data, batch_size=2, sampler=order(data, Rank(0, 2)))
    seen = []
    for _, batches in zip(range(2), epochs(loader), strict=False):
        seen.append(batches)
    assert seen[0] != seen[1]
    begin_epoch(loader, 0)
    assert [batch[0].tolist() for batch in loader] == seen[0], "the first epoch again"


def epochs(loader: DataLoader):
    """The batches of each epoch, as train.endless gives them."""
    stream = train.endless(loader)
    while True:
        yield [next(stream)[0].tolist() for _ in range(len(loader))]


def test_no_sample_goes_to_two_ranks_and_all_have_equally_many() -> None:
    data = TensorDataset(torch.arange(21))
    shares = [list(order(data, Rank(number, 2), seed=3)) for number in range(2)]
    assert len(shares[0]) == len(shares[1]) == 10 and not set(shares[0]) & set(shares[1])


@pytest.mark.parametrize("path", ["cpu-decode", "pre-decoded"])
def test_the_training_reads_its_share_on_every_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuworkshop.workloads import images, pictures

    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(tmp_path))
    shown = pictures.training_set(64, None)
    config = TrainConfig(batch_size=4, data_path=path)
    loaders = [images.loader(config, Job(), shown, Rank(number, 4)) for number in range(4)]
    assert {len(loader) for loader in loaders} == {len(shown) // 4 // 4}
    begin_epoch(loaders[0], 1)
    inner = getattr(loaders[0].sampler, "sampler", loaders[0].sampler)
    assert inner.epoch == 1
    with pytest.raises(ValueError, match="each of 4 ranks has"):
        images.loader(config.with_(batch_size=len(shown)), Job(), shown, Rank(0, 4))


# ---------------------------------------------------------------- live


@pytest.fixture(autouse=True, scope="module")
def on_cpus() -> Iterator[None]:
    """The ranks of this module are CPU cores, also where there are cards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


@pytest.fixture(scope="module")
def live(on_cpus) -> tuple[ScalingResult, list[str]]:
    """Two gloo ranks on the small text model; the second one really waits 150 ms in each step."""
    heard: list[str] = []
    config = Job("gpt-tiny").sizes.start
    result = scaling.run(
        config,
        Job("gpt-tiny"),
        2,
        straggler_ms=150.0,
        plan=msgspec.structs.replace(QUICK, min_rounds=6),
        progress=lambda said: heard.append(said.text),
        patience=200,
    )
    return result, heard


def test_two_ranks_on_two_cores(live) -> None:
    result, heard = live
    assert (result.ranks, result.backend, result.alone.unit) == (2, "gloo", "sequences/s")
    assert [(w.mode, w.batch) for w in result.worlds] == [("weak", 8), ("strong", 4)]
    assert result.alone.n == result.wrapped.n == result.world("weak").rate.n >= 4
    assert result.conditions.threads == 1
    assert result.gradient_bytes > 100_000 and result.reduce_seconds.value > 0
    assert any("worlds in turn" in text for text in heard)


def test_the_planted_straggler_is_found_and_named_planted(live) -> None:
    result, _ = live
    assert "the last rank really waits 150 ms" in result.planted
    slow = [member.number for member in result.members if member.against.verdict == "slower"]
    assert slow == [1]
    assert result.members[0].rate.value > 1.5 * result.members[1].rate.value
    first = next(iter(scaling.findings(result)))
    assert first.title.startswith("Planted") and "rank 1 (CPU): slower" in titles(result)


def test_the_report_of_a_live_run_stands(live) -> None:
    result, _ = live
    text = str(scaling.report(result))
    assert "one alone, without DDP" in text and "2, strong" in text and "Each rank by itself" in text
    assert json.loads(msgspec.json.encode(result))["ranks"] == 2


def test_one_rank_live_and_the_verb_in_json(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    whole = scaling.run
    monkeypatch.setattr(scaling, "run", lambda *a, **named: whole(*a, **named, plan=QUICK, patience=200))
    assert cli.main(["scale", "--ranks", "1", "--preset", "gpt-tiny", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["result"]["ranks"] == 1 and said["result"]["reduce_seconds"] is None
    assert any("DDP itself leaves" in finding["title"] for finding in said["findings"])


def test_the_loopback_interface_is_found_by_name() -> None:
    assert loopback(lambda: [(1, "eth0"), (2, "lo")]) == "lo"
    assert loopback(lambda: [(1, "en0"), (2, "lo0")]) == "lo0"
    assert loopback(lambda: [(1, "eth0")]) == ""
