"""What the hooks' records say: pure readings of made-up records, whole and torn ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuworkshop.own.command import Understood
from gpuworkshop.own.read import Run, read, tail
from gpuworkshop.own.records import Records
from gpuworkshop.own.result import OwnResult

PLACE = {"file": "/home/me/train.py", "line": 12, "code": "loader = DataLoader(data)", "function": "main"}
LOADER = {
    "place": PLACE,
    "workers": 0,
    "batch_size": 32,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "dataset": "Pictures",
    "iterable": False,
    "batches": 200,
    "epochs": 2,
    "collate": "",
}
SETTINGS = {
    "device": "cpu",
    "threads": 1,
    "torch": "2.3.0",
    "weights_kind": "float32",
    "autocast": "",
    "tf32": True,
    "scaler": False,
    "channels_last": None,
    "checkpointing": False,
    "compiled": False,
    "ddp": "",
    "rank": 0,
    "world": 1,
    "accumulation": 1.0,
    "loaders": [LOADER],
    "optimizers": [
        {"place": PLACE, "kind": "AdamW", "steps": 10, "fused": None, "foreach": None, "weights": 1000},
    ],
    "waits": [],
    "model": "Net",
    "model_place": PLACE,
    "backward_place": PLACE,
    "step_place": PLACE,
    "autocast_place": None,
    "framework": "",
    "devices_set": False,
}
CARD = {"device": "cuda:0", "name": "NVIDIA H200", "uuid": "a-b", "total_memory": 150 * 10**9, "major": 9, "minor": 0}


def block(phase: str, arm: str, seconds: float, *, steps: int = 5, samples: int = 160, wait: float = 0.0) -> dict:
    """A block as the hooks write it."""
    spans = {"wait": wait}
    return {"kind": "block", "phase": phase, "arm": arm, "seconds": seconds, "steps": steps, "samples": samples} | {
        "spans": spans,
        "n": steps,
    }


def baseline(**change: Any) -> list[dict]:
    return [block("baseline", "now", seconds, **change) for seconds in (1.0, 1.02, 0.98, 1.0)]


def pairs(real: float = 1.0, again: float = 0.5, wait: float = 0.5) -> list[dict]:
    """Eight pairs with a little noise."""
    found = []
    for n in range(8):
        found.append(block("pairs", "now", real * (1 + 0.01 * (n % 2)), wait=wait))
        found.append(block("pairs", "data ceiling", again * (1 + 0.01 * (n % 2))))
    return found


def told(folder: Path, *records: dict, process: str = "records-1-here.jsonl", **settings: Any) -> Path:
    """Write the records of one process that trains; ``settings`` change what it was seen to use."""
    first = [
        {"kind": "hello", "at": 1.0, "python": "3.9.1", "rank": settings.get("rank"), "node": "here"},
        {"kind": "torch", "at": 2.0, "version": "2.3.0"},
        {"kind": "first step", "at": 3.0, "script": "/home/me/train.py"},
        {"kind": "settings", "at": 4.0, **SETTINGS, **settings},
    ]
    with (folder / process).open("a") as file:
        for record in (*first, *records):
            file.write(json.dumps({"at": 5.0, **record}) + "\n")
    return folder


def seen(folder: Path, *, status: int | None = 0, timed_out: bool = False, budget: float | None = None) -> OwnResult:
    what = Understood(("python", "train.py"), {}, "train.py", "")
    records = Records(folder)
    records.more()
    return read(Run(("python", "train.py"), what, folder, status, timed_out, 20.0, budget), records)


END = {"kind": "end", "steps": 250, "loaders": [{**LOADER, "batches": 250}], "startups": [0.4]}


def test_rates_and_headroom_come_from_the_blocks(tmp_path: Path) -> None:
    result = seen(told(tmp_path, *baseline(), *pairs(), END))
    assert result.ended == "stopped by us" and result.steps == 250 and result.exit_code == 0
    assert result.rate.value == pytest.approx(160, rel=0.01) and result.rate.n == 4
    assert result.step_seconds == pytest.approx(0.2)
    assert result.starve.headroom.ratio == pytest.approx(2.0, rel=0.01) and result.starve.headroom.pairs == 8
    assert result.starve.wait_share == pytest.approx(0.5, rel=0.02) and result.starve.wait_name == "loader wait"
    assert result.starve.limit == "data" and result.starve.agrees is True
    assert result.starve.startup_seconds == 0.4 and result.starve.batch_size == 32
    assert result.settings.loaders[0].batches == 250, "counted until the end, not only in the first steps"
    assert result.conditions.python == "3.9.1" and result.conditions.torch == "2.3.0"


def test_a_wait_that_does_not_explain_the_headroom_is_no_verdict(tmp_path: Path) -> None:
    result = seen(told(tmp_path, *baseline(), *pairs(wait=0.05), END))
    assert result.starve.agrees is False and result.starve.limit == "unknown"


def test_half_a_pair_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    told(tmp_path, *baseline(), *pairs()[:5])
    with (tmp_path / "records-1-here.jsonl").open("a") as file:
        file.write('not JSON\n["a list"]\n{"kind": "block", "phase": "baseline", "arm": "now", "sec')
    result = seen(tmp_path, status=-9)
    assert len(pairs()[:5]) == 5 and result.starve.headroom.pairs == 2
    assert result.ended == "signal" and result.rate.n == 4


def test_records_are_read_on_where_they_grew(tmp_path: Path) -> None:
    told(tmp_path, *baseline()[:1])
    records = Records(tmp_path)
    records.more()
    with (tmp_path / "records-1-here.jsonl").open("a") as file:
        file.write('{"kind": "phase", "name": "pairs", "at": 9')
        file.flush()
        records.more()
        assert records.main.one("phase") == {} and records.doing == "first steps"
        file.write(".5}\n")
        file.flush()
    records.more()
    assert records.main.one("phase")["name"] == "pairs" and records.last_at == 9.5 and records.share == 0.4
    assert len(records.main.of("block")) == 1


def test_batches_without_a_size_count_as_steps(tmp_path: Path) -> None:
    result = seen(told(tmp_path, *baseline(samples=0), {**END, "loaders": []}, loaders=[]))
    assert str(result.rate).startswith("5.00 steps/s") and result.starve is None
    assert any(line.startswith("No DataLoader fed the steps") for line in result.not_seen)


@pytest.mark.parametrize(
    "change, precision",
    [
        ({}, "fp32"),
        ({**CARD}, "tf32"),
        ({**CARD, "tf32": False}, "fp32"),
        ({**CARD, "autocast": "bfloat16"}, "bf16"),
        ({"weights_kind": "float16"}, "fp16"),
        ({"weights_kind": "float64"}, None),
    ],
)
def test_precision_is_autocast_then_the_weights_then_the_switches(
    tmp_path: Path, change: dict, precision: str | None
) -> None:
    result = seen(told(tmp_path, *baseline(), **change))
    assert result.settings.precision == precision


def wait(device: str, *, direct: bool, a_step: float = 1.0, line: int = 12) -> dict:
    return {"place": {**PLACE, "line": line}, "call": "item", "device": device, "direct": direct, "a_step": a_step}


def test_on_a_card_only_calls_on_its_tensors_wait(tmp_path: Path) -> None:
    waits = [
        wait("cpu", direct=True),
        wait("cuda", direct=False, line=20),
        wait("cuda", direct=True, a_step=3, line=30),
    ]
    result = seen(told(tmp_path, *baseline(), **CARD, waits=waits))
    assert [one.place.line for one in result.settings.waits] == [30, 20]


def test_on_a_cpu_the_librarys_own_calls_are_no_waits(tmp_path: Path) -> None:
    result = seen(told(tmp_path, *baseline(), waits=[wait("cpu", direct=True), wait("cpu", direct=False, line=20)]))
    assert [one.place.line for one in result.settings.waits] == [12]


def test_a_card_is_named_by_what_its_own_torch_says(tmp_path: Path) -> None:
    flops = {"kind": "flops", "total": 32 * 10**9, "samples": 32, "recomputed": 0, "uncounted": {"aten::relu": 3}}
    flops |= {"by_operator": {"aten::mm": 32 * 10**9}, "by_format": {"bfloat16": 32 * 10**9}}
    product = {"kind": "product", "dtype": "bfloat16", "seconds": [0.1] * 8, "products": 10, "flop": 2 * 8192**3}
    memory = {"kind": "memory", "reserved": 40, "free": 60, "total": 120, "now": 20}
    result = seen(told(tmp_path, *baseline(), memory, flops, product, END, **CARD, autocast="bfloat16"))
    assert result.conditions.machine == "NVIDIA H200" and result.conditions.uuid == "GPU-a-b"
    assert result.memory == 0.5 and result.memory_bytes == 40
    assert result.achieved.rate.value == pytest.approx(160e9, rel=0.01)
    assert result.achieved.of_product == pytest.approx(160e9 / (10 * 2 * 8192**3 / 0.1), rel=0.01)
    assert result.achieved.of_peak == pytest.approx(160e9 / 989e12, rel=0.05)


def test_an_operator_that_nobody_counts_takes_the_share_of_the_peak_away(tmp_path: Path) -> None:
    flops = {"kind": "flops", "total": 10**9, "samples": 32, "recomputed": 0, "uncounted": {"their::attention": 1}}
    flops |= {"by_operator": {}, "by_format": {}}
    result = seen(told(tmp_path, *baseline(), flops, END))
    assert result.achieved.of_product is None and "their::attention" in result.achieved.why


def test_an_end_in_the_counted_step_is_ours(tmp_path: Path) -> None:
    result = seen(told(tmp_path, *baseline(), *pairs(), {"kind": "phase", "name": "count"}), status=1)
    assert result.ended == "stopped by us" and result.exit_code == 1


def test_ranks_each_have_a_rate_and_rank_0_is_the_run(tmp_path: Path) -> None:
    told(tmp_path, *baseline(), END, world=2, ddp="DDP", rank=0, process="records-9-here.jsonl")
    slow = [block("baseline", "now", 2.0), block("baseline", "now", 2.1)]
    told(tmp_path, *slow, world=2, ddp="DDP", rank=1, process="records-8-here.jsonl")
    result = seen(tmp_path)
    assert [round(rate.value) for rate in result.world_rates] == [160, 78]
    assert result.rate == result.world_rates[0] and not result.settings.forks


def test_two_that_train_as_the_same_rank_were_started_by_the_script(tmp_path: Path) -> None:
    told(tmp_path, *baseline(), END, process="records-9-here.jsonl")
    told(tmp_path, *baseline(), process="records-8-here.jsonl")
    result = seen(tmp_path)
    assert result.settings.forks and any("starts processes itself" in line for line in result.not_seen)


def test_what_is_done_between_steps_is_in_the_whole_rate(tmp_path: Path) -> None:
    result = seen(told(tmp_path, *baseline(), {"kind": "beside", "share": 0.25}, END))
    assert result.whole_rate.value == pytest.approx(0.75 * result.rate.value)


@pytest.mark.parametrize(
    "note, words",
    [
        ({"what": "no optimizer"}, 'write getattr(torch, "gpuworkshop_step", int)() after each step'),
        ({"what": "budget", "steps": 12}, "was enough for 12 plain steps instead of 50"),
        ({"what": "saved", "file": "last.pt"}, "The script wrote last.pt meanwhile"),
        ({"what": "profiler taken"}, "Another profiler of PyTorch"),
        ({"what": "ranks unseen", "world": 8}, "Ranks on other nodes were not watched"),
        ({"what": "flops", "why": "compiled"}, "because the model is compiled"),
        ({"what": "loader in a thread"}, "read by a thread of its own"),
        ({"what": "forked"}, "trains in processes that it forked"),
    ],
)
def test_each_note_becomes_one_sentence(tmp_path: Path, note: dict, words: str) -> None:
    result = seen(told(tmp_path, *baseline(), *pairs(), {"kind": "note", **note}, END), budget=30.0)
    assert [line for line in result.not_seen if words in line], result.not_seen


def test_too_few_steps_are_said(tmp_path: Path) -> None:
    told(tmp_path, {"kind": "sums", "steps": 17, "loaders": [LOADER], "startups": []})
    result = seen(tmp_path)
    assert result.rate is None and result.ended == "by itself"
    assert any("ended after 17 steps, too few to measure" in line for line in result.not_seen)


def test_no_records_at_all_is_no_error(tmp_path: Path) -> None:
    result = seen(tmp_path)
    assert result.settings is None and result.conditions is None and "No Python of this command" in result.not_seen[0]
    assert result.origin.mark == "measured here"


def test_an_error_speaks_for_itself(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("10%|#\r20%|##\r\nTraceback\nFileNotFoundError: /data/train\n")
    result = seen(tmp_path, status=1)
    assert result.ended == "error" and result.own_words.endswith("FileNotFoundError: /data/train")
    assert result.not_seen == ()


def test_the_tail_is_what_a_terminal_would_show(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_bytes(b"\xff 1%\r 2%\r 3%\n" + b"x" * 100 + b"\n")
    assert tail(tmp_path / "output.txt") == " 3%\n" + "x" * 100
    assert tail(tmp_path / "nothing.txt") == ""
