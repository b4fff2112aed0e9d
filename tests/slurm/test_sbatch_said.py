"""What sbatch said to the scripts of sbatch_said.toml, by which `job check` is held, it says today too."""

import sys
from pathlib import Path

HOLD = Path(__file__).parents[1] / "hold_sbatch.py"


def test_sbatch_says_of_every_script_what_is_written(cluster, work):
    held = cluster.ask(sys.executable, str(HOLD), cwd=work, timeout=280)
    assert held.returncode == 0, held.stdout + held.stderr
    asked, _, others = held.stdout.strip().splitlines()[-1].partition(" scripts, ")
    assert int(asked) > 300 and others.startswith("0 "), held.stdout
