"""What the sampler reads of cards, how it gives up, and what a long watch keeps."""

import itertools
import math
import os
import subprocess
import sys
import threading
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standins import pynvml as fake_nvml
from watching import GIB, Scene, card, windows

from gpuworkshop.instruments import samples as kept
from gpuworkshop.instruments import watch
from gpuworkshop.instruments.cpu_use import CpuUse
from gpuworkshop.instruments.gpm import share
from gpuworkshop.instruments.sampler import Sampler
from gpuworkshop.instruments.samples import CardSample, Sample, mean, merged, path, thinned


def until(true) -> None:
    """Wait until it is so, however slow the machine; fail when it never is."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


GPM = {"metrics": {"sm": 40, "occupancy": 20, "tensor": 5, "dram": 33}}


# The driver's buffer


def test_every_window_counts_once_and_the_first_is_left_out(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples=windows(100, 0))).looks(11)
    one = scene.result().cards[0]
    assert (one.source, one.windows, one.busy) == ("sample buffer", 10, pytest.approx(0.5))
    assert sum(own.cards[0].covered for own in scene.sampler.samples) == pytest.approx(2.0)


def test_a_slow_look_loses_no_window(monkeypatch) -> None:
    fast = Scene(monkeypatch, card(samples=windows(100, 0, 0, 0))).looks(41)
    slow = Scene(monkeypatch, card(samples=windows(100, 0, 0, 0))).looks(4, every=2.05)
    assert slow.result().cards[0].windows == fast.result().cards[0].windows == 40
    assert slow.result().cards[0].busy == pytest.approx(fast.result().cards[0].busy)


def test_windows_are_weighted_by_their_length(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples={"gpu": [[1_000_000, 50]]}))
    buffer = scene.driver.spec["devices"][0]["samples"]
    buffer["gpu"] = [[1_100_000, 0], [1_300_000, 100], [1_900_000, 0]]  # the first is partial; then 0.2 s and 0.6 s
    assert scene.looks(1).result().cards[0].busy == pytest.approx(0.25)


def test_a_gap_in_the_buffer_is_no_window(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples={"gpu": [[1_000_000, 50]]}))
    buffer = scene.driver.spec["devices"][0]["samples"]
    buffer["gpu"] = [[1_200_000, 0], [61_200_000, 100], [62_200_000, 0]]
    assert scene.looks(1).result().cards[0].busy == pytest.approx(0.5)


def test_a_buffer_that_stays_empty_is_replaced_by_polling(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples={"gpu": []}, util={"gpu": 70, "memory": 1})).looks(14)
    assert scene.result().cards[0].busy is None
    scene.looks(20)
    assert (scene.result().cards[0].source, scene.result().cards[0].busy) == ("polled", pytest.approx(0.7))


def test_a_buffer_that_falls_silent_for_a_moment_is_kept(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples=windows(80))).looks(5)
    live = scene.driver.spec["devices"][0]["samples"]["gpu"]
    scene.driver.spec["devices"][0]["samples"]["gpu"] = []
    scene.looks(5)
    scene.driver.spec["devices"][0]["samples"]["gpu"] = live
    assert scene.looks(2).result().cards[0].source == "sample buffer"


# GPM


def test_gpm_is_read_as_shares(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(samples=windows(90), gpm=GPM)).looks(5)
    one = scene.result().cards[0]
    assert (one.sm, one.occupancy, one.tensor, one.dram) == pytest.approx((0.4, 0.2, 0.05, 0.33))
    assert one.gpm_why == ""


def test_gpm_is_not_asked_faster_than_it_answers(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(gpm=GPM)).looks(21, every=0.03)
    assert scene.driver.calls["nvmlGpmMetricsGet"] <= 21 * 0.03 / 0.1
    assert {own.cards[0].sm for own in scene.sampler.samples} == {None, 0.4}


def test_a_metric_that_fails_is_left_out_alone(monkeypatch) -> None:
    metrics = {"sm": 40, "occupancy": {"error": "NotSupported"}, "tensor": math.nan, "dram": 4e9}
    one = Scene(monkeypatch, card(gpm={"metrics": metrics})).looks(4).result().cards[0]
    assert (one.sm, one.occupancy, one.tensor, one.dram) == (pytest.approx(0.4), None, None, None)


def test_gpm_without_permission_after_a_while_keeps_what_it_had(monkeypatch) -> None:
    """NVIDIA/DCGM#214: GPM answers for minutes and is then refused."""
    refusing = {**GPM, "sample": {"first": 6, "say": None, "then": {"error": "NoPermission"}}}
    scene = Scene(monkeypatch, card(samples=windows(90), gpm=refusing)).looks(30)
    one = scene.result().cards[0]
    assert one.sm == pytest.approx(0.4)
    assert one.busy == pytest.approx(0.9), "the other readings go on"
    assert one.gpm_stopped == pytest.approx(7 * 0.2)
    assert scene.driver.calls["nvmlGpmSampleGet"] == 7, "one refusal of this kind is enough"
    assert "SM and tensor activity only until 1 s" in scene.titles()
    assert "NoPermission" in one.gpm_why


