"""A loader under control: endless, really paused, gone when closed, and with its faults in the learner's terms."""

import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info

from gpuworkshop.instruments import endless, shared_memory
from gpuworkshop.instruments.feed import Feed, LoaderFault, rebuilt
from gpuworkshop.machine import allocation

WAIT = 30
"""Seconds that a test waits for something that must happen; how fast it happens is not tested."""


class Numbers(Dataset):
    """The numbers below ``count``."""

    def __init__(self, count: int = 24):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Busy(Numbers):
    """Numbers that each cost ``seconds`` of CPU time."""

    seconds = 0.02

    def __getitem__(self, index: int) -> int:
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        return index


class Mortal(Numbers):
    """A worker that comes to number 3 is killed, as by a memory limit."""

    def __getitem__(self, index: int) -> int:
        if get_worker_info() and index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Broken(Numbers):
    """Number 5 cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise OSError("5.jpg is\n  cut off")
        return index


class OnCard(Numbers):
    """Uses the card inside a worker, as far as a machine without one can tell."""

    def __getitem__(self, index: int) -> int:
        if get_worker_info():
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. Use another start method.")
        return index


class Stream(IterableDataset):
    """So many numbers, without a length; each worker yields its share."""

    def __init__(self, count: int):
        self.count = count

    def __iter__(self):
        worker = get_worker_info()
        yield from range(worker.id if worker else 0, self.count, worker.num_workers if worker else 1)


@pytest.fixture(autouse=True)
def no_children_left():
    """Every test here ends the workers that it started."""
    before = set(multiprocessing.active_children())
    yield
    assert wait_until(lambda: not set(multiprocessing.active_children()) - before)


def wait_until(true: Callable[[], bool]) -> bool:
    """Whether something becomes true in the time allowed."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def states(feed: Feed) -> set[str]:
    """What the system says about a feed's worker processes."""
    return {psutil.Process(process.pid).status() for process in feed._processes}


def taken(feed: Feed, batches: int) -> Counter:
    """How often each sample comes in so many batches."""
    return Counter(int(sample) for _ in range(batches) for sample in feed.next())


# ---------------------------------------------------------------- without end


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_comes_once_an_epoch_without_end(workers, shuffle) -> None:
    with Feed(DataLoader(Numbers(24), batch_size=4, shuffle=shuffle, num_workers=workers)) as feed:
        for _ in range(3):
            assert taken(feed, 6) == Counter(range(24))


def test_shuffled_epochs_differ() -> None:
    with Feed(DataLoader(Numbers(24), batch_size=24, shuffle=True)) as feed:
        assert feed.next().tolist() != feed.next().tolist()


