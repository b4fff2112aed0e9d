"""A server as old as a site offers it: JupyterLab 4.1 in an environment of its own, and the course on its own kernel.

The server lacks the widget manager, and its PYTHONPATH would break any other Python's imports: both occur on Open
OnDemand. Chapters run after the fix that the kit names for such a server.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pytest

lab.skip_where_a_part_is_missing()

import nbformat  # noqa: E402
from playwright.sync_api import Browser, expect  # noqa: E402

OLD = "jupyterlab==4.1.*"
CHAPTERS = {"01_verify": "round-trip", "04_starve": "what-can-help"}
"""What is run, and a question in it."""
SECONDS = 280
LANGUAGE_SERVERS = "/lsp/status"
"""What JupyterLab asks of a server extension that this environment has not installed."""
FRONT = """from gpuworkshop.course import quiz
from gpuworkshop.machine import frontend, frontend_findings
import json, os, sys
front = frontend.look()
found = frontend_findings.findings(front)
print("FRONT " + json.dumps({
    "lab": front.server.lab, "widgets": front.widgets, "ondemand": front.server.behind_ondemand,
    "same": front.same_environment, "python": sys.executable, "path": os.environ.get("PYTHONPATH"),
    "fix": [one.fix for one in found if one.level == "warning"],
}))"""
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells')"


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with JupyterLab 4.1 and without widgets.

    Only JupyterLab is installed in it, in about 10 s where all it needs took more than a minute; a path file names the
    packages that it shares with this environment.
    """
    folder = tmp_path_factory.mktemp("old-server") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", OLD]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=200)
    if installed.returncode:
        pytest.skip(f"{OLD} cannot be installed: {installed.stderr.strip().splitlines()[-1:]}")
    [packages] = folder.glob("lib/python3*/site-packages")
    (packages / "server.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder that the form names, with the notebooks and the kernel that `start` makes; and the learner's home."""
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    env = os.environ | {"JUPYTER_DATA_DIR": str(home / "data"), "PYTHONPATH": ""}
    start = (sys.executable, "-m", "gpuworkshop", "start", "--name", "gpuworkshop")
    subprocess.run([*start, "--folder", root / "course"], env=env, check=True, capture_output=True)
    in_root = env | {"JUPYTER_DATA_DIR": str(root / "share" / "jupyter")}
    own = (*start[:-1], "from-root", "--display-name", "From the chosen root", "--kernel-only")
    subprocess.run(own, env=in_root, check=True, capture_output=True)
    (home / "config").mkdir()
    (home / "config" / "jupyter_lab_config.json").write_text('{"LabApp": {"expose_app_in_browser": true}}')
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "from-root", "display_name": "x"}})
    notebook.cells = [
        nbformat.v4.new_code_cell(FRONT),
        nbformat.v4.new_code_cell('quiz.ask("04_starve", "one-worker")'),
    ]
    nbformat.write(notebook, root / "front.ipynb")
    return root, home


class OldPage(lab.Page):
    """A notebook in JupyterLab 4.1, whose menus have other names."""

    def __init__(self, page: Any, address: str):
        super().__init__(page, address)
        self.refused: list[str] = []
        page.on("response", lambda one: one.status >= 400 and self.refused.append(f"{one.status} {one.url}"))

    def run_all(self, seconds: float = SECONDS) -> None:
        """Run all cells; fail if one of them raised."""
        before = max(self.page.evaluate(lab.COUNTS))
        self.page.evaluate(RUN_ALL)
        ended = f'() => document.querySelector("{lab.ERROR}") || Math.min(...{lab.COUNTS}) > {before}'
        self.page.wait_for_function(ended, timeout=seconds * 1000)
        assert self._notebook().locator(lab.ERROR).all_inner_texts() == []

    def _wait_for_kernel(self) -> None:
        """The status bar knows; here it is text and no button."""
        self.page.get_by_text(re.compile(r"\| Idle$")).first.wait_for(timeout=lab.SECONDS * 1000)

    def clean(self) -> None:
        """Fail if the page asked another host, or if anything of it went wrong."""
        assert not self.elsewhere, self.elsewhere
        assert not self.failed, self.failed
        refused = [one for one in self.refused if LANGUAGE_SERVERS not in one]
        assert not refused, refused
        # those are told by their addresses above
        errors = [one for one in self.errors if not one.startswith("Failed to load resource")]
        assert not errors, errors

    def front(self) -> dict:
        """What the first cell of front.ipynb printed."""
        text = self.page.locator(".jp-OutputArea-output", has_text="FRONT").first.inner_text()
        return json.loads(text.partition("FRONT ")[2])


