"""What verify says beyond the five checks, how it goes wrong, and the verb."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from verifying import (
    A100,
    BUSY,
    CPU_BUILD,
    GIB,
    JOB,
    NO_DRIVER,
    ask,
    card,
    device,
    failed,
    found,
    levels,
    node,
    processes,
    real,
    sliced,
    text,
    torch_with,
    uuid,
)

from gpuworkshop import cli
from gpuworkshop.child import Tell
from gpuworkshop.instruments import verify, verify_first, verify_probe
from gpuworkshop.instruments.verify_result import Expected
from gpuworkshop.report import Report

B200 = "NVIDIA B200"


# What was asked for


@pytest.mark.parametrize(
    ("name", "expect", "fits"),
    [
        ("NVIDIA B200", "b200", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "b200", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx", True),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server", True),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-server", False),
        ("NVIDIA RTX 6000 Ada Generation", "rtx", False),
        ("NVIDIA H200", "H200", True),
        ("NVIDIA GH200 480GB", "h200", False),
        ("NVIDIA L40S", "l4", False),
        ("Tesla V100-SXM2-16GB", "v100", True),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a100", True),
    ],
)
def test_the_card_that_was_asked_for(monkeypatch, name, expect, fits) -> None:
    result = ask(monkeypatch, node(card(1, name, 10)), torch_with(device(1, name, 10)), expect=expect)
    (one,) = [one for one in verify.findings(result) if one.title.startswith(("Expected", "As expected"))]
    assert one.level == ("ok" if fits else "fail") and name in one.title + one.evidence


@pytest.mark.parametrize(
    ("card", "name", "same"),
    [
        ("B200", "NVIDIA B200", True),
        ("B200", "NVIDIA GB200", False),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", True),
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("RTX PRO 6000", "NVIDIA RTX 6000 Ada Generation", False),
        ("NVIDIA V100", "Tesla V100-SXM2-16GB", True),
        ("B200", "", False),
    ],
)
def test_a_sites_card_is_told_by_whole_words(card: str, name: str, same: bool) -> None:
    assert Expected("x", "x", (card,)).fits(name) is same


def test_asked_for_a_card_and_got_none(monkeypatch) -> None:
    result = ask(monkeypatch, NO_DRIVER, torch_with(available=False), JOB, site="aicr", expect="b200")
    assert found(result, "Expected", "there is no card").fix.startswith("srun -p b200-devel")


@pytest.mark.parametrize(
    ("env", "here"),
    [({}, False), (JOB, True), ({"SLURM_CONF": "/etc/slurm.conf"}, True)],
    ids=["laptop", "job", "login"],
)
def test_a_laptop_is_told_that_the_request_belongs_on_a_cluster(monkeypatch, env: dict, here: bool) -> None:
    result = ask(monkeypatch, NO_DRIVER, torch_with(available=False), env, site="aicr", expect="b200")
    assert ("no Slurm here" in found(result, "Expected", "there is no card").evidence) is not here


def test_a_card_that_nobody_knows_is_bad_input(capsys) -> None:
    assert cli.main(["verify", "--expect", "b2000"]) == 2
    said = capsys.readouterr()
    assert '"b2000"; known: b200, rtx, ' in said.err and re.search(r" and \d+ more", said.err), "the sites' own first"
    assert len(said.err.splitlines()) == 1 and len(said.err) < 240 and not said.out


# Where there is no card


def test_a_login_node(monkeypatch) -> None:
    result = ask(monkeypatch, NO_DRIVER, torch_with(available=False), {"SLURM_CONF": "/etc/slurm.conf"}, site="aicr")
    first = list(verify.findings(result))[0]
    assert first.level == "warning" and "login node" in first.title
    assert first.fix.startswith("srun -p b200-devel") and "--gres=gpu:1" in first.fix


@pytest.mark.parametrize("given_cards", ["", "2"])
def test_a_job_without_a_card(monkeypatch, given_cards) -> None:
    env = {**JOB, "SLURM_GPUS_ON_NODE": given_cards} if given_cards else JOB
    first = list(verify.findings(ask(monkeypatch, NO_DRIVER, torch_with(available=False), env)))[0]
    assert first.level == ("fail" if given_cards else "warning")
    assert ("Slurm gave this job 2 cards" if given_cards else "none was asked for") in first.title


def test_a_laptop_is_no_fault(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = ask(monkeypatch, NO_DRIVER, torch_with(available=False))
    assert levels(result) == ["notice", "notice", "ok", "ok", "notice"] and failed(result) == []


def test_a_build_for_the_cpu_on_a_login_node_is_told_before_the_job(monkeypatch) -> None:
    """zonca/jupyterhub-deploy-kubernetes-jetstream#72."""
    result = ask(monkeypatch, NO_DRIVER, CPU_BUILD, {"SLURM_CONF": "/etc/slurm.conf"})
    assert found(result, "built for the CPU").level == "warning"


