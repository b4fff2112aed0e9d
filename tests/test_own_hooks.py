"""The hooks from inside: blocks, replay, rounds and plans by small stand-ins; a few real scripts watched as a whole."""

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuworkshop.machine.process_stat import stat
from gpuworkshop.own import launch
from gpuworkshop.own.result import OwnResult

HOOKS = Path(launch.HOOKS)
FILES = sorted(HOOKS.rglob("*.py"))
EVERYWHERE = {"torch", "gpuworkshop_hooks"}


@pytest.fixture(scope="module", autouse=True)
def found() -> Iterator[None]:
    """The hooks can be imported, as in a script's own process."""
    sys.path.insert(0, str(HOOKS))
    yield
    sys.path.remove(str(HOOKS))


def hook(name: str) -> Any:
    return importlib.import_module(f"gpuworkshop_hooks.{name}")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What the hooks write, instead of a file."""
    kept: list[dict] = []
    for name in ("write", "later"):
        monkeypatch.setattr(hook("records"), name, lambda kind, **fields: kept.append({"kind": kind, **fields}))
    return kept


# They run in anybody's Python


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_python_3_9_can_read_it_and_only_its_own_library_is_needed(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in {name.partition(".")[0] for name in names}:
            assert name in sys.stdlib_module_names | EVERYWHERE, f"{file.name} imports {name}"


def test_torch_is_never_imported_by_the_hooks_at_their_top() -> None:
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            assert not (isinstance(node, ast.Import | ast.ImportFrom) and "torch" in ast.unparse(node).split()[1:2])


def test_waking_up_changes_nothing_about_how_torch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("seen = 'the real one'")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    wake, armed = hook("wake"), []
    monkeypatch.setattr(wake, "_arm", armed.append)
    finder = wake._AfterTorch()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert finder.find_spec("torchvision") is None and finder in sys.meta_path
    module = importlib.import_module("torch")
    sys.modules.pop("torch")
    assert armed == [module] and module.seen == "the real one" and finder not in sys.meta_path
    assert "exec_module" not in vars(module.__spec__.loader)


# Blocks


class Ticks:
    """A host's clock that says what it is told."""

    queues = False

    def __init__(self, card: bool = False) -> None:
        self.now, self.queues, self.finished = 0.0, card, 0

    def mark(self) -> float:
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def finish(self) -> None:
        self.finished += 1

    def free(self, marks: list) -> None:
        pass

    def here(self) -> None:
        pass


def fed_step(block: Any, clock: Ticks, wait: float, work: float, samples: int = 4) -> None:
    start = clock.now
    clock.now += wait
    block.fetched(samples, start, clock.now)
    clock.now += work
    block.step()


def test_a_block_adds_up_steps_samples_and_waits() -> None:
    clock = Ticks()
    block = hook("clock").Block(clock)
    block.begin()
    for _ in range(3):
        fed_step(block, clock, 0.25, 0.75)
    assert block.close() == {"seconds": 3.0, "steps": 3, "samples": 12, "spans": {"wait": 0.75}}
    assert clock.finished == 1, "one synchronize a block"


@pytest.mark.parametrize("card", [False, True])
def test_what_is_no_step_is_cut_out(card: bool) -> None:
    clock = Ticks(card)
    block = hook("clock").Block(clock)
    block.begin()
    fed_step(block, clock, 0.0, 1.0)
    block.fetched(4, clock.now, clock.now + 0.5)  # of a step that a validation interrupts
    block.cut(clock.now)
    clock.now += 100.0
    block.begin()
    fed_step(block, clock, 0.0, 1.0)
    assert block.close() == {"seconds": 2.0, "steps": 2, "samples": 8, "spans": {"wait": 0.0}}


def phase(card: bool, marks: bool) -> tuple[Any, Ticks]:
    """A phase of blocks of two steps that never ends."""
    clock = Ticks(card)
    session = SimpleNamespace(clock=clock, marks=marks, steps=0, feeding=lambda: [])

    class Endless(hook("timed").Timed):
        def done(self) -> bool:
            return False

    return Endless(session, "baseline", 2).start(), clock


