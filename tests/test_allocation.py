"""What a job may use and what Slurm says of it: memory by the smallest limit, cgroups of both versions, the job."""

import os
from pathlib import Path

import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop.machine import allocation, cgroup
from gpuworkshop.machine.job import Job, job

GIB = 2**30
NO_LIMIT_1 = "9223372036854771712"


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """``groups("0::/job", {"job/memory.max": "1"})``: the arguments for a machine of 64 GiB with these files."""
    monkeypatch.setattr(allocation, "_machine", lambda: 64 * GIB)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)

    def make(membership: str, files: dict[str, str]) -> dict[str, Path]:
        root = tmp_path / "cgroup"
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        (tmp_path / "membership").write_text(membership)
        return {"cgroup": root, "membership": tmp_path / "membership"}

    return make


@pytest.mark.parametrize(
    ("env", "files", "gib", "said_by"),
    [
        ({}, {}, 64, "machine"),
        ({"SLURM_MEM_PER_NODE": "32768"}, {}, 32, "SLURM_MEM_PER_NODE"),
        ({"SLURM_MEM_PER_CPU": "4096", "SLURM_CPUS_ON_NODE": "8"}, {}, 32, "SLURM_MEM_PER_CPU"),
        ({"SLURM_MEM_PER_CPU": "4096", "SLURM_CPUS_PER_TASK": "4"}, {}, 16, "SLURM_MEM_PER_CPU"),
        ({"SLURM_MEM_PER_GPU": "8192", "SLURM_GPUS_ON_NODE": "2"}, {}, 16, "SLURM_MEM_PER_GPU"),
        ({"SLURM_MEM_PER_NODE": "32768"}, {"job/memory.max": str(8 * GIB)}, 8, "cgroup limit"),
        ({"SLURM_MEM_PER_NODE": "4096"}, {"job/memory.max": str(8 * GIB)}, 4, "SLURM_MEM_PER_NODE"),
        ({"SLURM_MEM_PER_NODE": "0"}, {"job/memory.max": "max"}, 64, "machine"),
        ({"SLURM_MEM_PER_CPU": "4096"}, {}, 64, "machine"),
        ({}, {"memory.max": str(8 * GIB), "job/memory.max": str(16 * GIB)}, 8, "cgroup limit"),
    ],
)
def test_the_smallest_memory_limit_wins_and_is_named(groups, env, files, gib, said_by) -> None:
    found = allocation.memory(env, **groups("0::/job\n", files))
    assert (found.bytes, found.said_by) == (gib * GIB, said_by)
    assert found.limits[said_by] == min(found.limits.values()) and found.limits["machine"] == 64 * GIB


@pytest.mark.parametrize("folder", ["memory", "memory,hugetlb"])
def test_a_memory_limit_of_version_1(groups, folder) -> None:
    files = {
        f"{folder}/memory.limit_in_bytes": NO_LIMIT_1,
        f"{folder}/slurm/job_1/memory.limit_in_bytes": str(4 * GIB),
        f"{folder}/slurm/job_1/step_0/memory.limit_in_bytes": NO_LIMIT_1,
    }
    line = "4:memory,hugetlb:/slurm/job_1/step_0\n" if "," in folder else "4:memory:/slurm/job_1/step_0\n"
    found = allocation.memory({}, **groups(f"0::/\n{line}", files))
    assert (found.bytes, found.said_by) == (4 * GIB, "cgroup limit")


def test_version_1_without_a_limit_sets_none(groups) -> None:
    found = allocation.memory({}, **groups("4:memory:/\n", {"memory/memory.limit_in_bytes": NO_LIMIT_1}))
    assert found.limits == {"machine": 64 * GIB}


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "count"), [("400000", 4), ("50000", 1), ("-1", 64), ("a", 64), ("", 64)])
def test_a_cpu_quota_of_version_1(groups, folder, quota, count) -> None:
    files = {f"{folder}/job/cpu.cfs_quota_us": quota, f"{folder}/job/cpu.cfs_period_us": "100000"}
    found = allocation.cpus({}, **groups("0::/elsewhere\n2:cpu,cpuacct:/job\n", files))
    assert found.count == count
    assert ("cgroup quota" in found.limits) is (count < 64)


