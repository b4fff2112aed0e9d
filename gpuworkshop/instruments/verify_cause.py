"""Why a card cannot be used: one cause for each way in which it goes wrong, with its evidence and its exact fix.

The causes are tried in order; the first that fits is the one. Everything here is a pure function of the result.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.machine import interpreter
from gpuworkshop.machine.gpus import Card
from gpuworkshop.machine.visible import VARIABLE
from gpuworkshop.numbers import counted, shortened
from gpuworkshop.report import Finding

WITHOUT = "the lessons run on the CPU, and what needs a card is shown as a recording"


def level(number: int | None) -> str:
    """A CUDA level as people write it: 12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else "n/a"


def leave(result: VerifyResult, card: Card | None = None) -> str:
    """How to get away from a broken node, and whom to tell."""
    node = result.first.node
    what = f"{node}, card {card.uuid}" if card and card.uuid else node
    away = f"sbatch --exclude={node} job.sh   # and the same for srun\n" if result.first.slurm else ""
    return f"{away}# write to {result.place.help.staff}: {what}; with the output of: gpuworkshop verify --json"


def pip(result: VerifyResult, words: str) -> str:
    """A pip line for the Python that was asked."""
    return f"{shlex.quote(result.caller.python.executable)} -m pip install {words}"


def why_not(result: VerifyResult) -> Finding | None:
    """Why CUDA cannot be reached; None when it can."""
    return next(filter(None, _causes(result)), None)


def _causes(result: VerifyResult) -> Iterator[Finding | None]:
    yield _stopped(result)
    yield _no_torch(result)
    yield _split(result)
    if result.torch.available:
        return
    yield _hidden(result)
    yield _cpu_build(result)
    yield _old_driver(result)
    yield _mismatch(result)
    yield _known_error(result)
    yield _lost(result)
    yield _no_card(result)
    yield _unknown(result)


def _stopped(result: VerifyResult) -> Finding | None:
    """A step before the cards that did not come back."""
    stopped = result.stopped
    return gave_up(result) if stopped and " on cuda:" not in stopped.step else None


def gave_up(result: VerifyResult) -> Finding:
    """A step that hung, or took the process with it."""
    stopped, first = result.stopped, result.first
    evidence = f"on {first.host}, driver {first.driver or 'n/a'}, step {stopped.step}: {stopped.words}"
    if stopped.step == "import torch":
        how = f"did not finish in {stopped.seconds:.0f} s" if stopped.hung else "ended the process"
        fix = f"time {shlex.quote(result.caller.python.executable)} -X importtime -c 'import torch' 2>&1 | tail"
        slow = "   # a slow file system? then run it again" if stopped.hung else ""
        return Finding("fail", f"import torch {how}", evidence, fix + slow)
    if stopped.hung:
        title = f"The driver did not answer: {stopped.step} took longer than {stopped.seconds:.0f} s"
    else:
        title = f"Using CUDA ended the process: {stopped.step}"
    return Finding("fail", title, evidence, leave(result))


def _no_torch(result: VerifyResult) -> Finding | None:
    fault, python = result.torch.fault, result.caller.python
    if fault is None or fault.step != "import torch":
        return None
    said = [finding for finding in interpreter.findings(python) if finding.level == "fail"]
    if fault.missing == "torch" and said:
        return said[0]
    active = ", ".join(f"{name}={place}" for name, place in python.active.items())
    evidence = f"{fault}; this Python is {python.executable}" + (f"; {active}" if active else "")
    if fault.missing == "torch":
        return Finding("fail", "There is no PyTorch where the launcher runs", evidence, pip(result, "torch"))
    if fault.missing:
        return Finding("fail", f"PyTorch needs {fault.missing}", evidence, pip(result, fault.missing))
    fix = pip(result, "--force-reinstall torch")
    if not python.is_active:
        broken = interpreter.findings(interpreter.Interpreter(python.executable, python.prefix, python.active, False))
        fix += "\n# or use the active environment instead:\n" + broken[0].fix
    return Finding("fail", "PyTorch is installed and cannot be imported", evidence, fix)


def _split(result: VerifyResult) -> Finding | None:
    if not result.split:
        return None
    split = result.first.cards.split_without_slice
    names = ", ".join(dict.fromkeys(card.name for card in split))
    evidence = f"{names}: MIG mode is on; {VARIABLE} is {quoted(result)} and names no slice that this job could use"
    fix = "srun --gres=gpu:1g.10gb:1 ...   # a slice; `sinfo -o %G` lists the names of this cluster"
    return Finding("fail", "The card is split (MIG), and this job has no slice of it", evidence, fix)


def quoted(result: VerifyResult) -> str:
    """The variable as it stands, in quotes, its beginning if it is long; "unset" if it is not there."""
    raw = result.first.cards.visible.raw
    return "unset" if raw is None else f'"{shortened(raw)}"'


def _hidden(result: VerifyResult) -> Finding | None:
    says, first = result.first.cards.visible, result.first
    if says.kind != "hidden":
        return None
    evidence = f"{VARIABLE}={quoted(result)}: {says.why}; NVML shows {_shown(result)}"
    if says.raw == "NoDevFiles":
        title = f"Hidden by {VARIABLE}: the job did not ask for a GPU (--gres / --gpus)"
        return Finding("warning", title, evidence, result.place.request or "srun --gres=gpu:1 ...")
    fix = f"unset {VARIABLE}   # and take it out of ~/.bashrc and the job script"
    fix += f'\n# in a notebook: import os; os.environ.pop("{VARIABLE}"), before anything uses CUDA'
    if first.cards.others or first.device_files:
        return Finding("fail", f"Hidden by {VARIABLE}={quoted(result)}: CUDA sees no card", evidence, fix)
    return Finding("notice", f"No GPU here, and {VARIABLE}={quoted(result)} would hide it", evidence, fix)


