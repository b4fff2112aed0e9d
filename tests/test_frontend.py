"""The front end: what shows the output, whether widgets can show there, and nothing essential in a widget alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from gpuworkshop import state
from gpuworkshop.course import quiz
from gpuworkshop.machine import frontend, frontend_findings, interpreter
from gpuworkshop.machine.frontend import FrontEnd
from gpuworkshop.machine.interpreter import Interpreter

ROOT = Path(__file__).parents[1]


class ZMQInteractiveShell(SimpleNamespace):
    """Stands for the shell of a kernel; its name is what tells it."""


class TerminalInteractiveShell(SimpleNamespace):
    """Stands for the shell of `ipython` in a terminal."""


def shell(monkeypatch: pytest.MonkeyPatch, one: object) -> None:
    """Let this process be one in which IPython runs with that shell."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: one))


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FrontEnd]:
    """A kernel that a program of another environment started; the environment is made of the files that are named."""
    shell(monkeypatch, ZMQInteractiveShell(user_ns={}))
    monkeypatch.setattr(frontend, "_version", lambda package: "8.1.9")
    monkeypatch.setattr(frontend.servers, "SYSTEM", (tmp_path / "local", tmp_path / "usr"))

    def look(
        program: str = "jupyter-lab", lab: str = "", notebook: str = "", manager: str = "", **env: str
    ) -> FrontEnd:
        site = tmp_path / "server" / "lib" / "python3.11" / "site-packages"
        for name, version in (("jupyterlab", lab), ("notebook", notebook)):
            if version:
                (site / f"{name}-{version}.dist-info").mkdir(parents=True)
        if manager:
            extension(tmp_path / "server" / "share" / "jupyter", manager)
        process(tmp_path / "proc", 77, f"{tmp_path}/server/bin/python3.11", f"{tmp_path}/server/bin/{program}")
        home = {"JUPYTER_DATA_DIR": f"{tmp_path}/data", "JUPYTER_CONFIG_DIR": f"{tmp_path}/config"}
        return frontend.look({"JPY_PARENT_PID": "77", **home, **env}, tmp_path / "proc")

    return look


def extension(folder: Path, version: str) -> None:
    """A widget manager in one Jupyter folder."""
    place = folder / "labextensions" / "@jupyter-widgets" / "jupyterlab-manager"
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"version": version}))


def process(proc: Path, pid: int, *words: str) -> None:
    """One process in a process table of our own."""
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


def said(front: FrontEnd) -> list[tuple[str, str]]:
    """Level and title of what is found."""
    return [(one.level, one.title) for one in frontend_findings.findings(front)]


def test_a_new_server_of_another_environment_shows_widgets_and_is_said(session) -> None:
    front = session(lab="4.1.5", manager="5.0.10", JPY_SESSION_NAME="a/04.ipynb")
    assert (front.kind, front.name, front.notebook) == ("jupyter", "JupyterLab 4.1.5", "a/04.ipynb")
    assert (front.widgets, front.same_environment) == ("yes", False)
    assert said(front) == [
        ("ok", "JupyterLab 4.1.5: buttons can show here"),
        ("notice", "The Jupyter server runs in another environment than this kernel"),
    ]


def test_j01_a_server_without_a_widget_manager_is_said_with_a_fix_for_this_user(session, tmp_path: Path) -> None:
    """The kernel has ipywidgets, the server's environment has no manager, as on Open OnDemand.

    Stands in for jupyter-widgets/ipywidgets#3821, tqdm/tqdm#1497, jupyter-widgets/ipywidgets#3823, niedakh/pqdm#218.
    """
    front = session(lab="4.3.5")
    assert front.widgets == "no"
    found = frontend_findings.findings(front)[0]
    assert found.level == "warning" and "no widget manager" in found.title
    assert "ln -sfn" in found.fix and f"{sys.prefix}/share/jupyter/labextensions" in found.fix
    extension(tmp_path / "data", "5.0.16")
    assert session().widgets == "yes"


@pytest.mark.parametrize("manager", ["", "3.1.1"])
def test_j01_an_old_lab_is_told_to_go(session, manager: str) -> None:
    """A Lab 3 with the widget manager of its time answers "model not found"."""
    front = session(lab="3.1.18", manager=manager)
    assert front.widgets == "no"
    (found, _) = frontend_findings.findings(front)
    assert found.title == "JupyterLab 3.1.18 is too old for the course's buttons" and "newest Jupyter" in found.fix