def one_step(timed: Any, clock: Ticks, work: float) -> None:
    timed.fetched(4, clock.now, clock.now if timed.session.marks else None)
    clock.now += work
    timed.step()


@pytest.mark.parametrize("card, marks", [(False, True), (True, True), (True, False)])
def test_a_validation_lengthens_no_block(card: bool, marks: bool, written: list) -> None:
    timed, clock = phase(card, marks)
    for n in range(12):
        if n in (4, 9):
            timed.interrupted(clock.now if marks else None)
            clock.now += 100.0
        one_step(timed, clock, 1.0)
    blocks = [record for record in written if record["kind"] == "block"]
    assert len(blocks) >= 3 and all(block["seconds"] == 2.0 and block["samples"] == 8 for block in blocks), blocks
    assert timed.interruptions in (1, 2), "one that meets an untimed step cuts nothing"


@pytest.mark.parametrize("times, share", [(2, 0.0), (4, 0.5)])
def test_what_happens_often_between_steps_has_its_share(
    times: int, share: float, written: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, timed = Ticks(), hook("timed")
    monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=clock.mark))
    session = SimpleNamespace(clock=clock, marks=True, steps=0, feeding=lambda: [], late=lambda share: False)
    planner = SimpleNamespace(session=session, shortened=False, only=set(), after_baseline=lambda: "over")
    session.phase = timed.Baseline(planner, 1, 20, 0.0).start()
    while session.phase != "over":
        session.steps += 1
        if session.steps % 5 == 1 and session.steps // 5 < times:
            session.phase.interrupted(clock.now)
            clock.now += (20 + times) / times  # as long in all as the steps
        one_step(session.phase, clock, 1.0)
    (found,) = [record for record in written if record["kind"] == "beside"]
    assert found["interruptions"] == times and found["share"] == pytest.approx(share)


# Loaders


class Loader:
    """As much of a DataLoader as a feed asks for."""

    dataset = num_workers = batch_size = None

    def __init__(self, batches: list, workers: list = ()) -> None:
        self.batches, self.workers = batches, list(workers)

    def __len__(self) -> int:
        return len(self.batches)

    def iterate(self) -> Any:
        return Batches(self)


class Batches:
    def __init__(self, loader: Loader) -> None:
        self.left, self._workers = iter(loader.batches), loader.workers


class Listener:
    """The session of a feed."""

    def __init__(self) -> None:
        self.thread, self.clock, self.got, self.cuts = hook("session").get_ident(), Ticks(), [], 0
        self.marks = True

    def fetched(self, feed: Any, batch: Any, start: float, end: float) -> None:
        self.got.append(batch)

    def interrupted(self, feed: Any, mark: Any) -> None:
        self.cuts += 1


def feed(batches: list, workers: list = ()) -> tuple[Any, Loader, Listener]:
    loader, listener = Loader(batches, workers), Listener()
    return hook("feed").Feed(loader, None, listener), loader, listener


def ask(one: Any, iterator: Batches) -> Any:
    return one.next(iterator, lambda source: next(source.left))


def test_an_epoch_with_replayed_batches_is_as_long_as_any(written: list) -> None:
    one, loader, listener = feed([{"x": n} for n in range(6)])
    iterator = one.started(loader.iterate)
    first = [ask(one, iterator) for _ in range(2)]
    for batch in first:
        one.keep(batch)
        batch.pop("x")  # as trainers do
    one.replay(True)
    again = [ask(one, iterator) for _ in range(3)]
    assert all(set(batch) == {"x"} and batch["x"] in (0, 1) for batch in again)
    one.replay(False)
    assert ask(one, iterator) == {"x": 2}, "the loader goes on where it was"
    with pytest.raises(StopIteration):
        ask(one, iterator)
    assert one.batches == 6 and listener.cuts == 2
    following = one.started(loader.iterate)
    assert [ask(one, following) for _ in range(6)] == loader.batches, "the next epoch is a whole one again"