def test_gpm_refused_from_the_start_says_why(monkeypatch) -> None:
    one = Scene(monkeypatch, card(gpm={"sample": {"error": "NoPermission"}})).looks(5)
    assert one.result().cards[0].sm is None
    assert "SM and tensor activity n/a" in one.titles()


def test_one_refusal_of_gpm_is_forgiven(monkeypatch) -> None:
    hiccup = {**GPM, "read": {"in_turn": [None, {"error": "Unknown"}, None]}}
    one = Scene(monkeypatch, card(gpm=hiccup)).looks(8).result().cards[0]
    assert one.gpm_why == "" and one.sm == pytest.approx(0.4)


def test_a_card_without_gpm(monkeypatch) -> None:
    assert "no GPM" in Scene(monkeypatch, card()).looks(2).result().cards[0].gpm_why


def test_every_gpm_sample_is_given_back(monkeypatch) -> None:
    driver = fake_nvml.install({"devices": [card(gpm=GPM)]}, monkeypatch)
    with watch.Watch() as seen:
        seen.sampler.wait_for_first()
        assert driver.gpm_open == 2
    assert driver.gpm_open == driver.sessions == 0
    assert seen.result.cards[0].gpm_why == "", "an end is no refusal"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 101, 4294967295])
def test_what_is_no_percentage_is_none(value) -> None:
    assert share(value) is None


# Field by field, lost, hanging


FIELDS = ("memory", "power", "power_limit", "energy", "util", "samples", "gpm", "processes")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("error", ["NotSupported", "Unknown", "NoPermission", "UnicodeDecodeError", "AttributeError"])
def test_one_field_that_fails_takes_no_other_with_it(monkeypatch, field, error) -> None:
    whole = card(samples=windows(90), gpm=GPM, energy={"watts": 300}, processes=[], util={"gpu": 90, "memory": 3})
    good = Scene(monkeypatch, whole).looks(26).result().cards[0]
    failing = {"gpu": {"error": error}} if field == "samples" else {"error": error}
    if field == "gpm":
        failing = {"sample": {"error": error}}
    bad = Scene(monkeypatch, {**whole, field: failing}).looks(26).result().cards[0]
    touched = {
        "memory": {"memory_used", "memory_total", "path"},
        "power": set(),  # from the energy counter
        "power_limit": {"power_limit"},
        "energy": set(),
        "util": set(),  # not asked: there is a buffer
        "samples": {"windows", "source", "path"},
        "gpm": {"sm", "occupancy", "tensor", "dram", "gpm_why", "path"},
        "processes": {"processes"},
    }[field]
    exact = set(type(good).__struct_fields__) - {"busy", "power", "energy"}
    assert {name for name in exact if getattr(good, name) != getattr(bad, name)} <= touched
    assert bad.busy == pytest.approx(0.9) and bad.power == pytest.approx(300, rel=0.02)
    assert (bad.energy is None) == (field == "energy")