def test_j01_an_old_manager_in_a_new_lab_is_not_taken_for_a_fitting_one(session) -> None:
    front = session(lab="4.0.1", manager="3.1.1")
    assert said(front)[0] == ("warning", "The page's widget manager 3.1.1 is too old for ipywidgets 8.1.9")
    assert msgspec.structs.replace(front, ipywidgets="7.8.5").widgets == "yes"


@pytest.mark.parametrize(
    "off", [{"@jupyter-widgets/jupyterlab-manager": True}, ["@jupyter-widgets/jupyterlab-manager"]]
)
def test_j01_a_manager_that_is_switched_off_is_none(session, tmp_path: Path, off: object) -> None:
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    page.write_text(json.dumps({"disabledExtensions": off}))
    front = session(lab="4.1.5", manager="5.0.10")
    assert front.widgets == "no"
    assert said(front)[0] == ("warning", "JupyterLab 4.1.5 has its widget manager switched off")


def test_j01_what_cannot_be_seen_is_unknown_and_says_what_to_look_for(session, tmp_path: Path) -> None:
    fronts = [
        session(),  # an environment without any page
        frontend.look({"JPY_PARENT_PID": "999", "JPY_SESSION_NAME": "x.ipynb"}, tmp_path / "proc"),
        frontend.look({"JPY_SESSION_NAME": "x.ipynb"}, tmp_path / "proc"),
    ]
    for front in fronts:
        assert (front.kind, front.widgets) == ("jupyter", "unknown")
        found = frontend_findings.findings(front)[0]
        assert found.level == "unknown" and "VBox(" in found.fix


def test_j01_nothing_essential_is_in_a_widget_alone() -> None:
    """Every question carries its text beside the widget, for a page that cannot show the widget."""
    pytest.importorskip("ipywidgets", reason="the widgets' tests need ipywidgets")
    question = quiz.ask("04_starve", "what-can-help")
    shown = question._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert question.prompt[:40] in shown["text/plain"]
    assert [f"{letter}. " in shown["text/plain"] for letter in "abc"] == [True] * 3
    assert shown["text/html"].count("<li>") == len(question.data.options) >= 3


def test_the_classic_notebook_needs_its_own_manager(session, tmp_path: Path) -> None:
    front = session("jupyter-notebook", notebook="6.5.7", manager="5.0.10")
    assert (front.name, front.widgets) == ("Notebook 6.5.7", "no")
    script = tmp_path / "server" / "share" / "jupyter" / "nbextensions" / "jupyter-js-widgets" / "extension.js"
    script.parent.mkdir(parents=True)
    script.touch()
    assert session("jupyter-notebook").widgets == "yes"


def test_notebook_7_shows_what_lab_shows(session) -> None:
    front = session("jupyter-notebook", notebook="7.4.1", lab="4.4.0", manager="5.0.10")
    assert (front.name, front.widgets) == ("Jupyter Notebook 7.4.1", "yes")


@pytest.mark.parametrize("program", ["pytest", "jupyter-nbconvert", "papermill", "jupyter-execute"])
def test_a_kernel_that_a_program_runs_has_no_page(session, program: str) -> None:
    front = session(program, lab="4.1.5", manager="5.0.10")
    assert (front.kind, front.widgets) == ("headless", "no")
    assert said(front)[0] == ("ok", f"Output goes to {program}, nobody watches: text")


def test_the_server_is_told_by_how_it_was_called(tmp_path: Path) -> None:
    calls = {
        ("/e/bin/python", "/e/bin/jupyter-lab", "--ip=127.0.0.1"): ("jupyter-lab", "/e"),
        ("/e/bin/python3.11", "-m", "jupyterlab"): ("jupyterlab", "/e"),
        ("/e/bin/python", "-Xutf8", "/e/bin/jupyterhub-singleuser"): ("jupyterhub-singleuser", "/e"),
        ("bin/python", "-m", "notebook"): ("notebook", f"{tmp_path}/here"),
        ("python", "-m", "jupyterlab"): ("jupyterlab", f"{tmp_path}/here"),
        ("/opt/app",): ("app", ""),
    }
    (tmp_path / "here" / "bin").mkdir(parents=True)
    python = tmp_path / "here" / "bin" / "python"
    python.symlink_to(sys.executable)
    for pid, (words, (program, prefix)) in enumerate(calls.items(), start=1):
        process(tmp_path / "proc", pid, *words)
        (tmp_path / "proc" / str(pid) / "cwd").symlink_to(tmp_path / "here")
        (tmp_path / "proc" / str(pid) / "environ").write_bytes(f"A=1\0PATH={python.parent}\0".encode())
        server = frontend.servers.behind_this_kernel({"JPY_PARENT_PID": str(pid)}, tmp_path / "proc")
        assert (server.program, server.prefix) == (program, prefix), words
        assert server.serves_pages is (program != "app")


