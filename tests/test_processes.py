"""Who is on a card: told only where it is certain, with figures only where the driver gives them."""

import os
import pwd
from pathlib import Path

import pytest
from standins import pynvml as fake_nvml

from gpuworkshop.machine.device import Card
from gpuworkshop.machine.nvml import Nvml
from gpuworkshop.machine.process_table import FIRST_NAMESPACE
from gpuworkshop.machine.processes import OnCard, Process, processes

GIB = 2**30
CARD = Card("NVIDIA H200", "GPU-1", physical=0)
ME, PARENT, CHILD, JOB, FORGOTTEN, STRANGER, GHOST = os.getpid(), 4000, 4001, 4002, 4003, 4004, 987654321
UID = os.getuid()
OTHER_UID = 64999


class Table:
    """A process table as Linux shows it, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namespace(FIRST_NAMESPACE)
        self.add(PARENT, 1)
        self.add(ME, PARENT)

    def namespace(self, name: str) -> None:
        link = self.folder / "self" / "ns" / "pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def add(
        self, pid: int, parent: int, uid: int = UID, cgroup: str = "0::/", holds: str = "", environ: str = ""
    ) -> None:
        here = self.folder / str(pid)
        (here / "fd").mkdir(parents=True)
        (here / "stat").write_text(f"{pid} (a) (b c) S {parent} 1 1 0")
        (here / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (here / "cmdline").write_bytes(b"python\0train.py\0--key\0\xff\x1b[2Jsecret\0")
        (here / "comm").write_text("python\n")
        (here / "cgroup").write_text(cgroup)
        (here / "environ").write_text(environ.replace(" ", "\0"))
        if holds:
            (here / "fd" / "7").symlink_to(holds)


@pytest.fixture
def table(tmp_path) -> Table:
    return Table(tmp_path)


@pytest.fixture
def on_card(monkeypatch, table):
    """``on_card([{"pid": …}], used=…)``: who is said to be on the card."""

    def ask(
        entries: list[dict] | dict, used: int = 0, env: dict | None = None, watched=None, screens=(), **node
    ) -> OnCard:
        device = {"uuid": "GPU-1", "memory": {"total": 80 * GIB, "used": used}, "processes": entries}
        fake_nvml.install({"devices": [device | {"graphics_processes": list(screens)}]} | node, monkeypatch)
        return processes(Nvml(), CARD, env or {}, table.folder, watched)

    return ask


def test_each_process_is_told_by_whose_it_is(table, on_card) -> None:
    table.add(CHILD, ME)
    table.add(JOB, 1, cgroup="0::/system.slice/slurmstepd.scope/job_77/step_1\n")
    table.add(FORGOTTEN, 1, cgroup="0::/job_771\n")
    table.add(STRANGER, 1, OTHER_UID)
    pids = (ME, PARENT, CHILD, JOB, FORGOTTEN, STRANGER)
    found = on_card([{"pid": pid, "used": GIB} for pid in pids], 6 * GIB, {"SLURM_JOB_ID": "77"})
    assert [one.whose for one in found.processes] == [
        "mine",
        "mine",
        "mine",
        "this job's",
        "my other work",
        "another's",
    ]
    assert [one.pid for one in found.processes] == list(pids)
    assert {one.memory for one in found.processes} == {GIB} and found.unseen == 0
    assert found.processes[0].user == pwd.getpwuid(UID).pw_name
    assert found.processes[-1].user == str(OTHER_UID)
    assert found.shared


def test_only_what_is_watched_is_mine_then_and_not_who_started_it(table, on_card) -> None:
    table.add(CHILD, ME)
    table.add(4005, CHILD)
    pids = (ME, PARENT, CHILD, 4005)
    found = on_card([{"pid": pid} for pid in pids], watched={CHILD})
    assert [one.whose for one in found.processes] == ["my other work", "my other work", "mine", "mine"]
    assert [one.pid for one in found.strangers] == [ME, PARENT]


def test_a_task_of_the_same_step_is_no_stranger_and_the_rest_of_the_job_is(table, on_card) -> None:
    """Ranks that srun starts side by side may share a card; without cgroups a job is known by its variables."""
    table.add(CHILD, 1, environ="A=1 SLURM_JOB_ID=77 SLURM_STEP_ID=0")
    table.add(JOB, 1, environ="A=1 SLURM_JOB_ID=77 SLURM_STEP_ID=1")
    table.add(FORGOTTEN, 1, environ="SLURM_JOB_ID=771 SLURM_STEP_ID=0")
    pids = (CHILD, JOB, FORGOTTEN)
    found = on_card([{"pid": pid} for pid in pids], env={"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"})
    assert [one.whose for one in found.processes] == ["this step's", "this job's", "my other work"]
    assert [one.pid for one in found.strangers] == [JOB, FORGOTTEN] and found.shared
    batch = on_card([{"pid": CHILD}], env={"SLURM_JOB_ID": "77"})  # a batch script has no such variable
    assert batch.processes[0].whose == "this job's"


def test_a_screen_is_a_display_whosever_it_is(table, on_card) -> None:
    table.add(STRANGER, 1, OTHER_UID)
    found = on_card(
        [{"pid": ME, "used": GIB}], 3 * GIB, screens=[{"pid": STRANGER, "used": GIB}, {"pid": GHOST, "used": 1}]
    )
    assert [one.role for one in found.processes] == ["mine", "display", "display"]
    assert found.shared is False and found.strangers == () and found.unseen == GIB - 1


def test_another_users_command_line_is_not_shown_and_ones_own_holds_no_control_codes(table, on_card) -> None:
    table.add(FORGOTTEN, 1)
    table.add(STRANGER, 1, OTHER_UID)
    own, other = on_card([{"pid": FORGOTTEN}, {"pid": STRANGER}]).processes
    assert own.command.startswith("python train.py --key") and own.command.isprintable()
    assert other.command == "python"


@pytest.mark.parametrize("entries", [[], [{"pid": GHOST, "used": 59 * GIB}]])
def test_w02_memory_of_processes_that_cannot_be_seen(on_card, entries) -> None:
    """NVIDIA/nvidia-docker#1460, NVIDIA/nvidia-docker#1483, wookayin/gpustat#117: none listed, or the host's number."""
    found = on_card(entries, used=60 * GIB)
    assert found.unseen == 60 * GIB and found.visible == ()
    assert [one.whose for one in found.processes] == ["not visible"] * len(entries)
    assert found.shared is (None if entries else False)