def test_workers_are_started_once_for_all_epochs() -> None:
    with Feed(DataLoader(Numbers(8), batch_size=4, num_workers=2)) as feed:
        feed.next()
        first = {process.pid for process in multiprocessing.active_children()}
        taken(feed, 20)
        assert {process.pid for process in multiprocessing.active_children()} == first
        assert len(first) == feed.period == feed.workers == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_made_by_a_sampler_come_whole(workers) -> None:
    """A loader with batch_size=None gets lists of indices, as the pre-decoded path does."""

    class Rows(Numbers):
        def __getitem__(self, indices):
            return torch.tensor(indices)

    batches = BatchSampler(SequentialSampler(range(10)), 4, drop_last=True)
    with Feed(DataLoader(Rows(10), sampler=batches, batch_size=None, num_workers=workers)) as feed:
        assert [feed.next().tolist() for _ in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_single_samples_come_one_by_one() -> None:
    with Feed(DataLoader(Numbers(3), batch_size=None)) as feed:
        assert [int(feed.next()) for _ in range(6)] == [0, 1, 2] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_d15_a_stream_without_length_begins_again(workers) -> None:
    """D15, from huggingface/datasets#7113, arm/neural-graphics-model-gym#147, RasmussenLab/vamb#425: five samples in
    batches of two are three batches, from one process or from two; then it starts anew.
    """
    with Feed(DataLoader(Stream(5), batch_size=2, num_workers=workers)) as feed:
        assert taken(feed, 9) == Counter({sample: 3 for sample in range(5)})


def test_a_stream_of_samples_without_batches() -> None:
    with Feed(DataLoader(Stream(2), batch_size=None)) as feed:
        assert [int(feed.next()) for _ in range(4)] == [0, 1, 0, 1]


def test_any_iterable_is_a_loader() -> None:
    with Feed([[1, 2], [3]]) as feed:
        assert [feed.next() for _ in range(4)] == [[1, 2], [3]] * 2
        assert (feed.workers, feed.period) == (0, 1)


# ---------------------------------------------------------------- pausing


def test_paused_workers_stand_still_and_go_on_where_they_were() -> None:
    """Their state is stopped and they use no CPU time; afterwards nothing is missing or doubled."""
    with Feed(DataLoader(Busy(24), batch_size=2, num_workers=2, prefetch_factor=8)) as feed:
        first = taken(feed, 2)
        feed.pause()
        assert wait_until(lambda: states(feed) == {psutil.STATUS_STOPPED})
        used = [psutil.Process(process.pid).cpu_times() for process in feed._processes]
        time.sleep(0.3)
        assert [psutil.Process(process.pid).cpu_times() for process in feed._processes] == used
        feed.resume()
        assert wait_until(lambda: psutil.STATUS_STOPPED not in states(feed))
        assert first + taken(feed, 10) == Counter(range(24))


def test_pausing_twice_or_without_workers_does_no_harm() -> None:
    with Feed(DataLoader(Numbers(), num_workers=0)) as feed:
        feed.pause()
        assert int(feed.next()) == 0
    with Feed(DataLoader(Numbers(), num_workers=1)) as feed:
        feed.pause()
        assert int(feed.next()) == 0
        feed.pause()
        feed.pause()
        feed.resume()
        assert int(feed.next()) == 1


def test_a_paused_feed_can_be_closed() -> None:
    feed = Feed(DataLoader(Numbers(), num_workers=2))
    feed.next()
    feed.pause()
    feed.close()
    assert not multiprocessing.active_children()
    feed.close()


def test_start_up_is_measured_apart_from_the_steady_state() -> None:
    """Workers that take long to start, then deliver in turn: the start is in no block.

    Stands in for pytorch/pytorch#19836, pytorch/pytorch#2978, pytorch/pytorch#8371.
    """
    with Feed(
        DataLoader(Numbers(), batch_size=2, num_workers=2, worker_init_fn=lambda worker: time.sleep(0.3))
    ) as feed:
        feed.next()
        began = time.perf_counter()
        taken(feed, 8)
        assert feed.startup_seconds >= 0.3
        assert feed.startup_seconds > time.perf_counter() - began


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a stopped process with its parent")
def test_a_paused_worker_ends_with_a_parent_that_is_killed() -> None:
    script = """
import time
from torch.utils.data import DataLoader
from gpuworkshop.instruments.feed import Feed
feed = Feed(DataLoader(list(range(8)), num_workers=1))
feed.next()
feed.pause()
print(feed._processes[0].pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    try:
        assert wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    finally:
        if worker.is_running():
            worker.kill()


def test_the_learners_own_start_of_a_worker_still_runs() -> None:
    def start(worker: int) -> None:
        get_worker_info().dataset.count = 100 + worker

    class Told(Numbers):
        def __getitem__(self, index: int) -> int:
            return self.count

    with Feed(DataLoader(Told(4), num_workers=2, worker_init_fn=start)) as feed:
        assert taken(feed, 4) == Counter({100: 2, 101: 2})


# ---------------------------------------------------------------- clones


def test_every_option_of_a_dataloader_is_kept_or_left_out_on_purpose() -> None:
    """A new option of PyTorch must be thought about before a rebuilt loader drops it."""
    options = set(inspect.signature(DataLoader.__init__).parameters) - {"self"}
    by_hand = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}  # in the samplers, or set apart
    dropped = {"persistent_workers", "pin_memory_device"}  # no epoch ends; PyTorch ignores the other one
    assert options == by_hand | dropped | set(endless.COPIED) | set(endless.ONLY_WITH_WORKERS)


def same(samples: list) -> list:
    """Collate by doing nothing; can be sent to any worker."""
    return samples


KNOBS = [
    {"persistent_workers": True},
    {"prefetch_factor": 6},
    {"multiprocessing_context": "spawn"},
    {"timeout": 25},
    {"in_order": False},
]


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: next(iter(knob)))
def test_d04_options_for_workers_are_dropped_without_workers_and_kept_with_them(knob) -> None:
    """D04, from pytorch/pytorch#68576, torchmd/torchmd-net#322, deepseek-ai/DeepSpec#40,
    JonasGeiping/cramming#23. A rebuilt loader never ends an epoch, so that its workers persist in any case.
    """
    loader = DataLoader(Numbers(8), batch_size=2, num_workers=3, collate_fn=same, **knob)
    with Feed(loader, workers=0) as feed:
        assert taken(feed, 4) == Counter(range(8))
    again = rebuilt(loader, workers=2)
    assert again.num_workers == 2 and not again.persistent_workers
    assert (again.prefetch_factor, again.in_order) == (loader.prefetch_factor, loader.in_order)
    assert again.timeout == (loader.timeout or endless.PATIENCE)
    assert type(again.multiprocessing_context) is type(loader.multiprocessing_context)


def test_d14_workers_are_added_to_a_loader_that_had_none_and_it_stays_untouched() -> None:
    """D14, from fastai/fastai#4010: set in place it breaks; a new loader keeps sampler, collate function, generator."""
    generator = torch.Generator()
    batches = BatchSampler(SequentialSampler(range(6)), 3, drop_last=False)
    loader = DataLoader(Numbers(6), batch_sampler=batches, collate_fn=same, generator=generator)
    before = dict(vars(loader))
    with Feed(loader, workers=2) as feed:
        assert [feed.next() for _ in range(4)] == [[0, 1, 2], [3, 4, 5]] * 2
        assert feed.loader.generator is generator and feed.loader.collate_fn is same
    assert vars(loader) == before
    assert [batch for batch in loader] == [[0, 1, 2], [3, 4, 5]]


class FromLibrary(DataLoader):
    """A subclass that only collates in its own way, as those of graph and medical libraries do."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, collate_fn=same, **kwargs)


class Prefixed(DataLoader):
    """A subclass that iterates in its own way, as those of distributed libraries do."""

    def __iter__(self):
        for batch in super().__iter__():
            yield ["own", *batch.tolist()]


def test_a_subclass_that_iterates_as_usual_is_rebuilt() -> None:
    loader = FromLibrary(Numbers(4), batch_size=2, num_workers=1, persistent_workers=True)
    with Feed(loader, workers=2) as feed:
        assert [feed.next() for _ in range(4)] == [[0, 1], [2, 3]] * 2
        assert feed.workers == 2


@pytest.mark.parametrize("persistent", [False, True])
def test_a_subclass_that_iterates_in_its_own_way_keeps_it(persistent) -> None:
    """Its workers are paused in every epoch and are gone afterwards, also those it wanted to keep."""
    loader = Prefixed(Numbers(4), batch_size=2, num_workers=1, persistent_workers=persistent)
    with Feed(loader) as feed, Feed(loader) as other:
        for _ in range(3):
            assert [feed.next() for _ in range(2)] == [["own", 0, 1], ["own", 2, 3]]
            assert other.next() in (["own", 0, 1], ["own", 2, 3])
        feed.next()
        feed.pause()
        assert wait_until(lambda: states(feed) == {psutil.STATUS_STOPPED})
        assert psutil.STATUS_STOPPED not in states(other)
    assert not multiprocessing.active_children()
    assert loader._iterator is None


@pytest.mark.parametrize("loader", [Prefixed(Numbers(4), num_workers=1), [[1], [2]]], ids=["subclass", "list"])
def test_a_number_of_workers_is_refused_where_it_cannot_be_set(loader) -> None:
    """Measuring the same loader under another number would look like a null result."""
    with pytest.raises(LoaderFault, match=f"{type(loader).__name__} cannot be rebuilt with 3 workers"):
        Feed(loader, workers=3)
    Feed(loader, workers=getattr(loader, "num_workers", 0))


# ---------------------------------------------------------------- faults, in the learner's terms


@pytest.mark.parametrize("workers", [0, 1])
def test_d15_a_data_set_smaller_than_a_batch_is_named_with_its_numbers(workers) -> None:
    """D15, from huggingface/datasets#7113, arm/neural-graphics-model-gym#147, RasmussenLab/vamb#425."""
    loader = DataLoader(Numbers(33), batch_size=64, drop_last=True, num_workers=workers)
    with pytest.raises(LoaderFault, match=r"yields no batch: 33 samples < batch size 64 with drop_last=True"):
        Feed(loader).next()


def nothing():
    """A generator that yields nothing."""
    yield from ()


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (DataLoader(Stream(0)), "no batch: its data set ended at once"),
        (DataLoader(Numbers(4), sampler=[]), "no batch from a data set of 4 samples"),
        ([], "this loader yields no batch"),
        (nothing(), "this iterator has ended and cannot start again"),
    ],
    ids=["stream", "sampler", "list", "generator"],
)
def test_a_loader_without_batches_says_why(loader, why) -> None:
    with pytest.raises(LoaderFault, match=why):
        Feed(loader).next()


