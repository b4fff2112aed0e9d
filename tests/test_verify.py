"""Verify on every kind of machine that went wrong for somebody: the right cause, the right fix, no wrong alarm."""

import os
import subprocess
import sys

import psutil
import pytest
from verifying import (
    A100,
    BUSY,
    CPU_BUILD,
    GIB,
    JOB,
    NO_DRIVER,
    SLICE,
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

from gpuworkshop.instruments import verify
from gpuworkshop.instruments.verify_card import can_run

GOOD = ["ok"] * 5


def test_a_good_card_passes_all_five(monkeypatch) -> None:
    env = {**JOB, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "1"}
    result = ask(monkeypatch, node(card(1)), torch_with(device(1)), env)
    assert levels(result) == GOOD
    assert failed(result) == []
    (row,) = verify.report(result).tables[0].rows
    assert row[:3] == (A100, uuid(1), "80 GiB")
    assert row[4] == "cuda:0 (physical card 0, bus 00000000:11:00.0)"
    assert found(result, "every bit came back")


def test_v01_one_slice_named_by_uuid(monkeypatch) -> None:
    """pytorch/pytorch#95784, pytorch/pytorch#92315, XuehaiPan/nvitop#5."""
    seen = torch_with({"name": f"{A100} MIG 1g.10gb", "total": int(9.75 * GIB)})
    result = ask(monkeypatch, node(sliced()), seen, {"CUDA_VISIBLE_DEVICES": f"{SLICE}1"})
    assert levels(result) == GOOD
    assert found(result, "1 MIG slice", "9.75 GiB")
    agrees = found(result, "NVML agrees")
    assert f"{SLICE}1 of {uuid(1)}" in agrees.evidence
    assert "9 GiB" not in text(result) and f"{SLICE}2" not in text(result) and "80 GiB" not in text(result)


def test_v02_two_slices_listed_and_one_given(monkeypatch) -> None:
    """pytorch/pytorch#102715, pytorch/pytorch#92315."""
    seen = torch_with({"name": f"{A100} MIG 1g.10gb", "total": int(9.75 * GIB)})
    result = ask(monkeypatch, node(sliced()), seen, {"CUDA_VISIBLE_DEVICES": f"{SLICE}1,{SLICE}2"})
    assert failed(result) == []
    says = found(result, "lists 2, and CUDA takes 1")
    assert "one MIG slice" in says.evidence
    assert found(result, "a process gets one slice")


@pytest.mark.parametrize("variable", ["0", None])
def test_v03_a_split_card_without_a_slice(monkeypatch, variable) -> None:
    """pytorch/pytorch#131667, pytorch/pytorch#130181. is_available() alone is no pass."""
    assertion = "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at X, please report a bug to PyTorch."
    seen = torch_with({"name": "?", "total": 0}, alloc_error={"type": "RuntimeError", "text": assertion})
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    result = ask(monkeypatch, node(sliced(0)), seen, env)
    first = list(verify.findings(result))[0]
    assert first.level == "fail" and "split (MIG)" in first.title and "slice" in first.fix
    assert "report a bug" not in text(result)


def test_v04_whole_cards_by_uuid(monkeypatch) -> None:
    """Schedulers such as HTCondor write them.

    pytorch/pytorch#90543, vllm-project/vllm#13815, rapidsai/dask-cuda#435, baker-laboratory/rf_diffusion_all_atom#36.
    """
    env = {"CUDA_VISIBLE_DEVICES": f"{uuid(3)},{uuid(1)}"}
    result = ask(monkeypatch, node(*map(card, (1, 2, 3, 4))), torch_with(device(3), device(1)), env)
    assert [(one.cuda, one.physical, one.uuid) for one in result.cards] == [(0, 2, uuid(3)), (1, 0, uuid(1))]
    assert [one.level for one in (found(result, "2 cards: NVIDIA"), found(result, "NVML agrees"))] == ["ok", "ok"]


@pytest.mark.parametrize("raw", [None, "", "-1", "NoDevFiles"])
def test_v07_unset_empty_minus_one_and_nodevfiles(monkeypatch, raw) -> None:
    """ray-project/ray#7014, XuehaiPan/nvitop#26, pytorch/pytorch#40618."""
    env = dict(JOB) if raw is None else {**JOB, "CUDA_VISIBLE_DEVICES": raw}
    seen = torch_with(device(1)) if raw is None else torch_with(available=False)
    result = ask(monkeypatch, node(card(1)), seen, env)
    first = list(verify.findings(result))[0]
    if raw is None:
        assert first.level == "ok"
        unset = found(result, "unset inside job 4711")
        assert unset.level == "warning" and "no GPU was asked for" in unset.title
        return
    assert f'"{raw}"' in first.evidence and "Hidden by CUDA_VISIBLE_DEVICES" in first.title
    assert ("did not ask for a GPU (--gres / --gpus)" in first.title) == (raw == "NoDevFiles")
    assert first.level == ("warning" if raw == "NoDevFiles" else "fail")
    assert "driver" not in first.title.lower() and first.fix


def test_v08_the_order_of_nvidia_smi_is_not_that_of_torch(monkeypatch) -> None:
    """ModelCloud/Device-SMI#40, anderskm/gputil#18, gpuopenanalytics/pynvml#28, pytorch/pytorch#80876."""
    small = card(1, "Quadro P1000", 8, cc=[6, 1])
    large = card(2, "NVIDIA RTX A6000", 48, cc=[8, 6])
    seen = torch_with(
        device(2, "NVIDIA RTX A6000", 48, minor=6),
        device(1, "Quadro P1000", 8, major=6, minor=1),
        arch_list=["sm_60", "sm_86"],
    )
    result = ask(monkeypatch, node(small, large), seen)
    assert [(one.name, one.uuid, one.physical) for one in result.cards] == [
        ("NVIDIA RTX A6000", uuid(2), 1),
        ("Quadro P1000", uuid(1), 0),
    ]
    note = found(result, "another order")
    assert note.level == "notice" and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in note.fix
    assert failed(result) == []


@pytest.mark.parametrize(("here", "variable"), [((5, 6), "0,1"), (range(8), "5,6")], ids=["cgroup", "no cgroup"])
def test_v09_slurm_numbers_the_cards_of_the_node(monkeypatch, here, variable) -> None:
    """ollama/ollama#11356, NatLabRockies/HPC#660, NVIDIA/deepops#1102."""
    env = {**JOB, "SLURM_JOB_GPUS": "5,6", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": variable}
    result = ask(monkeypatch, node(*map(card, here)), torch_with(device(5), device(6)), env)
    assert [one.uuid for one in result.cards] == [uuid(5), uuid(6)]
    assert levels(result) == GOOD and failed(result) == []
    says = found(result, "CUDA_VISIBLE_DEVICES is")
    assert "5,6" in says.evidence and "never CUDA's" in says.evidence


def test_v10_the_variable_is_changed_after_cuda_woke(monkeypatch) -> None:
    """pytorch/pytorch#95073, pytorch/pytorch#159641, pytorch/pytorch#23544."""
    awake = torch_with(*map(device, (1, 2, 3, 4)), initialized=True)
    result = ask(monkeypatch, node(*map(card, (1, 2, 3, 4))), awake, {"CUDA_VISIBLE_DEVICES": "1"})
    warned = found(result, "changed after CUDA had started")
    assert warned.level == "warning" and "until the kernel restarts" in warned.title
    assert '"1" now, which leaves 1 card; this process sees 4' in warned.evidence
    quiet = ask(monkeypatch, node(card(1), card(2)), torch_with(device(1), device(2)), {"CUDA_VISIBLE_DEVICES": "1"})
    assert quiet.caller.awake is None


@pytest.mark.parametrize("works", [True, False])
def test_v11_driver_and_library_of_two_versions(monkeypatch, works) -> None:
    """mozilla/translations#1167, NVIDIA/ubuntu-packaging-nvidia-driver#3, intel/llvm#17614, pytorch/pytorch#45109."""
    seen = torch_with(device(1)) if works else torch_with(available=False)
    result = ask(monkeypatch, {"init_error": "LibRmVersionMismatch"}, seen, JOB)
    (nvml,) = [one for one in verify.findings(result) if "not restarted" in one.title]
    assert "--exclude=n07" in nvml.fix and nvml.level == "warning"
    assert ("CUDA works, monitoring does not" in nvml.title) == works
    assert [one.level for one in verify.findings(result)][0] == ("ok" if works else "fail")


def test_v12_a_driver_older_than_the_build(monkeypatch) -> None:
    """sgl-project/sglang#11395, pytorch/pytorch#162531, pytorch/pytorch#25581."""
    said = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040). Please update."
    old = torch_with(available=False, warn=said)
    result = ask(monkeypatch, node(card(1), driver="550.54.15", cuda=12040), old)
    first = list(verify.findings(result))[0]
    assert first.level == "fail"
    assert "serves CUDA 12.4" in first.title and "needs 13.0" in first.title and "cu12x" in first.title
    assert text(result).count("12040") == 1 and "newer driver" in first.fix
    assert "no gpu" not in text(result).lower()


def test_v12_a_driver_of_the_same_major_version_is_no_cause(monkeypatch) -> None:
    """A 12.8 build runs on a driver that serves 12.4; something else is wrong then."""
    result = ask(monkeypatch, node(card(1), cuda=12040), torch_with(built_cuda="12.8", available=False))
    assert "serves" not in failed(result)[0].title


def test_v13_a_build_for_the_cpu_beside_a_card(monkeypatch) -> None:
    """conda-forge/pytorch-cpu-feedstock#364, pytorch/pytorch#32369, conda/conda#11001."""
    result = ask(monkeypatch, node(card(1)), CPU_BUILD)
    first = list(verify.findings(result))[0]
    assert first.level == "fail" and "no CUDA support" in first.title
    assert "2.14.1+cpu" in first.evidence and "CONDA_OVERRIDE_CUDA=13.0" in first.fix and "index" in first.fix


def test_v13_a_build_for_the_cpu_on_a_laptop_is_no_fault(monkeypatch) -> None:
    result = ask(monkeypatch, NO_DRIVER, CPU_BUILD)
    assert list(verify.findings(result))[0].level == "notice" and failed(result) == []


def test_v14_a_new_card_and_an_old_wheel(monkeypatch) -> None:
    """pytorch/pytorch#167244, HybridRobotics/berkeley-humanoid-lite#49, remsky/Kokoro-FastAPI#306."""
    error = {"type": "AcceleratorError", "text": "CUDA error: no kernel image is available for execution on the device"}
    name = "NVIDIA GeForce RTX 5090"
    seen = torch_with(
        device(1, name, 31.8, major=12), built_cuda="12.4", arch_list=["sm_50", "sm_90"], alloc_error=error
    )
    result = ask(monkeypatch, node(card(1, name, 31.8, cc=[12, 0])), seen)
    (trip,) = failed(result)
    assert levels(result)[0] == "ok" and "sm_120" in trip.title
    assert "sm_50, sm_90" in trip.evidence and "cu128+" in trip.fix and "pin" in trip.fix


@pytest.mark.parametrize(
    ("capability", "kernels", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 6), ("sm_80",), True),
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_90",), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((8, 0), ("compute_90",), False),
        ((10, 3), ("sm_100",), True),
        ((9, 0), ("sm_90a",), True),
        ((12, 0), ("sm_120a",), True),
        ((12, 1), ("sm_120a",), False),
        ((7, 0), ("sm_75", "sm_120"), False),
        ((9, 4), ("gfx942",), True),
        ((9, 0), (), True),
    ],
)
def test_v14_which_kernels_a_card_runs(capability, kernels, runs) -> None:
    assert can_run(capability, kernels) is runs


