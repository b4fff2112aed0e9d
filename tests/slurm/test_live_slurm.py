"""The kit on a real Slurm: a site file drafted from it and held to it, a measurement and verify behind `srun`."""

import json
import sys

import pytest

from gpuworkshop.cluster import site as sites
from gpuworkshop.instruments import starve, verify
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job

GPUWORKSHOP = (sys.executable, "-m", "gpuworkshop")
SRUN = ("srun", "--partition=rtx-devel", "--gres=gpu:1", "--cpus-per-task=2", "--time=00:05:00")


@pytest.fixture
def here(cluster, work, monkeypatch):
    """This process as a user of the cluster."""
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_site_init_drafts_what_check_finds_right(here, work):
    file = work / "mine.toml"
    drafted = here.ask(*GPUWORKSHOP, "site", "init", str(file))
    assert drafted.returncode == 0, drafted.stderr
    site = sites.load(str(file))
    hours = {partition.name: (partition.families, partition.seconds / 3600) for partition in site.partitions}
    assert hours == {
        "b200-devel": (("b200",), 4),
        "b200-batch": (("b200",), 24),
        "rtx-devel": (("rtx",), 4),
        "rtx-batch": (("rtx",), 24),
    }
    checked = here.ask(*GPUWORKSHOP, "site", "check", str(file), "--json")
    assert checked.returncode == 0, checked.stdout
    levels = {finding["level"] for finding in json.loads(checked.stdout)["findings"]}
    assert "fail" not in levels and "warning" not in levels


def test_site_check_names_a_partition_that_is_not_there(here, work):
    file = work / "mine.toml"
    here.ask(*GPUWORKSHOP, "site", "init", str(file))
    file.write_text(file.read_text().replace('name = "rtx-batch"', 'name = "rtx-night"'))
    checked = here.ask(*GPUWORKSHOP, "site", "check", str(file))
    assert checked.returncode == 1
    assert "rtx-night" in checked.stdout


def test_shipped_site_of_the_course_fits_a_cluster_of_its_shape(here):
    checked = here.ask(*GPUWORKSHOP, "site", "check", "aicr", "--json")
    failed = [f["title"] for f in json.loads(checked.stdout)["findings"] if f["level"] == "fail"]
    assert checked.returncode == 0 and not failed, failed


def test_interactive_line_of_the_site_is_accepted(here):
    words = [word for word in sites.load("aicr").srun() if word != "--pty"]
    asked = here.ask(*words, "hostname")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip().startswith("b200-n")


def test_starve_measures_behind_srun_and_names_the_allocation(here, monkeypatch):
    monkeypatch.setattr(starve, "plan_for", lambda device, **_: Plan(block_seconds=0.05, budget_seconds=0.5))
    result = starve.run(job=Job("tiny"), launcher=SRUN)
    assert result.real.value > 0
    assert result.conditions.cpus <= 2


def test_verify_behind_srun_does_not_take_a_counted_card_for_a_real_one(here):
    found = list(verify.findings(verify.run(launcher=SRUN)))
    assert any(finding.level == "fail" for finding in found), [finding.title for finding in found]