def test_an_iterator_that_ends_on_the_way_is_named() -> None:
    loader = DataLoader(Numbers(4), batch_size=2)
    with Feed(iter(loader)) as feed, pytest.raises(LoaderFault, match="hand over the loader itself"):
        for _ in range(3):
            feed.next()


def test_a_sampler_that_can_be_read_once_is_named() -> None:
    loader = DataLoader(Numbers(4), sampler=iter([0, 1, 2, 3]), batch_size=2)
    with Feed(loader) as feed, pytest.raises(LoaderFault, match="sampler of this loader ended and did not start again"):
        for _ in range(3):
            feed.next()


def test_d09_a_killed_worker_is_named_with_the_limit_and_none_is_left(monkeypatch) -> None:
    """D09, from FoNDUE-HTR/Documentation#13, ymoslem/OpenNMT-Tutorial#6, open-mmlab/mmrotate#501."""
    monkeypatch.setattr(allocation, "memory", lambda: allocation.Memory(4 * 2**30, "cgroup limit", {}))
    feed = Feed(DataLoader(Mortal(16), batch_size=2, num_workers=2))
    with pytest.raises(
        LoaderFault,
        match=r"a worker died \(host memory used up\? 4 GiB at most, said by cgroup limit\): DataLoader worker \(pid",
    ) as caught:
        for _ in range(8):
            feed.next()
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_during_a_step_is_named_as_well() -> None:
    """PyTorch reports it wherever the training process is; then the context names it."""
    with pytest.raises(LoaderFault, match="a worker died"), Feed(DataLoader(Numbers(64), num_workers=2)) as feed:
        feed.next()
        feed.pause()
        os.kill(feed._processes[0].pid, signal.SIGKILL)
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            time.sleep(0.01)  # the step