@pytest.mark.parametrize("whose", ["ours", "another's", "not visible"])
def test_v16_an_exclusive_card_that_is_taken(monkeypatch, tmp_path, whose) -> None:
    """jade-hpc-gpu/jade-hpc-gpu.github.io#40 and #59, NVIDIA/DIGITS#2005, pytorch/pytorch#2614."""
    if whose != "not visible":
        processes(tmp_path, 4242, os.getuid() + (whose == "another's"))
    monkeypatch.setattr(verify.verify_first, "PROC", tmp_path / "proc")
    taken = card(1, compute_mode=3, processes=[{"pid": 4242, "used": 70 * 2**20}])
    result = ask(monkeypatch, node(taken), torch_with(device(1), alloc_error=BUSY), JOB)
    (trip,) = failed(result)
    assert trip.title == "The card is held by process 4242 (exclusive mode)"
    if whose == "ours":
        assert "your own" in trip.evidence and "kill 4242" in trip.fix and "kernel" in trip.fix
    else:
        assert "another user's" in trip.evidence and "kill" not in trip.fix and "people who run" in trip.fix


def test_v19_one_card_fell_off_the_bus(monkeypatch) -> None:
    """rossumai/nvgpu#6, XuehaiPan/nvitop#139, LSSI-ETH/plmfit#40."""
    cards = [card(1), card(2), card(3, handle_error="GpuIsLost"), card(4)]
    result = ask(monkeypatch, node(*cards), torch_with(device(1), device(2), device(4)), JOB)
    assert len(result.cards) == 3 and found(result, "3 cards").level == "ok"
    lost = found(result, "Physical card 2 is lost")
    assert lost.level == "fail" and "--exclude=n07" in lost.fix and "write to" in lost.fix