def test_v19_a_lost_card_is_marked_from_then_on(monkeypatch) -> None:
    """rossumai/nvgpu#6, XuehaiPan/nvitop#139: it was healthy, falls off the bus, and the watch goes on."""
    scene = Scene(monkeypatch, card(samples=windows(90)), card(uuid="GPU-2", bus_id="00000000:4B:00.0"))
    scene.looks(20)
    lost = {"error": "GpuIsLost"}
    scene.driver.spec["devices"][0].update(samples={"gpu": lost}, memory=lost, power=lost)
    scene.looks(5)
    asked = scene.driver.calls["nvmlDeviceGetPowerUsage"]
    scene.looks(5)
    assert scene.driver.calls["nvmlDeviceGetPowerUsage"] - asked == 5, "only the other card is asked any more"
    first, second = scene.result().cards
    assert [own.cards[0].lost for own in scene.sampler.samples] == [False] * 20 + [True] * 10
    assert first.busy == pytest.approx(0.9) and first.lost_at == pytest.approx(4.2)
    assert first.seconds == pytest.approx(4.0) and second.seconds == pytest.approx(6.0)
    assert "fail: cuda:0 stopped answering" in scene.titles()


def test_a_driver_that_hangs_does_not_hang_the_watch(monkeypatch) -> None:
    node = {"devices": [card(samples=windows(90))]}
    driver = fake_nvml.install(node, monkeypatch)
    seen = watch.Watch()
    with seen:
        seen.sampler.wait_for_first()
        driver.spec["devices"][0]["power"] = {"hang": 5}
        time.sleep(0.5)
        began = time.monotonic()
        seen.sampler.stop(patience=0.3)
        waited = time.monotonic() - began
    assert waited < 2, "a tenth of the hang, with room for a slow machine"
    assert any("did not answer any more" in note for note in seen.result.notes)
    assert seen.result.samples


def test_a_driver_that_hangs_at_once(monkeypatch) -> None:
    fake_nvml.install({"init": {"hang": 5}, "devices": []}, monkeypatch)
    sampler = Sampler()
    sampler.start()
    sampler.stop(patience=0.2)
    result = watch.read(sampler, "a test")
    assert (result.cards, result.samples) == ((), 0)
    assert "did not answer any more at all" in result.notes[0]
    assert watch.report(result).findings


def test_an_error_of_our_own_ends_the_watch_only(monkeypatch) -> None:
    fake_nvml.install({"devices": [card()]}, monkeypatch)
    monkeypatch.setattr("gpuworkshop.instruments.card_reader.CardReader.read", lambda *a: 1 / 0)
    with watch.Watch() as seen:
        time.sleep(0.1)
    assert "ZeroDivisionError" in seen.result.notes[0]


# Energy, power


def test_power_comes_from_the_energy_counter(monkeypatch) -> None:
    scene = Scene(monkeypatch, card(energy={"watts": 250}, power=999_000)).looks(26)
    one = scene.result().cards[0]
    assert one.energy == pytest.approx(1250, rel=0.02) and one.power == pytest.approx(250, rel=0.02)


def test_what_costs_the_driver_milliseconds_is_asked_seldom(monkeypatch) -> None:
    """On an H200 the energy counter takes 3 ms, the sample buffer 1.5 ms, everything else 0.1 ms."""
    scene = Scene(monkeypatch, card(samples=windows(90), energy={"watts": 250}, gpm=GPM)).looks(51)
    calls = scene.driver.calls
    assert calls["nvmlDeviceGetTotalEnergyConsumption"] == calls["nvmlDeviceGetEnforcedPowerLimit"] == 3
    assert calls["nvmlDeviceGetSamples"] == 1 + 11 and calls["nvmlGpmSampleGet"] == 51
    scene.sampler.look(last=True)
    assert calls["nvmlDeviceGetTotalEnergyConsumption"] == 4


def test_a_counter_that_starts_again_is_skipped(monkeypatch) -> None:
    falling = {"in_turn": [1000, 2000, 3000, 10, 1010]}
    one = Scene(monkeypatch, card(energy=falling)).looks(5, every=5.1).result().cards[0]
    assert one.energy == pytest.approx(3.0)


# Without a card


def test_without_a_card_the_cpus_are_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with watch.Watch() as seen:
        end = time.process_time() + 1.3
        while time.process_time() < end:
            pass
    assert seen.result.cards == () and seen.result.problem
    assert 0 < seen.result.cpu <= 1
    assert "No card to watch" in str(watch.report(seen.result))