def test_a_process_is_asked_for_where_there_is_no_process_table(tmp_path: Path) -> None:
    env = {"JPY_PARENT_PID": str(os.getpid())}
    asked = frontend.servers.behind_this_kernel(env, tmp_path / "no-proc")
    assert asked.program == frontend.servers.behind_this_kernel(env).program


def test_vs_code_and_colab_are_told(session, monkeypatch, tmp_path: Path) -> None:
    process(tmp_path / "proc", 5, "/usr/bin/node", "extensionHost")
    env = {"JPY_PARENT_PID": "5", "VSCODE_PID": "1"}
    assert frontend.look(env, tmp_path / "proc").kind == "vscode"
    shell(monkeypatch, ZMQInteractiveShell(user_ns={"__vsc_ipynb_file__": "/a/b.ipynb"}))
    front = frontend.look({"JPY_PARENT_PID": "5"}, tmp_path / "proc")
    assert (front.kind, front.widgets) == ("vscode", "unknown")
    assert session(lab="4.1.5", VSCODE_PID="1", JPY_SESSION_NAME="x.ipynb").kind == "vscode"
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert (front := session()).kind == "colab"
    assert said(front)[0][0] == "unknown"


def test_a_lab_started_in_vs_code_s_terminal_is_a_lab(session) -> None:
    assert session(lab="4.1.5", VSCODE_PID="1", JPY_SESSION_NAME="x.ipynb").kind == "jupyter"


@pytest.mark.parametrize(("is_terminal", "kind"), [(True, "terminal"), (False, "none")])
def test_without_ipython_it_is_a_terminal_or_nothing(monkeypatch, is_terminal: bool, kind: str) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(frontend, "_is_terminal", lambda: is_terminal)
    front = frontend.look({"JPY_PARENT_PID": "1", "JPY_SESSION_NAME": "x.ipynb"})  # what `!command` inherits
    assert (front.kind, front.server, front.notebook, front.widgets) == (kind, None, "", "no")


def test_ipython_in_a_terminal_is_told(monkeypatch) -> None:
    shell(monkeypatch, TerminalInteractiveShell())
    front = frontend.look({})
    assert (front.kind, said(front)) == ("ipython", [("ok", "Output goes to IPython in a terminal: text")])


def test_hostile_files_of_a_server_do_no_harm(session, tmp_path: Path) -> None:
    page = tmp_path / "config" / "labconfig" / "page_config.json"
    page.parent.mkdir(parents=True)
    for text in ("[]", "{", '{"disabledExtensions": 3}', '{"disabledExtensions": "x"}', "\xff"):
        page.write_text(text)
        assert session().server.disabled is False
    place = tmp_path / "data" / "labextensions" / "@jupyter-widgets" / "jupyterlab-manager"
    place.mkdir(parents=True)
    for text in ("[]", '{"version": 5}', ""):
        (place / "package.json").write_text(text)
        assert session().server.manager == ""


# Real kernels


LOOK = """
import sys
before = set(sys.modules)
from gpuworkshop.machine import frontend
front = frontend.look()
heavy = {"torch", "numpy", "ipywidgets", "matplotlib"} & (set(sys.modules) - before)
import msgspec
print("FRONT", msgspec.json.encode({"front": front, "widgets": front.widgets, "heavy": sorted(heavy)}).decode())
"""


def answer(text: str) -> tuple[FrontEnd, str, list[str]]:
    """What LOOK printed in a kernel."""
    line = next(line for line in text.splitlines() if line.startswith("FRONT "))
    found = json.loads(line.removeprefix("FRONT "))
    return msgspec.convert(found["front"], FrontEnd), found["widgets"], found["heavy"]


