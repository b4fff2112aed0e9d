"""What this process may use: CPUs by the smallest limit, the card by UUID, and what makes numbers comparable."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gpuworkshop.machine import allocation, conditions, gpus


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node of 208 CPUs without limits; each can be set. ``node(...)`` asks what may be used there."""
    monkeypatch.setattr(os, "cpu_count", lambda: 208)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(node.affinity)), raising=False)
    member = tmp_path / "membership"
    member.write_text("0::/job/step\n")

    def ask(slurm: str | None = None, **quotas: str) -> allocation.Cpus:
        """``quotas``: the content of cpu.max in the folder of that name (``root``, ``job``, ``step``)."""
        root = tmp_path / "cgroup"
        for name, folder in (("root", root), ("job", root / "job"), ("step", root / "job" / "step")):
            folder.mkdir(parents=True, exist_ok=True)
            if name in quotas:
                (folder / "cpu.max").write_text(quotas[name])
        env = {} if slurm is None else {"SLURM_CPUS_PER_TASK": slurm}
        return allocation.cpus(env, root, member)

    node = SimpleNamespace(affinity=208, ask=ask, member=member)
    return node


def test_the_machine_counts_only_where_nothing_else_does(node) -> None:
    found = node.ask()
    assert (found.count, found.limits["machine"]) == (208, 208)


def test_a_job_of_eight_cpus_on_a_large_node_has_eight(node) -> None:
    """The node's count is in the list, and does not win.

    Stands in for embeddings-benchmark/mteb#1331, codalab/codalab-worksheets#2046, Netflix/metaflow#2160,
    AILab-CVC/YOLO-World#413.
    """
    node.affinity = 8
    found = node.ask(slurm="8")
    assert (found.count, found.said_by) == (8, "SLURM_CPUS_PER_TASK")
    assert found.limits == {"SLURM_CPUS_PER_TASK": 8, "affinity": 8, "machine": 208}


def test_a_task_that_asked_for_sixteen_and_may_use_one_has_one(node) -> None:
    """srun may give a task one core of the sixteen that the job asked for; both numbers are there to be shown.

    Stands in for snakemake/snakemake-executor-plugin-slurm#41, Lightning-AI/pytorch-lightning#18650,
    reframe-hpc/reframe#2655, ULHPC/ulhpc-docs#55.
    """
    node.affinity = 1
    found = node.ask(slurm="16")
    assert (found.count, found.said_by) == (1, "affinity")
    assert found.limits["SLURM_CPUS_PER_TASK"] == 16


@pytest.mark.parametrize(
    ("slurm", "affinity", "quota", "count", "said_by"),
    [
        ("4", 16, "800000 100000", 4, "SLURM_CPUS_PER_TASK"),
        ("16", 4, "800000 100000", 4, "affinity"),
        ("16", 8, "400000 100000", 4, "cgroup quota"),
    ],
)
def test_the_smallest_limit_wins_and_is_named(node, slurm, affinity, quota, count, said_by) -> None:
    node.affinity = affinity
    found = node.ask(slurm=slurm, step=quota)
    assert (found.count, found.said_by) == (count, said_by)
    assert len(found.limits) == 4


def test_the_smallest_quota_on_the_way_to_the_root_holds(node) -> None:
    found = node.ask(root="max 100000", job="300000 100000", step="600000 100000")
    assert (found.count, found.said_by) == (3, "cgroup quota")


@pytest.mark.parametrize(("quota", "count"), [("50000 100000", 1), ("150000 100000", 1), ("299999 100000", 2)])
def test_a_part_of_a_cpu_is_not_counted_but_one_is_always_there(node, quota, count) -> None:
    assert node.ask(step=quota).count == count


@pytest.mark.parametrize("quota", ["max 100000", "", "max", "100000", "100000 0", "-1 100000", "a b", "1 2 3"])
def test_no_quota_and_a_broken_one_set_no_limit(node, quota) -> None:
    found = node.ask(step=quota)
    assert found.count == 208
    assert "cgroup quota" not in found.limits


@pytest.mark.parametrize("slurm", ["", "0", "-4", "many", "4.5", "²"])
def test_a_broken_slurm_variable_sets_no_limit(node, slurm) -> None:
    assert node.ask(slurm=slurm).limits == {"affinity": 208, "machine": 208}