def _shown(result: VerifyResult) -> str:
    if result.first.refusal:
        return "nothing"
    return counted(len(result.cards) + result.first.cards.others, "card")


def _cpu_build(result: VerifyResult) -> Finding | None:
    build, first = result.torch.build, result.first
    if build is None or build.cuda or build.hip or not (result.cards or first.cards.others):
        return None
    evidence = (
        f"PyTorch {build.version}, torch.version.cuda is None; NVML shows {_shown(result)}, driver {first.driver}"
    )
    evidence += "; a solver on a node without a GPU takes the CPU build"
    fix = pip(result, "--force-reinstall torch") + f"   # not from the CPU index; {_wheel(first.serves)}"
    override = level(first.serves) if first.serves else "12.8"
    fix += f"\nCONDA_OVERRIDE_CUDA={override} conda install 'pytorch=*=*cuda*'   # with conda"
    return Finding("fail", "A GPU is here, and this PyTorch has no CUDA support", evidence, fix)


def _wheel(serves: int | None) -> str:
    """Which build the driver can serve, as the selector on pytorch.org names it."""
    return (
        f"a cu{serves // 1000}x build, from the selector on pytorch.org"
        if serves
        else "see the selector on pytorch.org"
    )


def _old_driver(result: VerifyResult) -> Finding | None:
    build, first, words = result.torch.build, result.first, result.torch.why_not
    found = re.search(r"found version (\d{4,5})", words)
    serves = int(found[1]) if found else first.serves
    if build is None or not build.cuda:
        return None
    if not serves:
        too_old = "driver" in words and ("too old" in words or "insufficient" in words)
        return Finding("fail", "The driver is too old for this PyTorch", words, leave(result)) if too_old else None
    if serves // 1000 >= int(build.cuda.split(".")[0]) and not found:
        return None
    title = (
        f"The driver serves CUDA {level(serves)}, and this PyTorch needs {build.cuda}: take a cu{serves // 1000}x build"
    )
    evidence = f"driver {first.driver or 'n/a'}, PyTorch {build.version} built with CUDA {build.cuda}"
    if found:
        evidence += f"; \"version {found[1]}\" in PyTorch's warning is this level, not a driver's number"
    fix = pip(result, "--force-reinstall torch") + f"   # {_wheel(serves)}"
    return Finding("fail", title, evidence, f"{fix}\n# or ask {result.place.help.staff} for a newer driver")


def _mismatch(result: VerifyResult) -> Finding | None:
    refusal = result.first.refusal
    if refusal is None or refusal.cause != "version mismatch":
        return None
    evidence = f"NVML: {refusal.words}; the driver was updated and the node not restarted since; no user can mend that"
    return Finding("fail", "The node's driver and its libraries are of two versions", evidence, leave(result))


def _known_error(result: VerifyResult) -> Finding | None:
    """What CUDA says in words that mean one thing."""
    words = result.torch.why_not
    if "802" in words or "system not yet initialized" in words:
        title = "The cards of this node wait for its fabric manager, which does not run"
        return Finding("fail", title, words, leave(result))
    if "804" in words or "forward compatibility" in words:
        fix = "module list; echo $LD_LIBRARY_PATH   # take out the entry that ends in /compat"
        return Finding("fail", "A CUDA compatibility library is in the way that this card does not support", words, fix)
    return None


def _lost(result: VerifyResult) -> Finding | None:
    lost = result.first.cards.lost
    if not lost or result.cards:
        return None
    return Finding("fail", "No card answers any more", "; ".join(one.words for one in lost), leave(result))


def _no_card(result: VerifyResult) -> Finding | None:
    """No card to be seen: asked of nobody, or not there."""
    first, build, job = result.first, result.torch.build, result.first.job
    nvml = f"NVML does not answer: {first.refusal.words}" if first.refusal else "NVML shows no card"
    evidence = f"{nvml}; PyTorch {build.version if build else 'n/a'}"
    if result.cards or first.cards.others:
        return None
    if job is not None:
        if job.gpus_on_node:
            title = f"Slurm gave this job {counted(job.gpus_on_node, 'card')}, and none is here"
            return Finding("fail", title, f"job {job.id} on {first.host}; {evidence}", leave(result))
        title = "This job has no GPU: none was asked for (--gres / --gpus)"
        return Finding("warning", title, f"job {job.id}, partition {job.partition or 'n/a'}; {evidence}", _ask(result))
    if first.slurm:
        title = "No GPU here and no Slurm job: this looks like a login node"
        return Finding("warning", title, f"{first.host}: SLURM_JOB_ID is unset; {evidence}", _ask(result))
    if first.device_files:
        return None
    if build and build.mps:
        return Finding("notice", f"Apple GPU (MPS), and no CUDA: {WITHOUT}", f"PyTorch {build.version}")
    if first.wsl:
        fix = "ls /usr/lib/wsl/lib/libcuda.so.1   # missing: install the NVIDIA driver in Windows, and none in WSL"
        return Finding(
            "notice", f"No GPU in this WSL2: {WITHOUT}", f"WSL2 takes the driver of Windows; {evidence}", fix
        )
    return Finding("notice", f"No GPU here: {WITHOUT}", evidence)


def _ask(result: VerifyResult) -> str:
    return result.place.request or "srun --gres=gpu:1 --cpus-per-task=8 --pty bash"


def _unknown(result: VerifyResult) -> Finding:
    words = str(result.torch.fault or "") or result.torch.why_not or "PyTorch gives no reason"
    evidence = f"{words}; NVML shows {_shown(result)}, driver {result.first.driver or 'n/a'}"
    return Finding("fail", "A GPU is here, and CUDA does not start", evidence, leave(result))
