"""Ranks that fail, hang, die or are given up: one clear line, and no process is left. All live, with gloo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from gpuworkshop import cli
from gpuworkshop.child import ChildFailed
from gpuworkshop.instruments import scaling, scaling_by_hand, scaling_witness
from gpuworkshop.instruments.scaling_faults import NCCL, how_a_rank_died, in_one_line
from gpuworkshop.instruments.scaling_witness import Seen, Watched, WitnessResult, judge
from gpuworkshop.workloads import train

TARGET = "gpuworkshop.instruments.scaling_witness_rank:in_rank"
GONE_WITHIN = 20.0
"""Seconds; the machine that runs the tests may be busy."""


@pytest.fixture(autouse=True, scope="module")
def on_cpus() -> Iterator[None]:
    """The ranks of this module are CPU cores, also where there are cards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield


def rank_processes() -> set[int]:
    """The processes below this one that are torchrun or ranks of it, by their number."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if any("torch.distributed.run" in word or "gpuworkshop.child" in word for word in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            pass
    return found


def all_gone(numbers: set[int], within: float = GONE_WITHIN) -> bool:
    """Whether none of these processes lives, or does so only as what nobody has waited for."""
    until = time.monotonic() + within
    while alive := {number for number in numbers if _lives(number)}:
        if time.monotonic() > until:
            return not alive
        time.sleep(0.1)
    return True


def _lives(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a script that joins two gloo ranks, and leaves the number of each process in a file."""

    def write(body: str, joins: bool = True) -> str:
        head = f"""
            import os, time, datetime, signal
            open(os.path.join({str(tmp_path)!r}, f"pid{{os.environ['RANK']}}"), "w").write(str(os.getpid()))
            import torch, torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel as DDP
            rank = int(os.environ["RANK"])
        """
        joining = "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=5))" if joins else ""
        file = tmp_path / "script.py"
        file.write_text("\n".join([textwrap.dedent(head), joining, textwrap.dedent(body)]))
        return str(file)

    return write


def written(folder: Path) -> set[int]:
    """The processes that said their number."""
    return {int(file.read_text()) for file in folder.glob("pid*") if file.read_text()}


def errors(result: WitnessResult) -> list[str]:
    """What the findings say about ranks that failed."""
    return [f.title for f in scaling_witness.findings(result) if "ended with an error" in f.title]


# ---------------------------------------------------------------- all-reduce by hand, in odd surroundings


@pytest.fixture(scope="module")
def by_hand(on_cpus):
    """Two ranks where the usual port is taken, gloo is told a pattern, and this process has woken CUDA."""
    with pytest.MonkeyPatch.context() as patch, socket.socket() as usual, socket.socket() as named:
        for taken, port in ((usual, 29500), (named, 29777)):
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", port))
                taken.listen()
            except OSError:
                pass  # taken by somebody else, which is as good
        patch.setenv("MASTER_PORT", "29777")
        patch.setenv("MASTER_ADDR", "no-such-host.invalid")
        patch.setenv("GLOO_SOCKET_IFNAME", "^lo")
        patch.setattr(torch.cuda, "_initialized", True)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        return scaling_by_hand.run(2)


def test_the_average_by_hand_is_what_ddp_leaves(by_hand) -> None:
    first, second = by_hand.own
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) > 0.1, "the ranks have other data"
    mean = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    assert by_hand.averaged == pytest.approx(mean, abs=1e-5)
    assert by_hand.ddp[0] == by_hand.ddp[1] == pytest.approx(mean, abs=1e-5)
    assert by_hand.together == pytest.approx(mean, abs=1e-5)
    finding = next(scaling_by_hand.findings(by_hand))
    assert finding.level == "ok"


def test_an_average_that_is_another_fails(by_hand) -> None:
    import msgspec

    wrong = msgspec.structs.replace(by_hand, averaged=tuple(2 * value for value in by_hand.averaged))
    assert next(scaling_by_hand.findings(wrong)).level == "fail"
    assert f"{by_hand.averaged[0]:.4f}" in str(scaling_by_hand.report(by_hand))


def test_r02_ranks_start_after_cuda_was_woken(by_hand) -> None:
    """huggingface/accelerate#940, #182: a fork would fail; the ranks are programs of their own."""
    assert torch.cuda.is_initialized() is False, "the stand-in is gone"
    assert len(by_hand.own) == 2


def test_r04_a_busy_port_stops_nobody(by_hand) -> None:
    """TorchDR/TorchDR#249, pytorch/pytorch#126510: the launch takes a free port, whatever MASTER_PORT says."""
    assert len(by_hand.ddp) == 2
    says = in_one_line("DistNetworkError: port: 29777, useIpv6: false, code: -98, name: EADDRINUSE")
    assert "port 29777 is in use: an older rank may still live" in says and "--standalone" in says