def test_workers_stand_still_while_batches_are_replayed(written: list) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        one, loader, _ = feed([1, 2], [process])
        iterator = one.started(loader.iterate)
        one.keep(ask(one, iterator))
        one.replay(True)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert stat(process.pid).state == "T"
        one.replay(False)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert stat(process.pid).state != "T"
        one.replay(True)
        one.kill()
        assert process.wait(10) == -9
    finally:
        process.kill()
        process.wait()


def test_a_loader_in_a_thread_is_left_alone(written: list) -> None:
    one, loader, listener = feed([1, 2])
    listener.thread = -1
    iterator = one.started(loader.iterate)
    assert [ask(one, iterator), ask(one, iterator)] == [1, 2]
    assert [record["what"] for record in written if record["kind"] == "note"] == ["loader in a thread"]


@pytest.mark.parametrize(
    "batch, samples",
    [
        (SimpleNamespace(shape=(32, 3)), 32),
        (SimpleNamespace(shape=()), 0),
        ([SimpleNamespace(shape=(8, 2)), SimpleNamespace(shape=(8,))], 8),
        ({"text": ["a", "b", "c"], "y": SimpleNamespace(shape=(3,))}, 3),
        (["a", "b"], 2),
        (SimpleNamespace(num_graphs=5), 5),
        ([], 0),
        (object(), 0),
    ],
)
def test_a_batch_has_as_many_samples_as_its_first_field(batch: Any, samples: int) -> None:
    assert hook("feed").size(batch) == samples


# Rounds


def looking(orders: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """The marker that is found in rounds of optimizers by name, each stepping in the order that is given."""
    look = hook("looking").Looking(SimpleNamespace(feeds=[]), SimpleNamespace())
    monkeypatch.setattr(look, "_first_step", lambda optimizer: None)
    monkeypatch.setattr(look, "_round", lambda count: None)
    things = {name: SimpleNamespace(name=name) for order in orders for name in order}
    for order in orders:
        for name in order:
            look.stepped(things[name])
    return look._marker().name


@pytest.mark.parametrize(
    "orders, marker",
    [
        ([["only"]] * 10, "only"),
        ([["critic", "generator"]] * 10, "generator"),
        ([["critic"] * 5 + ["generator"]] * 4, "generator"),
        ([["critic", "generator"]] * 9 + [["critic"]], "generator"),
    ],
)
def test_a_round_ends_with_the_optimizer_that_steps_least(
    orders: list, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looking(orders, monkeypatch) == marker


# Ranks


class Rank:
    """A session that follows a plan by hand."""

    def __init__(self, folder: Path, rank: int, world: int = 2) -> None:
        self.request, self.rank, self.world, self.steps = {"folder": str(folder)}, rank, world, 30
        self.clock, self.keeping, self.phase, self.stopped = Ticks(), False, None, 0
        self.one = SimpleNamespace(replaying=False)
        self.one.replay = lambda on: setattr(self.one, "replaying", on)

    def feeding(self) -> list:
        return [self.one]

    def let_go(self) -> None:
        self.one.replaying = False

    def stop(self, why: str) -> None:
        self.stopped = self.steps

    def step(self) -> None:
        start, self.clock.now = self.clock.now, self.clock.now + 0.5
        self.phase.fetched(4, start, self.clock.now)
        self.clock.now += 0.5
        self.steps += 1
        self.phase.step()


def planned(folder: Path, rank: int) -> tuple[Rank, Any]:
    session = Rank(folder, rank)
    planner = SimpleNamespace(session=session, k=3, end_of_baseline=lambda: None)
    planner.after_slots = lambda plan: hook("ranks").Until(session, plan["stop"])
    return session, planner


@pytest.mark.parametrize("all_seen", [True, False])
def test_ranks_replay_in_the_same_steps_and_end_after_the_same(tmp_path: Path, written: list, all_seen: bool) -> None:
    for rank in range(2 if all_seen else 1):
        line = json.dumps({"kind": "settings", "rank": rank})
        (tmp_path / f"records-{rank}-here.jsonl").write_text(line + "\n{torn")
    ranks = hook("ranks")
    first, planner = planned(tmp_path, 0)
    first.phase = ranks.Slots(planner, ranks.make(planner, baseline=2, pairs=2, beside=5))
    second, other = planned(tmp_path, 1)
    second.phase = ranks.Waiting(other)
    replays: dict[int, list[bool]] = {}
    while not (first.stopped and second.stopped):
        for session in (first, second):
            if not session.stopped:
                session.step()
                replays.setdefault(session.steps, []).append(session.one.replaying)
    assert first.stopped == second.stopped
    assert all(len(set(pair)) == 1 for pair in replays.values()), "one rank replays while the other loads"
    blocks = [record for record in written if record["kind"] == "block"]
    arms = [block["arm"] for block in blocks[::2] if block["phase"] == "pairs"]
    assert arms == (["now", "data ceiling", "data ceiling", "now"] if all_seen else [])
    assert all(block["steps"] == 3 and block["seconds"] == 3.0 for block in blocks)
    assert any(replays[step][0] for step in replays) is all_seen


# Whole scripts

NETWORK = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
torch.set_num_threads(1)
class Rows(Dataset):
    def __len__(self): return 96
    def __getitem__(self, n):
        x = torch.full((3, 12, 12), float(n))
        for _ in range(4): x = x.flatten().sort().values.reshape(3, 12, 12)
        return x, n % 10
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10))
"""

MIXED = (
    NETWORK
    + """
