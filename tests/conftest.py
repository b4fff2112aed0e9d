"""Rules of every test run: nothing touches the learner's own state, and in CI a skip is a failure."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Point the state folder away from home before anything, a notebook's kernel too, can use it."""
    state = tempfile.TemporaryDirectory(prefix="gpuworkshop-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["GPUWORKSHOP_STATE"] = state.name
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; what tests start must hear it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Give each test a state folder of its own, and a spare one: what a full home once left there is nobody's here."""
    folder = tmp_path / "gpuworkshop-state"
    monkeypatch.setenv("GPUWORKSHOP_STATE", str(folder))
    if request.path.name != "test_state.py":  # there the spare folder itself is tested
        monkeypatch.setattr("gpuworkshop.state.spare_folder", lambda: tmp_path / "gpuworkshop-spare")
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI, report a skipped test as failed, by name and with its reason."""
    report = yield
    return _no_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """In CI, report a skipped module as failed, by name and with its reason."""
    report = yield
    return _no_skip(report)


def _no_skip(report: pytest.TestReport | pytest.CollectReport) -> pytest.TestReport | pytest.CollectReport:
    if _IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"in CI a skip is a failure. {reason}"
    return report
