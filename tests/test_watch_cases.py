"""What a watch means: the hard public cases W*, the quadrants, whose processes, and when nothing is judged."""

import itertools
import os
import signal
import subprocess
import sys

import pytest
from standins import fake_cuda
from verifying import device, torch_with
from watching import CARD, GIB, Scene, card, windows

from gpuworkshop.figures.map import MIDDLE
from gpuworkshop.instruments import watch
from gpuworkshop.instruments.on_card import MostSeen
from gpuworkshop.instruments.samples import WatchedCard
from gpuworkshop.instruments.watch_result import CardWatch, TorchMemory, WatchResult
from gpuworkshop.machine import process_table
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.machine.processes import OnCard, Process
from gpuworkshop.report import Origin

HERE = Conditions("cuda:0", "NVIDIA H200", "GPU-1", "580", 8, "affinity", None, "3.11", "", "0.1.0", "2026-12-01")


def seen(**facts) -> CardWatch:
    """A card that was watched long enough to be judged, and what is given."""
    usual = dict(
        card=WatchedCard("GPU-1", "NVIDIA H200", "cuda:0 (physical card 0, bus 00000000:1B:00.0)"),
        busy=0.9,
        windows=100,
        source="sample buffer",
        sm=0.6,
        tensor=0.2,
        memory_used=80 * GIB,
        memory_total=100 * GIB,
        power=500.0,
        power_limit=700.0,
        seconds=60.0,
    )
    return CardWatch(**usual | facts)


def result(*cards: CardWatch, **facts) -> WatchResult:
    usual = dict(what="a job", seconds=60.0, interval=0.2, samples=300, sampler_cpu_seconds=0.1)
    return WatchResult(cards=cards, conditions=HERE, origin=Origin("measured here", "a test"), **usual | facts)


def findings(*cards: CardWatch, **facts) -> list:
    return list(watch.findings(result(*cards, **facts)))


def said(*cards: CardWatch, **facts) -> str:
    """Level and title of each finding, one line each."""
    return "\n".join(f"{one.level}: {one.title}" for one in findings(*cards, **facts))


# The cases


