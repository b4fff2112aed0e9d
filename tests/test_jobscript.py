"""The checker of job scripts: the public cases, an example of every rule, and scripts that are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuworkshop import cli
from gpuworkshop.cluster import site
from gpuworkshop.cluster.jobscript import check, rule, training
from gpuworkshop.cluster.jobscript.rule import Fault
from gpuworkshop.course import script as course

AICR = site.load("aicr")
ANY = site.load("generic")
HEAD = ("#!/bin/bash -l", "#SBATCH --partition=b200-devel", "#SBATCH --time=00:30:00", "#SBATCH --gres=gpu:1")
CARDS4 = ("#SBATCH --gres=gpu:4", "#SBATCH --cpus-per-task=32")
TYPED = """
name = "Typed"
source = "it"
every_partition = ["big", "cpu", "small"]
[sources]
it = "a test"
[[family]]
name = "b200"
gres = "gpu:b200"
cards_per_node = 8
[[family]]
name = "rtx"
gres = "gpu:rtx"
[[partition]]
name = "big"
families = ["b200"]
purpose = "batch"
options = ["--qos=gpu"]
[[partition]]
name = "small"
families = ["rtx"]
purpose = "batch"
[request]
time = "01:00:00"
[conventions]
cpus_per_card = 8
memory = "32G"
time = "04:00:00"
output = "%x.out"
error = "%x.err"
"""


def faults(
    *lines: str, at: site.Site = AICR, folders: tuple[Path, ...] = (), data: bytes | None = None
) -> dict[str, Fault]:
    """The faults of a script by rule: of these lines, or of these bytes."""
    whole = "".join(f"{line}\n" for line in lines).encode() if data is None else data
    checked = check.check(whole, at, "job.sbatch", folders)
    assert check.report(checked)._repr_mimebundle_()["text/html"]
    return {one.rule: one for one in checked.faults}


def worst(found: dict[str, Fault]) -> set[str]:
    return {name for name, one in found.items() if one.level in ("fail", "warning")}


# ---------------------------------------------------------------- the public cases


def test_s01_directive_after_the_first_command() -> None:
    """S01, sbatch manual page: #SBATCH lines below the first command are ignored without a word."""
    lines = ("#!/bin/bash", "#SBATCH --job-name=late", "# a comment", "", "module load cuda", "#SBATCH --gres=gpu:1")
    found = faults(*lines, "#SBATCH --time=01:00:00", "python train.py")
    late = found["late"]
    assert late.level == "fail" and late.line == 6
    assert "lines 6, 7" in late.title and "line 5" in late.title and late.cause == "line 5: module load cuda"
    assert late.fix.splitlines()[1:] == ["#SBATCH --gres=gpu:1", "#SBATCH --time=01:00:00"]
    assert "no-time" not in found, "the ignored line is the cause, not a second fault"


def test_s01_blank_lines_and_comments_do_not_end_the_directives() -> None:
    """S01: neither do lines of blanks and indented comments, as sbatch itself has it."""
    assert "late" not in faults("#!/bin/bash", "# hi", "", "   ", "  # hi", "#SBATCH --time=5", "python train.py")


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_s02_windows_line_ends(end) -> None:
    """S02, earthlab/rslurm#84, openpbs/openpbs#2106: said first and alone, and the directives are still read."""
    lines = ["#!/bin/bash", "#SBATCH --gres=gpu:1", "#SBATCH --time=00:10:00", "python train.py", ""]
    checked = check.check(end.join(lines).encode(), AICR)
    first, *rest = checked.faults
    assert first.rule == "line-ends" and first.level == "fail" and [one for one in rest if one.level == "fail"] == []
    assert "dos2unix" in first.fix or end == "\r"
    assert checked.request.seconds == 600 and [one.count for one in checked.request.cards] == [1]
    assert "\r" not in repr(checked.faults).replace("\\r", "")


def test_s02_byte_order_mark() -> None:
    """S02, uabrc/uabrc.github.io#208: a mark in front of #! is told alike."""
    text = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --time=00:10:00\npython train.py\n"
    for data in (text.encode("utf-8-sig"), text.encode("utf-16"), text.encode("utf-16-be")):
        checked = check.check(data, AICR)
        assert [one.rule for one in checked.faults if one.level == "fail"] == ["encoding"]
        assert checked.faults[0].rule == "encoding" and checked.request.seconds == 600


def test_s04_script_sets_cuda_visible_devices() -> None:
    """S04, mlfoundations/open_clip#614: a fixed value overrides what Slurm granted."""
    found = faults(*HEAD, "export CUDA_VISIBLE_DEVICES=0,1", "echo got $CUDA_VISIBLE_DEVICES", "python train.py")
    assert found["hides-cards"].level == "warning" and found["hides-cards"].line == 5
    for fine in (
        "echo $CUDA_VISIBLE_DEVICES",
        "# export CUDA_VISIBLE_DEVICES=0",
        "apptainer exec --env CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES image python train.py",
        "CUDA_VISIBLE_DEVICES=1 python other.py &",
    ):
        assert "hides-cards" not in faults(*HEAD, fine, "python train.py"), fine


