"""The frame of the project: what it depends on, what ships, what is committed, what an import costs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

CONDA_NAME = {"torch": "pytorch"}
MAX_BYTES = 5 * 2**20

# Split, so that this file does not contain what it looks for.
MACHINE_PATHS = ["/work/" + name for name in ("main", "shared", ".library", ".mirror")]
MACHINE_PATHS += ["/tmp/" + "bash_jobs", "/opt/" + "pypi"]
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "debian" + ".org",
    "anaconda" + ".org",
]
FORBIDDEN = re.compile("|".join(map(re.escape, [*MACHINE_PATHS, *REGISTRY_HOSTS])))


def bounds(requirements: list[str]) -> dict[str, str]:
    """Package name to lower bound, for lines such as "torch >= 2.11"; other clauses are left out."""
    found = {}
    for line in requirements:
        name, _, rest = re.sub(r"\s", "", line).partition(">=")
        found[name.lower()] = rest.partition(",")[0]
    return found


def committed() -> list[Path]:
    """Every file that git tracks or would add."""
    list_files = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    command = ["git", "-c", f"safe.directory={ROOT}", *list_files]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def conda_dependencies() -> tuple[list[str], list[str]]:
    """The conda lines of environment.yml and its pip lines, in order."""
    text = re.sub(r"#.*", "", (ROOT / "environment.yml").read_text(encoding="utf-8"))
    lines = [line for line in text.partition("dependencies:")[2].splitlines() if line.strip()]
    items = [(len(line) - len(line.lstrip()), line.strip().removeprefix("- ")) for line in lines]
    place = items.index((2, "pip:"))
    assert all(indent == 2 for indent, _ in items[:place])
    return [item for _, item in items[:place]], [item for _, item in items[place + 1 :]]


def test_conda_names_the_same_packages_and_bounds_as_pip() -> None:
    conda, pip = conda_dependencies()
    nbval = [line for line in EXTRAS["test"] if line.startswith("nbval")]
    wanted = bounds([*PROJECT["dependencies"], *EXTRAS["course"], *nbval])
    wanted = {CONDA_NAME.get(name, name): bound for name, bound in wanted.items()}
    wanted |= {"python": PROJECT["requires-python"].removeprefix(">="), "pip": ""}
    assert bounds(conda) == wanted
    assert pip == ["-e .[course]"]


def test_the_conda_file_suits_laptop_and_cluster() -> None:
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert "pytorch-gpu" not in text
    assert "CONDA_OVERRIDE_CUDA" in text
    channels = text.partition("channels:")[2].partition("dependencies:")[0].split()
    assert channels == ["-", "conda-forge", "-", "nodefaults"]


def test_the_core_leaves_pytorch_alone() -> None:
    core = bounds(PROJECT["dependencies"])
    assert {"nvidia-ml-py", "msgspec", "numpy", "rich", "tqdm"} <= core.keys()
    assert not {"torch", "torchvision", "pynvml"} & core.keys()
    assert bounds(EXTRAS["course"])["torch"] == "2.11"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The project's wheel, built as pip would build it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_wheel_carries_the_package_and_the_notebooks_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    package, notebooks = ROOT / "gpuworkshop", ROOT / "notebooks"
    ours = {path.relative_to(ROOT).as_posix() for path in committed() if package in path.parents}
    ours |= {f"gpuworkshop/course/notebooks/{path.name}" for path in committed() if path.parent == notebooks}
    assert any(name.endswith(".ipynb") for name in ours)
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "gpuworkshop/figures/page.css" in shipped
    assert shipped == ours


def test_the_wheel_carries_both_licenses_and_the_command(wheel: zipfile.ZipFile) -> None:
    info = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert {"licenses/LICENSE", "licenses/LICENSE-course"} <= info.keys()
    assert b"gpuworkshop = gpuworkshop.__main__:main" in wheel.read(info["entry_points.txt"])


def test_no_committed_file_is_large() -> None:
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in committed()}
    assert "pyproject.toml" in sizes
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}


def leftovers(notebook: dict) -> list[int]:
    """The numbers of the cells that carry outputs or an execution count."""
    return [
        number
        for number, cell in enumerate(notebook["cells"])
        if cell.get("outputs") or cell.get("execution_count") is not None
    ]


def test_notebooks_are_committed_without_outputs() -> None:
    notebooks = [path for path in committed() if path.suffix == ".ipynb"]
    found = {path.name: leftovers(json.loads(path.read_text(encoding="utf-8"))) for path in notebooks}
    assert {name: cells for name, cells in found.items() if cells} == {}


def test_outputs_in_a_notebook_would_be_found() -> None:
    clean = {"cell_type": "code", "outputs": [], "execution_count": None}
    cells = [{"cell_type": "markdown"}, clean, clean | {"outputs": [{}]}, clean | {"execution_count": 3}]
    assert leftovers({"cells": cells}) == [2, 3]


def test_nothing_names_a_maker_s_machine_or_a_registry() -> None:
    found = {}
    for path in committed():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        if hit := FORBIDDEN.search(text):
            found[path.relative_to(ROOT).as_posix()] = hit[0]
    assert found == {}


def test_a_forbidden_word_would_be_found() -> None:
    assert all(FORBIDDEN.search(f"see {word}/x") for word in [*MACHINE_PATHS, *REGISTRY_HOSTS])
    assert not FORBIDDEN.search("project space is /work/neu/PROJECT")


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `code`."""
    code += "\nimport sys; print('MODULES', *{n.partition('.')[0] for n in sys.modules}, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stderr.rpartition("MODULES")[2].split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_after("import gpuworkshop")
    assert "gpuworkshop" in loaded
    assert not loaded & {"torch", "numpy", "rich", "cyclopts", "msgspec", "pynvml"}