def test_w01_a_slice_has_no_utilization_and_never_zero(monkeypatch) -> None:
    """dask/distributed#8739, Syllo/nvtop#256: NVML refuses utilization on MIG."""
    slices = [
        {"uuid": f"MIG-{n}", "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "memory": {"total": 10 * GIB, "used": used}}
        for n, used in ((1, 10**7), (2, 9 * GIB))
    ]
    for part in slices:
        part["memory"]["free"] = 1
        part["util"] = {"gpu": 0, "memory": 0}  # some drivers answer this
    split = card(util={"error": "NotSupported"}, mig={"enabled": True, "devices": slices})
    scene = Scene(monkeypatch, split, env={"CUDA_VISIBLE_DEVICES": "MIG-2"}).looks(20)
    (one,) = scene.result().cards
    assert one.busy is None and one.used_minutes is None
    text = str(watch.report(scene.result()))
    assert "n/a (MIG)" in text and "90% full (9 GiB of 10 GiB)" in text
    assert "GPU utilization: a kernel was resident" in text and " 0%" not in text
    assert "unknown: cuda:0 is not judged: utilization is n/a (MIG)" in scene.titles()


def test_w01_a_slice_is_left_out_of_the_average() -> None:
    """The same: of a slice and a card at 90%, the average is 90%, not 45%."""
    slice_ = seen(card=WatchedCard("MIG-1", "NVIDIA A100 MIG 1g.10gb", "cuda:1", mig=True), busy=None, windows=0)
    both = result(seen(busy=0.9), slice_)
    assert both.busy == pytest.approx(0.9)
    assert both.used_minutes + both.wasted_minutes == pytest.approx(1.0), "only the card that tells"
    assert "loaded, not running" not in said(seen(busy=0.9), slice_)


def test_w01_a_slice_has_gpm_where_its_card_has_it(monkeypatch) -> None:
    """The counters of a slice are asked by its instance, from its card."""
    part = {"uuid": "MIG-1", "gi": 3, "memory": {"total": 10, "used": 1, "free": 9}, "gpm": {"metrics": {"sm": 70}}}
    split = card(mig={"enabled": True, "devices": [part]}, gpm={"metrics": {"sm": 5}})
    scene = Scene(monkeypatch, split, env={"CUDA_VISIBLE_DEVICES": "MIG-1"}).looks(5)
    assert scene.result().cards[0].sm == pytest.approx(0.7)
    assert scene.driver.calls["nvmlGpmSampleGet"] == 0


@pytest.mark.parametrize("processes", [[], [{"pid": 987654321, "used": 59 * GIB}]], ids=["empty", "host pid"])
def test_w02_processes_of_another_pid_namespace(monkeypatch, processes) -> None:
    """NVIDIA/nvidia-docker#1460: in a container the list is empty, or has process ids that do not exist there."""
    full = {"total": 80 * GIB, "used": 60 * GIB, "free": 20 * GIB}
    scene = Scene(monkeypatch, card(memory=full, processes=processes, samples=windows(90))).looks(20)
    assert "cuda:0: 60 GiB in use by nobody that can be seen from here" in scene.titles()
    assert {one.whose for one in scene.result().cards[0].processes} <= {"not visible"}
    assert "is not judged" not in scene.titles()


def test_w02_our_own_memory_is_known_by_torch() -> None:
    """The same: own memory is recognized by PyTorch's figures, not by a process id."""
    own = seen(memory_used=60 * GIB, torch=TorchMemory(50 * GIB, 59 * GIB, 60 * GIB), processes=())
    assert "not visible" not in said(own) and "another process" not in said(own)


def test_w03_a_process_without_a_figure(monkeypatch) -> None:
    """pytorch/pytorch#64491: on WSL and WDDM the driver has no memory per process."""
    listed = [{"pid": "self", "used": None}, {"pid": os.getppid(), "used": "n/a"}]
    scene = Scene(monkeypatch, card(processes=listed, samples=windows(90))).looks(20)
    assert {one.memory for one in scene.result().cards[0].processes} == {None}
    text = str(watch.report(scene.result()))
    assert "the driver says no memory for 2 of them" in text
    row = next(line for line in text.splitlines() if line.split()[:1] == [str(os.getpid())])
    assert row.split()[-1] == "n/a"
    assert "not visible" not in text


def test_w04_memory_that_torch_caches() -> None:
    """pytorch/pytorch#37250: nothing is live, and the card is full of cache."""
    cached = seen(memory_used=int(12.4 * GIB), torch=TorchMemory(0, int(11.6 * GIB), int(12.4 * GIB)))
    found = next(one for one in findings(cached) if "cached" in one.title)
    assert "live tensors 0 MiB, cached by torch 11.6 GiB, rest 819 MiB" in found.evidence
    assert "empty_cache" in found.fix and "only to share" in found.fix


def test_w04_memory_that_somebody_else_holds() -> None:
    """cornellius-gp/gpytorch#529: other processes count on the card and not in PyTorch."""
    held = seen(memory_used=70 * GIB, torch=TorchMemory(GIB, 2 * GIB, 70 * GIB))
    found = next(one for one in findings(held) if "another process" in one.title)
    assert "67 GiB" in found.title and found.level == "warning"
    assert "live tensors 1 GiB, cached by torch 1 GiB, rest 68 GiB" in found.evidence


def test_w05_full_utilization_at_little_power(monkeypatch) -> None:
    """NordicHPC/sonar#181, NVIDIA/gpu-monitoring-tools#12: ranks that spin read as 100%."""
    waiting = card(util={"gpu": 100, "memory": 2}, power=75_000, power_limit=400_000)
    scene = Scene(monkeypatch, waiting).looks(60)
    found = next(f for f in watch.findings(scene.result()) if "busy but maybe waiting" in f.title)
    assert found.level == "warning" and "75 of 400 W" in found.title
    assert "any kernel was resident" in found.evidence
    assert "target zone" not in scene.titles()


def test_w05_one_thread_reads_busy() -> None:
    """The same with SM activity, which decides where it is known: a job that draws little may still do much."""
    one_thread = said(seen(busy=0.97, sm=0.005, power=130.0))
    assert "warning: cuda:0 is busy but maybe waiting" in one_thread and "SM activity 0.5%" in one_thread
    assert "maybe waiting" not in said(seen(busy=0.97, sm=0.5, power=130.0))
    assert "maybe waiting" not in said(seen(busy=0.97, sm=None, power=500.0))


def test_w06_looking_faster_than_the_driver(monkeypatch) -> None:
    """NVIDIA/gpu-monitoring-tools#12: a poll each 50 ms repeats old values."""
    steps = [{"gpu": value} for value in [0] * 4 + [100] * 4 + [0] * 4]
    scene = Scene(monkeypatch, card(util=steps))
    assert watch.Watch(0.05).sampler.interval == 0.2
    result = scene.looks(12).result(asked=0.05)
    assert result.cards[0].busy == pytest.approx(1 / 3)
    assert result.cards[0].windows <= 3, "2.4 s hold two windows of a second, and no twelve"
    text = str(watch.report(result)).replace("\n", " ")
    assert "33%" in text and "12 looks, one every 0.2 s" in text and "not every 0.05 s" in text
    assert "is not judged: 2 distinct windows" in text


def test_w07_the_card_of_the_job_is_watched(monkeypatch) -> None:
    """pytorch/pytorch#94472: with CUDA_VISIBLE_DEVICES=1, NVML's card 0 is somebody else's."""
    idle = card(util={"gpu": 0, "memory": 0})
    ours = card(uuid="GPU-2", bus_id="00000000:4b:00.0", util={"gpu": 95, "memory": 60})
    scene = Scene(monkeypatch, idle, ours, env={"CUDA_VISIBLE_DEVICES": "1"}).looks(60)
    (one,) = scene.result().cards
    assert (one.busy, one.card.place) == (pytest.approx(0.95), "cuda:0 (physical card 1, bus 00000000:4b:00.0)")
    text = str(watch.report(scene.result()))
    assert CARD["uuid"] not in text and "95%" in text
    assert scene.result().others == 1


def test_w08_memory_is_how_full_it_is(monkeypatch) -> None:
    """pytorch/pytorch#140638: the memory field of the utilization call is bus activity."""
    full = {"total": 80 * GIB, "used": 76 * GIB, "free": 4 * GIB}
    scene = Scene(monkeypatch, card(memory=full, util={"gpu": 90, "memory": 3})).looks(60)
    text = str(watch.report(scene.result()))
    assert "95% full (76 GiB of 80 GiB)" in text
    assert "3%" not in text.replace("33%", "")


def test_w09_impossible_numbers_are_dropped(monkeypatch) -> None:
    """Syllo/nvtop#110: percentages in the millions."""
    scene = Scene(monkeypatch, card(util=[{"gpu": 4294967295, "memory": 0}, {"gpu": 55, "memory": 20}])).looks(60)
    one = scene.result().cards[0]
    assert (one.busy, one.dropped) == (pytest.approx(0.55), 1)
    assert scene.sampler.samples[0].cards[0].busy is None
    assert "1 reading dropped" in scene.titles()
    buffer = Scene(monkeypatch, card(samples=windows(55, 4294967295))).looks(41).result().cards[0]
    assert (buffer.busy, buffer.dropped, buffer.windows) == (pytest.approx(0.55), 20, 20)


def test_w09_a_process_that_has_just_ended_is_skipped(monkeypatch) -> None:
    """XuehaiPan/nvitop#152: a process ends between the list and the look at it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    listing = {"in_turn": [[{"pid": ended.pid, "used": GIB}], []]}
    scene = Scene(monkeypatch, card(processes=listing, samples=windows(90))).looks(20)
    assert scene.result().cards[0].processes == ()


def test_w10_calls_that_an_old_driver_lacks(monkeypatch) -> None:
    """gpuopenanalytics/pynvml#43: new bindings ask for what the driver does not have."""
    listing = "nvmlDeviceGetComputeRunningProcesses"
    lacking = [listing, f"{listing}_v2", "nvmlDeviceGetSamples", "nvmlGpmQueryDeviceSupport"]
    scene = Scene(monkeypatch, card(util={"gpu": 90, "memory": 3}), missing=lacking).looks(60)
    one = scene.result().cards[0]
    assert (one.busy, one.processes, one.source) == (pytest.approx(0.9), None, "polled")
    assert one.power == pytest.approx(300) and "processes on the cards" not in str(watch.report(scene.result()))


def test_w11_reserved_memory_is_not_used(monkeypatch) -> None:
    """huggingface/optimum-benchmark#31: the first version of the call counts the driver's own share."""
    idle = {"total": 80 * GIB, "used": 4 * 2**20, "reserved": 600 * 2**20, "free": 79 * GIB}
    scene = Scene(monkeypatch, card(memory=idle, util={"gpu": 0, "memory": 0})).looks(60)
    assert scene.result().cards[0].memory_used == 4 * 2**20
    assert "4 MiB of 80 GiB" in str(watch.report(scene.result()))


def test_v04_cards_by_uuid_are_watched_in_the_order_of_the_variable(monkeypatch) -> None:
    """pytorch/pytorch#90543, rapidsai/dask-cuda#435: no entry is taken for a number."""
    cards = [card(uuid=f"GPU-{n}", bus_id=f"00000000:{n}0:00.0", util={"gpu": 10 * n, "memory": 0}) for n in (1, 2, 3)]
    scene = Scene(monkeypatch, *cards, env={"CUDA_VISIBLE_DEVICES": "GPU-3,GPU-1"}).looks(20)
    watched = scene.result().cards
    assert [(one.label, one.card.uuid, round(one.busy, 2)) for one in watched] == [
        ("cuda:0", "GPU-3", 0.3),
        ("cuda:1", "GPU-1", 0.1),
    ]


@pytest.mark.parametrize("error", ["LibRmVersionMismatch", "LibraryNotFound", "Unknown"])
def test_v11_without_nvml_a_watch_says_what_pytorch_knows(monkeypatch, error) -> None:
    """mozilla/translations#1167, NVIDIA/nvidia-docker#954: NVML does not start, and CUDA works; V25 is the same."""
    gpu = device(1, allocated=3 * GIB, reserved=5 * GIB, free=74 * GIB)
    fake_cuda.install(torch_with(gpu, initialized=True), monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    scene = Scene(monkeypatch, env=os.environ, init_error=error).looks(20)
    (one,) = scene.result().cards
    assert (one.busy, one.power, one.memory_used) == (None, None, None)
    assert one.torch == TorchMemory(3 * GIB, 5 * GIB, 6 * GIB)
    text = str(watch.report(scene.result()))
    assert "live tensors 3 GiB, cached by torch 2 GiB, rest 1 GiB" in " ".join(text.split()) and " 0%" not in text
    found = next(one for one in watch.findings(scene.result()) if "No monitoring" in one.title)
    assert found.level == "warning" and "the job is not affected" in found.evidence and "verify" in found.fix
    assert f"is not judged: utilization is n/a (NVML does not answer: {error}" in scene.titles()


# The quadrants


@pytest.mark.parametrize(
    ("busy", "memory", "level", "title", "fix", "not_fix"),
    [
        (0.12, 0.91, "warning", "loaded, not running", "num_workers=7", "room for a larger batch"),
        (0.03, 0.05, "warning", "doing nothing", "next(model.parameters()).device", "larger batch"),
        (0.95, 0.12, "notice", "good throughput, memory to spare", "room for a larger batch", "num_workers"),
        (0.90, 0.80, "ok", "the target zone", "", "num_workers"),
        (0.60, 0.80, "notice", "near the target zone", "num_workers=7", "larger batch"),
        (0.90, 0.97, "notice", "near the target zone", "nearly full", "num_workers"),
        (0.60, 0.10, "notice", "memory to spare", "num_workers=7", "doing nothing"),
    ],
)
def test_each_place_has_its_fix_and_not_the_other_axis(busy, memory, level, title, fix, not_fix) -> None:
    found = next(one for one in findings(seen(busy=busy, memory_used=int(memory * 100 * GIB))) if "busy" in one.title)
    assert found.level == level and title in found.title
    assert f"busy {busy:.0%}" in found.title and f"memory {memory:.0%} full" in found.title
    assert fix in found.fix and not_fix not in found.fix


def test_every_place_on_the_map_is_judged() -> None:
    shares = [share / 20 for share in range(21)]
    for busy, memory in itertools.product(shares, shares):
        verdict = findings(seen(busy=busy, memory_used=int(memory * 100 * GIB)))[0]
        assert verdict.level in ("ok", "notice", "warning")
        assert (verdict.level == "warning") == (busy < MIDDLE)
        assert bool(verdict.fix) == (verdict.level != "ok")


@pytest.mark.parametrize(("windows_", "judged"), [(9, False), (10, True)])
def test_ten_windows_are_needed(windows_, judged) -> None:
    assert ("is not judged" in said(seen(windows=windows_))) != judged


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (dict(busy=None, windows=0), "too short"),
        (dict(busy=None, windows=0, busy_why="Not Supported"), "utilization is n/a (Not Supported)"),
        (dict(memory_used=None), "memory is n/a"),
        (dict(processes=(Process(7, "another's", "python", GIB),)), "shared card"),
        (dict(processes=(Process(7, "my other work", "python", GIB),)), "shared card"),
        (dict(processes=(Process(7, "this job's", "python", GIB),)), "shared card"),
    ],
)
def test_what_is_not_judged_says_why(facts, why) -> None:
    found = findings(seen(**facts))[0]
    assert found.level == "unknown" and why in found.title


