"""Fifty at once on one course folder and one state folder: nothing lost, nothing mixed, nobody waits for long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuworkshop import state
from gpuworkshop.course import copies, progress

MANY, EACH = 50, 12
PROGRAM = """
import os, sys
from pathlib import Path
from gpuworkshop import state
from gpuworkshop.course import copies, progress

many, each, course, homes = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])

def learner(who):
    copies.make(course, homes / str(who))
    copies.make(course, homes / "shared")
    for turn in range(each):
        assert progress.record("04_starve", "quiz", f"q{turn}", right=False)
        assert state.append("ledger.jsonl", {"who": who, "turn": turn, "fill": "x" * (turn * 997 % 9000)})
        progress.tally("04_starve", "quiz", "q0")

children = []
for who in range(many):
    if not (pid := os.fork()):
        try:
            learner(who)
        except BaseException as error:
            print(who, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course of three notebooks that nobody may write to."""
    folder = tmp_path_factory.mktemp("shared") / "course"
    folder.mkdir()
    for name in ("01_a.ipynb", "02_b.ipynb", "03_c.ipynb"):
        cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": [name * 500]}
        whole = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (folder / name).write_text(json.dumps(whole, indent=1) + "\n")
        (folder / name).chmod(0o444)
    folder.chmod(0o555)
    return folder


def test_fifty_learners_lose_and_mix_nothing(course, tmp_path) -> None:
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in course.iterdir()}
    words = [sys.executable, "-c", PROGRAM, str(MANY), str(EACH), str(course), str(tmp_path / "homes")]
    done = subprocess.run(words, env=os.environ, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in course.iterdir()} == before

    records, broken = state.read_lines("ledger.jsonl")
    assert broken == 0
    for who in range(MANY):
        own = [record for record in records if record["who"] == who]
        assert [record["turn"] for record in own] == list(range(EACH))
        assert all(len(record["fill"]) == record["turn"] * 997 % 9000 for record in own)
    tallies = [progress.tally("04_starve", "quiz", f"q{turn}") for turn in range(EACH)]
    assert [tally.tries for tally in tallies] == [MANY] * EACH

    for home in (*(tmp_path / "homes" / str(who) for who in range(MANY)), tmp_path / "homes" / "shared"):
        assert {one.what for one in copies.make(course, home)} == {"same"}, home
        assert {name: (home / name).read_bytes() for name in before} == {n: data for n, (data, _) in before.items()}
        assert not [one for one in home.iterdir() if one.name not in (*before, ".gpuworkshop.json")], "no leftovers"
