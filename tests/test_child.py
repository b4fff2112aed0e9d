"""A child process: its result, its own words, and its sure end, whatever happens to it or to its parent."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from gpuworkshop import child
from gpuworkshop.child import ChildFailed, Progress, Tell

WAIT = 30
"""Seconds that a test waits for something that must happen; how fast it happens is not tested."""

ACTS = '''
"""What the children of these tests do."""
import multiprocessing, os, signal, subprocess, sys, time


def double(request, tell):
    return {"twice": 2 * request["number"], "nothing": None}


def tell_and_wait(request, tell):
    tell.progress(0.5, "half")
    tell.record({"pid": os.getpid(), "group": os.getpgrp()})
    time.sleep(600)


def record_and_fail(request, tell):
    for number in range(3):
        tell.record({"number": number, "long": "x" * 200_000})
    raise KeyError("no such\\n  picture")


def say_nothing(request, tell):
    raise RuntimeError


def chatter(request, tell):
    print('{"type": "result", "value": "not mine"}')
    print("on stdout", flush=True)
    os.write(1, b"by the system\\n")
    subprocess.run(["echo", "by a program"])
    print("on stderr", file=sys.stderr)
    if request["then"] == "fail":
        raise ValueError("after all that")
    return "fine"


def be_killed(request, tell):
    os.kill(os.getpid(), request["signal"])
    time.sleep(600)


def leave(request, tell):
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def forget_a_process(request, tell):
    left = os.fork()  # holds the pipes of this child, the one for its messages too
    if left == 0:
        time.sleep(600)
        os._exit(0)
    tell.record({"pid": os.getpid(), "left": left})
    if request["then"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if request["then"] == "wait":
        time.sleep(600)
    return "done"


def pause_a_worker(request, tell):
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
    worker.start()
    os.kill(worker.pid, signal.SIGSTOP)
    tell.record({"pid": os.getpid(), "left": worker.pid})
    time.sleep(600)


def talk_on(request, tell):
    while True:
        tell.progress(0.1)
        time.sleep(0.05)


def unspeakable(request, tell):
    return object()


def parts(request, tell):
    tell.part(0.5, 1.0).part(0.0, 0.5).progress(0.5, "inner")
'''

STAGE = '''
"""Run what follows as the package's child, with the module ``acts`` beside this file as one of the package."""
import runpy, sys
from pathlib import Path
import gpuworkshop

