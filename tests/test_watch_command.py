"""`gpuworkshop watch -- COMMAND`: its streams, its signals, its exit code, what it leaves, and our summary."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from watching import GIB, card, windows

from gpuworkshop.instruments import command

WATCH = [sys.executable, "-m", "gpuworkshop", "watch"]
STANDINS = Path(__file__).parent / "standins"
SUMMARY = "Watch: "

SAYS_SIGNAL = """
import os, select, signal, sys
heard, told = os.pipe()
os.set_blocking(told, False)
signal.set_wakeup_fd(told)  # a byte for every single delivery
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *about: None)
print("ready", flush=True)
numbers = b""
while len(numbers) < {signals}:
    numbers += os.read(heard, 1)
while select.select([heard], [], [], 0.7)[0]:  # for one more that should not come
    numbers += os.read(heard, 1)
for number in numbers:
    print("heard", number, flush=True)
sys.exit(7)
"""


def watch(*words: str, **how) -> subprocess.CompletedProcess:
    """Run the verb with these words to its end."""
    usual = dict(capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    return subprocess.run([*WATCH, *words], **usual | how)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node for the children of a test: the stand-in driver answers what is given."""

    def written(*cards: dict, **facts) -> None:
        file = tmp_path / "node.json"
        file.write_text(json.dumps({"devices": list(cards), **facts}))
        monkeypatch.setenv("FAKE_NVML", str(file))
        monkeypatch.setenv("PYTHONPATH", str(STANDINS))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    written()
    return written


# Streams and the exit code


def test_the_commands_streams_are_its_own(node) -> None:
    code = "import sys; print(sys.stdin.read().upper(), end=''); print('err', file=sys.stderr)"
    done = watch(*python(code), stdin=None, input="in\n")
    assert (done.returncode, done.stdout) == (0, "IN\n")
    assert done.stderr.startswith("err\n") and SUMMARY in done.stderr


@pytest.mark.parametrize("status", [0, 1, 2, 255])
def test_the_exit_code_is_passed_on(node, status) -> None:
    done = watch(*python(f"import sys; sys.exit({status})"))
    assert done.returncode == status and SUMMARY in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT])
def test_an_end_by_a_signal_is_128_and_its_number(node, number) -> None:
    done = watch(*python(f"import os, signal; signal.signal({number:d}, 0) if {number:d} != 9 else 0; "
                         f"os.kill(os.getpid(), {number:d})"))  # fmt: skip
    assert done.returncode == 128 + number and SUMMARY in done.stderr


def test_words_after_the_dashes_are_the_commands(node) -> None:
    words = ["--json", "--interval", "-h", "--", "--help", "*", "a b", ""]
    done = watch(*python("import sys; print(sys.argv[1:])"), *words)
    assert done.stdout == f"{words}\n"


def test_no_such_command_is_127_and_one_line(node) -> None:
    done = watch("--", "no-such-command-here")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "gpuworkshop: no-such-command-here: no such command\n"


@pytest.mark.parametrize("text", [b"\x7fELF nonsense", b"\xff\xfe"])
def test_what_cannot_be_started_is_126(node, tmp_path, text) -> None:
    program = tmp_path / "program"
    program.write_bytes(text)
    assert watch("--", str(program)).returncode == 126, "not executable"
    program.chmod(0o755)
    done = watch("--", str(program))
    assert done.returncode == 126 and len(done.stderr.splitlines()) == 1