def test_help_loads_nothing_that_it_can_do_without() -> None:
    loaded = modules_after("from gpuworkshop.cli import main\nassert main(['--help']) == 0")
    assert "cyclopts" in loaded
    assert not loaded & {"torch", "numpy", "matplotlib", "IPython", "pynvml", "msgspec", "tomllib", "markdown_it"}


def test_the_list_of_verbs_loads_no_command_line() -> None:
    code = "import sys; sys.argv = ['gpuworkshop', '--help']\nfrom gpuworkshop.__main__ import main\nassert main() == 0"
    loaded = modules_after(code)
    assert "gpuworkshop" in loaded and not loaded & {"cyclopts", "rich", "msgspec", "torch", "numpy"}


def make(*arguments: str) -> str:
    """What make prints, run as from a fresh shell: no settings of an outer make or of CI reach it."""
    outer = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "TORCH", "VENV", "PYTHON"}
    env = {name: value for name, value in os.environ.items() if name not in outer}
    command = ["make", "--no-print-directory", "-C", str(ROOT), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_make_lists_its_targets() -> None:
    listed = {line.split()[1] for line in make().splitlines()}
    assert listed == {"help", "loop", "test", "lab", "check", "notebooks", "tables", "scripts", "slides", "bench"}


def test_one_environment_serves_the_main_job_and_the_tests(tmp_path: Path) -> None:
    env = tmp_path / "env"
    loop, test = (make("-n", target, f"VENV={env}") for target in ("loop", "test"))
    assert f"{env}/bin/gpuworkshop loop" in loop and "[course]" in loop and "[course,test]" not in loop
    assert f"{env}/bin/python -m pytest tests" in test
    assert test.index("'.[course]'") < test.index("'.[course,test]'")
    assert "torch==" not in test


def test_a_chosen_torch_is_installed_first(tmp_path: Path) -> None:
    text = make("-n", "test", f"VENV={tmp_path / 'env'}", "TORCH=torch==9.9")
    assert text.index("pip install torch==9.9") < text.index("'.[course]'")


def test_the_ci_script_is_sound_shell() -> None:
    script = ROOT / ".ci" / "run"
    shellcheck = Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, script], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


SKIPS = {
    "mark": "import pytest\n@pytest.mark.skip(reason='no wind')\ndef test_sail(): pass",
    "body": "import pytest\ndef test_sail(): pytest.skip('no wind')",
    "fixture": "import pytest\n@pytest.fixture\ndef sea(): pytest.skip('no wind')\ndef test_sail(sea): 1",
    "module": "import pytest\npytest.skip('no wind', allow_module_level=True)",
}


def test_a_skip_fails_in_ci_and_only_there(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for name, text in SKIPS.items():
        (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "test_plain.py").write_text("def test_float(): pass", encoding="utf-8")
    plain = ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", tmp_path]
    home, ci = (
        subprocess.run(
            [sys.executable, "-m", "pytest", *plain, tmp_path],
            env=os.environ | {"CI": value},
            capture_output=True,
            text=True,
        )
        for value in ("", "true")
    )
    assert (home.returncode, ci.returncode) == (0, 1), ci.stdout
    summary = ci.stdout.partition("short test summary info")[2]
    assert all(f"test_{name}.py" in summary for name in SKIPS) and "test_plain.py" not in summary
    assert "in CI a skip is a failure" in ci.stdout and "no wind" in ci.stdout