def test_s05_environment_not_activated() -> None:
    """S05, conda/conda#9193, conda/conda#13002: activation without its hook, a module after it, no set -e."""
    lines = ("#!/bin/bash", *HEAD[1:], "#SBATCH --cpus-per-task=4", "conda activate dl", "module load miniforge")
    found = faults(*lines, "python train.py")
    assert worst(found) == {"conda-hook", "module-after-environment", "no-errexit", "login-shell"}
    assert "conda.sh" in found["conda-hook"].fix and "python -m gpuworkshop verify" in found["conda-hook"].fix
    assert found["no-errexit"].fix.startswith("set -e")


@pytest.mark.parametrize("first", ["", "   #!/bin/bash", "# a job", "#SBATCH --gres=gpu:1"])
def test_s06_first_line_is_not_the_interpreter(first) -> None:
    """S06, deepmodeling/dpgen#599: blank or indented first line: refused; the other checks still run."""
    found = faults(first, "#SBATCH --gres=gpu:1", "python train.py --workers 16")
    assert found["interpreter"].level == "fail" and found["interpreter"].line == 1
    assert "must be #!" in found["interpreter"].title and {"no-time", "few-cpus-for-workers"} <= found.keys()


def test_s07_workers_without_cores_all_memory_no_time() -> None:
    """S07, Lightning-AI/pytorch-lightning#18650, FoNDUE-HTR/Documentation#5: a warning, a notice, a warning."""
    found = faults("#!/bin/bash", "#SBATCH --gpus=1", "#SBATCH --mem=0", "srun python train.py --workers 16")
    assert found["few-cpus-for-workers"].level == found["no-time"].level == "warning"
    assert found["few-cpus-for-workers"].line == 4 and "17" in found["few-cpus-for-workers"].fix
    assert found["whole-memory"].level == "notice" and found["whole-memory"].line == 3


def test_s08_four_cards_one_process(tmp_path) -> None:
    """S08, PrincetonUniversity/jobstats: three of four cards stay idle; R10: the word in a comment is no DDP."""
    (tmp_path / "train.py").write_text("# DistributedDataParallel later\nimport torch\n")
    lines = (*HEAD[:3], "#SBATCH --gres=gpu:4", "#SBATCH --ntasks=1", "#SBATCH --cpus-per-task=16", "python train.py")
    found = faults(*lines, folders=(tmp_path,))
    assert found["one-process"].level == "warning" and "4 cards" in found["one-process"].title
    assert "#SBATCH --gres=gpu:1" in found["one-process"].fix
    (tmp_path / "train.py").write_text("import lightning as L\ntrainer = L.Trainer(devices=4)\n")
    assert "one-process" not in faults(*lines, folders=(tmp_path,))


def test_s08_arrays_and_packed_steps_are_no_fault() -> None:
    """S08: an array of jobs with one card, and several steps side by side."""
    array = (*HEAD, "#SBATCH --array=0-3", "#SBATCH --cpus-per-task=4", "python train.py --seed $SLURM_ARRAY_TASK_ID")
    packed = (*HEAD[:3], "#SBATCH --gpus=4", "#SBATCH --ntasks=4", "#SBATCH --cpus-per-task=4")
    loop = "for s in 0 1 2 3; do srun --exact -n1 --gpus=1 python train.py --seed $s & done"
    assert worst(faults(*array)) == set() and worst(faults(*packed, loop, "wait")) == set()


def test_s09_options_that_fight() -> None:
    """S09, bigscience-workshop/metadata#121: the arithmetic of tasks; of an account nothing is guessed."""
    lines = ("#!/bin/bash", "#SBATCH --account=proj@cpu", "#SBATCH --gres=gpu:1", "#SBATCH --nodes=2")
    found = faults(*lines, "#SBATCH --ntasks=3", "#SBATCH --ntasks-per-node=2", "#SBATCH --time=30", "srun python t.py")
    assert found["task-arithmetic"].level == "warning" and found["task-arithmetic"].fix == "#SBATCH --ntasks=4"
    assert not [one for one in found.values() if "account" in one.title or "proj@cpu" in one.title]


def test_r06_torchrun_once_per_rank() -> None:
    """R06, TRI-ML/prismatic-vlms#39: 4 tasks x 4 processes a node."""
    lines = (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=10",
    )
    start = "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $FIRST:29444 train.py"
    found = faults(*HEAD[:3], *lines, start)
    assert "16 processes" in found["n-by-n"].title
    assert found["n-by-n"].fix == "#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=40"
    assert found["fixed-port"].line == 8 and found["srun-cpus"].level == "notice"