from torch.utils.checkpoint import checkpoint
net = net.to(memory_format=torch.channels_last)
train = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=1)
held_out = DataLoader(Rows(), batch_size=48)
slow = torch.optim.AdamW(net[3].parameters())
fast = torch.optim.SGD(net[0].parameters(), lr=1e-3, foreach=True)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(10000):
    for n, (x, y) in enumerate(train):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            middle = checkpoint(net[:2], x.requires_grad_(), use_reentrant=False)
            loss = nn.functional.cross_entropy(net[2:](middle), y)
        scaler.scale(loss / 2).backward()
        if n % 2:
            scaler.step(fast)
            scaler.step(slow)
            scaler.update()
            slow.zero_grad()
            loss.item()
    with torch.no_grad():
        right = sum((net(x).argmax(1) == y).sum() for x, y in held_out)
    torch.save(net.state_dict(), sys.argv[1])
"""
)


def watched(folder: Path, text: str, *more: str, by: tuple[str, ...] = (sys.executable,), **how: Any) -> OwnResult:
    file = folder / "theirs.py"
    file.write_text(text)
    return launch.run([*by, str(file), *more], **how)


def line(text: str, words: str) -> int:
    return next(n for n, one in enumerate(text.splitlines(), 1) if words in one)


def test_a_script_with_everything_is_seen_as_it_is(tmp_path: Path) -> None:
    result = watched(tmp_path, MIXED, str(tmp_path / "net.pt"), budget_seconds=14.0)
    assert (result.ended, result.exit_code) == ("stopped by us", 0), result.own_words
    seen = result.settings
    assert (seen.precision, seen.autocast, seen.scaler, seen.checkpointing) == ("bf16", True, True, True)
    assert (seen.channels_last, seen.compiled, seen.ddp, seen.world) == (True, False, "", 1)
    (loader,) = seen.loaders  # the validation's feeds no step
    assert (loader.workers, loader.batch_size, loader.dataset) == (1, 8, "Rows")
    assert loader.place.line == line(MIXED, "train = DataLoader") and loader.place.file.endswith("theirs.py")
    assert loader.epochs > 2 and loader.batches >= 2 * result.steps - 12
    assert {one.kind: one.foreach for one in seen.optimizers} == {"AdamW": None, "SGD": True}
    assert seen.accumulation == pytest.approx(1.0, abs=0.15), "two backward passes for two steps"
    assert [(one.call, one.place.line, one.a_step) for one in seen.waits] == [("item", line(MIXED, "loss.item()"), 1.0)]
    assert seen.autocast_place.line == line(MIXED, "with torch.autocast")
    assert seen.backward_place.line == line(MIXED, ".backward()")
    assert seen.step_place.line == line(MIXED, "scaler.step(fast)")
    assert result.rate.unit == "samples/s" and result.starve.batch_size == 16, "samples of a step, of two batches"
    assert result.starve.workers == 1 and result.starve.headroom.pairs >= 2
    assert result.traced.steps and result.achieved.rate is not None
    assert result.losses.samples[-1] > result.losses.samples[0] > 0
    assert 0.5 < result.losses.values[0] < 200, "the loss itself, not what the scaler made of it"
    assert result.hot and sum(one.share for one in result.hot) <= 1.001
    assert any("net.pt meanwhile" in words for words in result.not_seen)


TRAINER = (
    NETWORK
    + """
