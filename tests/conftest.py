"""Rules of every test run: the learner's own state is not touched, notebooks are offline, in CI a skip is a failure."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

OFFLINE = Path(__file__).parent / "offline"
_IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_configure(config: pytest.Config) -> None:
    """Point the state folder away from home before anything, a notebook's kernel too, can use it."""
    state = tempfile.TemporaryDirectory(prefix="gpuworkshop-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["GPUWORKSHOP_STATE"] = state.name
    log = os.environ.setdefault("OFFLINE_LOG_OF_RUN", str(Path(state.name) / "offline.log"))  # of all its processes
    keep_notebooks_offline(Path(log))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background; what tests start must hear it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_notebooks_offline(log: Path) -> None:
    """Start nbval's kernels, and what they start, where every connection to another machine is refused."""
    try:
        from nbval import kernel
    except ImportError:
        return
    start = kernel.start_new_kernel

    def offline(*args: object, **kwargs: object) -> object:
        path = os.pathsep.join(filter(None, (str(OFFLINE), os.environ.get("PYTHONPATH"))))
        return start(*args, env={**os.environ, "PYTHONPATH": path, "OFFLINE_LOG": str(log)}, **kwargs)

    kernel.start_new_kernel, kernel.offline_log = offline, log


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A notebook that tried to use the network fails the run, also where its code hid that."""
    if tried := tried_online():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nA notebook tried to use the network:\n{tried}", file=sys.stderr)


def tried_online() -> str:
    """What notebooks tried to reach, one line each; "" for nothing."""
    log = getattr(sys.modules.get("nbval.kernel"), "offline_log", None)
    return log.read_text(encoding="utf-8") if log and log.exists() else ""


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