def run_notebook(*cells: str) -> list[dict]:
    """The outputs that a run without a front end stores, all cells' in one list."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    return [output for cell in notebook.cells for output in cell.outputs]


def test_a_kernel_under_nbclient_knows_that_nobody_watches() -> None:
    (output,) = (one for one in run_notebook(LOOK) if one.get("name") == "stdout")
    front, widgets, heavy = answer(output["text"])
    assert (front.kind, widgets, heavy) == ("headless", "no", [])
    assert front.same_environment is True


@pytest.fixture(params=[True, False], ids=["with a manager", "switched off"])
def lab_says(request, tmp_path: Path) -> Iterator[tuple[str, FrontEnd, str]]:
    """What LOOK says in a kernel of a real JupyterLab behind a base URL: the answer wanted, and what came."""
    pytest.importorskip("jupyterlab", reason="the server's test needs jupyterlab")
    client = pytest.importorskip("jupyter_client", reason="the server's test needs jupyter_client")
    spec = importlib.util.spec_from_file_location("lab_for_frontend", ROOT / "tests" / "browser" / "lab.py")
    lab = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lab)
    root, home = tmp_path / "root", tmp_path / "home"
    root.mkdir()
    with lab.server(root, home, widget_manager=request.param) as address:
        body = {"path": "x.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        headers = {"Authorization": f"token {lab.TOKEN}", "Content-Type": "application/json"}
        ask = urllib.request.Request(f"{address}api/sessions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(ask, timeout=60) as reply:
            kernel = json.load(reply)["kernel"]["id"]
        talk = client.BlockingKernelClient(connection_file=str(home / "runtime" / f"kernel-{kernel}.json"))
        talk.load_connection_file()
        talk.start_channels()
        heard: list[str] = []
        wait(talk)
        talk.execute_interactive(LOOK, timeout=60, output_hook=lambda m: heard.append(m["content"].get("text", "")))
        talk.stop_channels()
        front, widgets, _ = answer("".join(heard))
        yield ("yes" if request.param else "no"), front, widgets


def wait(talk) -> None:
    """Until the kernel answers; on a busy machine one that is still starting looks dead."""
    end = time.monotonic() + 120
    while True:
        try:
            return talk.wait_for_ready(timeout=60)
        except RuntimeError:
            if time.monotonic() > end:
                raise


def test_a_real_lab_behind_a_proxy_s_address_is_recognized(lab_says) -> None:
    wanted, front, widgets = lab_says
    assert front.kind == "jupyter" and front.name.endswith(" behind Open OnDemand")
    assert front.notebook == "x.ipynb"
    assert (front.same_environment, widgets) == (True, wanted)
    assert front.server.manager.partition(".")[0] == "5"


NO_WIDGETS = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ipywidgets", "IProgress"):
            raise ImportError(name)
sys.meta_path.insert(0, Without())
import pkgutil, importlib, gpuworkshop.course
for one in pkgutil.walk_packages(gpuworkshop.course.__path__, "gpuworkshop.course."):
    importlib.import_module(one.name)
from gpuworkshop import child
from gpuworkshop.course import quiz
question = quiz.ask("04_starve", "what-can-help")
assert "application/vnd.jupyter.widget-view+json" not in question._repr_mimebundle_()
bar = child.Bar("work", sys.stderr)
bar(child.Progress(0.5, "half"))
bar(child.Progress(1.0))
del bar
print(question._repr_mimebundle_()["text/plain"])
"""


