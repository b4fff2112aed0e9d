"""One private cluster for all tests of this folder, and an environment for its jobs."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import private_cluster
import pytest

STANDINS = Path(__file__).parents[1] / "standins"
CARDS = {"b200": "NVIDIA B200", "rtx": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}
MEMORY = {"b200": 178.4, "rtx": 95.0}
TOOK: dict[str, float] = {}
"""Seconds of the cluster of this run: told at its end, asserted nowhere."""
CAPABILITY = {"b200": (10, 0), "rtx": (12, 0)}


@pytest.fixture(scope="session")
def cluster() -> Iterator[private_cluster.Cluster]:
    """The cluster; one start for the whole run."""
    if lacking := private_cluster.missing():
        pytest.skip(f"no private Slurm cluster without {lacking}")
    folder = Path(tempfile.mkdtemp(prefix="gpuworkshop-slurm-"))  # short: a socket's path is limited
    try:
        with private_cluster.Cluster(folder / "c", environment=environment(folder / "env")) as running:
            TOOK.update(running.took)
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long the cluster took."""
    if TOOK:
        terminalreporter.write_line(
            "Slurm cluster: " + ", ".join(f"{what} {took:.1f} s" for what, took in TOOK.items())
        )


def environment(folder: Path) -> Path:
    """What `conda activate` activates: this Python, and a `gpuworkshop` whose verify finds the node's fake card.

    The cards of the cluster are counted by Slurm and nothing else. For verify the driver and PyTorch's side of them
    are stand-ins, so that a script that verifies first goes on as it does on a real node; everything else is real.
    """
    (folder / "bin").mkdir(parents=True)
    for family in CARDS:
        (folder / f"{family}.nvml.json").write_text(json.dumps(_nvml(family)))
        (folder / f"{family}.cuda.json").write_text(json.dumps(_cuda(family)))
    python = sys.executable
    fakes = f'FAKE_NVML="{folder}/$family.nvml.json" FAKE_CUDA="{folder}/$family.cuda.json" PYTHONPATH={STANDINS}'
    _program(folder / "bin/python", f'exec {python} "$@"')
    _program(folder / "bin/torchrun", f'exec {python} -m torch.distributed.run "$@"')
    _program(
        folder / "bin/gpuworkshop",
        "family=$(hostname); family=${family%%-*}",
        f'[ "$1" = verify ] && export {fakes}',
        f'exec {python} -m gpuworkshop "$@"',
    )
    return folder


def _program(file: Path, *lines: str) -> None:
    file.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    file.chmod(0o755)


def _nvml(family: str) -> dict:
    memory = {"total": int((MEMORY[family] + 1) * 2**30), "used": 5 * 2**20}
    about = {"uuid": "GPU-00000000-1111-4222-8333-000000000001", "bus_id": "00000000:1B:00.0", "memory": memory}
    return {
        "driver": "580.65.06",
        "cuda": 13000,
        "devices": [about | {"name": CARDS[family], "cc": list(CAPABILITY[family])}],
    }


def _cuda(family: str) -> dict:
    major, minor = CAPABILITY[family]
    about = {"name": CARDS[family], "total": int(MEMORY[family] * 2**30), "major": major, "minor": minor}
    about |= {"uuid": "00000000-1111-4222-8333-000000000001"}
    return {"built_cuda": "13.0", "arch_list": [f"sm_{major}{minor}"], "devices": [about]}


@pytest.fixture
def work(tmp_path: Path, cluster: private_cluster.Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to submit from, with the folder for logs that a script needs, and a state folder for its jobs."""
    (tmp_path / "logs").mkdir()
    tmp_path.chmod(0o755)
    cluster.env["GPUWORKSHOP_STATE"] = str(tmp_path / "state")
    cluster.env.update({name: os.environ[name] for name in ("GPUWORKSHOP_CACHE",) if name in os.environ})
    return tmp_path