def test_wsl_without_a_card(monkeypatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    monkeypatch.setenv("PATH", "/nowhere")
    result = ask(monkeypatch, NO_DRIVER, torch_with(available=False))
    assert "driver in Windows" in found(result, "WSL2").fix
    with_card = ask(monkeypatch, node(card(1)), torch_with(device(1)))
    assert found(with_card, "WSL2: CUDA through Windows").level == "notice"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Error 802: system not yet initialized", "fabric manager"),
        ("Error 804: forward compatibility was attempted on non supported HW", "compatibility library"),
    ],
)
def test_errors_of_cuda_that_mean_one_thing(monkeypatch, said, title) -> None:
    warn = f"CUDA initialization: Unexpected error from cudaGetDeviceCount(). {said}"
    result = ask(monkeypatch, node(card(1)), torch_with(available=False, warn=warn), JOB)
    assert title in failed(result)[0].title and said in failed(result)[0].evidence


# Who else is on the card


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (b"python\0-m\0ipykernel_launcher\0", "forgotten notebook kernel of yours"),
        (b"python\0train.py\0", "another process of"),
    ],
)
@pytest.mark.parametrize("in_the_job", [True, False])
def test_a_process_of_ones_own(monkeypatch, tmp_path, command, title, in_the_job) -> None:
    """In a session of Open OnDemand a forgotten kernel is of the same job."""
    monkeypatch.setattr(verify_first, "PROC", processes(tmp_path, 4242, os.getuid(), command))
    (tmp_path / "proc" / "4242" / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0\n")
    busy = card(1, processes=[{"pid": 4242, "used": 3 * GIB}])
    one = found(ask(monkeypatch, node(busy), torch_with(device(1)), JOB if in_the_job else {}), "(4242)")
    assert title in one.title and "3 GiB" in one.title and one.level == "warning" and "kill 4242" in one.fix


def test_a_number_of_the_host_is_not_a_process_in_here(monkeypatch, tmp_path) -> None:
    """In a container the driver gives numbers of the host: a process here with that number has no card open."""
    proc = processes(tmp_path, 4242, os.getuid())
    (proc / "4242" / "fd" / "9").unlink()
    monkeypatch.setattr(verify_first, "PROC", proc)
    busy = card(1, processes=[{"pid": 4242, "used": 3 * GIB}])
    one = found(ask(monkeypatch, node(busy), torch_with(device(1)), JOB), "(4242)")
    assert "cannot be seen from here" in one.title and "kill" not in one.fix


def test_memory_that_nobody_holds(monkeypatch) -> None:
    full = card(1)
    full["memory"] = {"total": 80 * GIB, "used": 61 * GIB}
    one = found(ask(monkeypatch, node(full), torch_with(device(1))), "61 GiB in use by nobody")
    assert one.level == "notice"


def test_this_process_holds_the_card_itself(monkeypatch) -> None:
    own = card(1, processes=[{"pid": "self", "used": GIB}])
    assert "restart this kernel" in found(ask(monkeypatch, node(own), torch_with(device(1))), "this process itself").fix


def test_no_memory_left(monkeypatch) -> None:
    error = {"type": "OutOfMemoryError", "text": "CUDA out of memory. Tried to allocate 2.00 MiB."}
    full = card(1)
    full["memory"] = {"total": 80 * GIB, "used": 79 * GIB}
    (one,) = failed(ask(monkeypatch, node(full), torch_with(device(1), alloc_error=error)))
    assert one.title == "The card has no memory left" and "79 GiB of 80 GiB" in one.evidence


# How a card is


def test_less_memory_than_the_card_should_have(monkeypatch) -> None:
    result = ask(monkeypatch, node(card(1, B200, 120)), torch_with(device(1, B200, 120, sm=148)))
    less = found(result, "less memory than it should")
    assert less.level == "warning" and "120 GiB, not 175 to 192 GiB" in less.title
    enough = ask(monkeypatch, node(card(1, B200, 178.4)), torch_with(device(1, B200, 178.4, sm=148)))
    assert "less memory" not in text(enough)


def test_a_card_that_is_not_what_the_table_says(monkeypatch) -> None:
    odd = device(1, "NVIDIA H200", 139.8, sm=132, clock_khz=990_000, memory_clock_khz=3_201_000, bus_bits=6144)
    note = found(
        ask(monkeypatch, node(card(1, "NVIDIA H200", 140.4)), torch_with(odd)), "does not report what the table"
    )
    assert note.level == "notice" and "16-bit peak" in note.evidence


@pytest.mark.parametrize(
    ("facts", "words", "level"),
    [
        ({"ecc_volatile": 2}, "2 uncorrectable memory errors", "warning"),
        ({"remapped": [0, 1, 0, 1]}, "could not be replaced", "warning"),
        ({"compute_mode": 3}, "exclusive mode", "notice"),
    ],
)
def test_the_health_of_a_card_that_still_works(monkeypatch, facts, words, level) -> None:
    result = ask(monkeypatch, node(card(1, **facts)), torch_with(device(1)))
    assert found(result, words).level == level and levels(result) == ["ok"] * 5


def test_a_card_closed_to_everybody(monkeypatch) -> None:
    result = ask(monkeypatch, node(card(1, compute_mode=2)), torch_with(device(1), alloc_error=BUSY), JOB)
    assert "prohibited" in failed(result)[0].title


def test_a_card_that_computes_wrongly(monkeypatch) -> None:
    result = ask(monkeypatch, node(card(1)), torch_with(device(1), wrong=1), JOB)
    (one,) = failed(result)
    assert "computes wrongly: a tensor came back changed" in one.title and "--exclude=n07" in one.fix


def test_a_card_without_bf16_is_not_asked_for_it(monkeypatch) -> None:
    name = "Tesla V100-SXM2-16GB"
    old = torch_with(device(1, name, 15.8, major=7), arch_list=["sm_70", "sm_90"])
    result = ask(monkeypatch, node(card(1, name, 16, cc=[7, 0])), old)
    assert result.torch.trips[0].bf16 is None and "no BF16 unit" in found(result, "every bit came back").evidence


def test_one_of_two_cards_fails(monkeypatch) -> None:
    """The good one is said to be good, the other has its own cause; what holds for one is not said of all."""
    result = ask(monkeypatch, node(card(1), card(2)), torch_with(device(1), device(2)), JOB)
    trips = (result.torch.trips[0], msgspec.structs.replace(result.torch.trips[1], same=False))
    says = msgspec.structs.replace(result.torch, trips=trips)
    broken = msgspec.structs.replace(result, torch=says)
    assert found(broken, "cuda:1 computes wrongly").level == "fail"
    assert "cuda:0 " in found(broken, "every bit came back").title
    assert "cuda:1" not in found(broken, "every bit came back").title


def test_a_card_that_shares_the_memory_of_the_machine(monkeypatch) -> None:
    shared = device(1, "NVIDIA GB10", 119, major=12, minor=1, integrated=1)
    seen = torch_with(shared, arch_list=["sm_120"])
    no_memory = card(1, "NVIDIA GB10", cc=[12, 1]) | {"memory": {"error": "NotSupported"}}
    result = ask(monkeypatch, node(no_memory), seen)
    assert found(result, "shares the memory of the machine") and failed(result) == []


def test_kernels_that_the_driver_must_compile(monkeypatch) -> None:
    name = "NVIDIA GeForce RTX 5090"
    seen = torch_with(device(1, name, 31.8, major=12), arch_list=["sm_90", "compute_90"])
    result = ask(monkeypatch, node(card(1, name, 31.8, cc=[12, 0])), seen)
    assert found(result, "compiles them at the first use").level == "notice" and failed(result) == []


# The variable, and what Slurm gave


def test_a_variable_left_over_from_an_earlier_shell(monkeypatch) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "1"}
    result = ask(monkeypatch, node(card(1), card(2)), torch_with(device(2)), env)
    one = found(result, "left over from an earlier shell?")
    assert one.fix == "unset CUDA_VISIBLE_DEVICES" and "1 more card" in one.evidence


