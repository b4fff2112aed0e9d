"""Ask verify about a machine that a test describes, in this process: fakes for the driver and for PyTorch's card."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import torch  # noqa: F401  loaded here, not in the time of the first input of a property
from standins import fake_cuda
from standins import pynvml as fake_nvml

from gpuworkshop import child
from gpuworkshop.child import ChildFailed, Progress, Tell
from gpuworkshop.instruments import verify, verify_child
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.machine.disk import Disk
from gpuworkshop.report import Finding

GIB = 2**30
NO_DRIVER = {"init_error": "LibraryNotFound"}
A100 = "NVIDIA A100-SXM4-80GB"


def card(number: int, name: str = A100, gib: float = 80, **more: Any) -> dict[str, Any]:
    """A card as NVML shows it, the number's own UUID and bus."""
    memory = {"total": int(gib * GIB), "used": 5 * 2**20}
    bus = f"00000000:{0x10 + number:02X}:00.0"
    return {"uuid": uuid(number), "name": name, "memory": memory, "bus_id": bus, "cc": [8, 0], **more}


def uuid(number: int) -> str:
    """The UUID of this card."""
    return f"GPU-00000000-1111-4222-8333-{number:012d}"


def device(number: int, name: str = A100, gib: float = 80, **more: Any) -> dict[str, Any]:
    """The same card as PyTorch reports it."""
    return {"name": name, "total": int(gib * GIB), "uuid": uuid(number)[4:], "major": 8, "minor": 0, **more}


def node(*cards: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A machine with these cards, as NVML shows it."""
    return {"driver": "580.65.06", "cuda": 13000, "devices": list(cards), **more}


def torch_with(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A PyTorch built for CUDA that sees these devices."""
    return {"built_cuda": "13.0", "arch_list": ["sm_80", "sm_90"], "devices": list(devices), **more}


STANDINS = Path(__file__).parent / "standins"
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_PARTITION": "gpu", "SLURMD_NODENAME": "n07"}
SLICE = "MIG-77777777-aaaa-5bbb-8ccc-00000000000"
BUSY = {"type": "RuntimeError", "text": "CUDA error: CUDA-capable device(s) is/are busy or unavailable"}
CPU_BUILD = {"built_cuda": None, "built_hip": None, "version": "2.14.1+cpu", "available": False}


class NoDisk:
    """Asks no disk."""

    def answer(self) -> Disk:
        """No place."""
        return Disk(())


class _Pipe(Tell):
    """What a child says, as the parent hears it: through JSON."""

    def __init__(self, progress: Any, record: Any, stop_at: str):
        self._progress, self._record, self._stop_at = progress, record, stop_at

    def progress(self, share: float, text: str = "") -> None:
        if self._progress:
            self._progress(Progress(share, text))
        if self._stop_at and text.startswith(self._stop_at):
            raise _Gone

    def record(self, value: Any) -> None:
        if self._record:
            self._record(msgspec.Raw(msgspec.json.encode(value)))


class _Gone(BaseException):
    """The child is gone in the middle of a step."""


def ask(
    monkeypatch,
    nvml: dict[str, Any] | None = None,
    cuda: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    *,
    site: str = "generic",
    stop_at: str = "",
    **how: Any,
) -> VerifyResult:
    """What verify finds on such a machine, with nothing else in the environment; ``stop_at``: the child dies there."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "CUDA_", "CONDA_", "VIRTUAL_ENV")):
            monkeypatch.delenv(name)
    for name, value in {"GPUWORKSHOP_SITE": site, "PATH": "/nowhere", **(env or {})}.items():
        monkeypatch.setenv(name, value)
    fake_nvml.install(nvml or NO_DRIVER, monkeypatch)
    fake_cuda.install(cuda if cuda is not None else {"available": False}, monkeypatch)

    def run(target, request, *, type, launcher=(), progress=None, record=None, timeout=None, meanwhile=None):
        assert target == "gpuworkshop.instruments.verify_child:in_child"
        if meanwhile:
            meanwhile()
        asked = msgspec.json.decode(msgspec.json.encode(request))
        try:
            return verify_child.in_child(asked, _Pipe(progress, record, stop_at))
        except _Gone:
            raise ChildFailed("the measuring process was ended by SIGSEGV") from None

    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr(verify.disk, "Asking", NoDisk)
    result = verify.run(**how)
    again = msgspec.json.decode(msgspec.json.encode(result), type=VerifyResult)
    assert list(verify.findings(again)) == list(verify.findings(result))  # facts survive JSON, findings are pure
    return result


def found(result: VerifyResult, *words: str) -> Finding:
    """The only finding that has all these words in its title."""
    (one,) = [one for one in verify.findings(result) if all(word in one.title for word in words)]
    return one


def levels(result: VerifyResult) -> list[str]:
    """The levels of the five checks."""
    return [one.level for one in list(verify.findings(result))[:5]]


def text(result: VerifyResult) -> str:
    """The whole report as plain text, in one line."""
    return " ".join(str(verify.report(result)).split())


def failed(result: VerifyResult) -> list[Finding]:
    """The findings of level fail."""
    return [one for one in verify.findings(result) if one.level == "fail"]


def sliced(count: int = 2) -> dict[str, Any]:
    """A card in MIG mode with so many slices, the second one full."""
    slices = [
        {
            "uuid": f"{SLICE}{number}",
            "name": f"{A100} MIG 1g.10gb",
            "memory": {"total": int(9.75 * GIB), "used": used},
        }
        for number, used in ((1, 10 * 2**20), (2, 9 * GIB))[:count]
    ]
    return card(1, mig={"enabled": True, "devices": slices})


def processes(tmp_path: Path, pid: int, uid: int, command: bytes = b"python\0-m\0ipykernel_launcher\0") -> Path:
    """A table of processes, seen from a container, with one process that has a card open."""
    place = tmp_path / "proc" / str(pid)
    (place / "fd").mkdir(parents=True)
    (place / "fd" / "9").symlink_to("/dev/nvidia0")
    (place / "cmdline").write_bytes(command)
    (place / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (place / "stat").write_text(f"{pid} (python) S 1 {pid} {pid}\n")
    return tmp_path / "proc"


def real(monkeypatch, cuda: dict | None = None, path: str = "", **env: str) -> Path:
    """Environment of a real child, the stand-ins first on its path; the file that says what PyTorch answers there."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (path, str(STANDINS)))))
    monkeypatch.setenv("GPUWORKSHOP_SITE", "generic")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    file = Path(os.environ["GPUWORKSHOP_STATE"]).parent / "cuda.json"
    if cuda is not None:
        file.write_text(json.dumps(cuda))
        monkeypatch.setenv("FAKE_CUDA", str(file))
    return file
