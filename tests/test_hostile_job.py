"""Issue E under bad input: job scripts as people write them, sizes and files that nobody means, a Slurm that lies."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from gpuworkshop.cluster import site
from gpuworkshop.cluster.jobscript import check

SCRIPTS = msgspec.toml.decode(Path(__file__).with_name("hostile_scripts.toml").read_bytes())
AICR = site.load("aicr")


def script(body: str, tasks: int = 1, head: str = "#SBATCH --mem=64G", shell: str = "#!/bin/bash") -> bytes:
    lines = (
        shell,
        "#SBATCH --partition=b200-batch",
        "#SBATCH --nodes=1",
        f"#SBATCH --ntasks-per-node={tasks}",
        f"#SBATCH --cpus-per-task={32 // tasks}",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --time=02:00:00",
        head,
        "set -euo pipefail" if shell == "#!/bin/bash" else ":",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        body,
    )
    return "\n".join((*lines, "")).encode()


def rules(data: bytes, at: site.Site = AICR) -> dict[str, check.Fault]:
    return {one.rule: one for one in check.check(data, at).faults}


@pytest.mark.parametrize("one", SCRIPTS["right"], ids=lambda one: one["what"])
def test_a_script_that_is_right_gets_no_complaint(one: dict) -> None:
    data = script(one["body"], one.get("tasks", 1), one.get("head", "#SBATCH --mem=64G"))
    assert not rules(data)


@pytest.mark.parametrize("one", SCRIPTS["wrong"], ids=lambda one: one["rule"])
def test_what_is_wrong_is_seen_behind_wrappers_shells_arrays_and_variables(one: dict) -> None:
    for body in one["bodies"]:
        assert set(rules(script(body, one.get("tasks", 1)))) == {one["rule"]}, body


def test_a_fix_keeps_the_wrapper_in_front() -> None:
    body = "apptainer exec --nv image.sif torchrun --standalone --nproc_per_node=8 train.py"
    fix = rules(script(body))["more-ranks"].fix
    assert fix.startswith("apptainer exec --nv image.sif torchrun --nproc_per_node=") and fix.endswith(" train.py")
    assert "uv run torchrun --standalone" in rules(script("uv run train.py"))["one-process"].fix


def test_zsh_and_sh_stop_in_their_own_way() -> None:
    piped = "python train.py --devices 4 | tee out.log"
    assert not rules(script(f"setopt ERR_EXIT pipefail\n{piped}", shell="#!/bin/zsh"))
    fix = rules(script(f"set -e\n{piped}", shell="#!/bin/sh"))["no-pipefail"].fix
    assert fix.startswith("#!/bin/bash"), "not every sh knows pipefail"


@pytest.mark.parametrize(
    "piece",
    [
        "a=(",
        "a=(b ",
        "bash -c '",
        'bash -c "bash -c ',
        "srun ",
        "uv run ",
        'a="$a $a"\nsrun $a\n',
        '"$(a=( ',
        "cat <<E <<F\n",
    ],
)
def test_a_file_of_one_piece_ends_soon(piece: str) -> None:
    began = time.process_time()
    rules(script(piece * (30_000 // len(piece))))
    assert time.process_time() - began < 2  # as tests/fuzzing.py bounds an input


def test_variables_in_variables_do_not_grow_without_end() -> None:
    lines = [f'v{n}="{f"$v{n + 1} " * 300}"' for n in range(20)] + ["srun $v0"] * 50
    began = time.process_time()
    rules(script("\n".join(lines)))
    assert time.process_time() - began < 2