def test_r11_the_ranks_speak_over_loopback(by_hand) -> None:
    """aws-samples/aws-do-eks#51, pytorch/gloo#70: gloo's variable takes one name; ours is set for the ranks alone."""
    assert len(by_hand.own) == 2
    says = in_one_line("RuntimeError: Unable to find address for: ^lo", interfaces=lambda: [(1, "lo"), (2, "ib0")])
    assert "GLOO_SOCKET_IFNAME" in says and "^lo" in says and "lo, ib0" in says


# ---------------------------------------------------------------- words


def test_r12_windows_without_libuv() -> None:
    """pytorch/pytorch#139990: one sentence that names Windows, WSL and the variable."""
    says = in_one_line("the measuring process ended", "DistStoreError: use_libuv was requested but PyTorch was built")
    assert "Windows" in says and "WSL2" in says and "USE_LIBUV=0" in says


def test_r08_unused_and_twice_used_parameters() -> None:
    """huggingface/accelerate#2017, pytorch/pytorch#43259: no blind find_unused_parameters."""
    first = in_one_line(
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
        "Parameters which did not receive grad for rank 0: side.weight, side.bias. Parameter indices"
    )
    assert "(side.weight, side.bias)" in first and "take them out" in first and "costs a search" in first
    twice = in_one_line("RuntimeError: Expected to mark a variable ready only once. ... marked as ready twice")
    assert "use_reentrant=False" in twice and "static_graph=True" in twice and "find_unused" not in twice


def test_r03_the_line_of_a_hang_lists_what_to_try() -> None:
    """NVIDIA/nccl-tests#117, pytorch/pytorch#73206."""
    says = in_one_line("no result in the time allowed: given up and ended", patience=40)
    assert "no rank said anything for 40 s" in says and NCCL in says
    for word in ("NCCL_P2P_DISABLE=1", "NCCL_DEBUG=INFO", "from card 0 to 1"):
        assert word in says


def test_torchruns_own_words_name_the_rank_and_its_signal() -> None:
    log = "Failures:\n  rank : 0 (local_rank: 0)\n exitcode : 1\nRoot Cause (first observed failure):\n[0]:\n" + (
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 77)\n"
    )
    assert how_a_rank_died(log) == (
        "rank 3 was ended by signal 9 (host memory used up?), and the others were ended with it"
    )
    assert "ended with status 7" in how_a_rank_died(log.replace("-9", "7"))
    assert how_a_rank_died("nothing of that kind") == ""


def test_a_message_that_says_it_all_stays() -> None:
    assert in_one_line("OutOfMemoryError: CUDA out of memory") == "OutOfMemoryError: CUDA out of memory"


# ---------------------------------------------------------------- scripts that were watched


DOES_DDP = """
model = DDP(torch.nn.Linear(4, 2))
for step in range(3):
    model(torch.randn(2, 4)).sum().backward()
dist.destroy_process_group()
"""


def test_r10_a_script_that_does_it_is_told_from_one_that_says_it(script, tmp_path: Path) -> None:
    """TorchDR/TorchDR#238, pytorch/pytorch#7092: joined, wrapped and exchanging in every rank."""
    result = scaling_witness.run(script(DOES_DDP), ranks=2, seconds=60)
    assert result.use == "ddp", result.seen
    assert all(one.ddp == 1 and one.exchanges >= 3 and one.world == 2 for one in result.seen)
    assert all_gone(written(tmp_path))