def test_in_a_container_the_place_is_not_in_the_tree_and_its_root_is_the_limit(groups) -> None:
    """The tree that is mounted begins at the container's own group; its name is the host's."""
    places = "2:cpu,cpuacct:/docker/0123\n4:memory:/docker/0123\n"
    files = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}
    files["memory/memory.limit_in_bytes"] = str(GIB)
    assert allocation.cpus({}, **groups(places, files)).count == 2
    assert allocation.memory({}, **groups(places, files)).bytes == GIB


def test_a_system_that_says_nothing_has_no_memory_limit(groups, monkeypatch) -> None:
    monkeypatch.setattr(allocation, "_machine", lambda: None)
    where = groups("", {})
    where["membership"].unlink()
    found = allocation.memory({}, **where)
    assert (found.bytes, found.said_by, found.limits) == (None, "", {})


def test_here_the_memory_is_at_most_the_machines() -> None:
    found = allocation.memory()
    assert 0 < found.bytes <= found.limits["machine"]
    assert cgroup.memory() in (None, found.limits.get("cgroup limit"))


# The job

BATCH = {
    "SLURM_JOB_ID": "61000001",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_NODELIST": "n[01-02]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURMD_NODENAME": "n02",
    "SLURM_GPUS_PER_NODE": "b200:2",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_JOB_GPUS": "5,6",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_CPUS_ON_NODE": "16",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_END_TIME": "1800003600",
    "ENVIRONMENT": "BATCH",
}


def test_a_job_is_what_its_variables_say() -> None:
    found = job(BATCH)
    assert found == Job(
        "61000001", "train", "gpu", "n[01-02]", 2, "n02", "b200:2 per node", 2, "5,6", 8, 16, 4, 1800003600, "batch"
    )


def test_outside_of_a_job_there_is_none() -> None:
    assert job({}) is None
    assert job({"SLURM_JOB_ID": "", "SLURM_JOB_NAME": "train"}) is None


def test_a_job_that_says_only_its_number() -> None:
    found = job({"SLURM_JOB_ID": "7"})
    assert found == Job("7") and found.ends is None


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({"SLURM_JOB_NAME": "sys/dashboard/sys/bc_jupyter", "ENVIRONMENT": "BATCH"}, "OnDemand"),
        ({"SLURM_JOB_NAME": "ondemand/sys/dashboard/batch_connect/sys/jupyter"}, "OnDemand"),
        ({"SLURM_JOB_NAME": "mysys/dashboards", "ENVIRONMENT": "BATCH"}, "batch"),
        ({"SLURM_PTY_PORT": "4321"}, "interactive"),
        ({"SLURM_JOB_NAME": "interactive"}, "interactive"),
        ({"SLURM_JOB_NAME": "bash", "ENVIRONMENT": "BATCH"}, "batch"),
        ({"SLURM_JOB_NAME": "train"}, "unknown"),
    ],
)
def test_how_a_job_was_started(env, kind) -> None:
    assert job({"SLURM_JOB_ID": "7"} | env).kind == kind


def test_a_task_of_an_array_has_the_name_that_people_use() -> None:
    env = {"SLURM_JOB_ID": "61000009", "SLURM_ARRAY_JOB_ID": "61000001", "SLURM_ARRAY_TASK_ID": "0"}
    assert job(env).id == "61000001_0"


@fuzz(200)
@given(st.dictionaries(st.sampled_from(sorted(BATCH)), st.text(max_size=12) | st.sampled_from(("0", "-1", "1e9", "²"))))
def test_odd_values_are_not_known_and_no_error(odd: dict[str, str]) -> None:
    found = job(BATCH | odd)
    if found is None:
        assert "SLURM_JOB_ID" in odd
        return
    counts = (found.node_count, found.gpus_on_node, found.cpus_per_task, found.cpus_on_node, found.tasks, found.ends)
    assert all(count is None or count > 0 for count in counts)
    assert all(text.isprintable() for text in (found.name, found.partition, found.nodes, found.gpus_asked))
    assert allocation.memory(BATCH | odd).bytes > 0 and allocation.cpus(BATCH | odd).count > 0
