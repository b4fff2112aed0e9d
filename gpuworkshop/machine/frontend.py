"""What shows the output of this Python: a notebook page, a terminal, or nobody; and whether widgets can show there.

A kernel is never told whether a page could show its widget. So this reads what the page would need: ipywidgets in the
kernel's environment, a widget manager of a fitting version in the server's. "yes" means that all of it is there. The
course never puts anything into a widget alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop.machine import server as servers
from gpuworkshop.machine.server import PROC, Server, major

Kind = Literal["jupyter", "vscode", "colab", "ipython", "headless", "terminal", "none"]

NEEDED_MANAGER = 5
"""The widget manager for ipywidgets 8 (`jupyterlab_widgets` 3); it knows the widgets of ipywidgets 7 too."""
NEEDED_LAB = 4
_SHELLS = {"TerminalInteractiveShell": "ipython", "ZMQInteractiveShell": "kernel", "Shell": "colab"}


class FrontEnd(msgspec.Struct, frozen=True):
    """What shows the output of this Python.

    `kind`: a page of a Jupyter server, VS Code, Colab, IPython in a terminal, a kernel that a program runs (nbconvert,
    pytest), a terminal, or none of them (a pipe, a log file). `ipywidgets` is its version in this environment, "" if it
    is not there. `server` is what started the kernel, where that can be seen. `notebook` is the name of the notebook
    as the server gave it.
    """

    kind: Kind
    python: str
    prefix: str
    ipywidgets: str = ""
    server: Server | None = None
    notebook: str = ""

    @property
    def name(self) -> str:
        """The front end in words."""
        if self.kind == "jupyter" and self.server:
            return _page(self.server)
        if self.kind == "headless" and self.server and self.server.program:
            return f"{self.server.program}, nobody watches"
        return _NAMES[self.kind]

    @property
    def same_environment(self) -> bool | None:
        """Whether the server runs in the kernel's environment; None when that cannot be seen."""
        if self.server is None or not self.server.prefix:
            return None
        return os.path.realpath(self.server.prefix) == os.path.realpath(self.prefix)

    @property
    def widgets(self) -> Literal["yes", "no", "unknown"]:
        """Whether widgets can show here: everything they need is there, something is missing, or it cannot be seen."""
        if self.kind in ("ipython", "headless", "terminal", "none") or not self.ipywidgets:
            return "no"
        if self.kind != "jupyter" or self.server is None or not self.server.prefix:
            return "unknown"
        if self.server.is_notebook_6:
            return "yes" if self.server.classic else "no"
        if not self.server.lab and not self.server.notebook:
            return "unknown"
        return "yes" if fits(self) else "no"


_NAMES: dict[Kind, str] = {
    "jupyter": "a Jupyter page",
    "vscode": "VS Code",
    "colab": "Google Colab",
    "ipython": "IPython in a terminal",
    "headless": "a kernel that nobody watches",
    "terminal": "a terminal",
    "none": "no terminal and no notebook",
}


def fits(front: FrontEnd) -> bool:
    """Whether the server's widget manager is switched on and understands the widgets of this kernel."""
    needed = NEEDED_MANAGER if major(front.ipywidgets) >= 8 else 1
    return major(front.server.manager) >= needed and not front.server.disabled


def look(env: Mapping[str, str] = os.environ, proc: Path = PROC) -> FrontEnd:
    """The front end of this process. To be asked in the kernel itself: a child process does not know its page."""
    running = shell()
    kind = _SHELLS.get(type(running).__name__, "") if running else ""
    server = servers.behind_this_kernel(env, proc) if kind == "kernel" else None
    return FrontEnd(
        kind=_kind(kind, running, server, env),
        python=sys.executable or "",
        prefix=sys.prefix,
        ipywidgets=_version("ipywidgets"),
        server=server,
        notebook=env.get("JPY_SESSION_NAME", "") if server and server.serves_pages else "",
    )


def shell() -> Any:
    """IPython's shell if this Python runs in one; imports nothing."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask() if ask else None


def _kind(kind: str, shell: Any, server: Server | None, env: Mapping[str, str]) -> Kind:
    if kind == "colab" or "google.colab" in sys.modules:
        return "colab"
    if kind == "ipython":
        return "ipython"
    if kind != "kernel":
        return "terminal" if _is_terminal() else "none"
    if "__vsc_ipynb_file__" in getattr(shell, "user_ns", {}):
        return "vscode"
    if server is None:  # a gateway, another user's process, or a server in another container
        return "jupyter" if env.get("JPY_SESSION_NAME") else "headless"
    if not server.serves_pages and "VSCODE_PID" in env and not env.get("JPY_SESSION_NAME"):
        return "vscode"
    return "jupyter" if server.serves_pages or env.get("JPY_SESSION_NAME") else "headless"


def _is_terminal() -> bool:
    return bool(sys.stdout) and sys.stdout.isatty()


def _page(server: Server) -> str:
    if server.is_notebook_6:
        page = f"Notebook {server.notebook}"
    elif server.program.endswith("notebook") and server.notebook:
        page = f"Jupyter Notebook {server.notebook}"
    else:
        page = f"JupyterLab {server.lab}".strip() if server.lab or "lab" in server.program else "a Jupyter page"
    return page + (" behind Open OnDemand" if server.behind_ondemand else "")


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
