"""The start: a copy of the notebooks that never costs the learner's work, and a kernel with the right environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuworkshop import cli
from gpuworkshop.course import copies, kernel, start

ROOT = Path(__file__).parents[1]


def notebook(text: str) -> str:
    """A notebook as the maker writes it, with one cell."""
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": [text]}
    spec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    whole = {"cells": [cell], "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A course of two notebooks, which nobody may write to."""
    folder = tmp_path / "course"
    folder.mkdir()
    for name in ("01_a.ipynb", "02_b.ipynb"):
        (folder / name).write_text(notebook(f"first edition of {name}, 5 µs"))
        (folder / name).chmod(0o444)
    folder.chmod(0o555)
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Where the learner's copies go; not there yet."""
    return tmp_path / "home" / "mine"


def new_edition(course: Path, name: str = "01_a.ipynb") -> None:
    """The course changes one notebook."""
    for path in (course, course / name):
        path.chmod(0o755)
    (course / name).write_text(notebook("second edition"))


def done(course: Path, mine: Path) -> dict[str, tuple[str, str]]:
    """What is done with each notebook, and what goes beside it."""
    return {one.name: (one.what, one.beside) for one in copies.make(course, mine)}


def names(folder: Path) -> list[str]:
    """All that a learner sees in a folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_copy_of_a_read_only_course_can_be_written(course: Path, mine: Path) -> None:
    assert set(done(course, mine).values()) == {("new", "")}
    assert names(mine) == names(course)
    assert (mine / "01_a.ipynb").read_text() == (course / "01_a.ipynb").read_text()
    assert (mine / "01_a.ipynb").stat().st_mode & 0o200
    assert [path.name for path in mine.iterdir() if path.name.startswith(".")] == [copies.RECORD]


def test_a_second_start_changes_nothing(course: Path, mine: Path) -> None:
    done(course, mine)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in mine.glob("*.ipynb")}
    assert set(done(course, mine).values()) == {("same", "")}
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in mine.glob("*.ipynb")}


def test_a_changed_notebook_is_kept_and_a_fresh_one_goes_beside_it(course: Path, mine: Path) -> None:
    done(course, mine)
    (mine / "01_a.ipynb").write_text("my work")
    assert done(course, mine) == {"01_a.ipynb": ("kept", "01_a-new.ipynb"), "02_b.ipynb": ("same", "")}
    assert done(course, mine)["01_a.ipynb"] == ("kept", "01_a-new.ipynb")  # not one more at each start
    assert (mine / "01_a.ipynb").read_text() == "my work"
    assert (mine / "01_a-new.ipynb").read_text() == (course / "01_a.ipynb").read_text()
    (mine / "01_a-new.ipynb").write_text("more work")
    assert done(course, mine)["01_a.ipynb"] == ("kept", "01_a-new-2.ipynb")
    assert (mine / "01_a-new.ipynb").read_text() == "more work"


def test_an_untouched_copy_follows_the_course(course: Path, mine: Path) -> None:
    done(course, mine)
    new_edition(course)
    assert done(course, mine) == {"01_a.ipynb": ("renewed", ""), "02_b.ipynb": ("same", "")}
    assert "second edition" in (mine / "01_a.ipynb").read_text()
    (mine / "01_a.ipynb").write_text("my work")
    done(course, mine)
    new_edition(course, "02_b.ipynb")
    (course / "01_a.ipynb").write_text(notebook("third edition"))
    assert done(course, mine) == {"01_a.ipynb": ("kept", "01_a-new.ipynb"), "02_b.ipynb": ("renewed", "")}
    assert "third edition" in (mine / "01_a-new.ipynb").read_text()


@pytest.mark.parametrize("record", [None, "{", "[1]", '{"01_a.ipynb": 3}'])
def test_without_a_good_record_everything_that_differs_is_the_learner_s(
    course: Path, mine: Path, record: str | None
) -> None:
    done(course, mine)
    new_edition(course)
    (mine / copies.RECORD).unlink() if record is None else (mine / copies.RECORD).write_text(record)
    assert done(course, mine) == {"01_a.ipynb": ("kept", "01_a-new.ipynb"), "02_b.ipynb": ("same", "")}


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "folder"])
def test_what_is_no_plain_file_is_never_replaced(course: Path, mine: Path, tmp_path: Path, kind: str) -> None:
    done(course, mine)
    place, target = mine / "01_a.ipynb", tmp_path / "elsewhere"
    place.rename(target) if kind == "link" else place.unlink()
    place.mkdir() if kind == "folder" else place.symlink_to(target)
    new_edition(course)
    assert done(course, mine)["01_a.ipynb"] == ("kept", "01_a-new.ipynb")
    assert place.is_dir() if kind == "folder" else place.is_symlink()
    assert not target.exists() or "first edition" in target.read_text()


def test_copies_ask_for_the_kernel_and_are_else_the_same(course: Path, mine: Path) -> None:
    copies.make(course, mine, ("gw", "My µ kernel"))
    made, given = (json.loads((folder / "01_a.ipynb").read_text()) for folder in (mine, course))
    assert made["metadata"].pop("kernelspec") == {"display_name": "My µ kernel", "language": "python", "name": "gw"}
    given["metadata"].pop("kernelspec")
    assert made == given
    assert {one.what for one in copies.make(course, mine, ("gw", "My µ kernel"))} == {"same"}
    assert {one.what for one in copies.make(course, mine, ("gw2", "Other"))} == {"renewed"}


# The kernel


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Jupyter folder of this test's own, in a home of its own."""
    pytest.importorskip("ipykernel", reason="the kernel's tests need ipykernel")
    folder = tmp_path / "jupyter"
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (*kernel.CARRIED, *kernel.SHIELDED):
        if name != "GPUWORKSHOP_STATE":
            monkeypatch.delenv(name, raising=False)
    return folder