def test_v21_an_amd_card_through_rocm(monkeypatch) -> None:
    """unslothai/unsloth#4449, pytorch/pytorch#132990, ROCm/pytorch#513."""
    amd = {"name": "AMD Instinct MI300X", "total": 192 * GIB, "major": 9, "minor": 4}
    seen = {"built_cuda": None, "built_hip": "6.2.41133", "arch_list": ["gfx942"], "devices": [amd]}
    result = ask(monkeypatch, NO_DRIVER, seen)
    assert levels(result) == GOOD and failed(result) == []
    assert found(result, "AMD GPU", "ROCm 6.2")
    assert "not applicable" in list(verify.findings(result))[3].title
    assert "built for the CPU" not in text(result)


def test_v22_a_mac(monkeypatch) -> None:
    """deepbeepmeep/Wan2GP#1680, torchgeo/torchgeo-bench#253, conservationtechlab/animl-py#209."""
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    result = ask(monkeypatch, NO_DRIVER, {**CPU_BUILD, "mps": True})
    first = list(verify.findings(result))[0]
    assert first.level == "notice" and "Apple GPU (MPS)" in first.title and "CPU" in first.title
    assert failed(result) == [] and "not applicable" in list(verify.findings(result))[3].title


def test_v24_names_as_bytes_or_text_and_two_packages(monkeypatch) -> None:
    """rossumai/nvgpu#29, vllm-project/vllm#7649, dask/distributed#5768, snowflakedb/ArcticTraining#285."""
    reports = []
    for as_bytes in (True, False):
        result = ask(monkeypatch, node(card(1), return_bytes=as_bytes), torch_with(device(1)))
        reports.append([one for one in verify.findings(result) if "Round trip" not in one.title])
    assert reports[0] == reports[1]
    assert "retired package pynvml" not in text(result)
    monkeypatch.setattr(verify, "_bindings", lambda: {"nvidia-ml-py": "13.0", "pynvml": "11.5"})
    hint = found(ask(monkeypatch, node(card(1)), torch_with(device(1))), "retired package pynvml")
    assert hint.level == "notice" and hint.fix.endswith("-m pip uninstall pynvml")


