"""A notebook in a session without a card, as a portal starts one: its measuring cells run behind srun, beside a card.

The session is a job, and srun inside a job can only share what that has. So the launcher leaves the job behind first.
"""

import json
import sys
from pathlib import Path

import nbformat

from gpuworkshop.cluster import site

SRUN = site.load("aicr").srun()
LEAVING = ("env", "-u", "SLURM_JOB_ID", "-u", "SLURM_JOBID", *SRUN)
"""As README has it."""
CELL = """
import json, os, sys
from gpuworkshop.instruments import starve
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job

starve.plan_for = lambda device, **_: Plan(block_seconds=0.05, budget_seconds=0.5)
try:
    seen = starve.run(job=Job("gpt-tiny"), launcher={launcher})
    said = {{"rate": seen.real.value, "cpus": seen.conditions.cpus_asked}}
except Exception as error:
    said = {{"error": str(error)}}
print(json.dumps(said | {{"session": os.environ["SLURM_CPUS_PER_TASK"], "torch": "torch" in sys.modules}}))
"""
RUN = """#!/bin/bash
#SBATCH --partition=rtx-devel
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=2G
#SBATCH --time=00:05:00
#SBATCH --output=logs/%x_%j.out
{python} -m jupyter execute --inplace --timeout=120 {notebook}
"""


def in_a_session(cluster, work: Path, launcher: tuple[str, ...]) -> dict:
    """What the cell printed, in a notebook that ran in a job without a card."""
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    notebook.cells = [nbformat.v4.new_code_cell(CELL.format(launcher=launcher))]
    nbformat.write(notebook, work / "session.ipynb")
    script = work / "session.sbatch"
    script.write_text(RUN.format(python=sys.executable, notebook="session.ipynb"))
    job = cluster.run(script, cwd=work, seconds=150)
    assert job.state == "COMPLETED", job.output
    [cell] = nbformat.read(work / "session.ipynb", 4).cells
    text = "".join(out.get("text", "") for out in cell.outputs if out.get("name") == "stdout")
    return json.loads(text.strip().splitlines()[-1])


def test_a_measuring_cell_runs_on_the_node_of_a_card(cluster, work):
    said = in_a_session(cluster, work, LEAVING)
    assert "error" not in said, said
    assert said["rate"] > 0
    assert (said["session"], said["cpus"]) == ("1", 8), "it was measured in another job than the notebook's"
    assert not said["torch"], "the notebook's kernel stays light"


def test_srun_inside_the_session_cannot_and_says_why(cluster, work):
    said = in_a_session(cluster, work, SRUN)
    assert "Invalid generic resource (gres) specification" in said["error"], said