@pytest.mark.parametrize("facts", [("mine",), ("this step's",), ("not visible",), ("another's", "Xorg", 9, "graphics")])
def test_a_card_that_is_ours_is_judged(facts) -> None:
    assert "is not judged" not in said(seen(processes=(Process(7, *facts),)))


def test_an_idle_tensor_core_is_told() -> None:
    assert "the tensor cores did no work" in said(seen(tensor=0.0))
    assert "tensor cores" not in said(seen(tensor=0.2)) + said(seen(tensor=None)) + said(seen(tensor=0.0, sm=0.1))


def test_minutes_used_and_wasted() -> None:
    assert "notice: GPU-minutes: 0.250 used, 0.750 wasted" in said(seen(busy=0.25))
    assert "ok: GPU-minutes: 1.80 used, 0.200 wasted" in said(seen(), seen())
    assert "GPU-minutes" not in said(seen(busy=None, windows=0))


def test_a_card_that_could_not_be_told_apart_is_said(monkeypatch) -> None:
    other = card(name="NVIDIA RTX A6000", uuid="GPU-2", bus_id="00000000:4B:00.0")
    scene = Scene(monkeypatch, card(), other, env={"CUDA_VISIBLE_DEVICES": "0"}).looks(3)
    assert scene.result().cards == () and "Not watched: which card is 0?" in scene.titles()