class Unsendable(Numbers):
    """What a worker makes cannot be sent: the worker goes on, and nothing ever comes."""

    def __getitem__(self, index: int) -> threading.Lock:
        return threading.Lock()


def test_workers_that_never_send_a_batch_are_given_up(monkeypatch) -> None:
    monkeypatch.setattr(endless, "PATIENCE", 1)
    feed = Feed(DataLoader(Unsendable(), num_workers=1, collate_fn=same))
    with pytest.raises(LoaderFault, match="^no batch came from 1 workers within 1 s$"):
        feed.next()


def test_d08_a_worker_that_found_shared_memory_full_is_named(monkeypatch) -> None:
    """D08, from pytorch/pytorch#5040, fastai/docker-containers#21, bytedance/Protenix#2, open-mmlab/mmdetection#1997:
    "Bus error" is not a matter of installing anything again.
    """
    monkeypatch.setattr(shared_memory, "free", lambda: 64 * 2**20)
    feed = Feed(DataLoader(Numbers(), num_workers=2))
    error = RuntimeError(
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that workers are out."
    )
    assert (
        feed.fault(error)
        == "a worker died (shared memory (/dev/shm) full? 64 MiB free now): " + str(error).split(". ")[0]
    )


def test_d10_a_data_set_that_uses_the_card_in_a_worker_gets_the_right_advice() -> None:
    """D10, from pytorch/pytorch#77159, pyg-team/pytorch_geometric#499, pytorch/pytorch#4377."""
    with pytest.raises(LoaderFault, match=r"move \.to\(device\) out of the data set") as caught:
        Feed(DataLoader(OnCard(), num_workers=1)).next()
    assert "spawn" not in str(caught.value)


def test_an_error_of_the_data_set_in_a_worker_is_one_line_with_its_own_words() -> None:
    feed = Feed(DataLoader(Broken(8), num_workers=1))
    with pytest.raises(LoaderFault, match="^the data set failed in worker 0: .*cut off$") as caught:
        for _ in range(8):
            feed.next()
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children(), "while the error is still looked at"


def test_an_error_of_the_data_set_without_workers_passes() -> None:
    with Feed(DataLoader(Broken(8))) as feed, pytest.raises(OSError, match="5.jpg is\n  cut off"):
        for _ in range(8):
            feed.next()


def test_an_error_of_the_step_passes_through_the_context() -> None:
    with pytest.raises(RuntimeError, match="^shapes differ$"), Feed(DataLoader(Numbers(), num_workers=1)) as feed:
        feed.next()
        raise RuntimeError("shapes differ")