def test_the_cpu_time_of_a_tree_counts_its_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    now = itertools.count(step=10.0)  # new processes are sought at every look
    use = CpuUse(os.getpid(), clock=lambda: next(now))
    use.since()
    subprocess.run([sys.executable, "-c", burn], check=True)  # waited for: its time is with its parent
    assert use.since()[0] >= 0.35, "the kernel counts in hundredths"
    child = subprocess.Popen([sys.executable, "-c", burn + "\ninput()"], stdin=subprocess.PIPE)
    try:
        use.since()
        deadline, used = time.monotonic() + 60, 0.0
        while used < 0.35 and time.monotonic() < deadline:  # living: its time is its own
            used += use.since()[0]
        assert used >= 0.35
    finally:
        child.communicate(b"\n")


def test_all_that_a_user_runs_counts_also_what_this_process_did_not_start() -> None:
    """Orphans of a shell that is gone, another terminal: with a watch of its own, all of it is what is watched."""
    waits = "subprocess.Popen([sys.executable, '-c', 'input()'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    orphan = f"import subprocess, sys; print({waits}.pid)"
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "wb") as stdin:
        done = subprocess.run([sys.executable, "-c", orphan], stdin=read, capture_output=True, text=True, check=True)
        pid = int(done.stdout)
        try:
            assert pid in CpuUse(None).tree() and pid not in CpuUse(os.getpid()).tree()
        finally:
            stdin.write(b"\n")