# Whose processes


@pytest.fixture
def orphan():
    """A process of this user that nobody here started, as far as the system can tell."""
    words = ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]
    pid = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_whose_a_process_is(monkeypatch, orphan) -> None:
    monkeypatch.setattr(
        process_table.Table, "_holds_a_card", lambda self, pid: True
    )  # the tests may run in a container
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        listed = [{"pid": pid, "used": GIB} for pid in (os.getpid(), child.pid, orphan)]
        scene = Scene(monkeypatch, card(processes=listed, graphics_processes=[{"pid": os.getppid(), "used": 5}]))
        scene.looks(3)
        whose = {one.pid: one.role for one in scene.result().cards[0].processes}
        assert whose == {os.getpid(): "mine", child.pid: "mine", orphan: "my other work", os.getppid(): "display"}
        assert f"kill {orphan}" in str(watch.report(scene.result()))
    finally:
        child.communicate(b"\n")


def test_somebody_elses_process(monkeypatch, orphan) -> None:
    monkeypatch.setattr(process_table.Table, "_holds_a_card", lambda self, pid: True)
    monkeypatch.setattr(process_table.Table, "_uid", lambda self, pid: os.getuid() + 1)
    scene = Scene(monkeypatch, card(processes=[{"pid": orphan, "used": GIB}], samples=windows(90))).looks(20)
    assert [one.whose for one in scene.result().cards[0].processes] == ["another's"]
    assert f"cuda:0 is shared: another user's process ({orphan}) holds 1 GiB" in scene.titles()
    assert "is not judged: shared card" in scene.titles() and "kill" not in str(watch.report(scene.result()))