def test_a_missing_interpreter_is_said(node, tmp_path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = watch("--", str(script))
    assert done.returncode == 127 and "first line is missing" in done.stderr


BAD = {
    "no command": ([], "say what to run"),
    "nothing after the dashes": (["--"], "say what to run"),
    "interval of nothing": (["--interval", "0", "--", "true"], "--interval"),
    "interval below nothing": (["--interval", "-1", "--", "true"], "--interval"),
    "no number": (["--interval", "often", "--", "true"], "often"),
    "not finite": (["--interval", "nan", "--", "true"], "--interval"),
    "seconds with a command": (["--seconds", "3", "--", "true"], "--seconds"),
    "no seconds": (["--seconds", "0"], "--seconds"),
    "no such flag": (["--pace", "3", "--", "true"], "--pace"),
}


@pytest.mark.parametrize(("words", "what"), BAD.values(), ids=BAD.keys())
def test_bad_usage_is_2_and_one_line(node, words, what) -> None:
    done = watch(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and what in done.stderr


def test_json_is_alone_on_stdout(node) -> None:
    node(card(samples=windows(90)))
    done = watch("--json", *python("print('mine'); import sys; sys.exit(4)"))
    envelope = json.loads(done.stdout)
    assert done.returncode == 4 and "mine" in done.stderr
    assert envelope["result"]["status"] == 4 and envelope.keys() == {"kit", "origin", "result", "findings"}


def test_the_card_is_in_the_summary(node) -> None:
    node(card(samples=windows(95), gpm={"metrics": {"sm": 41}}, memory={"total": 80 * GIB, "used": 66 * GIB}))
    summary = watch(*python("import time; time.sleep(3.5)")).stderr
    assert "cuda:0: the target zone: busy 95% of the time, memory 82% full" in " ".join(summary.split())
    assert "GPU-minutes" in summary


def test_a_driver_that_hangs_holds_up_nobody(node) -> None:
    node(card(), init={"hang": 30})
    began = time.monotonic()
    done = watch(*python("print('done')"))
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "did not answer any more" in done.stderr and time.monotonic() - began < 25


# Signals


def started(*words: str, **how) -> subprocess.Popen:
    """The verb on its way, its command past its first line."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    process = subprocess.Popen([*WATCH, *words], start_new_session=True, **pipes | how)
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("to_group", [False, True], ids=["to us", "to our group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_once_and_the_summary_is_printed(node, number, to_group) -> None:
    process = started(*python(SAYS_SIGNAL.format(signals=1)))
    (os.killpg if to_group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert out == f"heard {number:d}\n".encode()
    assert process.returncode == 7 and SUMMARY in err.decode()


def test_a_command_that_carries_on_is_not_ended(node) -> None:
    process = started(*python(SAYS_SIGNAL.format(signals=2)))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=60)
    assert sorted(out.decode().splitlines()) == sorted([f"heard {signal.SIGINT:d}", f"heard {signal.SIGUSR1:d}"])
    assert process.returncode == 7 and SUMMARY in err.decode()


def test_an_interrupt_ends_a_plain_command(node) -> None:
    process = started(*python("print('ready', flush=True); import time; time.sleep(60)"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and SUMMARY in err.decode()


def test_ctrl_c_in_a_terminal_reaches_the_command_once(node) -> None:
    screen, code = in_terminal(SAYS_SIGNAL.format(signals=1), keys=b"\x03")
    assert screen.count("heard 2") == 1
    assert code == 7 and SUMMARY in screen


@pytest.mark.parametrize("everybody", [True, False], ids=["from the terminal", "to us alone"])
def test_what_the_terminal_sent_is_not_passed_on_again(monkeypatch, everybody) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setattr(command, "_next_signal", lambda *ask: (time.sleep(0.02), (signal.SIGINT, everybody))[1])
    monkeypatch.setattr(command.Command, "send", lambda self, number: sent.append(number))
    with command.running(["sleep", "0.3"]) as started:
        assert started.wait() == 0
    assert bool(sent) != everybody


def test_ctrl_c_in_a_terminal_that_is_not_caught(node) -> None:
    screen, code = in_terminal("print('ready', flush=True); import time; time.sleep(60)", keys=b"\x03")
    assert code == 130 and SUMMARY in screen


def test_a_command_can_read_from_the_terminal(node) -> None:
    screen, code = in_terminal("print('ready', flush=True); print(input().upper())", keys=b"typed\n")
    assert "TYPED" in screen and code == 0


def in_terminal(code: str, keys: bytes) -> tuple[str, int]:
    """Run the verb in a terminal of its own, press keys once it is ready; what the screen showed, the exit code."""
    pid, screen = pty.fork()
    if pid == 0:
        os.execv(WATCH[0], [*WATCH, *python(code)])
    shown, pressed, deadline = b"", False, time.monotonic() + 90
    while time.monotonic() < deadline:
        if select.select([screen], [], [], 0.5)[0]:
            try:
                shown += os.read(screen, 65536)
            except OSError:  # the terminal's other end is closed
                break
        if b"ready" in shown and not pressed:
            os.write(screen, keys)
            pressed = True
    _, status = os.waitpid(pid, 0)
    os.close(screen)
    return shown.decode(errors="replace"), os.waitstatus_to_exitcode(status)


def test_a_signal_that_was_ignored_stays_ignored(node) -> None:
    """As under nohup."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = subprocess.run(
        ["bash", "-c", 'trap "" HUP; "$@"', "bash", *WATCH, *python(code)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "True\n"


def test_the_command_starts_with_no_signal_blocked(node) -> None:
    code = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), signal.getsignal(signal.SIGINT))"
    assert watch(*python(code)).stdout.startswith("0 <built-in function default_int_handler>")


# What it leaves


def test_a_daemon_is_said_and_left_alone(node, tmp_path) -> None:
    note = tmp_path / "pid"
    daemon = f"import os, time; os.setsid(); open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"""
import subprocess, sys, time, os
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen([sys.executable, "-c", {daemon!r}], **quiet)
while not os.path.exists({str(note)!r}) or not os.path.getsize({str(note)!r}):
    time.sleep(0.05)
"""
    done = watch(*python(code))
    pid = int(note.read_text())
    try:
        assert done.returncode == 0
        assert "1 process of the command still runs" in done.stderr and f"({pid})" in done.stderr
        os.kill(pid, 0)  # it lives
    finally:
        os.kill(pid, signal.SIGKILL)


def test_children_that_follow_at_once_are_not_left(node) -> None:
    code = "import os, time; os.fork() or (time.sleep(0.2), os._exit(0))"
    assert "still run" not in watch(*python(code)).stderr


# Without a command


def test_j03_a_watch_for_some_seconds_prints_lines_and_ends(node) -> None:
    """starsimhub/fpsim#308, bstriner/keras-tqdm#25: where nobody watches, lines as they come, the result, an end."""
    node(card(samples=windows(80), gpm={"metrics": {"sm": 41}}))
    done = watch("--seconds", "3")
    lines = [line for line in done.stdout.splitlines() if "cuda:0: busy 80%, SM 41%, memory 75% full, 300 W" in line]
    assert 1 <= len(lines) <= 3 and done.returncode == 0
    assert SUMMARY in done.stdout


def test_a_watch_without_a_card_looks_at_the_cpus_for_the_seconds_asked_for(node) -> None:
    began = time.monotonic()
    done = watch("--seconds", "4")
    assert done.returncode == 0 and time.monotonic() - began >= 4
    assert re.search(r"^ +\d s  no card; your processes take \d+(\.\d+)?% of the CPUs$", done.stdout, re.MULTILINE)
    assert re.search(r"No card to watch: \d+(\.\d+)?% of \d+ CPU", done.stdout)


def test_a_watch_without_a_command_ends_when_asked(node) -> None:
    node(card(samples=windows(80)))
    process = subprocess.Popen([*WATCH, "--seconds", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and SUMMARY in out.decode()


def test_json_of_a_watch_without_a_command(node) -> None:
    node(card(samples=windows(80)))
    assert json.loads(watch("--seconds", "1", "--json").stdout)["result"]["cards"][0]["card"]["uuid"]
