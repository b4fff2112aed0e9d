"""A verb's file is whole or is not there: a disk that fills up, a file that is there already."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gpuworkshop.cli.files import new_file

WRITE = ["-m", "gpuworkshop", "job", "write", "--site", "aicr", "--no-ledger", "--out", "job.sbatch", "--", "train.py"]
DRAFT = [
    "-c",
    "from pathlib import Path; from gpuworkshop.cli.site import _write; _write(Path('x.toml'), 'x' * 9999, {})",
]


def small(folder: Path, words: list[str]) -> subprocess.CompletedProcess:
    """Run Python where no file may grow beyond 100 bytes, as on a disk that has so many left."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    return subprocess.run([sys.executable, "-B", *words], cwd=folder, capture_output=True, text=True, preexec_fn=limit)


def test_a_job_script_that_does_not_fit_is_said_and_leaves_nothing(tmp_path) -> None:
    """Half a job script is one that sbatch takes."""
    done = small(tmp_path, WRITE)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr == "gpuworkshop: --out: job.sbatch: cannot be written: File too large\n"


@pytest.mark.parametrize("force", [True, False])
def test_a_site_file_that_does_not_fit_leaves_the_old_one(tmp_path, force) -> None:
    if force:
        (tmp_path / "x.toml").write_text("old")
    done = small(tmp_path, [DRAFT[0], DRAFT[1].format(force)])
    assert done.returncode == 1 and "x.toml: cannot be written: File too large" in done.stderr
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == ([("x.toml", "old")] if force else [])


def test_what_is_there_is_left_alone(tmp_path) -> None:
    new_file(tmp_path / "a", "1\n")
    with pytest.raises(FileExistsError):
        new_file(tmp_path / "a", "2\n")
    assert (tmp_path / "a").read_bytes() == b"1\n"
