"""The stand-ins answer as they are told, in this process and in a child's, and leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from standins import fake_cuda
from standins import pynvml as fake_nvml

HERE = Path(__file__).parent / "standins"
CARD = {"name": "NVIDIA H200", "uuid": "GPU-1", "total": 1000, "memory": {"total": 1000, "used": 4, "reserved": 600}}


def test_answers_come_as_they_are_told(monkeypatch) -> None:
    lost_then = {"error": "GpuIsLost"}
    turns = [{"gpu": 1}, {"first": 1, "say": {"gpu": 2}, "then": lost_then}]
    driver = fake_nvml.install({"devices": [CARD | {"util": turns}], "missing": ["nvmlDeviceGetName"]}, monkeypatch)
    import pynvml

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID("GPU-1")
    assert [pynvml.nvmlDeviceGetUtilizationRates(card).gpu for _ in range(2)] == [1, 2]
    with pytest.raises(pynvml.NVMLError_GpuIsLost) as lost:
        pynvml.nvmlDeviceGetUtilizationRates(card)
    assert lost.value.value == 15
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetName(card)
    assert pynvml.nvmlDeviceGetMemoryInfo(card).used == 604
    assert pynvml.nvmlDeviceGetMemoryInfo(card, pynvml.nvmlMemory_v2).used == 4
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetPowerUsage(card)
    assert driver.calls["nvmlDeviceGetUtilizationRates"] == 3


def test_gpm_may_be_refused_in_mid_run_and_counts_what_is_left_open(monkeypatch) -> None:
    gpm = {"metrics": {"sm": 50}, "sample": {"first": 2, "say": 0, "then": {"error": "NoPermission"}}}
    driver = fake_nvml.install({"devices": [CARD | {"gpm": gpm}]}, monkeypatch)
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = 1, 2
    asked.sample1, asked.sample2 = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    asked.metrics[0].metricId, asked.metrics[1].metricId = 2, 5
    for sample in (asked.sample1, asked.sample2):
        pynvml.nvmlGpmSampleGet(card, sample)
    pynvml.nvmlGpmMetricsGet(asked)
    assert [(metric.value, metric.nvmlReturn) for metric in asked.metrics[:2]] == [(50, 0), (0, 3)]
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlGpmSampleGet(card, asked.sample1)
    pynvml.nvmlGpmSampleFree(asked.sample1)
    assert driver.gpm_open == 1


def test_tensors_for_a_card_lie_on_the_cpu_until_the_stand_in_is_undone(monkeypatch) -> None:
    import torch

    real = torch.cuda.is_available
    with pytest.MonkeyPatch.context() as inside:
        cuda = fake_cuda.install({"devices": [CARD]}, inside)
        assert torch.cuda.is_available() and not cuda.initialized
        assert torch.ones(3, device="cuda").cuda().cpu().sum() == 3
        assert cuda.initialized
        cuda.spec["alloc_error"] = {"text": "CUDA error: busy"}
        with pytest.raises(RuntimeError, match="busy"):
            torch.ones(3, device="cuda:0")
    assert torch.cuda.is_available is real and fake_cuda._slot.mode is None


def test_a_child_process_and_its_own_child_see_the_same_node(tmp_path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"devices": [CARD], "absent": ["nvmlMemory_v2"]}))
    ask = "import torch, pynvml; print(torch.cuda.get_device_name(0), hasattr(pynvml, 'nvmlMemory_v2'))"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    env = os.environ | dict.fromkeys(("FAKE_CUDA", "FAKE_NVML"), str(tmp_path / "node.json"))
    done = subprocess.run(
        [sys.executable, "-c", nested], env=env | {"PYTHONPATH": str(HERE)}, capture_output=True, text=True
    )
    assert done.stdout == "NVIDIA H200 False\n", done.stderr