@pytest.mark.parametrize("error", ["LibraryNotFound", "Unknown"])
def test_v25_cuda_works_and_nvml_does_not(monkeypatch, error) -> None:
    """NVIDIA/nvidia-docker#954, mattshma/bigdata#150, NVIDIA/nvidia-docker#1163."""
    result = ask(monkeypatch, {"init_error": error}, torch_with(device(1)))
    assert levels(result) == ["ok", "ok", "ok", "warning", "ok"]
    nvml = list(verify.findings(result))[3]
    if error == "LibraryNotFound":
        assert "monitoring is not available in this container" in nvml.title and "utility" in nvml.fix
    else:
        assert "lost its access" in nvml.title and "start it again" in nvml.fix


def test_v25_nvml_answers_and_cuda_does_not_start(monkeypatch) -> None:
    said = "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment"
    result = ask(monkeypatch, node(card(1)), torch_with(available=False, warn=said), JOB)
    assert failed(result)[0].title == "A GPU is here, and CUDA does not start"
    assert "unknown error" in failed(result)[0].evidence
    assert list(verify.findings(result))[3].title == "NVML sees what PyTorch does not"


def test_w10_a_driver_that_counts_no_memory_errors(monkeypatch) -> None:
    """gpuopenanalytics/pynvml#43, NVIDIA/go-nvml#21: new bindings ask for what an old driver does not export."""
    old = node(card(1), missing=["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetComputeRunningProcesses"])
    result = ask(monkeypatch, old, torch_with(device(1)))
    assert levels(result) == GOOD and failed(result) == [] and "0 uncorrectable" not in text(result)