def opened(browser: Browser, address: str, notebook: str) -> OldPage:
    """A notebook, open and with all its cells run."""
    page = OldPage(browser.new_page(viewport={"width": 1180, "height": 1000}), address)
    page.open(notebook)
    page.run_all()
    return page


def server(place: tuple[Path, Path], python: str, path: Path):
    """The old server on the learner's folder, started as the portal does."""
    root, home = place
    found = {"JUPYTER_PATH": str(root / "share" / "jupyter"), "PYTHONPATH": str(path)}
    return lab.server(root, home, python=python, **found)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the server's own modules, which must not reach a kernel of another environment."""
    folder = tmp_path_factory.mktemp("site-modules")
    (folder / "msgspec.py").write_text("raise ImportError('the module of the server')\n")
    return folder


@pytest.fixture(scope="module")
def before(old_python, place, modules, browser: Browser) -> dict:
    """What the kit says on the server as it is; and the names of the kernels that it offers."""
    with server(place, old_python, modules) as address:
        with urllib.request.urlopen(f"{address}api/kernelspecs?token={lab.TOKEN}") as answer:
            kernels = set(json.load(answer)["kernelspecs"])
        page = opened(browser, address, "front.ipynb")
        text = page.page.locator(".jp-OutputArea-output").last.inner_text()
        said = page.front() | {"kernels": kernels, "question": text}
        page.page.close()
    return said


def test_kernel_is_found_from_start_and_from_the_chosen_root(before: dict) -> None:
    assert {"gpuworkshop", "from-root"} <= before["kernels"]


def test_our_kernel_runs_our_python_shielded_from_the_servers(before: dict) -> None:
    assert before["python"] == sys.executable
    assert before["same"] is False and not before["path"]


def test_the_server_is_recognized_with_its_fix(before: dict) -> None:
    assert before["lab"].startswith("4.1.") and before["ondemand"]
    assert before["widgets"] == "no"
    assert any("ln -sfn" in fix for fix in before["fix"])


def test_without_widgets_the_question_is_there_as_text(before: dict) -> None:
    assert "VBox(" not in before["question"] and len(before["question"]) > 60


@pytest.fixture(scope="module")
def fixed(before: dict, old_python, place, modules) -> Iterator[str]:
    """The address of the server after the fix that the kit named, which needs no administrator."""
    [fix] = [fix for fix in before["fix"] if "ln -sfn" in fix]
    subprocess.run(["bash", "-ec", fix], check=True)
    with server(place, old_python, modules) as address:
        yield address


def test_after_the_fix_buttons_show(fixed: str, browser: Browser) -> None:
    page = opened(browser, fixed, "front.ipynb")
    assert page.front()["widgets"] == "yes" and page.front()["fix"] == []
    expect(page.question("one-worker").get_by_role("button").first).to_be_visible()
    page.clean()
    page.page.close()


@pytest.mark.parametrize("name", CHAPTERS)
def test_chapter_runs_on_our_kernel(fixed: str, browser: Browser, name: str) -> None:
    page = opened(browser, fixed, f"course/{name}.ipynb")
    expect(page.question(CHAPTERS[name]).get_by_role("button").first).to_be_visible()
    page.clean()
    page.page.close()
