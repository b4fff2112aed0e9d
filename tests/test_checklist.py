"""The ten items before batch: green only with a number or a line that says so, red with it, unknown without."""

from __future__ import annotations

import json
from pathlib import Path

import measured_runs as made
import msgspec
import pytest

from gpuworkshop import cli
from gpuworkshop.cluster import site
from gpuworkshop.course import replay
from gpuworkshop.loop import checklist, rightsize
from gpuworkshop.loop.checklist import Item, Ready
from gpuworkshop.loop.evidence import Evidence
from gpuworkshop.loop.rightsize import Asked

AICR = site.load("aicr")
HEAD = """#!/bin/bash -l
#SBATCH --partition=b200-batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:1
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --output=logs/%x_%j.out
set -euo pipefail
"""
ITEMS = ("verify", "utilization", "workers", "pinned", "batch", "bf16", "partition", "cpus", "logs", "profile")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder from which it is submitted, with the folder for logs."""
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ready(*results, line: str = "python train.py", old: str = "", new: str = "", at=AICR) -> Ready:
    """The list for a script that ends with this line, with something in its head replaced."""
    assert not old or old in HEAD
    Path("job.sbatch").write_text(f"{HEAD.replace(old, new) if old else HEAD}{line}\n")
    return checklist.run("job.sbatch", at, Evidence((f"{type(one).__name__}.json", one) for one in results))


def item(made_list: Ready, id: str) -> Item:
    """One item of the list."""
    return next(one for one in made_list.items if one.id == id)


def state(made_list: Ready, id: str) -> str:
    return item(made_list, id).state


def test_there_are_ten_in_the_courses_order(here: Path) -> None:
    assert tuple(one.id for one in ready().items) == ITEMS


def test_nothing_measured_is_unknown_and_never_green(here: Path) -> None:
    states = {one.id: one.state for one in ready().items}
    known = {"partition": "green", "logs": "green"}  # the script and the folder say so
    assert states == dict.fromkeys(ITEMS, "unknown") | known


def test_all_ten_can_be_green(here: Path) -> None:
    run = made.starve(workers=7, batch=256, precision="bf16", pin_memory=True)
    verify, profile = replay.load("verify"), replay.load("profile")
    found = ready(verify, made.watch(busy=0.95, used=120), run, profile)
    assert {one.id: one.state for one in found.items} == dict.fromkeys(ITEMS, "green")
    assert all(one.why for one in found.items)
    assert not checklist.report(found).failed


def test_verify_that_fails_is_red_with_its_words(here: Path) -> None:
    result = replay.load("verify")
    broken = msgspec.structs.replace(result, torch=msgspec.structs.replace(result.torch, trips=()))
    assert state(ready(result), "verify") == "green"
    assert state(ready(broken), "verify") == "red"
    assert "the script runs it first" in item(ready(line="gpuworkshop verify\npython train.py"), "verify").why


@pytest.mark.parametrize(("busy", "wanted"), [(0.71, "green"), (0.70, "red"), (0.2, "red"), (None, "unknown")])
def test_utilization_above_70_percent(here: Path, busy: float | None, wanted: str) -> None:
    one = item(ready(made.watch(busy=busy, why="" if busy else "a MIG slice")), "utilization")
    assert one.state == wanted
    assert (f"{busy:.0%}" if busy else "a MIG slice") in one.why and "WatchResult.json" in one.source


@pytest.mark.parametrize(
    ("line", "wanted", "why"),
    [
        ("python train.py --num-workers 0", "red", "0 workers"),
        ("python train.py --num-workers 4", "green", "4 workers"),
        ("python train.py --workers $((SLURM_CPUS_PER_TASK - 1))", "green", "7 workers"),
        ("python train.py", "green", "6 workers"),
    ],
)
def test_workers_by_the_script_before_the_measurement(here: Path, line: str, wanted: str, why: str) -> None:
    one = item(ready(made.starve(workers=6), line=line), "workers")
    assert (one.state, why in one.why) == (wanted, True)


def test_workers_of_a_measured_run(here: Path) -> None:
    assert state(ready(made.starve(workers=0)), "workers") == "red"


def test_pin_memory_by_script_else_by_run_and_not_judged_without_a_card(here: Path) -> None:
    run = made.starve(pin_memory=True)
    on_cpu = msgspec.structs.replace(run, conditions=made.CPU)
    assert state(ready(run), "pinned") == "green"
    assert state(ready(made.starve(pin_memory=False)), "pinned") == "red"
    assert state(ready(on_cpu), "pinned") == "unknown"
    assert state(ready(run, line="python train.py --dataloader_pin_memory False"), "pinned") == "red"


KNEE_128 = made.batches({64: 500, 128: 990, 256: 1000})


@pytest.mark.parametrize(
    ("share", "batch", "sweep", "wanted"),
    [
        (0.61, 32, KNEE_128, "green"),  # the memory is used
        (0.10, 128, KNEE_128, "green"),  # or the knee is reached
        (0.10, 64, KNEE_128, "red"),  # neither, and both were measured
        (0.10, 64, None, "unknown"),  # the knee may be reached
        (None, 64, KNEE_128, "unknown"),  # the memory may be used
        (None, 256, KNEE_128, "green"),
        (None, 64, None, "unknown"),
    ],
)
def test_batch_by_memory_or_knee(here: Path, share: float | None, batch: int, sweep, wanted: str) -> None:
    watched = made.watch(used=100 * share, total=100) if share else None
    results = [one for one in (made.starve(batch=batch), watched, sweep) if one]
    assert state(ready(*results), "batch") == wanted


def test_batch_of_the_script_is_what_counts(here: Path) -> None:
    results = made.starve(batch=256), made.watch(used=10, total=100), KNEE_128
    assert state(ready(*results), "batch") == "green"
    assert state(ready(*results, line="python train.py --batch-size 32"), "batch") == "red"


def test_bf16_by_script_else_by_run(here: Path) -> None:
    assert state(ready(made.starve(precision="bf16")), "bf16") == "green"
    assert state(ready(made.starve(precision="fp32")), "bf16") == "red"
    assert state(ready(made.starve(precision="fp32"), line="python train.py --bf16"), "bf16") == "green"
    assert state(ready(made.starve(precision="bf16"), line="python train.py --precision fp32"), "bf16") == "red"


def test_bf16_that_was_measured_and_does_not_pay_is_no_fault(here: Path) -> None:
    measured = replay.load("precision")
    assert "5.9" in item(ready(made.starve(precision="fp32"), measured), "bf16").why
    pair = next(one for one in measured.pairs if (one.over, one.arm) == ("fp32", "bf16"))
    even = msgspec.structs.replace(pair.seen, ratio=1.0, low=0.99, high=1.01, verdict="no real difference")
    others = [one for one in measured.pairs if one is not pair]
    flat = msgspec.structs.replace(measured, pairs=(*others, msgspec.structs.replace(pair, seen=even)))
    assert state(ready(made.starve(precision="fp32"), measured), "bf16") == "red"
    assert state(ready(made.starve(precision="fp32"), flat), "bf16") == "green"


@pytest.mark.parametrize(
    ("partition", "wanted"),
    [("b200-batch", "green"), ("b200-devel", "red"), ("b200-bach", "red"), ("night", "unknown"), ("rtx-batch", "red")],
)
def test_partition(here: Path, partition: str, wanted: str) -> None:
    found = ready(made.watch(used=120), old="b200-batch", new=partition)
    assert state(found, "partition") == wanted, item(found, "partition").why


def test_partition_of_a_site_that_names_none_is_unknown(here: Path) -> None:
    assert state(ready(at=site.load("generic")), "partition") == "unknown"


@pytest.mark.parametrize(
    ("cpus", "workers", "wanted"), [(8, 7, "green"), (8, 8, "red"), (4, 3, "green"), (3, 2, "red"), (16, 7, "green")]
)
def test_cpus_are_workers_and_one_and_at_least_four(here: Path, cpus: int, workers: int, wanted: str) -> None:
    run = made.starve(workers=workers, limit="data")
    found = ready(run, old="cpus-per-task=8", new=f"cpus-per-task={cpus}")
    assert state(found, "cpus") == wanted, item(found, "cpus").why


def test_fewer_cpus_than_four_are_right_where_measured(here: Path) -> None:
    found = ready(made.starve(workers=2, limit="compute"), old="cpus-per-task=8", new="cpus-per-task=3")
    assert state(found, "cpus") == "green" and "does not wait for data" in item(found, "cpus").why


def test_cpus_count_every_rank(here: Path) -> None:
    line = 'srun torchrun --standalone --nnodes=1 --nproc-per-node="$SLURM_GPUS_ON_NODE" train.py --workers 7'
    for cpus, wanted in ((32, "green"), (8, "red")):
        Path("job.sbatch").write_text(
            HEAD.replace("gpu:1", "gpu:4").replace("cpus-per-task=8", f"cpus-per-task={cpus}") + line + "\n"
        )
        found = checklist.run("job.sbatch", AICR, Evidence())
        assert state(found, "cpus") == wanted, item(found, "cpus").why


def test_logs_folder(here: Path) -> None:
    assert state(ready(), "logs") == "green"
    (here / "logs").rmdir()
    assert state(ready(), "logs") == "red"


def test_profile_needs_the_cuda_column_and_20_steps(here: Path) -> None:
    profile = replay.load("profile")
    sums = profile.sums
    fewer = msgspec.structs.replace(profile, sums=msgspec.structs.replace(sums, steps=5))
    on_cpu = msgspec.structs.replace(profile, sums=msgspec.structs.replace(sums, cards=()))
    assert state(ready(profile), "profile") == "green" and "top row" in item(ready(profile), "profile").why
    assert state(ready(fewer), "profile") == "red"
    assert state(ready(on_cpu), "profile") == "unknown"


def test_every_item_that_is_not_green_says_what_to_do(here: Path) -> None:
    for one in (*ready().items, *ready(made.starve(workers=0, precision="fp32"), made.watch(busy=0.1)).items):
        assert bool(one.fix) == (one.state != "green")


def test_a_card_that_was_not_measured_on_is_told(here: Path) -> None:
    assert any("measured on NVIDIA B200" in note for note in ready(made.starve(), old="b200", new="rtx").notes)
    assert not any("measure again" in note for note in ready(made.starve()).notes)


def test_numbers_of_the_kits_training_are_told_to_whose_script_runs_another(here: Path) -> None:
    told = [note for note in ready(made.starve()).notes if "a training of the kit" in note]
    assert len(told) == 1 and "train.py" in told[0]
    kits = ready(made.starve(), line="python -m gpuworkshop.workloads.train --workers 7")
    assert not any("a training of the kit" in note for note in kits.notes)


def test_what_job_write_makes_has_nothing_red_that_it_decides(here: Path) -> None:
    results = (
        made.starve(workers=2, precision="bf16", pin_memory=True),
        made.watch(busy=0.9, used=120),
        made.scale({2: 0.9}),
    )
    evidence = Evidence((type(one).__name__, one) for one in results)
    script = rightsize.write(evidence, AICR, Asked(steps=1000))
    Path("job.sbatch").write_text(script.text("job.sbatch"))
    found = checklist.run("job.sbatch", AICR, evidence)
    assert not [one for one in found.items if one.state == "red"]


def test_the_verb_exits_1_on_red_and_0_without(here: Path, capsys: pytest.CaptureFixture) -> None:
    (here / "job.sbatch").write_text(HEAD + "python train.py\n")
    assert cli.main(["job", "ready", "job.sbatch", "--site", "aicr"]) == 0
    assert "unknown" in capsys.readouterr().out
    files = made.saved(here, starve=made.starve(workers=0))
    assert cli.main(["job", "ready", "job.sbatch", "--site", "aicr", "--from", *files]) == 1
    assert "loader workers are not 0: red" in capsys.readouterr().out
    assert cli.main(["job", "ready", "job.sbatch", "--site", "aicr", "--from", *files, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["result"]["items"]
    assert [one["id"] for one in told] == list(ITEMS)
    assert cli.main(["job", "ready", "no.sbatch"]) == 2
