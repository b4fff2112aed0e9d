"""The live chart in a real kernel without a page: what a saved notebook holds, whatever can or cannot be shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from gpuworkshop.instruments.live_screen import WAITING

STANDINS = Path(__file__).parent / "standins"
GIB = 2**30
CARD = {
    "name": "NVIDIA Test GPU",
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "memory": {"total": 80 * GIB, "used": 8 * GIB, "free": 72 * GIB, "reserved": 0},
    "samples": {"gpu": {"every": 0.2, "values": [80, 60], "kept": 100}},
}
VIEW = "application/vnd.jupyter.widget-view+json"
BEGIN = """import os, sys, time
sys.path.insert(0, {standins!r})
os.environ.update(FAKE_NVML={node!r}, CUDA_VISIBLE_DEVICES="0", **{more!r})
from gpuworkshop.instruments.watch import Watch
from gpuworkshop.instruments.watch_live import live
"""
WATCHED = "with Watch() as seen:\n    live(seen)\n    time.sleep(1.5)"
ON_A_PAGE = {"JPY_SESSION_NAME": "lesson.ipynb"}
"""What a Jupyter server puts into the environment of its kernels."""


def run(folder: Path, *cells: str, more: dict[str, str] | None = None) -> list[list[Any]]:
    """Run the cells in a kernel of their own; the outputs of each, as a saved notebook would hold them."""
    node = folder / "node.json"
    node.write_text(json.dumps({"devices": [CARD]}))
    first = BEGIN.format(standins=str(STANDINS), node=str(node), more=more or {})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (first, *cells)])
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    NotebookClient(notebook, timeout=120, allow_errors=True).execute(env={**os.environ, "PYTHONPATH": path})
    assert notebook.cells[0].outputs == []
    return [cell.outputs for cell in notebook.cells[1:]]


def last_picture(outputs: list[Any]) -> str:
    """The text of the only output, after a look at all of its faces."""
    (shown,) = outputs
    assert shown.output_type == "display_data" and VIEW not in shown.data
    assert "<svg" in shown.data["text/html"] and "ended, last sample" in shown.data["text/html"]
    return shown.data["text/plain"]


@pytest.mark.parametrize("more", [{}, ON_A_PAGE], ids=["nobody watches", "on a page"])
def test_j03_a_saved_notebook_holds_the_last_picture(tmp_path: Path, more: dict[str, str]) -> None:
    """Case J03 (jupyter-widgets/ipywidgets#3812): a headless run stores the bar's first state, 0/3."""
    (outputs,) = run(tmp_path, WATCHED, more=more)
    text = last_picture(outputs)
    assert "cuda:0: utilization, %" in text and "8.0 GiB" in text and "ended" in text
    assert "n/a" not in text.partition("Idle meter")[0]


def test_j01_a_widget_that_cannot_show_has_html_and_text_beside_it(tmp_path: Path) -> None:
    """Case J01 (jupyter-widgets/ipywidgets#3821): "model not found", and nothing else, where a bar should be."""
    (outputs,) = run(tmp_path, "chart = live()\ntime.sleep(0.5)", more=ON_A_PAGE)
    (shown,) = outputs
    assert VIEW in shown.data, "it is still live"
    assert shown.data["text/plain"] == WAITING and WAITING in shown.data["text/html"]


def test_j02_without_ipywidgets_the_output_is_replaced_and_nothing_complains(tmp_path: Path) -> None:
    """Case J02: ImportError (IProgress) from tqdm.notebook, then a second error from the object's clean-up."""
    hide = "sys.modules['ipywidgets'] = None"
    _, outputs, said = run(tmp_path, hide, f"{WATCHED}", "print(seen.over)", more=ON_A_PAGE)
    assert "8.0 GiB" in last_picture(outputs) and said[0].text == "True\n"


def test_an_interrupted_cell_ends_the_chart_and_leaves_its_picture(tmp_path: Path) -> None:
    outputs, said = run(
        tmp_path, "chart = live()\ntime.sleep(1.5)\nraise KeyboardInterrupt", "print(chart.running)", more=ON_A_PAGE
    )
    assert "8.0 GiB" in last_picture(outputs[:1]) and outputs[1].ename == "KeyboardInterrupt"
    assert said[0].text == "False\n"


def test_a_chart_that_is_the_value_of_its_cell_shows_once(tmp_path: Path) -> None:
    shown, again = run(tmp_path, "chart = live()\nchart", "chart.stop()\nchart")
    assert len(shown) == 1
    assert "ended" in last_picture(again), "in another cell it shows its last picture"