# ---------------------------------------------------------------- what cannot be sent to a worker


class Locked(Numbers):
    """Holds a lock, which no process can send to another."""

    def __init__(self):
        super().__init__()
        self.guard = threading.Lock()


class Shared(Numbers):
    """Holds what processes share on purpose: it travels in its own way."""

    def __init__(self):
        super().__init__()
        self.epoch = multiprocessing.get_context("spawn").Value("i", 0)
        self.rows = torch.zeros(4)


class Holds(Numbers):
    """Holds another part."""

    def __init__(self, part):
        super().__init__()
        self.part = part


@pytest.fixture
def notebook(monkeypatch) -> dict:
    """This process as a notebook's kernel, with a class and a function that a cell defined in ``__main__``."""
    import __main__

    def gather(samples: list) -> list:
        return samples

    gather.__module__, gather.__qualname__ = "__main__", "gather"
    names = {"Toy": type("Toy", (Numbers,), {"__module__": "__main__"}), "gather": gather}
    monkeypatch.delattr(__main__, "__file__", raising=False)
    for name, value in names.items():
        monkeypatch.setattr(__main__, name, value, raising=False)
    return names


def loader_with(method: str, **parts) -> DataLoader:
    """A loader with one worker that is started by ``method``."""
    parts = {"dataset": Numbers()} | parts
    return DataLoader(num_workers=1, multiprocessing_context=method, **parts)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_d01_a_class_from_a_notebook_is_refused_before_workers_start(notebook, method) -> None:
    """D01, from computational-cell-analytics/dl-for-micro#20, Optimization-AI/LibAUC#60, pytorch/pytorch#87016 and
    cj-mills/pytorch-yolox-object-detection-tutorial-code#7.
    """
    says = f"Toy, which is defined in the notebook, and workers are started by {method}"
    for part in (notebook["Toy"](), Holds(notebook["Toy"]())):
        with pytest.raises(LoaderFault, match=says) as caught:
            Feed(loader_with(method, dataset=part))
        assert "Move Toy to a .py file, or use num_workers=0" in str(caught.value)
    with pytest.raises(LoaderFault, match="^collate_fn needs gather"):
        Feed(loader_with(method, collate_fn=notebook["gather"]))


def test_d02_the_default_start_method_decides_where_the_loader_names_none(notebook, monkeypatch) -> None:
    """D02, from pytorch/pytorch#169252, pytorch/pytorch#138957, vllm-project/guidellm#782, metatensor/metatrain#1243:
    decided by the way that workers are started, never by platform or version.
    """
    loader = DataLoader(notebook["Toy"](), num_workers=1)
    Feed(loader)  # forked workers inherit it
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "forkserver")
    with pytest.raises(LoaderFault, match="started by forkserver"):
        Feed(loader)
    Feed(loader, workers=0)


def test_a_script_with_a_file_may_define_its_own_classes(notebook, monkeypatch) -> None:
    import __main__

    monkeypatch.setattr(__main__, "__file__", "train.py", raising=False)
    Feed(loader_with("spawn", dataset=notebook["Toy"]()))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"dataset": Locked()}, "dataset cannot be sent to a worker started by spawn: its attribute 'guard': .*lock"),
        ({"dataset": Holds(Locked())}, "dataset cannot be sent .* its attribute 'part': .*lock"),
        ({"collate_fn": lambda samples: samples}, "collate_fn cannot be sent .*<lambda>"),
        ({"worker_init_fn": lambda worker: None}, "worker_init_fn cannot be sent .*<lambda>"),
    ],
    ids=["lock", "lock inside", "collate_fn", "worker_init_fn"],
)
def test_d03_what_cannot_be_pickled_is_named(parts, why) -> None:
    """D03, from catalyst-team/catalyst#1024, GoogleCloudPlatform/gcs-connector-for-pytorch#67,
    pytorch/pytorch#51836.
    """
    with pytest.raises(LoaderFault, match=why) as caught:
        Feed(loader_with("spawn", **parts))
    assert "\n" not in str(caught.value)
    Feed(loader_with("fork", **parts))
    Feed(loader_with("spawn", **parts), workers=0)


def test_what_processes_share_on_purpose_can_be_sent() -> None:
    with Feed(loader_with("spawn", dataset=Shared())) as feed:
        assert int(feed.next()) == 0
