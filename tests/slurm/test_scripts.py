"""The scripts of slurm/: rendered from the site file, clean, and run as they are on a real Slurm."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from gpuworkshop.cluster import scripts, site

FOLDER = Path(__file__).parents[2] / "slurm"
MADE = scripts.scripts(site.load("aicr"))
BATCH = [name for name in MADE if name.endswith(".sbatch")]
FEWER = "--cpus-per-task={}"
"""On sbatch's command line: the scripts count their workers from it, and all of them share two real CPUs here."""


def test_folder_holds_what_the_site_file_says():
    assert {file.name: file.read_text() for file in FOLDER.iterdir() if file.suffix in (".sbatch", ".sh")} == MADE


@pytest.mark.parametrize("name", MADE)
def test_shellcheck_finds_nothing(name: str):
    checked = subprocess.run(
        ["shellcheck", "-e", "SC1091", "-s", "bash", FOLDER / name], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", BATCH)
def test_logs_folder_is_made_before_not_inside(name: str):
    assert "mkdir" not in re.sub(r"#.*", "", MADE[name])
    assert "mkdir -p logs" in MADE[name]


@pytest.mark.parametrize("name", BATCH)
def test_cpus_are_workers_and_one_for_each_rank(name: str):
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", MADE[name], re.MULTILINE))
    cards = int(asked["gres"].rpartition(":")[2])
    assert int(asked["cpus-per-task"]) == 8 * cards
    assert asked["ntasks-per-node"] == "1"


@pytest.mark.parametrize("family", ["b200", "rtx"])
def test_training_runs_as_it_is(cluster, work, family: str):
    job = cluster.run(FOLDER / f"train-{family}.sbatch", FEWER.format(2), cwd=work, seconds=150)
    assert (job.state, job.exit) == ("COMPLETED", "0:0"), job.output
    assert "step   50" in job.output


def test_verify_runs_as_it_is(cluster, work):
    job = cluster.run(FOLDER / "verify.sbatch", cwd=work)
    assert (job.state, job.exit) == ("COMPLETED", "0:0"), job.output
    assert "NVIDIA B200" in job.output


def test_verify_ends_the_job_on_the_wrong_family(cluster, work):
    job = cluster.run(FOLDER / "train-b200.sbatch", "--partition=rtx-batch", cwd=work)
    assert job.state == "FAILED", job.output
    assert "RTX PRO 6000" in job.output
    assert not re.search(r"^step", job.output, re.MULTILINE)


def test_profile_runs_as_it_is(cluster, work):
    job = cluster.run(FOLDER / "profile.sbatch", FEWER.format(2), cwd=work, seconds=150)
    assert (job.state, job.exit) == ("COMPLETED", "0:0"), job.output
    assert list(work.glob("trace_*.json.gz"))


def test_claims_record_a_part_and_say_where_it_is(cluster, work):
    for _ in range(2):  # the second time there is nothing left to measure
        options = (FEWER.format(2), "--export=ALL,PARTS=calls")
        job = cluster.run(FOLDER / "claims-rtx.sbatch", *options, cwd=work, seconds=150)
        assert (job.state, job.exit) == ("COMPLETED", "0:0"), job.output
    kept = work / "claims-rtx.json"
    assert [part["name"] for part in json.loads(kept.read_text())["result"]["parts"]] == ["calls"]
    assert "was recorded before" in job.output and f"Please send {kept}" in job.output


@pytest.mark.parametrize(("name", "ranks", "ranks_a_node"), [("ddp", 4, 4), ("ddp-nodes", 4, 2)])
def test_ddp_makes_one_rank_for_each_card(cluster, work, name: str, ranks: int, ranks_a_node: int):
    job = cluster.run(FOLDER / f"{name}.sbatch", FEWER.format(2 * ranks_a_node), cwd=work, seconds=400)
    assert (job.state, job.exit) == ("COMPLETED", "0:0"), job.output
    assert f"{ranks} ranks" in job.output
    assert job.output.count("step   50") == 1