def test_version_1_lines_beside_the_version_2_line_do_not_disturb(node) -> None:
    node.member.write_text("9:cpu,cpuacct:/old/place\n0::/job\n1:name=systemd:/init.scope\n")
    assert node.ask(job="200000 100000").count == 2


def test_a_process_outside_its_own_root_is_no_error(node) -> None:
    node.member.write_text("0::/../../elsewhere\n")
    assert node.ask(root="200000 100000").count == 2


@pytest.mark.parametrize("missing", ["affinity", "cgroup", "everything"])
def test_systems_that_do_not_say_are_no_error(node, monkeypatch, missing) -> None:
    """macOS knows neither affinity nor cgroups; some systems do not even know how many CPUs they have."""
    if missing in ("affinity", "everything"):
        monkeypatch.delattr(os, "sched_getaffinity")
    if missing in ("cgroup", "everything"):
        node.member.unlink()
    if missing == "everything":
        monkeypatch.setattr(os, "cpu_count", lambda: None)
    found = node.ask()
    assert (found.count, found.said_by) == ((1, "assumed") if missing == "everything" else (208, found.said_by))


def test_here_the_answer_is_what_the_system_allows() -> None:
    found = allocation.cpus()
    assert 1 <= found.count <= os.cpu_count()
    assert found.limits[found.said_by] == found.count == min(found.limits.values())


# ---------------------------------------------------------------- the card


class Cuda:
    """What PyTorch says about a node with one card."""

    def __init__(self, uuid: str = "5c1d0000-aaaa-5bbb-8ccc-000000000001"):
        self.uuid = uuid

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA H200", uuid=self.uuid, total_memory=150 << 30, multi_processor_count=132)


@pytest.fixture
def with_card(monkeypatch):
    """PyTorch sees a card, and NVML says nothing."""
    import torch

    fake = Cuda()
    for name in ("is_available", "device_count", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return fake


def nvml(version, error: Exception | None = None) -> SimpleNamespace:
    """Bindings of NVML that know one thing."""

    def start() -> None:
        if error:
            raise error

    return SimpleNamespace(nvmlInit=start, nvmlSystemGetDriverVersion=lambda: version)


def test_a_card_is_known_by_its_uuid(with_card) -> None:
    card = gpus.card("cuda:0")
    assert (card.name, card.uuid) == ("NVIDIA H200", "GPU-5c1d0000-aaaa-5bbb-8ccc-000000000001")
    with_card.uuid = ""
    assert gpus.card("cuda:0").uuid == ""


@pytest.mark.parametrize(
    ("bindings", "driver"),
    [
        (None, ""),
        (nvml("580.95.05"), "580.95.05"),
        (nvml(b"580.95.05"), "580.95.05"),
        (nvml("", OSError("libnvidia-ml.so.1: cannot open")), ""),
    ],
    ids=["no bindings", "text", "bytes", "no driver"],
)
def test_the_driver_is_named_where_nvml_answers(with_card, monkeypatch, bindings, driver) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", bindings)
    assert gpus.card("cuda:0").driver == driver


def test_no_card_is_none(monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpus.card("cuda:0") is None
    assert gpus.card("cpu") is None


# ---------------------------------------------------------------- conditions


def test_conditions_name_the_machine_and_survive_a_round_trip() -> None:
    here = conditions.conditions("cpu")
    assert msgspec.json.decode(msgspec.json.encode(here), type=conditions.Conditions) == here
    assert here.cpus == allocation.cpus().count and f"{here.cpus} CPU core" in here.machine
    assert str(here.origin).startswith("measured here · ") and here.machine in str(here.origin)
    assert here.uuid == here.driver == ""


def test_conditions_on_a_card_name_the_card(with_card, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml("580.95.05"))
    here = conditions.conditions("cuda:0")
    assert (here.machine, here.uuid, here.driver) == ("NVIDIA H200", f"GPU-{with_card.uuid}", "580.95.05")


def test_numbers_of_another_card_driver_or_torch_are_not_comparable() -> None:
    here = conditions.conditions("cpu")
    assert here.comparable(msgspec.structs.replace(here, date="2030-01-01", kit="9.9"))
    for name in ("device", "machine", "uuid", "driver", "torch"):
        assert not here.comparable(msgspec.structs.replace(here, **{name: "another"})), name


def test_a_system_without_cpuinfo_still_has_a_processor(monkeypatch) -> None:
    assert conditions.processor()

    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert conditions.processor()