def test_r06_srun_with_cpus_and_no_number_of_tasks() -> None:
    """R06, TUM-DAML/seml#177: from -c alone srun makes as many tasks as the job has CPUs for."""
    head = (*HEAD, "#SBATCH --cpus-per-task=16")
    found = faults(*head, "srun -c 8 python train.py")["srun-copies"]
    assert found.level == "notice" and found.line == 6 and "2 such tasks" in found.cause
    assert found.fix == "srun -n 1 -c 8 python train.py"
    for line in ("srun -c 16 python train.py", "srun -n1 -c 8 python train.py", "srun python train.py"):
        assert "srun-copies" not in faults(*head, line)
    assert "srun-copies" not in faults(*head, "#SBATCH --ntasks=1", "srun -c 8 python train.py")


def test_r04_a_fixed_port_on_a_node_that_others_use() -> None:
    """R04, TorchDR/TorchDR#249, NVIDIA/Megatron-LM#1371: an option too; none where a free one is taken."""
    export, option = "export MASTER_PORT=29500", "torchrun --nproc_per_node=1 --master_port 29500 train.py"
    for line in (export, option):
        found = faults(*HEAD, line, "python train.py")["fixed-port"]
        assert found.level == "warning" and found.line == 5 and "29500" in found.title
        assert "SLURM_JOB_ID" in found.fix and "29500" not in found.fix
    for fine in ("torchrun --standalone --nproc_per_node=1 train.py", "export MASTER_PORT=0"):
        assert "fixed-port" not in faults(*HEAD, fine)


def test_r05_one_card_a_task_is_card_0_of_each() -> None:
    """R05, ACEsuit/mace#435, mila-iqia/mila-docs#245: said before the job runs, with the line to write instead."""
    lines = ("#SBATCH --ntasks-per-node=4", "#SBATCH --gpus-per-task=1", "#SBATCH --cpus-per-task=6")
    found = faults(*HEAD[:3], *lines, "srun python train_ddp.py")["hides-peers"]
    assert found.level == "warning" and found.line == 5 and "under the number 0" in found.title
    assert found.fix == "#SBATCH --gpus-per-node=4"


SAMPLED = """from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as Shares
loader = DataLoader(data, sampler=Shares(data))
"""


def test_r09_a_sampler_whose_epoch_is_never_set(tmp_path) -> None:
    """R09, pytorch/pytorch#31771, kan-bayashi/ParallelWaveGAN#177, LambdaLabsML/distributed-training-guide#40."""

    def same_order(text: str) -> Fault | None:
        (tmp_path / "train.py").write_text(text)
        lines = (*HEAD[:3], *CARDS4, "torchrun --standalone --nproc_per_node=4 train.py")
        return faults(*lines, folders=(tmp_path,)).get("same-order")

    found = same_order(SAMPLED)
    assert found.level == "warning" and "train.py line 3" in found.title and "set_epoch(epoch)" in found.fix
    for fine in (
        SAMPLED + "loader.sampler.set_epoch(1)\n",
        SAMPLED + "getattr(loader, 'batch_sampler').sampler.set_epoch(1)\n",
        SAMPLED + "import lightning as L\nL.Trainer(devices=4)\n",
        SAMPLED.replace("Shares(data)", "Shares(data, shuffle=False)"),
        "# DistributedSampler(data)\nimport torch\n",
    ):
        assert same_order(fine) is None, fine


@pytest.mark.parametrize(
    ("code", "use", "line"),
    [
        ("# init_process_group, DistributedDataParallel\nimport torch\nnet = torch.nn.Linear(1, 1)", "no", 0),
        ("import os\nprint(os.environ['LOCAL_RANK'])", "no", 0),
        ("from torch.nn.parallel import DistributedDataParallel as DDP\nprint('DDP(net)')", "imported", 1),
        ("import torch.nn as layers\nnet = layers.DataParallel(layers.Linear(1, 1))", "dataparallel", 2),
        ("import torch.nn.parallel as par\nnet = par.DistributedDataParallel(net)", "ddp", 2),
        ("from torch.nn.parallel import DistributedDataParallel\nwrap = DistributedDataParallel\nwrap(net)", "ddp", 3),
        ("import functools, torch.nn.parallel as p\nw = functools.partial(p.DistributedDataParallel)", "ddp", 2),
        ("from torch.distributed.fsdp import fully_shard as shard\nshard(net)", "sharded", 2),
        ("import torch.distributed as d\nd.init_process_group()\nd.all_reduce(x)", "exchanges", 2),
        ("from lightning import Trainer\nTrainer(devices=4)", "framework", 2),
        ("import accelerate as a\nnet = a.Accelerator().prepare(net)", "framework", 2),
        ("import deepspeed\nengine, *_ = deepspeed.initialize(model=net)", "framework", 2),
        ("from mine import start\nstart()", "unknown", 0),
        ("from .helpers import start\nstart()", "unknown", 0),
        ("import os\nmine = files[int(os.environ['RANK'])::int(os.environ['WORLD_SIZE'])]", "unknown", 0),
    ],
)
def test_r10_what_a_script_does_is_read_from_its_code(code, use, line) -> None:
    """R10, TorchDR/TorchDR#238, pytorch/pytorch#7092, Lightning-AI/pytorch-lightning#13605: never by its words."""
    found = training.read(code)
    assert (found.use, found.line) == (use, line)


