"""One installation for a whole cluster: nobody but its owner may write there, and every user's state lies elsewhere.

The modulefile is the one that CONTRIBUTING.md shows. Another user id loads it, starts the course and keeps a record.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuworkshop import __version__

ROOT = Path(__file__).parents[1]
NOBODY = 65534
READS = "-all,+dac_read_search"
ANOTHER = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups") + tuple(
    f"--{which}={READS}" for which in ("inh-caps", "ambient-caps", "bounding-set")
)
"""Another user, who may read everything, as where Python lies in a folder for all, and write nothing but their own."""
MODULES = Path("/usr/share/modules/init/bash")
WORK = """
import json, os
from gpuworkshop import state
import gpuworkshop
print(json.dumps({
    "package": gpuworkshop.__file__, "kept": state.append("x.jsonl", {"a": 1}), "state": str(state.folder()),
    "site": os.environ.get("GPUWORKSHOP_SITE"), "uid": os.getuid(),
}))
"""


class Central(NamedTuple):
    """The installation, and the home of another user."""

    folder: Path
    home: Path

    def ask(self, *lines: str) -> subprocess.CompletedProcess[str]:
        """Run lines of bash as that user, with the module loaded."""
        script = [f"source {MODULES}", f"module use {self.folder}/modules", "module load gpuworkshop", "set -e", *lines]
        env = {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        command = [*ANOTHER, "bash", "-c", "\n".join(script)]
        return subprocess.run(command, env=env, cwd=self.home, capture_output=True, text=True, timeout=120)


def shown(language: str) -> str:
    """The block of CONTRIBUTING.md in this language, under its heading about a whole cluster."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Install for a whole cluster")[2]
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def central() -> Iterator[Central]:
    """The package in an environment of its own, as a wheel would put it there; its dependencies come by a path file."""
    if os.geteuid() != 0 or not MODULES.is_file() or not shutil.which("setpriv"):
        pytest.skip("needs root, setpriv, to be another user too, and environment-modules")
    top = Path(tempfile.mkdtemp(prefix="gpuworkshop-central-"))  # pytest's own folders are closed to others
    try:
        top.chmod(0o755)
        (top / "home").mkdir()
        os.chown(top / "home", NOBODY, NOBODY)
        yield Central(_installed(top / "gpuworkshop"), top / "home")
    finally:
        shutil.rmtree(top)


def _installed(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    [packages] = (folder / "env").glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shutil.copytree(ROOT / "gpuworkshop", packages / "gpuworkshop", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "notebooks", packages / "gpuworkshop" / "course" / "notebooks")
    command = folder / "env" / "bin" / "gpuworkshop"
    command.write_text(f'#!/bin/sh\nexec {folder}/env/bin/python -m gpuworkshop "$@"\n')
    command.chmod(0o755)
    (folder / "modules").mkdir()
    (folder / "modules" / "gpuworkshop").write_text(shown("tcl").replace("/shared/gpuworkshop", str(folder)))
    lines = shown("bash").replace("/shared/gpuworkshop", str(folder)).splitlines()
    [kernel] = [line for line in lines if "--kernel-only" in line]
    subprocess.run(["bash", "-ec", kernel], check=True, capture_output=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o555 | 0o444)
    return folder


def files(folder: Path) -> dict[str, int]:
    """Every file of a folder with the time of its last change."""
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_another_user_works_and_nothing_is_written_there(central: Central) -> None:
    before = files(central.folder)
    done = central.ask("gpuworkshop --version", f"python -c '{WORK}'", "gpuworkshop site show >/dev/null")
    assert done.returncode == 0, done.stderr
    version, told = done.stdout.strip().splitlines()
    said = json.loads(told)
    assert version == __version__ and said["uid"] == NOBODY
    assert said["package"].startswith(str(central.folder))
    assert said["kept"] and said["state"].startswith(str(central.home))
    assert said["site"] == "aicr"
    assert files(central.folder) == before


def test_another_user_cannot_write_there(central: Central) -> None:
    for folder in ("env/bin", "share/jupyter/kernels/gpuworkshop", "modules"):
        assert central.ask(f"touch {central.folder}/{folder}/x").returncode != 0


def test_start_copies_the_notebooks_into_the_home(central: Central) -> None:
    done = central.ask("gpuworkshop start")
    assert done.returncode == 0, done.stdout + done.stderr
    copies = sorted((central.home / "gpu-workshop").glob("*.ipynb"))
    assert len(copies) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    assert all(os.access(copy, os.W_OK) and copy.stat().st_mode & stat.S_IWUSR for copy in copies)


def test_the_shared_kernel_is_offered_and_runs_there(central: Central) -> None:
    list_kernels = "from jupyter_client.kernelspec import KernelSpecManager as M; import json"
    one = 'spec = M().get_kernel_spec("gpuworkshop"); print(json.dumps([spec.resource_dir, spec.argv[0]]))'
    done = central.ask("rm -rf ~/.local/share/jupyter", f"python -c '{list_kernels}; {one}'")
    assert done.returncode == 0, done.stderr
    place, python = json.loads(done.stdout)
    assert place == str(central.folder / "share/jupyter/kernels/gpuworkshop")
    assert python == str(central.folder / "env/bin/python")