def test_both_ways_of_finding_children_agree(tmp_path, monkeypatch) -> None:
    grandchild = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", grandchild], stdin=subprocess.PIPE)
    use = CpuUse(child.pid)
    try:
        deadline = time.monotonic() + 30
        while len(use.tree()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        named = use.tree()
        monkeypatch.setattr(use, "_children", lambda pid: None)  # a kernel that does not list them
        assert len(named) == 2 and use.tree() == named
    finally:
        child.communicate(b"\n")


def test_looking_for_processes_has_a_bounded_cost(monkeypatch) -> None:
    now = itertools.count(step=0.5)
    use = CpuUse(os.getpid(), clock=lambda: next(now))
    scans = []

    def tree() -> set[int]:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        scans.append(end)
        return {os.getpid()}

    monkeypatch.setattr(use, "tree", tree)
    while next(now) < 60:
        use.since()
    assert len(scans) <= 6 + 1, "0.05 s each: at most one in ten seconds"


def test_a_busy_interpreter_does_not_hold_up_the_first_look(monkeypatch) -> None:
    """Every read of a file can cost a thread 5 ms beside a loop in Python; a node has hundreds of processes."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with watch.Watch() as seen:
        end = time.process_time() + 1.3
        while time.process_time() < end:
            pass
    assert len(seen.samples) >= 4
    used = 1.3 / seen.result.seconds / seen.sampler.cpus.count  # on a machine that others use, less than one CPU
    assert seen.result.cpu > used / 2


def test_a_long_wait_is_seen_while_it_lasts() -> None:
    """A wait of many looks must not count as one look's: the mean over the looks is the share that is reported."""
    with watch.Watch() as seen:
        for _ in range(2):
            with seen.waiting():
                time.sleep(0.9)
            time.sleep(0.1)
    shares = [sample.wait for sample in seen.samples if sample.wait is not None]
    weights = [sample.seconds for sample in seen.samples if sample.wait is not None]
    mean = sum(share * weight for share, weight in zip(shares, weights, strict=True)) / sum(weights)
    assert abs(mean - seen.result.wait) < 0.15 and seen.result.wait > 0.7


def test_waiting_is_what_the_caller_says(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def slow():
        for number in range(3):
            time.sleep(0.1)
            yield number

    with watch.Watch() as seen:
        assert list(seen.batches(slow())) == [0, 1, 2]
    assert 0.5 < seen.result.wait <= 1
    assert "Loader wait" in str(watch.report(seen.result))


# The thread


def test_the_watch_keeps_its_pace_and_knows_its_cost(monkeypatch) -> None:
    fake_nvml.install({"devices": [card(samples=windows(50), gpm=GPM)]}, monkeypatch)
    with watch.Watch() as seen:
        until(lambda: len(seen.samples) >= 8)
    assert seen.result.samples <= seen.result.seconds / 0.2 + 2, "never faster than it was told"
    assert 0 < seen.result.sampler_cpu_seconds < seen.result.seconds
    assert seen.over and seen.result is seen.result
    assert threading.active_count() == 1 or all(t.name != "gpuworkshop-watch" for t in threading.enumerate())


def test_a_paused_sampler_looks_no_more(monkeypatch) -> None:
    fake_nvml.install({"devices": [card()]}, monkeypatch)
    with watch.Watch() as seen:
        seen.sampler.wait_for_first()
        seen.sampler.pause()
        time.sleep(0.3)
        before = len(seen.samples)
        time.sleep(0.6)
        assert len(seen.samples) == before
        seen.sampler.resume()
        until(lambda: len(seen.samples) > before)


def test_a_watch_of_nothing_can_be_shown(monkeypatch) -> None:
    fake_nvml.install({"devices": [card()]}, monkeypatch)
    with watch.Watch() as seen:
        assert watch.report(seen.result)
    for face in watch.report(seen.result)._repr_mimebundle_().values():
        assert "NaN" not in face and "None" not in face


def test_an_interval_must_be_one() -> None:
    with pytest.raises(ValueError, match="above 0"):
        watch.Watch(0)


def test_a_result_survives_json(monkeypatch) -> None:
    result = Scene(monkeypatch, card(samples=windows(90), gpm=GPM)).looks(20).result()
    assert msgspec.json.decode(msgspec.json.encode(result), type=watch.WatchResult) == result


def test_importing_watch_needs_no_torch_and_no_numpy() -> None:
    ask = "import sys, gpuworkshop.instruments.watch; print(sorted({'torch', 'numpy', 'pynvml'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout == "[]\n"


# What is kept


def reading(at: float, seconds: float, busy: float | None, windows: int) -> Sample:
    used = CardSample("GPU-1", busy=busy, sm=busy, memory_used=round(at), memory_total=100, energy=1.0)
    if busy is not None:
        used = msgspec.structs.replace(used, windows=windows, covered=0.2 * windows)
    return Sample(at=at, cards=(used,), seconds=seconds, cpu=busy)


READINGS = st.lists(
    st.tuples(st.floats(0.05, 3), st.one_of(st.none(), st.floats(0, 1)), st.integers(1, 9)), min_size=2, max_size=60
)


@given(READINGS)
def test_merging_keeps_sums_means_and_the_most(rows) -> None:
    rows = rows[: len(rows) // 2 * 2]
    before = [reading(place, *row) for place, row in enumerate(rows)]
    after = [merged(a, b) for a, b in zip(before[::2], before[1::2], strict=True)]

    def told(samples: list[Sample]) -> list[float | None]:
        cards = [sample.cards[0] for sample in samples]
        return [
            mean((one.busy, one.covered) for one in cards),
            sum(one.energy for one in cards),
            sum(one.windows for one in cards),
            sum(sample.seconds for sample in samples),
            max(one.memory_used for one in cards),
        ]

    assert told(after) == pytest.approx(told(before))


def test_a_long_watch_stays_small() -> None:
    samples: list[Sample] = []
    for place in range(20_000):
        samples.append(reading(0.2 * place, 0.2, 0.5, 1))
        samples = thinned(samples)
    assert len(samples) <= kept.MOST_SAMPLES
    assert sum(sample.windows for sample in samples) == 20_000
    assert [s.at for s in samples] == sorted(s.at for s in samples)
    assert all(b.at - a.at < 0.3 for a, b in zip(samples[-1500:], samples[-1499:], strict=False)), (
        "the newest are whole"
    )


@given(st.integers(0, 700), st.integers(1, 150))
def test_a_path_has_at_most_so_many_points(count, limit) -> None:
    points = path([reading(n, 0.2, 0.5, 1) for n in range(count)], "GPU-1", limit)
    assert len(points) <= limit
    assert (len(points) == 0) == (count == 0)
    if count:
        assert points[-1].at == count - 1 and points[-1].memory == pytest.approx((count - 1) / 100)


def test_a_path_leaves_out_what_was_not_read() -> None:
    assert path([Sample(at=1.0, cards=(CardSample("GPU-1"),), seconds=0.2)], "GPU-1") == ()


def test_memory_use_is_the_share_of_the_memory() -> None:
    assert CardSample("GPU-1", memory_used=20 * GIB, memory_total=80 * GIB).memory == 0.25
    assert CardSample("GPU-1", memory_used=20 * GIB).memory is None