def test_r10_ranks_that_never_join_are_copies(tmp_path) -> None:
    """R10: torchrun with a script that joins nobody; a helper that is not known here may do it, and is not blamed."""
    lines = (*HEAD[:3], *CARDS4, "torchrun --standalone --nproc_per_node=4 train.py")
    for code, says in (
        ("import os, sys\nsys.exit(os.environ['LOCAL_RANK'])\n", "joins no other process"),
        ("from torch.nn.parallel import DistributedDataParallel\n", "line 1 imports what would join them"),
        ("import torch\nnet = torch.nn.DataParallel(net)\n", "line 2: DataParallel is not DDP"),
    ):
        (tmp_path / "train.py").write_text(code)
        found = faults(*lines, folders=(tmp_path,))["copies"]
        assert found.level == "warning" and "4 processes of train.py" in found.title and says in found.cause
    for code in (
        "import mine\nmine.train()\n",
        "import torch.distributed as d\nd.init_process_group()\n",
        "no python(",
    ):
        (tmp_path / "train.py").write_text(code)
        assert "copies" not in faults(*lines, folders=(tmp_path,))
    (tmp_path / "train.py").write_text("open('was-run', 'w')\n")
    assert "copies" in faults(*lines, folders=(tmp_path,)) and not Path("was-run").exists()


def test_d07_srun_gives_the_task_one_core() -> None:
    """D07, reframe-hpc/reframe#2655: a notice, because it depends on the version of Slurm."""
    found = faults(*HEAD, "#SBATCH --cpus-per-task=16", "srun python train.py --workers 15")
    assert found["srun-cpus"].level == "notice" and worst(found) == set()
    set_first = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
    assert not faults(*HEAD, "#SBATCH --cpus-per-task=16", set_first, "srun python train.py --workers 15")


# ---------------------------------------------------------------- every rule has an example that shows it