def test_numbers_that_only_pytorch_can_tell_apart(monkeypatch) -> None:
    """Two kinds of cards: which of them number 0 is, is known once PyTorch has answered; then how it is, too."""
    env = {**JOB, "CUDA_VISIBLE_DEVICES": "0"}
    small, large = card(1, "Quadro P1000", 8), card(2, "NVIDIA RTX A6000", 48)
    result = ask(monkeypatch, node(small, large), torch_with(device(2, "NVIDIA RTX A6000", 48)), env)
    assert [one.uuid for one in result.cards] == [uuid(2)]
    assert result.state(result.cards[0]).total == 48 * GIB


def test_a_card_that_is_not_there(monkeypatch) -> None:
    env = {**JOB, "CUDA_VISIBLE_DEVICES": "0,7"}
    result = ask(monkeypatch, node(card(1), card(2)), torch_with(device(1)), env)
    assert found(result, "lists 2, and CUDA sees 1").level == "warning"


def test_a_subset_of_the_job(monkeypatch) -> None:
    env = {**JOB, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "4"}
    result = ask(monkeypatch, node(*map(card, (1, 2, 3, 4))), torch_with(device(1)), env)
    assert found(result, "1 card of the 4 of this job").level == "notice"


def test_a_task_that_got_one_of_its_cpus(monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
    env = {**JOB, "SLURM_CPUS_PER_TASK": "16", "CUDA_VISIBLE_DEVICES": "0"}
    one = found(ask(monkeypatch, node(card(1)), torch_with(device(1)), env), "1 of the 16 CPUs")
    assert "SRUN_CPUS_PER_TASK" in one.fix


def test_the_idle_policy_comes_from_the_site_file(monkeypatch) -> None:
    env = {**JOB, "CUDA_VISIBLE_DEVICES": "0"}
    here = ask(monkeypatch, node(card(1)), torch_with(device(1)), env, site="aicr")
    assert "claimed by:" in found(here, "AICR cancels jobs").evidence
    assert "cancels jobs" not in text(ask(monkeypatch, node(card(1)), torch_with(device(1)), env))


def test_a_site_file_that_cannot_be_used_is_no_end(monkeypatch) -> None:
    result = ask(monkeypatch, node(card(1)), torch_with(device(1)), site="nowhere.toml")
    assert "no such file" in found(result, "site file").evidence and levels(result) == ["ok"] * 5


ENTRIES = st.sampled_from(
    ["0", "1", "7", "-1", "", " ", "x", "1a", "NoDevFiles", uuid(1), uuid(9), "GPU-", "MIG-1", "٣"]
)


@fuzz(60)
@given(
    raw=st.lists(ENTRIES, max_size=4).map(",".join),
    cards=st.integers(0, 2),
    seen=st.integers(0, 2),
    in_a_job=st.booleans(),
)
def test_whatever_the_machine_says_there_are_five_checks_and_no_crash(raw, cards, seen, in_a_job) -> None:
    """And a card is only called good when something came back from it."""
    with pytest.MonkeyPatch.context() as patch:
        env = {"CUDA_VISIBLE_DEVICES": raw, **(JOB if in_a_job else {})}
        machine = node(*map(card, range(cards))) if cards else NO_DRIVER
        result = ask(patch, machine, torch_with(*map(device, range(seen))), env)
        five = list(verify.findings(result))[:5]
        assert len(five) == 5
        assert ("every bit came back" in five[4].title) == bool(seen)
        assert len(result.cards) == seen or not result.torch.available
        assert str(verify.report(result)) and verify.report(result)._repr_mimebundle_()["text/html"]


# How it goes wrong


@pytest.mark.parametrize("step", ["import torch", "is_available", "device list", "allocation", "BF16 product"])
def test_a_step_that_takes_the_process_with_it_is_named(monkeypatch, step) -> None:
    result = ask(monkeypatch, node(card(1)), torch_with(device(1)), JOB, stop_at=step)
    (one,) = failed(result)
    assert step in one.title and "SIGSEGV" in one.evidence
    assert (levels(result)[0] == "ok") == (step in ("allocation", "BF16 product"))


def test_a_driver_library_that_hangs(monkeypatch) -> None:
    """NVML is given up; PyTorch's own answer stands."""
    monkeypatch.setattr(verify_first, "NVML_SECONDS", 0.2)
    hanging = {"calls": {"nvmlDeviceGetCount": {"hang": 30}}, **node(card(1))}
    result = ask(monkeypatch, hanging, torch_with(device(1)))
    assert "the driver hangs" in list(verify.findings(result))[3].title
    assert found(result, "every bit came back")


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetComputeMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryInfo"]
)
def test_one_question_that_is_refused_spoils_no_other(monkeypatch, function) -> None:
    refused = {"calls": {function: {"error": "NotSupported"}}, **node(card(1))}
    assert levels(ask(monkeypatch, refused, torch_with(device(1)))) == ["ok"] * 5