def spec(jupyter: Path, name: str = "gpuworkshop") -> dict:
    """The description of an installed kernel."""
    return json.loads((jupyter / "kernels" / name / "kernel.json").read_text())


def test_the_kernel_runs_this_python_and_says_so(jupyter: Path) -> None:
    made = kernel.install()
    found = spec(jupyter)
    assert (found["argv"][0], found["display_name"]) == (sys.executable, "GPU workshop")
    assert "ipykernel_launcher" in found["argv"]
    assert (made.folder, made.python, made.replaced) == (str(jupyter / "kernels" / "gpuworkshop"), sys.executable, "")
    assert found["env"] == made.env


def test_a_kernel_of_another_environment_is_replaced_and_said(jupyter: Path) -> None:
    kernel.install("GW", "One")
    file = jupyter / "kernels" / "gw" / "kernel.json"
    file.write_text(file.read_text().replace(sys.executable, "/old/bin/python"))
    assert kernel.install("GW", "One").replaced == "/old/bin/python"
    assert spec(jupyter, "gw")["argv"][0] == sys.executable


def test_the_settings_of_now_go_into_the_kernel(monkeypatch) -> None:
    env = {"GPUWORKSHOP_SITE": "/a/$HOME/x.toml", "PYTHONPATH": "/mine", "SECRET": "x"}
    found = kernel.environment(env)
    assert (found["GPUWORKSHOP_SITE"], found["PYTHONPATH"]) == ("/a/$$HOME/x.toml", "/mine")
    assert not {"SECRET", "GPUWORKSHOP_CACHE"} & found.keys()
    assert found["PATH"] == f"{Path(sys.executable).parent}:${{PATH}}"


TELL = """
import json, os, shutil, sys
print(json.dumps({"python": sys.executable, "path": os.environ["PATH"], "site": os.environ.get("GPUWORKSHOP_SITE"),
                  "which": shutil.which("python3"), "broken": "/server" in "".join(sys.path)}))
"""