ONE = "python train.py"
BIG = ("#!/bin/bash", "#SBATCH --partition=big", "#SBATCH -t 5 --qos=gpu")
OF_TYPED = ("no-such-partition", "partition-options", "wrong-family", "wrong-type", "too-many-cards")
SHOWN: dict[str, tuple[tuple[str, ...], int]] = {
    "empty": (("",), 0),
    "line-ends": (("#!/bin/bash\r", ONE + "\r"), 1),
    "encoding": (("\ufeff#!/bin/bash", ONE), 1),
    "null": ((*HEAD, "echo \0"), 5),
    "interpreter": (("echo",), 1),
    "open-quote": ((*HEAD, "#SBATCH --job-name='a b", ONE), 5),
    "no-option": ((*HEAD, "#SBATCH --account = x", ONE), 5),
    "unknown-option": ((*HEAD, "#SBATCH --ntasks_per_node=1", ONE), 5),
    "foreign-option": ((*HEAD, "#SBATCH --container-image=x.sqsh", ONE), 5),
    "ambiguous-option": ((*HEAD, "#SBATCH --cpus=4", ONE), 5),
    "no-value": ((*HEAD, "#SBATCH --ntasks", ONE), 5),
    "takes-no-value": ((*HEAD, "#SBATCH --requeue=yes", ONE), 5),
    "value": ((*HEAD, "#SBATCH --mem=32GiB", ONE), 5),
    "one-dash": ((*HEAD, "#SBATCH -ntasks=1", ONE), 5),
    "gres": ((*HEAD[:3], "#SBATCH --gres=gpus:1", ONE), 4),
    "exclude-each-other": ((*HEAD, "#SBATCH --mem=4G", "#SBATCH --mem-per-cpu=1G", ONE), 6),
    "needs-another": ((*HEAD[:3], "#SBATCH --gpus-per-task=1", ONE), 4),
    "cards-disagree": ((*HEAD, "#SBATCH --nodes=1", "#SBATCH --gpus=4", ONE), 6),
    "too-many-tasks": ((*HEAD, "#SBATCH -N1 --ntasks-per-node=2", "#SBATCH --ntasks=4", "srun ./x"), 6),
    "heterogeneous": ((*HEAD, "#SBATCH hetjob", "#SBATCH --nodes=1", ONE), 5),
    "late": ((*HEAD, "date", "#SBATCH --mem=4G", ONE), 6),
    "look-alike": ((*HEAD, "# SBATCH --mem=4G", ONE), 5),
    "switched-off": ((*HEAD, "##SBATCH --mem=4G", ONE), 5),
    "foreign": ((*HEAD, "#PBS -l walltime=01:00:00", ONE), 5),
    "variable": ((*HEAD, "#SBATCH --output=$HOME/%j.out", ONE), 5),
    "cut-off": ((*HEAD, "#SBATCH --job-name=run#1", ONE), 5),
    "directive-continued": ((*HEAD, "#SBATCH --nodes=1 \\", "  --mem=4G", ONE), 5),
    "repeated": ((*HEAD, "#SBATCH --time=00:10:00", ONE), 5),
    "broken-continuation": ((*HEAD, "python train.py \\  # settings", "  --epochs 3"), 5),
    "comment-in-command": ((*HEAD, "python train.py \\", "  # settings", "  --epochs 3"), 6),
    "log-folder": ((*HEAD, "#SBATCH --output=logs/%j.out", ONE), 5),
    "log-folder-unknown": ((*HEAD, "#SBATCH --output=/no-such-root/logs/%j.out", ONE), 5),
    "no-time": ((*HEAD[:2], HEAD[3], ONE), 0),
    "no-partition": ((HEAD[0], *HEAD[2:], ONE), 0),
    "time-limit": ((*HEAD[:2], "#SBATCH --time=12:00:00", HEAD[3], ONE), 3),
    "short-time": ((*HEAD[:2], "#SBATCH --time=4:00", HEAD[3], ONE), 3),
    "near-partition": (("#!/bin/bash", "#SBATCH --partition=b200-dev", *HEAD[2:], ONE), 2),
    "no-such-partition": (("#!/bin/bash", "#SBATCH --partition=bigg", *HEAD[2:], ONE), 2),
    "unknown-partition": (("#!/bin/bash", "#SBATCH --partition=long", *HEAD[2:], ONE), 2),
    "partition-options": ((*BIG[:2], "#SBATCH --gres=gpu:b200:1", ONE), 2),
    "wrong-family": ((*BIG, "#SBATCH --gres=gpu:rtx:1", ONE), 4),
    "wrong-type": ((*BIG, "#SBATCH --gres=gpu:B200:1", ONE), 4),
    "no-card": ((*HEAD[:3], ONE), 2),
    "too-many-cards": ((*BIG, "#SBATCH --gres=gpu:b200:9", "srun ./x"), 4),
    "card-memory": ((*HEAD, "#SBATCH --mem=192G", ONE), 5),
    "whole-memory": ((*HEAD, "#SBATCH --mem=0", ONE), 5),
    "memory-unit": ((*HEAD, "#SBATCH --mem=32", ONE), 5),
    "task-arithmetic": ((*HEAD, "#SBATCH -N2 --ntasks-per-node=2", "#SBATCH --ntasks=3", "srun ./x"), 6),
    "idle-nodes": ((*HEAD, "#SBATCH --nodes=2", "#SBATCH --ntasks=1", "srun ./x"), 6),
    "few-cpus": ((*HEAD, ONE), 0),
    "few-cpus-for-workers": ((*HEAD, "#SBATCH --cpus-per-task=4", "python train.py --workers 7"), 6),
    "tight-cpus": ((*HEAD, "#SBATCH --cpus-per-task=8", "python train.py --workers=8"), 6),
    "n-by-n": ((*HEAD[:3], *CARDS4, "#SBATCH --ntasks-per-node=4", "srun torchrun --nproc_per_node=4 train.py"), 6),
    "one-task-is-enough": ((*HEAD[:3], *CARDS4, "#SBATCH --ntasks-per-node=4", "torchrun --nproc_per_node=4 t.py"), 6),
    "one-process": ((*HEAD[:3], *CARDS4, ONE), 6),
    "fewer-ranks": ((*HEAD[:3], *CARDS4, "torchrun --standalone --nproc_per_node=2 train.py"), 6),
    "more-ranks": ((*HEAD[:3], *CARDS4, "torchrun --standalone --nproc_per_node 8 train.py"), 6),
    "copies": ((*HEAD[:3], *CARDS4, "torchrun --standalone --nproc_per_node=4 copies.py"), 6),
    "data-parallel": ((*HEAD[:3], *CARDS4, "python data-parallel.py"), 6),
    "same-order": ((*HEAD[:3], *CARDS4, "torchrun --standalone --nproc_per_node=4 same-order.py"), 6),
    "first-node-only": ((*HEAD, "#SBATCH --nodes=2", ONE), 6),
    "standalone": ((*HEAD, "#SBATCH --nodes=2", "srun torchrun --standalone --nproc_per_node=gpu train.py"), 6),
    "fixed-port": ((*HEAD, "export MASTER_PORT=29500", ONE), 5),
    "no-errexit": ((*HEAD, ONE, "echo done"), 5),
    "left-behind": ((*HEAD, "python train.py &", "echo started"), 5),
    "no-pipefail": ((*HEAD, "set -e", "python train.py | tee log"), 6),
    "login-shell": (("#!/bin/bash", *HEAD[1:], "set -e", "module load cuda/13.1", ONE), 6),
    "hides-peers": ((*HEAD[:3], "#SBATCH -n4", "#SBATCH --gpus-per-task=1", "srun python train.py"), 5),
    "srun-copies": ((*HEAD, "#SBATCH --cpus-per-task=16", "srun -c 8 python train.py"), 6),
    "srun-cpus": ((*HEAD, "#SBATCH --cpus-per-task=8", "srun python train.py"), 6),
    "hides-cards": ((*HEAD, "export CUDA_VISIBLE_DEVICES=0", ONE), 5),
    "conda-hook": ((*HEAD, "set -e", "conda activate dl", ONE), 6),
    "module-after-environment": ((*HEAD, "set -e", "source env/bin/activate", "module load python", ONE), 7),
}