def test_r10_the_word_alone_is_not_ddp(script, capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning-AI/pytorch-lightning#13605: imports and comments train nothing together; torchrun makes N copies."""
    says_it = script("# DDP(model), init_process_group()\nmodel = torch.nn.Linear(4, 2)\n", joins=False)
    assert cli.main(["scale", "--ranks", "2", "--", says_it]) == 0
    out = capsys.readouterr().out
    assert "do the same work 2 times" in out and "DistributedSampler" in out


def test_the_courses_own_script_trains_as_one() -> None:
    words = ("--preset", "gpt-tiny", "--steps", "12")
    heard: list[str] = []
    result = scaling_witness.run(train.__file__, words, ranks=2, progress=lambda said: heard.append(said.text))
    assert any("step   10  loss" in text for text in heard), "what the script prints is told as it comes"
    assert result.use == "ddp" and all(one.exchanges >= 12 and not one.error for one in result.seen), result.seen


@pytest.mark.parametrize(
    ("seen", "use"),
    [
        ([Seen(0, 2, ddp=1, exchanges=9), Seen(1, 2, ddp=1, exchanges=9)], "ddp"),
        ([Seen(0, 2, sharded=1, exchanges=9), Seen(1, 2, sharded=1, exchanges=9)], "sharded"),
        ([Seen(0, 2, exchanges=4), Seen(1, 2, exchanges=4)], "exchanges"),
        ([Seen(0, 2, ddp=1), Seen(1, 2, ddp=1)], "copies"),
        ([Seen(0), Seen(1)], "copies"),
        ([Seen(0, dataparallel=1), Seen(1, dataparallel=1)], "dataparallel"),
        ([Seen(0, 1, ddp=1, exchanges=3), Seen(1, 1, ddp=1, exchanges=3)], "wrong world"),
        ([Seen(0, error="NameError: net"), Seen(1, error="NameError: net")], "unknown"),
    ],
)
def test_r10_what_counts_is_what_the_ranks_did(seen, use) -> None:
    """TorchDR/TorchDR#238: yes, sharded, by hand, DataParallel, copies, and worlds of another size."""
    assert judge(2, seen) == use


def test_r07_ranks_with_different_numbers_of_batches(script, tmp_path: Path) -> None:
    """pytorch/pytorch#33148, k2-fsa/snowfall#152: the longer rank waits for nobody; the line says what to do."""
    uneven = """
    model = DDP(torch.nn.Linear(4, 2))
    for step in range(3 if rank == 0 else 5):
        model(torch.randn(2, 4)).sum().backward()
    """
    result = scaling_witness.run(script(uneven), ranks=2, seconds=60)
    (line,) = errors(result)
    assert line.startswith("Rank 1") and "equal shares" in line and "drop_last=True" in line and "model.join()" in line
    assert all_gone(written(tmp_path))


def test_r08_unused_parameters_are_named_live(script) -> None:
    """pytorch/pytorch#43259: a part of the model that has no part in the loss."""
    unused = """
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.side = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        def forward(self, x):
            return self.used(x)
    model = DDP(Net())
    for step in range(3):
        model(torch.randn(2, 4)).sum().backward()
    """
    lines = errors(scaling_witness.run(script(unused), ranks=2, seconds=60))
    assert len(lines) == 2 and all("had no part in the loss" in line for line in lines)


def test_batch_normalization_with_one_sample_a_rank(script) -> None:
    alone = """
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    model(torch.randn(1, 4)).sum().backward()
    """
    lines = errors(scaling_witness.run(script(alone), ranks=2, seconds=60))
    assert lines and all("2 samples or more" in line for line in lines)


# ---------------------------------------------------------------- nobody is left


def test_r03_ranks_stuck_at_a_collective_are_given_up(script, tmp_path: Path) -> None:
    """pytorch/pytorch#73206, huggingface/transformers#15618: one rank never comes; all are ended, by their number."""
    stuck = """
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        time.sleep(3600)
    group = dist.new_group(timeout=datetime.timedelta(hours=1))
    """
    asked = Watched(script(stuck), (), 3000.0)
    with pytest.raises(ChildFailed, match="no rank said anything for 25 s") as caught:
        scaling.launch(TARGET, asked, 2, type=WitnessResult, patience=25)
    assert "NCCL_DEBUG=INFO" in str(caught.value) and "\n" not in str(caught.value)
    assert len(written(tmp_path)) == 2 and all_gone(written(tmp_path)) and not rank_processes()


def test_a_rank_that_dies_takes_the_others_with_it(script, tmp_path: Path) -> None:
    dies = """
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)
    """
    with pytest.raises(ChildFailed, match="rank 1 was ended by signal 9") as caught:
        scaling_witness.run(script(dies), ranks=2, seconds=200)
    assert "\n" not in str(caught.value)
    assert len(written(tmp_path)) == 2 and all_gone(written(tmp_path)) and not rank_processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["int", "term", "kill"])
def test_r14_an_interrupt_in_the_middle_leaves_nobody(script, tmp_path: Path, number: signal.Signals) -> None:
    """meta-pytorch/monarch#712, NVIDIA/nvidia-docker#1553: however the command ends, its ranks end too."""
    goes_on = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what torchrun would end it with
    open(os.path.join(os.path.dirname(__file__), f"ready{rank}"), "w").close()
    while True:
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)
    """
    command = [sys.executable, "-m", "gpuworkshop", "scale", "--ranks", "2", "--", script(goes_on)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while len(list(tmp_path.glob("ready*"))) < 2:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.1)
        numbers = written(tmp_path) | {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
        assert len(numbers) >= 3
        os.kill(process.pid, number)
        status = process.wait(timeout=60)
        assert status == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        assert all_gone(numbers), "a rank outlived the command"
    finally:
        process.kill()
        process.wait()