def test_a_product_that_is_off_by_one_is_seen(monkeypatch) -> None:
    import torch

    assert verify_probe._product(torch, "cpu") and verify_probe._round_trip(torch, "cpu")
    right = torch.matmul
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: right(a, b) + (a.dtype == torch.bfloat16))
    assert verify_probe._product(torch, "cpu") is False


def test_the_product_needs_no_rounding() -> None:
    """BF16 holds whole numbers up to 256; the sums differ, so that a card that always says 0 is seen."""
    import torch

    numbers = torch.arange(verify_probe.SIDE**2, dtype=torch.float32)
    assert verify_probe.SIDE <= 256
    assert len(set(numbers.mul(7).remainder(11).remainder(3).sub(1).tolist())) == 3


def test_what_is_known_is_told_after_every_step(monkeypatch) -> None:
    from standins import fake_cuda

    fake_cuda.install(torch_with(device(1)), monkeypatch)
    told: list = []
    tell = SimpleNamespace(progress=lambda share, words: told.append(words), record=told.append, part=Tell.part)
    verify_probe.Probe(tell).run()
    steps = [one for one in told if isinstance(one, str)]
    names = [*verify_probe.STEPS[:3], *(f"{step} on cuda:0" for step in verify_probe.STEPS[3:])]
    assert steps == names
    assert all(isinstance(after, verify_probe.TorchSays) for after in told[1:] if not isinstance(after, str))
    assert told[-1].trips == (verify_probe.Trip(0, same=True, bf16=True),)