TRAININGS = {
    "copies": "import os\nprint(os.environ['LOCAL_RANK'])\n",
    "data-parallel": "from torch import nn\nmodel = nn.DataParallel(nn.Linear(1, 1))\n",
    "same-order": "import torch\n"
    "net = torch.nn.parallel.DistributedDataParallel(net)\n"
    "sampler = torch.utils.data.DistributedSampler(data)\n",
}


def shown(name: str, folder: Path) -> dict[str, Fault]:
    if name in TRAININGS:
        (folder / f"{name}.py").write_text(TRAININGS[name])
    return faults(*SHOWN[name][0], at=site.parse(TYPED) if name in OF_TYPED else AICR, folders=(folder,))


def test_no_rule_is_without_an_example() -> None:
    assert SHOWN.keys() == rule.rules().keys()


@pytest.mark.parametrize("name", SHOWN)
def test_every_rule_sees_its_example(name, tmp_path) -> None:
    found = shown(name, tmp_path)
    assert name in found and found[name].line == SHOWN[name][1]
    assert found[name].fix or name == "heterogeneous" or name == "unknown-partition"
    assert "{" not in found[name].title + found[name].cause


CORRECTED = (
    *(
        "open-quote",
        "no-option",
        "unknown-option",
        "ambiguous-option",
        "no-value",
        "takes-no-value",
        "value",
        "one-dash",
    ),
    *("gres", "cards-disagree", "too-many-tasks", "look-alike", "switched-off", "cut-off", "time-limit", "short-time"),
    *(
        "near-partition",
        "wrong-type",
        "wrong-family",
        "too-many-cards",
        "card-memory",
        "whole-memory",
        "memory-unit",
    ),
    *("task-arithmetic", "idle-nodes", "few-cpus-for-workers", "tight-cpus", "n-by-n", "hides-peers", "needs-another"),
)


def corrected(lines: tuple[str, ...], fault: Fault) -> list[str]:
    """The script with the corrected directives in place of the faulty one, and of others that set the same options."""
    fixed = [line.split("   #")[0] for line in fault.fix.split("\n# or")[0].splitlines() if line.startswith("#SBATCH")]
    assert fixed
    options = {line.partition("=")[0] for line in fixed}
    stays = fault.rule in ("wrong-family", "needs-another")  # another directive than the one that shows it is to change
    kept = [
        line
        for number, line in enumerate(lines, 1)
        if line.partition("=")[0] not in options
        and (number != fault.line or stays or not line.lstrip().startswith("#"))
    ]
    return [kept[0], *fixed, *kept[1:]]


@pytest.mark.parametrize("name", CORRECTED)
def test_the_corrected_line_takes_the_fault_away(name, tmp_path) -> None:
    """And it brings no other."""
    before = shown(name, tmp_path)
    lines = corrected(SHOWN[name][0], before[name])
    after = faults(*lines, at=site.parse(TYPED) if name in OF_TYPED else AICR, folders=(tmp_path,))
    assert name not in after, lines
    assert worst(after) <= worst(before), lines


# ---------------------------------------------------------------- scripts that are right