def test_a_server_of_another_environment_does_not_reach_the_kernel(jupyter: Path, monkeypatch, tmp_path: Path) -> None:
    """A real kernel, started as a server starts it, with the variables of somebody else's Python."""
    client = pytest.importorskip("jupyter_client", reason="the kernel's tests need jupyter_client")
    monkeypatch.setenv("GPUWORKSHOP_SITE", "/a/$b/mine.toml")
    kernel.install()
    server = {"PYTHONHOME": "/server", "PYTHONPATH": "/server/lib", "PATH": "/server/bin:/usr/bin:/bin"}
    env = {**os.environ, **server, "IPYTHONDIR": str(tmp_path / "ipython"), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    env.pop("GPUWORKSHOP_SITE")
    manager = client.KernelManager(kernel_name="gpuworkshop")
    manager.start_kernel(env=env)
    talk = manager.blocking_client()
    try:
        talk.start_channels()
        talk.wait_for_ready(timeout=60)
        heard: list[str] = []
        talk.execute_interactive(TELL, timeout=60, output_hook=lambda m: heard.append(m["content"].get("text", "")))
    finally:
        talk.stop_channels()
        manager.shutdown_kernel(now=True)
    told = json.loads("".join(heard))
    folder = str(Path(sys.executable).parent)
    assert told == {
        "python": sys.executable,
        "path": f"{folder}:/server/bin:/usr/bin:/bin",
        "site": "/a/$b/mine.toml",
        "which": f"{folder}/python3",
        "broken": False,
    }


# The verb


@pytest.fixture
def shipped(course: Path, jupyter: Path, monkeypatch) -> Path:
    """The verb copies from a course of our own, into a Jupyter of our own."""
    monkeypatch.setattr(copies, "source", lambda: course)
    return course


def test_start_does_both_and_says_how_to_go_on(shipped, jupyter, mine, capsys) -> None:
    assert cli.main(["start", "--folder", str(mine)]) == 0
    assert "2 notebooks in" in capsys.readouterr().out
    assert cli.main(["start", "--folder", str(mine), "--json"]) == 0
    said = [one["evidence"] for one in json.loads(capsys.readouterr().out)["findings"]]
    assert f'In Jupyter, open {mine}/01_a.ipynb with the kernel "GPU workshop".' in said[1]
    assert json.loads((mine / "02_b.ipynb").read_text())["metadata"]["kernelspec"]["name"] == "gpuworkshop"
    (mine / "02_b.ipynb").write_text("my work")
    assert cli.main(["start", "--folder", str(mine)]) == 0
    assert "02_b.ipynb has your work and was kept" in " ".join(capsys.readouterr().out.split())


def test_start_goes_to_the_home_folder_and_can_leave_the_notebooks_out(shipped, jupyter, tmp_path, capsys) -> None:
    assert cli.main(["start", "--kernel-only", "--name", "gw", "--display-name", "Mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["result"]["folder"] == "" and shown["result"]["kernel"]["display_name"] == "Mine"
    assert spec(jupyter, "gw")["display_name"] == "Mine"
    assert not (tmp_path / "home" / "gpu-workshop").exists()
    assert cli.main(["start"]) == 0
    assert names(tmp_path / "home" / "gpu-workshop") == ["01_a.ipynb", "02_b.ipynb"]


def test_without_ipykernel_the_notebooks_are_there_and_the_fix_is_said(shipped, mine, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    assert cli.main(["start", "--folder", str(mine)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "has no ipykernel" in out and "-m gpuworkshop start --kernel-only" in out
    assert (mine / "01_a.ipynb").read_text() == (shipped / "01_a.ipynb").read_text()


def test_a_home_that_takes_no_kernel_is_said(shipped, jupyter, mine, capsys) -> None:
    jupyter.write_text("a file in the way")
    assert cli.main(["start", "--folder", str(mine), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["findings"][0]["level"] == "fail" and "cannot be written" in shown["result"]["problem"]
    assert len(shown["result"]["copies"]) == 2


BAD = {
    "a name that Jupyter refuses": (["--name", "my kernel", "--kernel-only"], "my kernel"),
    "a folder for nothing": (["--kernel-only", "--folder", "x"], "--kernel-only"),
    "a file in the way": (["--folder", "{tmp}/file"], "/file: cannot be used: File exists"),
    "the course itself": (["--folder", "{tmp}/course"], "the course's own folder"),
}


@pytest.mark.parametrize(("words", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_clear_line(shipped, tmp_path, capsys, words, says) -> None:
    (tmp_path / "file").touch()
    assert cli.main(["start", *(word.format(tmp=tmp_path) for word in words)]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and says in shown.err


# Where the notebooks come from


def test_a_clone_has_its_notebooks_beside_the_package() -> None:
    assert copies.source() == ROOT / "notebooks"


def test_an_installed_package_has_its_notebooks_inside(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the wheel's test needs hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    code = "from gpuworkshop.course import copies; import pathlib; print(copies.source())\n"
    code += "print(*(one.what for one in copies.make(copies.source(), pathlib.Path('mine'))))"
    env = {**os.environ, "PYTHONPATH": str(site)}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    place, what = run.stdout.splitlines()
    assert place == str(site / "gpuworkshop" / "course" / "notebooks")
    assert set(what.split()) == {"new"}
    assert names(tmp_path / "mine") == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_a_package_without_notebooks_says_where_it_looked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(copies, "HERE", tmp_path / "gpuworkshop" / "course")
    with pytest.raises(FileNotFoundError, match="looked in"):
        copies.source()
    assert start.FOLDER.name == "gpu-workshop"