# The partial report, the verb, a launcher


def test_the_drivers_part_comes_first_and_says_no_more_than_it_knows(monkeypatch) -> None:
    heard: list[Report] = []
    result = ask(monkeypatch, node(card(1)), torch_with(device(1)), first=heard.append)
    (first,) = heard
    assert "Driver 580.65.06 serves CUDA 13.0" in first.findings[0].title and len(first.findings) == 1
    assert first.tables[0].rows[0][:2] == (A100, uuid(1))
    assert "is_available" not in str(first) and result.partial is False


def test_behind_a_launcher_the_driver_is_asked_there(monkeypatch) -> None:
    """Nothing is asked here: the first part comes from the child too, and only once."""
    heard: list[Report] = []
    result = ask(monkeypatch, node(card(1)), torch_with(device(1)), launcher=("srun",), first=heard.append)
    assert len(heard) == 1 and levels(result) == ["ok"] * 5 and result.launcher == ("srun",)


def test_the_verb_prints_the_drivers_part_and_nothing_twice(monkeypatch, capsys) -> None:
    result = ask(monkeypatch, node(card(1)), torch_with(device(1)))
    partial = msgspec.structs.replace(result, partial=True)

    def run(expect, launcher, progress, first):
        first(verify.report(partial))
        assert "Driver 580" in capsys.readouterr().out  # on screen before the rest is known
        first_table.append(str(verify.report(partial).tables[0]))
        return result

    first_table: list[str] = []
    monkeypatch.setattr(verify, "run", run)
    assert cli.main(["verify"]) == 0
    rest = capsys.readouterr().out
    assert "every bit came back" in rest and "where this was asked" in rest
    assert first_table[0] not in rest