RIGHT = {
    "one node": (
        *("#!/bin/bash -l", "#SBATCH --job-name=ddp", "#SBATCH --partition=b200-batch", "#SBATCH --nodes=1"),
        *(
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --cpus-per-task=32",
            "#SBATCH --gres=gpu:4",
            "#SBATCH --time=12:00:00",
        ),
        *("#SBATCH --output=%x_%j.out", "set -euo pipefail", "module purge", "module load cuda/13.1"),
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        "export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))",
        'srun torchrun --standalone --nnodes=1 --nproc_per_node="$SLURM_GPUS_ON_NODE" train.py --workers 7',
    ),
    "two nodes": (
        *("#!/bin/bash -l", "#SBATCH -p b200-devel", "#SBATCH -N 2", "#SBATCH --ntasks-per-node=1", "#SBATCH -c 16"),
        *("#SBATCH --gpus-per-node=2", "#SBATCH -t 00:30:00", "set -euo pipefail"),
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        *("PORT=$((20000 + SLURM_JOB_ID % 10000))", "srun torchrun \\", '  --nnodes="$SLURM_NNODES" \\'),
        *('  --nproc_per_node="$SLURM_GPUS_ON_NODE" \\', '  --rdzv_backend=c10d --rdzv_endpoint="$HEAD:$PORT" \\'),
        "  train.py",
    ),
    "one task a card": (
        *("#!/bin/bash", "#SBATCH -p rtx-devel -t 30 -N1 --ntasks-per-node=4 -c 8 --gres=gpu:4", "set -e"),
        "export MASTER_ADDR=$(hostname) MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) WORLD_SIZE=$SLURM_NTASKS",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python train.py'",
    ),
    "writes another script": (
        *(*HEAD, "#SBATCH --cpus-per-task=4", "cat > inner.sbatch <<'EOF'", "#SBATCH --time=99:00:00", "EOF"),
        'echo "#SBATCH --gres=gpu:9" >> inner.sbatch',
    ),
    "other options of other sites": (
        "#!/bin/bash",
        "#SBATCH --account=abc123 --qos=premium --constraint=gpu&hbm80g --reservation=class",
        "#SBATCH -p b200-devel -t 30 -c 8 --gres=gpu:1,lscratch:100 --licenses=scratch:1 --mail-type=END,FAIL",
        "#SBATCH --signal=B:USR1@90 --requeue --open-mode=append --comment='a # in quotes'",
        ONE,
    ),
    "in Python": (
        "#!/usr/bin/env python3",
        "#SBATCH -p b200-devel -t 5 --gres=gpu:1",
        "import os; os.environ['A'] = 'b'",
    ),
    "in Latin-1": (*HEAD, "#SBATCH --cpus-per-task=8", "# caf\xe9", ONE),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_script_gets_no_complaint(name) -> None:
    encoding = "latin-1" if name == "in Latin-1" else "utf-8"
    data = "".join(f"{line}\n" for line in RIGHT[name]).encode(encoding)
    assert faults(data=data) == {}


@pytest.mark.parametrize("at", [AICR, ANY], ids=["aicr", "generic"])
def test_the_scripts_of_chapter_1(at, tmp_path) -> None:
    """The minimal script is right at its own site; the three faults of the other one are found, each in its lines."""
    minimal, faulty = course.minimal(at), course.faulty(at)
    (tmp_path / "logs").mkdir()
    assert worst(faults(*minimal.lines, at=at, folders=(tmp_path,))) == set()
    (tmp_path / "logs").rmdir()
    found = faults(*faulty.lines, at=at, folders=(tmp_path,))
    assert {"few-cpus-for-workers", "log-folder", "hides-cards"} <= worst(found)
    assert found["hides-cards"].line in faulty.places("CUDA_VISIBLE_DEVICES")
    assert found["log-folder"].line in faulty.places("--output") and "too late" in found["log-folder"].cause


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[1].glob("slurm/*.sbatch")), ids=lambda file: file.name)
def test_the_scripts_that_the_kit_ships(file, tmp_path) -> None:
    (tmp_path / "logs").mkdir()
    assert faults(data=file.read_bytes(), folders=(tmp_path,)) == {}


# ---------------------------------------------------------------- limits, folders, the command


def test_limits_come_from_the_site_file_alone() -> None:
    lines = ("#!/bin/bash", "#SBATCH --partition=b200-devel", "#SBATCH --time=99:00:00", "#SBATCH --gres=gpu:1", ONE)
    assert "time-limit" in faults(*lines) and not {"time-limit", "unknown-partition"} & faults(*lines, at=ANY).keys()
    assert faults(*lines)["time-limit"].fix.splitlines()[0] == "#SBATCH --time=04:00:00"
    fits = faults(lines[0], lines[1], "#SBATCH --time=20:00:00", *lines[3:])["time-limit"]
    assert fits.fix.splitlines()[-1] == "#SBATCH --partition=b200-batch"
    several = (lines[0], "#SBATCH --partition=b200-devel,b200-batch", "#SBATCH --time=20:00:00", *lines[3:])
    assert "time-limit" not in faults(*several), "one of the partitions takes it"


def test_the_log_folder_is_looked_for_where_sbatch_is_called_and_beside_the_script(tmp_path) -> None:
    lines = (*HEAD, "#SBATCH -c 8 --job-name=a", "#SBATCH --output=logs/%x/%j.out", ONE)
    assert faults(*lines, folders=(tmp_path,))["log-folder"].fix.startswith("mkdir -p logs/%x")
    (tmp_path / "logs" / "a").mkdir(parents=True)
    assert faults(*lines, folders=(tmp_path / "logs", tmp_path)) == {}
    assert "log-folder-unknown" in faults(*lines), "nothing may be looked at: not known, and not fine"