gpuworkshop.__path__.append(str(Path(__file__).parent))
del sys.argv[:3]  # this file, python, -m
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
'''


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> tuple[str, ...]:
    """A launcher that lets a child find :data:`ACTS` in the package. It becomes the child, as ``env`` does."""
    folder = tmp_path_factory.mktemp("stage")
    (folder / "acts.py").write_text(ACTS)
    (folder / "stage.py").write_text(STAGE)
    return (sys.executable, str(folder / "stage.py"))


@pytest.fixture
def act(stage) -> Callable:
    """Run one of :data:`ACTS` in a child."""

    def run(name: str, request=None, type=object, launcher=(), **rest):
        return child.run(f"gpuworkshop.acts:{name}", request or {}, type=type, launcher=(*launcher, *stage), **rest)

    return run


class Heard(list):
    """Records as they arrive."""

    def __call__(self, record: msgspec.Raw) -> None:
        self.append(msgspec.json.decode(record))


def gone(pid: int) -> bool:
    """Whether a process is gone, or dead and only not yet collected by whoever inherited it."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def wait_until(true: Callable[[], bool]) -> bool:
    """Whether something becomes true in the time allowed."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


class Answer(msgspec.Struct):
    """The result of ``double``."""

    twice: int
    nothing: str | None


def test_a_result_comes_back_as_its_type(act) -> None:
    assert act("double", {"number": 21}, Answer) == Answer(42, None)


def test_progress_and_records_arrive_before_the_end(act) -> None:
    seen: list[Progress] = []
    heard = Heard()

    def stop_at_the_record(record: msgspec.Raw) -> None:
        heard(record)
        raise StopIteration("seen enough")

    with pytest.raises(StopIteration):
        act("tell_and_wait", progress=seen.append, record=stop_at_the_record)
    assert seen == [Progress(0.5, "half")]
    assert gone(heard[0]["pid"])


def test_a_part_of_the_way_is_a_part_of_the_way(act) -> None:
    seen: list[Progress] = []
    act("parts", progress=seen.append)
    assert seen == [Progress(0.625, "inner"), Progress(1.0)]  # the end is said by the parent


def test_records_are_whole_when_the_child_fails_later(act) -> None:
    heard = Heard()
    with pytest.raises(ChildFailed):
        act("record_and_fail", record=heard)
    assert [(record["number"], len(record["long"])) for record in heard] == [(n, 200_000) for n in range(3)]


def test_the_childs_own_exception_is_one_line(act) -> None:
    with pytest.raises(ChildFailed) as caught:
        act("record_and_fail")
    assert str(caught.value) == r"KeyError: 'no such\n picture'"
    assert "in record_and_fail" in caught.value.log
    with pytest.raises(ChildFailed, match="^RuntimeError: no message"):
        act("say_nothing")


def test_what_the_child_prints_does_not_disturb(act) -> None:
    assert act("chatter", {"then": "end"}, str) == "fine"


def test_what_the_child_printed_is_kept_for_a_failure(act) -> None:
    with pytest.raises(ChildFailed, match="^after all that$") as caught:
        act("chatter", {"then": "fail"})
    for words in ("on stdout", "by the system", "by a program", "on stderr"):
        assert words in caught.value.log


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["SIGKILL", "SIGSEGV"])
def test_a_child_that_is_killed_says_by_what(act, number) -> None:
    with pytest.raises(ChildFailed) as caught:
        act("be_killed", {"signal": int(number)})
    assert number.name in str(caught.value)
    assert ("host memory" in str(caught.value)) == (number == signal.SIGKILL)


def test_a_signal_without_a_name_is_still_one_line(act) -> None:
    with pytest.raises(ChildFailed, match="ended by signal 40"):
        act("be_killed", {"signal": 40})


def test_a_child_that_just_leaves_is_named_with_its_last_words(act) -> None:
    with pytest.raises(ChildFailed, match="status 7 and no result: last words"):
        act("leave")


def test_a_result_that_cannot_be_sent_is_a_failure(act) -> None:
    with pytest.raises(ChildFailed, match="^TypeError: "):
        act("unspeakable")


def test_a_target_outside_the_package_is_refused() -> None:
    for target in ("os:getcwd", "gpuworkshopper:run", "gpuworkshop:os"):
        with pytest.raises(ChildFailed, match="is not a function of gpuworkshop"):
            child.run(target, {}, type=str)


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("then", ["end", "die"])
def test_what_the_child_leaves_behind_is_ended(act, then) -> None:
    """A process that the child forgot holds its pipes open; that neither hangs the parent nor survives."""
    heard = Heard()
    if then == "end":
        assert act("forget_a_process", {"then": then}, str, record=heard) == "done"
    else:
        with pytest.raises(ChildFailed, match="SIGKILL"):
            act("forget_a_process", {"then": then}, record=heard)
    assert wait_until(lambda: gone(heard[0]["left"]))


@pytest.mark.parametrize("name", ["forget_a_process", "pause_a_worker"])
def test_an_interrupt_leaves_no_process(act, name) -> None:
    heard = Heard()

    def interrupt(record: msgspec.Raw) -> None:
        heard(record)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        act(name, {"then": "wait"}, record=interrupt)
    assert wait_until(lambda: gone(heard[0]["pid"]) and gone(heard[0]["left"]))


@pytest.mark.parametrize("name", ["tell_and_wait", "talk_on"])
def test_a_child_that_takes_too_long_is_ended(act, name) -> None:
    """A child that goes on talking takes too long as well as one that is silent."""
    others = set(psutil.Process().children())
    with pytest.raises(ChildFailed, match="in the time allowed"):
        act(name, timeout=2.0)
    assert all(gone(process.pid) for process in set(psutil.Process().children()) - others)


def test_a_deadline_can_be_moved_as_the_child_goes_on(act) -> None:
    """Given for ever at first; its first word makes the rest short."""
    deadline = child.Deadline(None)
    with pytest.raises(ChildFailed, match="in the time allowed"):
        act("talk_on", timeout=deadline, progress=lambda progress: deadline.move(0))


def test_what_is_done_meanwhile_is_done_once_and_before_the_answer(act) -> None:
    order = []
    act("parts", progress=lambda progress: order.append("heard"), meanwhile=lambda: order.append("meanwhile"))
    assert order[0] == "meanwhile" and order.count("meanwhile") == 1 and "heard" in order


PARENT = """
import sys, msgspec
from gpuworkshop import child
child.run(f"gpuworkshop.acts:{sys.argv[1]}", {"then": "wait"}, type=object, launcher=sys.argv[2:],
          record=lambda record: print(bytes(record).decode(), flush=True))
"""


@pytest.mark.parametrize(
    ("name", "shell"),
    [("forget_a_process", False), ("pause_a_worker", False), ("pause_a_worker", True)],
    ids=["a process", "a stopped worker", "a stopped worker behind a launcher"],
)
def test_a_child_ends_itself_when_its_parent_is_killed(stage, name, shell) -> None:
    """A parent that is killed can clean nothing up, and a stopped worker would otherwise stay for ever.

    Behind a launcher that stays, the child does not lead its process group and ends the workers it knows.
    """
    launcher = (*SHELL, *stage) if shell else stage
    command = [sys.executable, "-c", PARENT, name, *launcher]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        record = msgspec.json.decode(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    try:
        assert wait_until(lambda: gone(record["pid"]) and gone(record["left"]))
    finally:
        for pid in (record["pid"], record["left"]):
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_ending_twice_does_no_harm() -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    child.end(process)
    child.end(process)
    assert process.returncode == -signal.SIGTERM


def test_a_process_that_ignores_the_first_request_is_ended() -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
    process.stdout.readline()
    child.end(process)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


def test_no_thread_is_left(act) -> None:
    before = threading.active_count()
    act("double", {"number": 1})
    assert wait_until(lambda: threading.active_count() <= before)


# ---------------------------------------------------------------- launchers

SHELL = ("sh", "-c", '"$@"; exit $?', "sh")
"""A launcher that stays and waits for its child."""


def test_a_launcher_prefix_is_put_in_front(act, monkeypatch) -> None:
    monkeypatch.setenv("PICTURES", "here")
    assert act("double", {"number": 4}, Answer, launcher=("env", "-u", "PICTURES")).twice == 8


@pytest.mark.parametrize("words", ["echo queued", "printf 'no line end'", 'echo \'{"type": "progress"}\'', "echo 3"])
def test_a_launcher_that_talks_on_stdout_does_not_disturb(act, words) -> None:
    launcher = ("sh", "-c", f'{words}; exec "$@"', "sh")
    assert act("double", {"number": 4}, Answer, launcher=launcher).twice == 8


def test_the_words_of_a_launcher_are_kept_for_a_failure(act) -> None:
    launcher = ("sh", "-c", "echo 'srun: error: no such partition'; exit 3", "sh")
    with pytest.raises(ChildFailed, match="status 3 and no result: srun: error: no such partition"):
        act("double", launcher=launcher)


def test_a_child_killed_behind_a_launcher_is_no_hang(act) -> None:
    with pytest.raises(ChildFailed, match="status 137"):
        act("be_killed", {"signal": int(signal.SIGKILL)}, launcher=SHELL)


@pytest.mark.parametrize("launcher", ["no-such-launcher", "."])
def test_a_launcher_that_cannot_start_is_one_line(launcher) -> None:
    with pytest.raises(ChildFailed, match=f"could not start '{launcher}'") as caught:
        child.run("gpuworkshop.acts:double", {}, type=str, launcher=(launcher,))
    assert "\n" not in str(caught.value)


def test_a_launcher_that_reads_nothing_is_no_hang() -> None:
    with pytest.raises(ChildFailed, match="status 1"):
        child.run("gpuworkshop.acts:double", "x" * 1_000_000, type=str, launcher=("false",))


# ---------------------------------------------------------------- what measuring code may say


def test_the_bar_shows_progress_and_closes() -> None:
    stream = io.StringIO()
    show = child.Bar("starve", stream)
    assert not show.close() and stream.getvalue() == ""
    show(Progress(0.25, "filling"))
    show(Progress(1.0, "done"))
    assert "| 00:00, filling" in stream.getvalue()
    assert show.close() and stream.getvalue().endswith("\r")


def test_measuring_code_may_speak_where_nobody_listens() -> None:
    Tell().progress(0.5)
    Tell().record({"any": "thing"})
    assert Tell().part(0.0, 1.0).progress(1.0) is None


def test_the_module_starts_from_anywhere(tmp_path: Path) -> None:
    """The command that a launcher runs needs neither this folder nor anything in it."""
    command = [sys.executable, "-m", "gpuworkshop.child", "gpuworkshop.nothing:here"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as started:
        started.stdin.write(b"{}\n")
        started.stdin.flush()
        assert b'"kind":"ModuleNotFoundError"' in started.stdout.read()
    assert started.returncode == 1
