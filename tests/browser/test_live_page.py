"""The live chart in JupyterLab behind a base URL: its pace while a cell trains, a reload, the keyboard, both themes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pytest

lab.skip_where_a_part_is_missing()

import nbformat  # noqa: E402
from playwright.sync_api import Browser, expect  # noqa: E402

GIB = 2**30
CARD = {
    "name": "NVIDIA Test GPU",
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "memory": {"total": 80 * GIB, "used": 20 * GIB, "free": 60 * GIB, "reserved": 0},
    "samples": {"gpu": {"every": 0.2, "values": [90, 95, 80, 10, 5, 90, 100, 100, 40, 0], "kept": 100}},
    "gpm": {"metrics": {"sm": 35.0, "occupancy": 20.0, "tensor": 11.0, "dram": 9.0}},
}
BEGIN = """import os, sys, time
sys.path.insert(0, {standins!r})
os.environ.update(FAKE_NVML={node!r}, CUDA_VISIBLE_DEVICES="0")
import torch
from gpuworkshop.instruments.watch import Watch
from gpuworkshop.instruments.watch_live import live

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
x, y = torch.randn(256, 512), torch.randint(0, 10, (256,))

def train(seconds):
    optimizer, end = torch.optim.AdamW(model.parameters()), time.monotonic() + seconds
    while time.monotonic() < end:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()"""
TRAINS = 180
"""Seconds that the watched cell would take; nobody waits for its end."""
WATCHED = f"with Watch() as seen:\n    live(seen)\n    train({TRAINS})"
BESIDE = "live()"
COUNTED = 6
"""Seconds over which updates are counted."""
FLOOR = 2.0
"""Updates a second below which a test fails; four are sent. A busy machine must not make it red: the rate is shown."""

COUNT = """(seconds) => new Promise((done) => {
  const chart = document.querySelector(".gw-live"), at = [], began = performance.now();
  const watcher = new MutationObserver(() => at.push(performance.now() - began));
  watcher.observe(chart, { childList: true, subtree: true });
  setTimeout(() => { watcher.disconnect(); done(at); }, 1000 * seconds);
})"""
"""When the chart on the page was replaced, in ms; one entry for each time that the page was changed."""


class Chart(lab.Page):
    """A notebook with a cell that trains under a live chart, and one with a chart by itself."""

    def __init__(self, browser: Browser, address: str, notebook: Path):
        super().__init__(browser.new_page(viewport={"width": 1180, "height": 1000}), address)
        self.notebook = notebook
        self.open(notebook.name)

    @property
    def live(self) -> Any:
        """The widget."""
        return self.page.locator(".gw-live")

    def start(self, cell: int) -> None:
        """Run the first cell and `cell`, and wait for the chart. JupyterLab says idle while a cell runs that made a
        widget, so nothing here waits for that."""
        for place in (0, cell):
            self.prompt(place).click()
            self.page.keyboard.press("Control+Enter")
        self.live.locator("svg").first.wait_for(timeout=lab.SECONDS * 1000)

    def prompt(self, cell: int) -> Any:
        """What stands before a cell."""
        return self._notebook().locator(".jp-CodeCell").nth(cell).locator(".jp-InputPrompt")

    def runs(self, cell: int) -> bool:
        """Whether a cell still runs."""
        return "*" in self.prompt(cell).inner_text()

    def pace(self) -> float:
        """Updates of the picture that reach the page in a second."""
        times = self.page.evaluate(COUNT, COUNTED)
        gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
        rate, longest = len(times) / COUNTED, max(gaps, default=0)
        print(f"\n{rate:.2f} updates a second over {COUNTED} s, the longest gap {longest:.0f} ms")
        return len(times) / COUNTED

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook; what the file then holds."""
        before, end = self.notebook.stat().st_mtime_ns, time.monotonic() + lab.SECONDS
        self.prompt(0).click()
        self.page.keyboard.press("Control+s")
        while self.notebook.stat().st_mtime_ns == before:
            assert time.monotonic() < end, "the notebook was not saved"
            self.page.wait_for_timeout(100)
        self.page.wait_for_timeout(500)  # the file is written in pieces
        return nbformat.read(self.notebook, as_version=4)

    def texts(self) -> str:
        """What the chart says."""
        return " ".join(self.live.locator("svg text").all_text_contents())

    def picture(self, name: str) -> None:
        """A screenshot for a person to look at, where one is wanted."""
        if folder := os.environ.get("GPUWORKSHOP_SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.fixture
def chart(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Iterator[Chart]:
    root, home = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home")
    node = home / "node.json"
    node.write_text(json.dumps({"devices": [CARD]}))
    begin = BEGIN.format(standins=str(lab.REPOSITORY / "tests" / "standins"), node=str(node))
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": lab.KERNEL})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in (begin, WATCHED, BESIDE)]
    nbformat.write(notebook, root / "live.ipynb")
    with lab.server(root, home) as address:
        if request.param == "dark":  # the theme, as a test asks for it
            lab.set_option(home, "apputils-extension/themes", theme="JupyterLab Dark")
        page = Chart(browser, address, root / "live.ipynb")
        yield page
        page.page.close()


@pytest.mark.parametrize("chart", ["light"], indirect=True)
def test_the_chart_moves_while_a_cell_trains_and_its_button_works_from_the_keyboard(chart: Chart) -> None:
    chart.start(1)
    assert chart.pace() >= FLOOR and chart.runs(1)
    assert "live, last sample" in chart.texts() and "busy" in chart.texts() and "20.0 GiB" in chart.texts()
    chart.picture("live-light")
    reach_by_tab(chart)
    chart.page.keyboard.press("Enter")
    final = chart.page.get_by_role("region", name="The last 60 s.").filter(has_text="ended, last sample")
    expect(final).to_be_visible(timeout=lab.SECONDS * 1000)
    assert chart.runs(1), "the button stops the chart, not the cell, and need not wait for it"
    expect(chart.live).to_have_count(0)
    chart.picture("ended-light")
    shown = chart.save().cells[1].outputs
    assert len(shown) == 1 and "ended, last sample" in shown[0].data["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" not in shown[0].data
    chart.clean()


def reach_by_tab(chart: Chart) -> None:
    """Go from the cell's prompt to the button with the keyboard alone."""
    button = chart.live.get_by_role("button", name="Stop the chart")
    chart.prompt(1).click()
    for _ in range(12):
        chart.page.keyboard.press("Tab")
        if button.evaluate("(one) => one === document.activeElement"):
            return
    raise AssertionError("Tab does not reach the button")


@pytest.mark.parametrize("chart", ["dark"], indirect=True)
def test_a_page_that_is_loaded_again_shows_the_live_chart_with_its_past(chart: Chart) -> None:
    chart.start(2)
    assert chart.pace() >= FLOOR
    chart.save()
    before = points(chart)
    chart.reload()
    chart.live.locator("svg").first.wait_for(timeout=lab.SECONDS * 1000)
    assert chart.pace() >= FLOOR
    assert points(chart) > before, "what was measured before the reload is still drawn"
    chart.picture("live-dark")
    stop = chart.live.get_by_role("button", name="Stop the chart")
    stop.focus()
    chart.page.keyboard.press("Space")
    expect(chart.live.locator("svg text").filter(has_text="ended, last sample")).to_be_visible()
    expect(stop).to_be_hidden()
    chart.clean()


def points(chart: Chart) -> int:
    """How many points the longest line of the chart has."""
    paths = chart.live.locator("svg path").evaluate_all("(all) => all.map((one) => one.getAttribute('d'))")
    return max(path.count("L") for path in paths)