def test_of_a_heterogeneous_job_nothing_is_claimed() -> None:
    found = faults(*HEAD[:2], "#SBATCH hetjob", "#SBATCH --partition=b200-batch --time=99:00:00", "srun ./a : ./b")
    assert found.keys() == {"heterogeneous"} and found["heterogeneous"].level == "unknown"


def test_a_line_that_is_switched_off_on_purpose_is_no_fault() -> None:
    """Another line sets the same option; two settings of --mail-type add up."""
    for line in ("# SBATCH --time=12:00:00", "##SBATCH -t 5", "#SBATCH --mail-type=BEGIN\n#SBATCH --mail-type=END"):
        assert faults(*HEAD, line, "#SBATCH -c 8", ONE) == {}, line


def test_a_training_in_the_background_needs_something_that_waits() -> None:
    """Slurm ends a job with its script; tried on a Slurm of our own, where the job is COMPLETED with an empty log."""
    lines = (*HEAD, "#SBATCH -c 8", "for seed in 1 2; do", "  python train.py --seed $seed &", "done")
    for ends in ((), ("echo started",), ("exit 0",)):
        assert worst(faults(*lines, *ends)) == {"left-behind"}
    for stays in ("wait", "while kill -0 $!; do sleep 9; done", "./simulation", ONE):
        assert faults(*lines, stays) == {}, stays
    assert faults(*HEAD, "#SBATCH -c 8", "run() {", "  python train.py &", "  wait", "}", "run") == {}


def test_a_plain_script_on_two_nodes_is_first_offered_one() -> None:
    assert shown("first-node-only", Path())["first-node-only"].fix.startswith("#SBATCH --nodes=1\n")
    joins = faults(*HEAD, "#SBATCH --nodes=2 -c 8", "torchrun --nnodes=2 --nproc_per_node=1 train.py")
    assert joins["first-node-only"].fix.startswith("srun torchrun")


def test_an_option_of_a_plug_in_is_no_typo() -> None:
    """A site can add options to sbatch; near a real one it is still a typo."""
    assert worst(faults(*HEAD, "#SBATCH -c 8 --container-mounts=/a:/a", ONE)) == {"foreign-option"}
    assert faults(*HEAD, "#SBATCH -c 8 --job_name=x", ONE)["unknown-option"].level == "fail"


def test_cards_in_every_dialect() -> None:
    dialects = ("--gres=gpu:2", "--gres=gpu:b200:2", "--gpus=2", "-G 2", "--gpus-per-node=2", "--gpus-per-node b200:2")
    dialects += ("--gpus=b200:2", "--tres-per-task=gres/gpu:2", "-n1 --gpus-per-task=2", "--gres=gres:gpu:2,tmp:5G")
    for words in dialects:
        checked = check.check(f"#!/bin/bash\n#SBATCH {words}\n{ONE}\n".encode(), ANY)
        assert checked.request.cards_on_node == 2, words
        assert "one-process" in {one.rule for one in checked.faults}, words


def test_the_three_faults_of_the_readme() -> None:
    """README shows what the checker says, and nothing else is wrong with that script."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    section = readme.partition("Three faults that sbatch accepts")[2].partition("</details>")[0]
    job = section.partition("```bash\n")[2].partition("```\n")[0]
    shown = section.partition("says:\n\n```\n")[2].partition("```\n")[0]
    checked = check.check(job.encode(), AICR)
    assert [one.level for one in checked.faults] == ["fail"] * 3
    assert str(check.report(checked)).split("\n\n", 1)[1].strip() == shown.strip()


def test_the_verb(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.sbatch").write_text("".join(f"{line}\n" for line in RIGHT["one node"]))
    assert cli.main(["job", "check", "good.sbatch", "--site", "aicr"]) == 0
    assert "no fault found" in capsys.readouterr().out
    Path("bad.sbatch").write_text("".join(f"{line}\n" for line in SHOWN["late"][0]))
    assert cli.main(["job", "check", "bad.sbatch", "--site", "aicr", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["result"]["faults"][0]["rule"] == "late" and found["findings"][0]["level"] == "fail"
    Path("folder").mkdir()
    for bad in ("nothing.sbatch", "folder", "good.sbatch\0", "/dev/zero"):
        assert cli.main(["job", "check", bad]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
    Path("large.sbatch").write_bytes(b"#" * (2**20 + 1))
    assert cli.main(["job", "check", "large.sbatch"]) == 2
    assert cli.main(["job", "check", "good.sbatch", "--site", "nowhere"]) == 2


def test_the_verb_stays_light(tmp_path) -> None:
    """No PyTorch, no NumPy: a check is for login nodes and hooks."""
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\npython train.py\n")
    code = (
        "import sys; from gpuworkshop import cli; cli.main(['job', 'check', 'job.sbatch', '--site', 'aicr']);"
        "print([name for name in ('torch', 'numpy', 'rich.table', 'pynvml') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.strip() == "[]", done.stderr