def test_v27_a_virtual_gpu(monkeypatch) -> None:
    """NVIDIA/TensorRT-LLM#1861, dmlc/xgboost#12217, microsoft/Bringing-Old-Photos-Back-to-Life#28."""
    name = "NVIDIA A40-48C"
    refused = {"temperature": {"error": "NotSupported"}, "power": {"error": "NotSupported"}}
    result = ask(monkeypatch, node(card(1, name, 48, **refused)), torch_with(device(1, name, 48)))
    assert levels(result) == GOOD
    note = found(result, "virtual GPU")
    assert note.level == "notice" and "expandable_segments" in note.evidence


def test_v28_bad_memory_on_one_node(monkeypatch) -> None:
    """jade-hpc-gpu/jade-hpc-gpu.github.io#194, MFlowCode/MFC#1748, vllm-project/vllm#5222."""
    error = {"type": "AcceleratorError", "text": "CUDA error: uncorrectable ECC error encountered"}
    bad = node(card(1, ecc_volatile=3))
    result = ask(monkeypatch, bad, torch_with(device(1), alloc_error=error), JOB, site="aicr")
    (fault,) = failed(result)
    assert "Hardware fault on host" in fault.title and uuid(1) in fault.title
    assert "3 uncorrectable errors" in fault.evidence
    assert "--exclude=n07" in fault.fix and "@" in fault.fix and "pip" not in fault.fix


# In a real child


def test_v17_a_driver_that_never_answers(monkeypatch) -> None:
    """rwth-i6/returnn#1756, pytorch/pytorch#136951, pytorch/pytorch#1907. One step hangs for ever; verify does not."""
    real(monkeypatch, torch_with(device(1), hang={"use": 3600}))
    result = verify.run(step_seconds=1.5)
    (hung,) = failed(result)
    assert "did not answer" in hung.title and "allocation on cuda:0" in hung.title
    assert result.first.host in hung.evidence
    assert result.torch.available and result.stopped.hung  # what was known before is kept
    assert [one for one in psutil.Process().children() if "gpuworkshop.child" in one.cmdline()] == []


def test_v18_the_calling_process_never_wakes_cuda() -> None:
    """pytorch/pytorch#83973, vllm-project/vllm#15951, Lightning-AI/pytorch-lightning#15110."""
    program = """
import os, sys
from gpuworkshop.instruments import verify
result = verify.run()
assert "torch" not in sys.modules, "torch was imported"
import torch
assert not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
pid = os.fork()
if pid == 0:  # what a forked worker would find
    os._exit(int(torch.cuda._is_in_bad_fork()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print(result.torch.build.version)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    import torch

    assert done.stdout.strip() == str(torch.__version__)


@pytest.mark.parametrize("kind", ["missing", "broken"])
def test_v26_the_kernel_is_not_the_environment_you_think(monkeypatch, tmp_path, kind) -> None:
    """rcgsheffield/sheffield_hpc#1350, StatCan/aaw-kubeflow-containers#294, pytorch/pytorch#4827."""
    words = {"missing": "No module named 'torch'", "broken": "libcudart.so.13: cannot open shared object file"}[kind]
    raises = f"ModuleNotFoundError({words!r}, name='torch')" if kind == "missing" else f"ImportError({words!r})"
    (tmp_path / "torch.py").write_text(f"raise {raises}\n")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    real(monkeypatch, path=str(tmp_path), CONDA_PREFIX="/somewhere/else")
    if kind == "missing":
        monkeypatch.setattr("gpuworkshop.machine.interpreter.find_spec", lambda name: None)
    result = verify.run()
    first = list(verify.findings(result))[0]
    assert first.level == "fail"
    assert sys.executable in first.evidence and "CONDA_PREFIX=/somewhere/else" in first.evidence
    assert "-m ipykernel install --user" in first.fix and "/somewhere/else/bin/python" in first.fix
    assert (words in first.evidence) == (kind == "broken")