def test_with_the_whole_user_all_own_work_is_watched(monkeypatch, orphan) -> None:
    monkeypatch.setattr(process_table.Table, "_holds_a_card", lambda self, pid: True)
    scene = Scene(monkeypatch, card(processes=[{"pid": orphan, "used": GIB}], samples=windows(90)), whole_user=True)
    assert [one.whose for one in scene.looks(20).result().cards[0].processes] == ["mine"]
    assert "shared" not in scene.titles()


def test_the_most_memory_of_each_process_is_kept_and_so_is_who_it_was() -> None:
    seen = MostSeen()
    assert seen.processes is None
    for found in (
        (Process(7, "mine", "python", 3), Process(8, "not visible", memory=1)),
        (Process(7, "not visible", memory=5), Process(8, "another's", "python")),
        (),
    ):
        seen.add(OnCard(found))
        seen.add(OnCard(None))
    assert seen.processes == (Process(7, "mine", "python", 5), Process(8, "another's", "python", 1))


def test_w02_a_number_of_the_host_is_not_taken_for_a_process_in_here(monkeypatch) -> None:
    """NVIDIA/nvidia-docker#1483: in a container, only a process that has a card open is the one that is meant."""
    monkeypatch.setattr(process_table, "FIRST_NAMESPACE", "another")
    scene = Scene(monkeypatch, card(processes=[{"pid": "parent", "used": GIB}], samples=windows(90))).looks(20)
    (one,) = scene.result().cards[0].processes
    assert one.whose == "not visible" and "kill" not in str(watch.report(scene.result()))


def test_a_child_that_was_just_started_is_ours(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples=windows(90)))
    scene.looks(1)
    monkeypatch.setattr(scene.sampler._cpu, "tree", lambda: {os.getpid()})
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        scene.driver.spec["devices"][0]["processes"] = [{"pid": child.pid, "used": GIB}]
        assert {one.whose for one in scene.looks(11).result().cards[0].processes} == {"mine"}
    finally:
        child.communicate(b"\n")


def test_names_from_outside_cannot_break_the_page(monkeypatch) -> None:
    evil = seen(processes=(Process(7, "another's", "<script>alert(1)</script>\x1b[2J", GIB),))
    bundle = watch.report(result(evil, what="<b>job</b>"))._repr_mimebundle_()
    assert "<script>" not in bundle["text/html"] and "<b>" not in bundle["text/html"]
    assert "\x1b" not in bundle["text/plain"]


def test_processes_alone_can_be_shown(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(processes=[{"pid": "self", "used": GIB}]))
    assert scene.driver
    shown = str(watch.processes())
    assert str(os.getpid()) in shown and "mine" in shown and "is not judged" not in shown