def test_j02_without_ipywidgets_everything_is_text(tmp_path: Path) -> None:
    """No import needs ipywidgets, questions and progress are text, and nothing complains when it goes.

    Stands in for aws/amazon-sagemaker-examples#3154, CosmiQ/solaris#392,
    virtualramblas/Domain-Specific-Small-Language-Models#1.
    """
    run = subprocess.run([sys.executable, "-c", NO_WIDGETS], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "a. " in run.stdout and "half" in run.stderr
    assert "Exception ignored" not in run.stderr and "Traceback" not in run.stderr


def test_j02_a_kernel_without_ipywidgets_is_said(session, monkeypatch) -> None:
    monkeypatch.setattr(frontend, "_version", lambda package: "")
    front = session(lab="4.1.5", manager="5.0.10")
    found = frontend_findings.findings(front)[0]
    assert (found.level, front.widgets) == ("warning", "no") and "no ipywidgets" in found.title
    assert found.fix == f"{sys.executable} -m pip install 'ipywidgets>=8.1'"


CHILD = """
import sys
from gpuworkshop import child
bar = child.Bar("work", sys.stderr)
for step in range(4):
    bar(child.Progress(step / 3, f"step {step}"))
print("result: 12 images/s")
"""


def test_j03_a_stored_run_ends_with_the_result_as_text() -> None:
    """A run without a page stores the result after the bar, and no widget that would stay at 0.

    Stands in for jupyter-widgets/ipywidgets#3812, bstriner/keras-tqdm#25, starsimhub/fpsim#308.
    """
    outputs = run_notebook(CHILD)
    assert {one["output_type"] for one in outputs} == {"stream"}
    text = "".join(one["text"] for one in outputs if one["name"] == "stdout")
    assert text.rstrip().endswith("result: 12 images/s")


KILLED = """
import os, signal
from gpuworkshop import state
for number in range(5):
    assert state.append("j04.jsonl", {"number": number, "text": "x" * 5000})
handle = os.open(state.folder() / "j04.jsonl", os.O_WRONLY | os.O_APPEND)
os.write(handle, b'{"number": 5, "te')
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_j04_records_survive_a_kernel_that_the_system_kills(own_state: Path) -> None:
    """Records are on the disk when they are made; half a line of the last one is skipped and counted.

    Stands in for jannis-baum/Jupyviv#28, ypwhs/DogBreed_gluon#3, FoNDUE-HTR/Documentation#5.
    """
    run = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT)
    assert run.returncode == -9
    records, torn = state.read_lines("j04.jsonl")
    assert ([record["number"] for record in records], torn) == ([0, 1, 2, 3, 4], 1)
    assert state.append("j04.jsonl", {"number": 6})
    records, torn = state.read_lines("j04.jsonl")
    assert (records[-1]["number"], torn) == (6, 1)


# Which Python


def test_v26_a_kernel_that_is_not_the_active_environment_is_a_fail_with_both_paths() -> None:
    """The terminal has an environment with PyTorch active, the kernel runs another Python.

    Stands in for rcgsheffield/sheffield_hpc#1350, StatCan/aaw-kubeflow-containers#294, pytorch/pytorch#4827.
    """
    python = Interpreter("/usr/bin/python3", "/usr", {"CONDA_PREFIX": "/envs/my torch"}, torch=False)
    (found,) = interpreter.findings(python)
    assert found.level == "fail" and "not the active environment's" in found.title
    assert found.evidence == "this Python is /usr/bin/python3; CONDA_PREFIX=/envs/my torch"
    assert found.fix.startswith("'/envs/my torch/bin/python' -m ipykernel install --user --name gpuworkshop ")


def test_v26_without_pytorch_the_package_imports_and_says_so() -> None:
    """An interpreter without third-party PyTorch: no ImportError, and the answer comes from this process."""
    code = "import sys; sys.modules['torch'] = None\n"
    code += "import gpuworkshop\nfrom gpuworkshop.machine import interpreter\n"
    code += "found = interpreter.findings(interpreter.here())\nprint(found[0].level, found[0].evidence)"
    env = {**os.environ, "CONDA_PREFIX": "/elsewhere"}
    env.pop("VIRTUAL_ENV", None)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == f"fail this Python is {sys.executable}; CONDA_PREFIX=/elsewhere"


@pytest.mark.parametrize(
    ("active", "torch", "levels"),
    [
        ({}, True, []),
        ({"VIRTUAL_ENV": "/env", "CONDA_PREFIX": "/base"}, True, ["ok"]),
        ({"CONDA_PREFIX": "/base"}, True, ["notice"]),
        ({"VIRTUAL_ENV": "/env"}, False, ["fail"]),
        ({}, False, ["fail"]),
    ],
)
def test_v26_only_a_missing_pytorch_fails(active: dict[str, str], torch: bool, levels: list[str]) -> None:
    found = interpreter.findings(Interpreter("/env/bin/python", "/env", active, torch))
    assert [one.level for one in found] == levels
    assert all("ipykernel" not in one.fix for one in found)
