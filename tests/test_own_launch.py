"""Commands are understood, and whatever they start ends: scripts without torch, which start in no time."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuworkshop.child import ChildFailed
from gpuworkshop.own import ending, launch
from gpuworkshop.own.command import understand
from gpuworkshop.own.result import OwnResult

FOLDER, HOOKS = "/state/own/run", "/state/own/run/hooks"


def understood(*words: str, **env: str):
    return understand(words, FOLDER, HOOKS, env)


@pytest.mark.parametrize(
    "words, script, launcher",
    [
        (["python", "train.py", "--lr", "1"], "train.py", ""),
        (["/opt/venv/bin/python3.9", "-u", "train.py"], "train.py", ""),
        (["python", "-m", "mine.train"], "-m mine.train", ""),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"], "train.py", ""),
        (["torchrun", "--nproc-per-node", "2", "src/train.py"], "src/train.py", ""),
        (["torchrun", "--nproc-per-node=2", "-m", "mine.train"], "-m mine.train", ""),
        (["accelerate", "launch", "--num_processes", "2", "train.py"], "train.py", ""),
        (["srun", "--gres=gpu:1", "python", "train.py"], "train.py", "srun"),
        (["bash", "run.sh"], "", "bash"),
        (["./train.py", "--fast"], "./train.py", "train.py"),
        (["python", "-c", "print(1)"], "", ""),
    ],
)
def test_the_script_and_the_launcher_are_told(words: list[str], script: str, launcher: str) -> None:
    what = understood(*words)
    assert (what.script, what.launcher) == (script, launcher)
    assert what.env["PYTHONPATH"] == HOOKS and what.env[ending.VARIABLE] == FOLDER


def test_a_plain_command_stays_as_it_is_and_keeps_its_path() -> None:
    what = understood("python", "train.py", PYTHONPATH="/mine", PYTHONUNBUFFERED="")
    assert what.words == ("python", "train.py")
    assert what.env == {"PYTHONPATH": f"{HOOKS}:/mine", "PYTHONUNBUFFERED": "", ending.VARIABLE: FOLDER}


@pytest.mark.parametrize(
    "words, at",
    [
        (["env", "-i", "PATH=/bin", "python", "train.py"], 3),
        (["srun", "--export=NONE", "torchrun", "train.py"], 2),
        (["timeout", "60", "python3", "train.py"], 2),
        (["srun", "apptainer", "exec", "--nv", "--cleanenv", "img.sif", "python", "train.py"], 6),
    ],
)
def test_behind_a_launcher_the_environment_is_given_again_before_python(words: list[str], at: int) -> None:
    given = ["env", f"PYTHONPATH={HOOKS}", f"{ending.VARIABLE}={FOLDER}"]
    assert list(understood(*words).words) == [*words[:at], *given, *words[at:]]


def test_a_path_that_the_command_sets_itself_is_kept() -> None:
    what = understood("env", "A=B", "PYTHONPATH=/theirs", "python", "train.py", PYTHONPATH="/ours")
    assert f"PYTHONPATH={HOOKS}:/theirs" in what.words


def test_a_container_sees_the_runs_folder() -> None:
    what = understood("apptainer", "exec", "img.sif", "python", "train.py", APPTAINER_BIND="/data")
    assert what.env["APPTAINER_BIND"] == f"/data,{FOLDER}" and what.env["SINGULARITY_BIND"] == FOLDER
    assert "APPTAINER_BIND" not in understood("python", "train.py").env


@pytest.mark.parametrize(
    "words, isolated",
    [
        (["python", "-I", "train.py"], True),
        (["python", "-uE", "train.py"], True),
        (["env", "A=B", "python", "-S", "train.py"], True),
        (["python", "-u", "train.py", "-I"], False),
        (["python", "-m", "mine", "-E"], False),
        (["torchrun", "--nproc-per-node=2", "train.py"], False),
    ],
)
def test_a_python_that_does_not_look_for_hooks_is_known(words: list[str], isolated: bool) -> None:
    assert understood(*words).isolated is isolated


def test_no_command_and_an_unknown_part_are_one_line() -> None:
    with pytest.raises(ValueError, match="no command: .*python train.py"):
        understood()
    with pytest.raises(ValueError, match="nothing is called 'speed' here: baseline, "):
        launch.run(["python"], only=["speed"])


# Real processes, without torch


def script(folder: Path, text: str) -> list[str]:
    """A command that runs ``text`` as a script."""
    file = folder / "theirs.py"
    file.write_text(text)
    return [sys.executable, str(file)]


def run(folder: Path, text: str, **how) -> OwnResult:
    return launch.run(script(folder, text), **how)


@pytest.mark.parametrize(
    "text, ended, code, words",
    [
        ("print('done')", "by itself", 0, "done"),
        ("import sys; sys.exit('no data in /data/train')", "error", 1, "no data in /data/train"),
        ("def f(:", "error", 1, "SyntaxError: invalid syntax"),
        ("import os; print('bye', flush=True); os._exit(7)", "error", 7, "bye"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal", -9, ""),
        ("import not_installed_here", "error", 1, "ModuleNotFoundError: No module named 'not_installed_here'"),
    ],
)
def test_its_own_words_and_its_status_come_out(tmp_path: Path, text: str, ended: str, code: int, words: str) -> None:
    result = run(tmp_path, text)
    assert (result.ended, result.exit_code) == (ended, code)
    assert result.own_words.endswith(words) and result.settings is None and result.steps == 0
    assert Path(result.output).read_text().rstrip("\n").endswith(words)


def test_stdin_is_the_scripts_and_the_folder_too(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"yes\n")
    os.close(writing)
    kept = os.dup(0)
    os.dup2(reading, 0)
    try:
        result = run(tmp_path, "import os; print(input(), os.getcwd())", cwd=tmp_path)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)
    assert result.own_words == f"yes {tmp_path}"


def test_hidden_customizations_run_and_torch_was_never_imported(tmp_path: Path, monkeypatch) -> None:
    for name in ("sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"import builtins; builtins.{name}_ran = True")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONNOUSERSITE", "")
    result = run(tmp_path, "import builtins; print(builtins.sitecustomize_ran)")
    assert result.own_words == "True"
    assert result.not_seen == ("The script did not finish importing torch at all, so nothing of it could be watched.",)


def test_a_python_without_hooks_says_why(tmp_path: Path) -> None:
    result = launch.run([sys.executable, "-I", "-c", "print(1)"])
    assert result.ended == "by itself" and "started with -I" in result.not_seen[0]


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
again = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
apart = subprocess.Popen([sys.executable, "-S", "-c", again], start_new_session=True)
stopped = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
time.sleep(0.3)
os.kill(stopped.pid, signal.SIGSTOP)
open(sys.argv[0] + ".pids", "w").write(f"{os.getpid()} {apart.pid} {stopped.pid}")
print("waiting", flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pids(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "theirs.py.pids").read_text().split()]


def test_a_hanging_script_is_given_up_with_all_that_it_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "PATIENCE", 1.5)
    result = run(tmp_path, STUBBORN)
    assert result.ended == "timed out" and result.exit_code is None and result.own_words == "waiting"
    assert "did not finish importing torch within the time" in result.not_seen[0]
    assert len(pids(tmp_path)) == 3 and not any(map(alive, pids(tmp_path)))


def test_an_interrupt_ends_everything_first(tmp_path: Path) -> None:
    def interrupt() -> None:
        until = time.monotonic() + 20
        while not (tmp_path / "theirs.py.pids").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, STUBBORN)
    assert not any(map(alive, pids(tmp_path)))


def test_whoever_kills_us_ends_the_script_too(tmp_path: Path) -> None:
    command = script(tmp_path, STUBBORN)
    ours = f"from gpuworkshop.own import launch; launch.run({command!r})"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ours], os.environ)
    until = time.monotonic() + 30
    while not (tmp_path / "theirs.py.pids").exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while any(map(alive, pids(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids(tmp_path)))


def test_a_command_that_cannot_be_started_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="could not start 'no-such-thing'") as failed:
        launch.run(["no-such-thing", "train.py"])
    assert failed.value.bad_input


def test_old_runs_are_cleared_away(tmp_path: Path, own_state: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "KEPT_RUNS", 2)
    for _ in range(3):
        result = run(tmp_path, "print(1)")
    runs = sorted((own_state / "own").iterdir())
    assert len(runs) == 2 and Path(result.output).parent.resolve() in [one.resolve() for one in runs]
    asked = json.loads((Path(result.output).parent / "request.json").read_text())
    assert asked["budget"] is None and asked["only"] == []
