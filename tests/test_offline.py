"""The notebooks' kernels cannot reach another machine, and an attempt is heard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

OFFLINE = Path(__file__).parent / "offline"
LOCAL = """
import socket, tempfile, os
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(("localhost", server.getsockname()[1])).close()
left, right = socket.socketpair()
socket.getaddrinfo(socket.gethostname(), None)
with socket.socket(socket.AF_UNIX) as unix:
    unix.bind(os.path.join(tempfile.mkdtemp(), "s"))
print("fine")
"""
CHILD = "import socket; socket.gethostbyname('example.invalid')"
HIDDEN = "import {module}\ntry:\n    {call}\nexcept OSError as error:\n    print(error)\n"


def run(code: str, log: Path) -> subprocess.CompletedProcess:
    """A Python that starts as a notebook's kernel does."""
    env = {**os.environ, "PYTHONPATH": str(OFFLINE), "OFFLINE_LOG": str(log)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_this_machine_is_reached(tmp_path) -> None:
    done = run(LOCAL, tmp_path / "log")
    assert done.stdout == "fine\n", done.stderr
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("socket", "socket.create_connection(('192.0.2.1', 80), timeout=1)"),
        ("socket", "socket.socket().connect_ex(('192.0.2.1', 80))"),
        ("socket", "socket.getaddrinfo('example.invalid', 80)"),
        ("socket", "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"),
        ("urllib.request", "urllib.request.urlopen('https://example.invalid/x', timeout=1)"),
        (
            "subprocess, sys",
            "raise OSError(subprocess.run([sys.executable, '-c', CHILD], stderr=-1, text=True).stderr)",
        ),
    ],
)
def test_another_machine_is_refused_and_an_except_does_not_hide_it(tmp_path, module, call) -> None:
    done = run(f"CHILD = {CHILD!r}\n" + HIDDEN.format(module=module, call=call), tmp_path / "log")
    assert "is refused: the course needs no network" in done.stdout, done.stderr
    assert "to '" in (tmp_path / "log").read_text()


def test_the_kernels_of_notebooks_start_that_way() -> None:
    kernel = pytest.importorskip("nbval.kernel", reason="needs nbval")
    assert kernel.start_new_kernel.__name__ == "offline"


def test_an_attempt_fails_the_whole_run(tmp_path, monkeypatch, request, capsys) -> None:
    """Proved once with a notebook of one cell; a kernel costs seconds, so here the end of a run is asked."""
    kernel = pytest.importorskip("nbval.kernel", reason="needs nbval")
    (rules,) = [one for one in request.config.pluginmanager.get_plugins() if hasattr(one, "keep_notebooks_offline")]
    ended = SimpleNamespace(exitstatus=0)
    monkeypatch.setattr(kernel, "offline_log", tmp_path / "log")
    rules.pytest_sessionfinish(ended)
    assert ended.exitstatus == 0
    (tmp_path / "log").write_text("socket.connect to 'example.invalid' from 04.ipynb:1\n")
    rules.pytest_sessionfinish(ended)
    assert ended.exitstatus == 1 and "example.invalid" in capsys.readouterr().err