class Stream(IterableDataset):
    def __iter__(self): return iter([{"x": x, "y": y} for x, y in map(Rows().__getitem__, range(96))])
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
    def batches(self):  # one ahead, as libraries do to know which is the last
        source = iter(self.loader)
        ahead = next(source)
        for batch in source:
            yield ahead
            ahead = batch
    def fit(self):
        while True:
            for n, batch in enumerate(self.batches()):
                def closure():
                    self.optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(self.model(batch["x"]), batch["y"])
                    loss.backward()
                    return loss
                self.optimizer.step(closure)
                batch.pop("x")
                self.scheduler.step()
                if n == 8: break
Trainer(net, DataLoader(Stream(), batch_size=8, num_workers=1, persistent_workers=True)).fit()
"""
)


def test_a_trainer_with_a_closure_and_persistent_workers_goes_on_through_the_replay(tmp_path: Path) -> None:
    result = watched(tmp_path, TRAINER, budget_seconds=6.0, only=["baseline", "headroom"])
    assert (result.ended, result.exit_code) == ("stopped by us", 0), result.own_words
    (loader,) = result.settings.loaders
    assert loader.iterable and loader.persistent_workers and loader.epochs > 2
    assert result.settings.backward_place.code == "loss.backward()" and result.starve is not None
    assert result.settings.step_place.code == "self.optimizer.step(closure)"


BY_HAND = (
    NETWORK
    + """
x, y = torch.randn(16, 3, 12, 12), torch.zeros(16).long()
while True:
    nn.functional.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for weight in net.parameters():
            weight -= 1e-3 * weight.grad
            weight.grad = None
"""
)


def test_steps_by_hand_are_told_by_their_backward_pass(tmp_path: Path) -> None:
    result = watched(tmp_path, BY_HAND, budget_seconds=5.0, only=["baseline"])
    assert result.ended == "stopped by us" and result.rate.unit == "steps/s"
    assert result.settings.optimizers == () and result.settings.model_place.line == line(BY_HAND, "net(x)")
    assert result.traced is None and result.starve is None and not result.hot, "only the baseline was asked for"
    assert any("each backward pass was taken as one" in words for words in result.not_seen)


RANKS = (
    NETWORK
    + """
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
loader = DataLoader(Rows(), batch_size=8, sampler=DistributedSampler(Rows()))
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""
)


def test_ranks_of_torchrun_are_measured_together_and_all_end(tmp_path: Path) -> None:
    by = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    result = watched(tmp_path, RANKS, by=by, budget_seconds=12.0)
    assert (result.ended, result.exit_code) == ("stopped by us", 0), result.own_words
    assert (result.settings.world, result.settings.ddp) == (2, "DDP") and not result.settings.forks
    assert len(result.world_rates) == 2 and result.starve.headroom.pairs >= 2
    assert result.settings.loaders[0].batch_size == 8