@pytest.mark.parametrize(("works", "code"), [(True, 0), (False, 1)])
def test_the_verb_in_json(monkeypatch, capsys, works, code) -> None:
    how = {} if works else {"alloc_error": BUSY}
    result = ask(monkeypatch, node(card(1)), torch_with(device(1), **how))
    monkeypatch.setattr(verify, "run", lambda *args: result)
    assert cli.main(["verify", "--json"]) == code
    whole = json.loads(capsys.readouterr().out)
    assert whole["origin"]["on"] == A100
    assert [one["level"] for one in whole["findings"]][:4] == ["ok"] * 4


def test_a_launcher_in_quotes_that_do_not_end(capsys) -> None:
    assert cli.main(["verify", "--launcher", "srun 'x"]) == 2
    assert "--launcher" in capsys.readouterr().err


def test_a_launcher_that_is_not_there(monkeypatch, capsys) -> None:
    assert cli.main(["verify", "--launcher", "no-such-launcher --now"]) == 2
    assert "no-such-launcher" in capsys.readouterr().err


def test_in_a_real_child_behind_a_launcher(monkeypatch) -> None:
    """`env` stands for srun: the driver and PyTorch are asked in the child, whose card is not here."""
    file = real(monkeypatch, torch_with(device(1)))
    spec = file.with_name("nvml.json")
    spec.write_text(json.dumps(node(card(1))))
    result = verify.run(launcher=("env", f"FAKE_NVML={spec}"))
    assert levels(result) == ["ok"] * 5 and result.cards[0].uuid == uuid(1)


def test_it_speaks_without_torch_and_ends_with_one(monkeypatch, tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    real(monkeypatch, path=str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "gpuworkshop", "verify"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "PyTorch" in done.stdout and "Traceback" not in done.stdout + done.stderr


def test_a_slice_is_named_as_one(monkeypatch) -> None:
    seen = torch_with({"name": f"{A100} MIG 1g.10gb", "total": int(9.75 * GIB)})
    slice_uuid = sliced()["mig"]["devices"][0]["uuid"]
    result = ask(monkeypatch, node(sliced()), seen, {"CUDA_VISIBLE_DEVICES": slice_uuid})
    assert uuid(1) in found(result, "is a MIG slice").evidence
