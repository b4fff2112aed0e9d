"""A JupyterLab of its own and a page in it, for tests that click.

The server runs under a base URL as behind Open OnDemand's proxy, with its own configuration, on a
copy of the notebooks. A page keeps every request to another host, every failed request and every
console error, so that a test can say that there was none.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
BASE_URL = "/node/host/8888/"
SECONDS = 60
TOKEN = secrets.token_urlsafe()
"""Other people on the machine must not use the server. In the environment, for a command line can be seen."""
MANAGER = "@jupyter-widgets/jupyterlab-manager"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PACKAGES = ("jupyterlab", "ipywidgets", "playwright", "nbformat", "torch")
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
"""What a notebook that a test makes asks for."""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

COUNTS = """[...document.querySelectorAll(".jp-Notebook .jp-CodeCell .jp-InputPrompt")].map(
  (prompt) => Number((prompt.textContent.match(/\\[(\\d+)\\]/) || [0, 0])[1]))"""
"""The execution counts of all code cells, 0 for one that has not run."""
ERROR = "[data-mime-type='application/vnd.jupyter.error']"


def skip_where_a_part_is_missing() -> None:
    """For the top of a module whose tests click: skip it whole, by the name of what is not here."""
    missing = [f"{name} is not installed" for name in PACKAGES if importlib.util.find_spec(name) is None]
    if CHROMIUM is None or missing:
        pytest.skip(", ".join(missing) or "there is no Chromium on this machine", allow_module_level=True)


@contextmanager
def server(
    root: Path, home: Path, *, widget_manager: bool = True, python: str = sys.executable, **env: str
) -> Iterator[str]:
    """Run JupyterLab on the notebooks in `root`; gives its address. All that it and the learner write
    goes to `home`. Ends it, and its kernels, in any case. `python` is that of the server's environment."""
    _configure(home, widget_manager)
    port = _free_port()
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(_command(root, port, python), env=_environment(home) | env, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}{BASE_URL}"
            _wait(address, process, home / "log")
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _configure(home: Path, widget_manager: bool) -> None:
    quiet = {"fetchNews": "false", "checkForUpdates": False}  # no news over the page
    set_option(home, "apputils-extension/notification", **quiet)
    set_option(home, "notebook-extension/tracker", windowingMode="none")  # render what is out of sight too
    page = home / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(json.dumps({"disabledExtensions": {MANAGER: not widget_manager}}))


def set_option(home: Path, plugin: str, **values: object) -> None:
    """Write settings of a JupyterLab plugin, as its settings editor would; read when a page is loaded."""
    file = home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))


def _environment(home: Path) -> dict[str, str]:
    own = {
        "GPUWORKSHOP_STATE": "state",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    paths = {name: str(home / folder) for name, folder in own.items()}
    return {**os.environ, **paths, "PYTHONPATH": str(REPOSITORY), "JUPYTER_TOKEN": TOKEN}


def _command(root: Path, port: int, python: str) -> list[str]:
    return [
        *(python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0"),
        *(f"--ServerApp.base_url={BASE_URL}", f"--ServerApp.root_dir={root}", "--LabApp.news_url=None"),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(address: str, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}api/status?token={TOKEN}", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text(errors='replace')[-3000:]}")


class Page:
    """One notebook in a browser, with what went wrong on the way."""

    def __init__(self, page: Any, address: str):
        self.page = page
        self.address = address
        self.elsewhere: list[str] = []
        self.failed: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._requested)
        page.on("requestfailed", self._request_failed)
        page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.elsewhere.append(request.url)

    def _request_failed(self, request: Any) -> None:
        if "ERR_ABORTED" not in str(request.failure):  # leaving a page aborts its requests
            self.failed.append(f"{request.url}: {request.failure}")

    def open(self, notebook: str) -> None:
        """Open a notebook and wait for its kernel."""
        self.page.goto(f"{self.address}lab/tree/{notebook}?reset&token={TOKEN}", wait_until="domcontentloaded")
        self._notebook().locator(".jp-Cell").first.wait_for(timeout=SECONDS * 1000)
        self._wait_for_kernel()

    def run_all(self, seconds: float) -> None:
        """Run all cells and wait until the last one is through; fail if one of them raised."""
        before = max(self.page.evaluate(COUNTS))
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        ended = f'() => document.querySelector("{ERROR}") || Math.min(...{COUNTS}) > {before}'
        self.page.wait_for_function(ended, timeout=seconds * 1000)
        assert self._notebook().locator(ERROR).all_inner_texts() == []
        self._wait_for_kernel()

    def reload(self) -> None:
        """Load the page again, as a learner does who comes back."""
        self.page.reload(wait_until="domcontentloaded")
        self._notebook().locator(".jp-Cell").first.wait_for(timeout=SECONDS * 1000)
        self._wait_for_kernel()

    def question(self, id: str) -> Any:
        """The panel of one question."""
        return self.page.locator(f".gw-quiz-{id}")

    def clean(self) -> None:
        """Fail if the page asked another host, or anything went wrong on it."""
        assert (self.elsewhere, self.failed, self.errors) == ([], [], [])

    def _notebook(self) -> Any:
        return self.page.locator(".jp-NotebookPanel:visible")

    def _wait_for_kernel(self) -> None:
        """The status bar knows; the notebook's own indicator says idle before there is a kernel."""
        idle = self.page.get_by_role("button", name=re.compile(r"\| Idle$"))
        idle.wait_for(timeout=SECONDS * 1000)