def test_w02_in_a_container_a_number_alone_says_nothing(table, on_card) -> None:
    """The host's number 4003 is another process here; only one that has the driver open is taken for it."""
    table.namespace("pid:[4026532999]")
    table.add(FORGOTTEN, 1)
    table.add(CHILD, ME, holds="/dev/nvidia0")
    found = on_card([{"pid": FORGOTTEN, "used": GIB}, {"pid": CHILD, "used": GIB}])
    assert [one.whose for one in found.processes] == ["not visible", "mine"]
    assert found.processes[0].command == found.processes[0].user == ""
    assert found.shared is None


@pytest.mark.parametrize("used", [None, "n/a"])
def test_w03_memory_that_the_driver_does_not_say_is_none(table, on_card, used) -> None:
    """pytorch/pytorch#64491, XuehaiPan/nvitop#55."""
    table.add(CHILD, ME)
    found = on_card([{"pid": ME, "used": used}, {"pid": CHILD, "used": GIB}], used=2 * GIB)
    assert [one.memory for one in found.processes] == [None, GIB]
    assert (found.without_memory, found.unseen) == (1, None)


def test_w09_a_process_that_ends_meanwhile_is_left_out(on_card) -> None:
    """Syllo/nvtop#110, XuehaiPan/nvitop#152. One that is still listed is there, and cannot be seen."""
    gone, stays = {"pid": 4242, "used": GIB}, {"pid": GHOST, "used": GIB}
    found = on_card({"in_turn": [[gone, stays], [stays]]})
    assert [one.pid for one in found.processes] == [GHOST]


def test_w09_more_memory_than_the_card_has_is_no_figure(on_card) -> None:
    """XuehaiPan/nvitop#152."""
    (found,) = on_card([{"pid": ME, "used": 10**15}]).processes
    assert found.memory is None


def test_w10_an_older_driver_is_asked_by_the_older_name(on_card) -> None:
    """gpuopenanalytics/pynvml#43, NVIDIA/go-nvml#21."""
    entries, plain = [{"pid": ME, "used": GIB}], "nvmlDeviceGetComputeRunningProcesses"
    assert on_card(entries, missing=[plain]).processes[0].memory == GIB
    found = on_card(entries, used=GIB, missing=[plain, f"{plain}_v2"])
    assert found.processes is None and found.used == GIB
    assert found.shared is None


def test_a_card_that_only_this_process_uses_is_not_shared(table, on_card) -> None:
    table.add(CHILD, ME)
    assert on_card([{"pid": ME}, {"pid": CHILD}]).shared is False
    assert on_card([]).shared is False


def test_one_that_hides_from_others_is_not_visible(table, on_card) -> None:
    """Where /proc is mounted with hidepid=1, the folder is there and says nothing."""
    table.add(STRANGER, 1, OTHER_UID)
    (table.folder / str(STRANGER) / "status").unlink()
    assert on_card([{"pid": STRANGER}]).processes[0].whose == "not visible"


def test_where_others_are_closed_to_us_their_folder_says_whose_they_are(table, on_card, monkeypatch) -> None:
    """hidepid=1 again: Linux still shows whose the folder is."""
    table.add(STRANGER, 1)
    (table.folder / str(STRANGER) / "status").unlink()
    monkeypatch.setattr(os, "getuid", lambda: OTHER_UID)
    assert on_card([{"pid": STRANGER}]).processes[0].whose == "another's"


def test_a_card_without_a_uuid_is_asked_by_its_number_and_a_slice_never_is(monkeypatch, table) -> None:
    device = {"uuid": {"error": "NotSupported"}, "processes": [{"pid": ME}]}
    fake_nvml.install({"devices": [device]}, monkeypatch)
    nvml = Nvml()
    assert processes(nvml, Card("", "", physical=0), {}, table.folder).processes[0].whose == "mine"
    assert processes(nvml, Card("", "", physical=0, mig=True), {}, table.folder).processes is None


def test_here_this_process_is_known_by_the_systems_own_table(monkeypatch) -> None:
    device = {"uuid": "GPU-1", "processes": [{"pid": "self"}, {"pid": "parent"}]}
    fake_nvml.install({"devices": [device]}, monkeypatch)
    if os.readlink("/proc/self/ns/pid") == FIRST_NAMESPACE:
        whose = [one.whose for one in processes(Nvml(), CARD).processes]
        assert whose == ["mine", "mine"]
    else:  # nobody here holds a card, so that in a container no number is trusted
        assert {one.whose for one in processes(Nvml(), CARD).processes} == {"not visible"}


def test_without_nvml_nobody_is_known(monkeypatch, table) -> None:
    fake_nvml.install({"init_error": "LibraryNotFound"}, monkeypatch)
    assert processes(Nvml(), CARD, {}, table.folder) == OnCard(None, None)


def test_a_sum_leaves_nothing_negative() -> None:
    assert OnCard((Process(1, "mine", memory=5),), used=3).unseen == 0
