"""Attacks on what is here and what watches: odd variables, odd words, odd files. One clear line, and nothing left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from standins import pynvml as fake_nvml
from verifying import STANDINS, ask, card, node, text, torch_with

from gpuworkshop import cli, report
from gpuworkshop.cluster import discover, site
from gpuworkshop.course import kernel
from gpuworkshop.instruments import trace, watch
from gpuworkshop.instruments.watch_live import live
from gpuworkshop.machine import gpus
from gpuworkshop.machine.visible import VARIABLE, visible
from gpuworkshop.numbers import several

NOT_TEXT = os.fsdecode(b"\xff")
LINE = [sys.executable, "-m", "gpuworkshop"]


def run(*words: str | bytes, nvml: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    """The real command; with `nvml`, on the machine that the file describes."""
    there = {"PYTHONPATH": str(STANDINS), "FAKE_NVML": str(nvml)} if nvml else {}
    whole = os.environ | there | env
    return subprocess.run([*LINE, *words], env=whole, capture_output=True, text=True, errors="replace", timeout=60)


def one_line(seen: subprocess.CompletedProcess, status: int) -> str:
    """What was said of bad input: one line on stderr, nothing on stdout."""
    assert seen.returncode == status and seen.stdout == "" and seen.stderr.count("\n") == 1, seen
    assert seen.stderr.startswith("gpuworkshop: ") and "\x1b" not in seen.stderr
    return seen.stderr


# ---------------------------------------------------------------- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize("blank", ["\xa0", "\u2003", "\u3000", "\x1c", "\x85"])
def test_a_blank_that_c_does_not_skip_is_no_blank(blank) -> None:
    """atoi skips six characters; Python's strip() skips more, and would show a card that CUDA does not have."""
    assert visible({VARIABLE: f"{blank}0"}).kind == "hidden"
    assert visible({VARIABLE: f"0,{blank}1"}).entries == ("0",)
    assert visible({VARIABLE: " \t0\n,\v\f\r1 "}).entries == ("0", "1")


def test_many_entries_are_not_compared_with_each_other() -> None:
    """Counted, not timed: each entry is held to at most one other."""

    def steps(count: int) -> int:
        seen = 0

        class Entry(str):
            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                nonlocal seen
                seen += 1
                return str.__eq__(self, other)

            def strip(self, *blanks: str) -> str:
                return self

        class Raw(str):
            def split(self, *at: str) -> list[str]:
                return [Entry(f"GPU-{number}") for number in range(count)]

        assert len(visible({VARIABLE: Raw("GPU-")}).entries) == count
        return seen

    assert steps(400) <= 400


def test_a_hundred_thousand_entries_are_one_finding_of_a_readable_length(monkeypatch) -> None:
    raw = ",".join(map(str, range(100_000)))
    fake_nvml.install(node(card(0), card(1)), monkeypatch)
    seen = gpus.cards({VARIABLE: raw})
    assert [one.physical for one in seen.mine] == [0, 1] and len(seen.unknown) == 99_998
    monkeypatch.setenv(VARIABLE, raw)
    with watch.Watch() as looking:
        looking.sampler.wait_for_first()
    (said,) = [one for one in watch.findings(looking.result) if "which card is" in one.title]
    assert "2, 3, 4" in said.title and "99990 more" in said.title and len(said.title) < 400


def test_verify_shows_the_beginning_of_a_long_variable(monkeypatch) -> None:
    for raw in ("x" * 100_000, "MIG-" + "x" * 100_000, "0," + "1" * 100_000, ",".join(map(str, range(5000)))):
        seen = ask(monkeypatch, node(card(0)), torch_with(), env={VARIABLE: raw})
        assert seen.first.cards.visible.raw == raw and len(text(seen)) < 6000
        assert "..." in text(seen)


def test_several_names() -> None:
    assert several(("a",)) == "a" and several(()) == ""
    assert several(tuple("abcdefghij"), 2) == "a, b and 8 more"
    assert several(("x" * 100,)) == "x" * 77 + "..."


# ---------------------------------------------------------------- what is no text


def test_an_envelope_of_names_that_are_no_text_is_json() -> None:
    origin = report.Origin("measured here", NOT_TEXT, "2026-01-01", "1")
    data = report.envelope({"a": [NOT_TEXT, ("b", {NOT_TEXT: float("nan")})], "n": 1}, origin, ())
    again = json.loads(data.decode("utf-8"))
    assert again["result"] == {"a": ["\ufffd", ["b", {"\ufffd": None}]], "n": 1}


@pytest.mark.parametrize("variable", ["GPU-" + NOT_TEXT, "0", NOT_TEXT])
def test_json_of_a_watch_holds_what_is_no_text(tmp_path, variable) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps(node(card(0))))
    seen = run("watch", "--json", "--", "true", NOT_TEXT, nvml=file, CUDA_VISIBLE_DEVICES=variable)
    assert seen.returncode == 0 and "Traceback" not in seen.stderr
    assert json.loads(seen.stdout)["result"]["what"].startswith("true ")


def test_an_import_error_that_is_no_text_is_told(tmp_path) -> None:
    (tmp_path / "torch.py").write_text(r"raise ImportError('\x1b[2J\udcff gone')")
    seen = run("verify", "--json", PYTHONPATH=str(tmp_path))
    fault = json.loads(seen.stdout)["result"]["torch"]["fault"]
    assert seen.returncode == 1 and fault["kind"] == "ImportError" and fault["words"].endswith("gone")
    assert "\x1b" not in fault["words"] and "ended the process" not in seen.stdout


# ---------------------------------------------------------------- the command of a watch


@pytest.mark.parametrize("word", ["a\nb", "\x1b[2J", NOT_TEXT, "", "\x85x"])
def test_a_command_with_an_odd_name_is_one_line(word) -> None:
    assert "no such command" in one_line(run("watch", "--", word), 127)


@pytest.mark.parametrize("words", ["python train.py", [1], [b"true"], ["true", None]])
def test_words_that_are_none_are_said_before_anything_starts(words) -> None:
    with pytest.raises(ValueError, match="a command is a list of words"):
        watch.run(words)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), 1e300, 10**400, "1", None])
def test_an_interval_that_makes_no_sense_is_refused_at_once(interval) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 3600 seconds"):
        watch.Watch(interval)
    if isinstance(interval, float):
        assert "--interval" in one_line(run("watch", "--interval", str(interval), "--", "true"), 2)


def test_a_watch_watches_once_and_a_chart_starts_once(monkeypatch) -> None:
    fake_nvml.install(node(card(0)), monkeypatch)
    with watch.Watch() as seen:
        chart = live(seen)
        chart.start()
        with pytest.raises(RuntimeError, match="watches once"), seen:
            pass
        assert not seen.over and chart.running
        chart.stop()
        chart.stop()
    assert seen.over


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName"])
def test_a_driver_that_hangs_is_not_said_to_show_no_card(monkeypatch, call) -> None:
    fake_nvml.install(node(card(0), calls={call: {"hang": 2}}), monkeypatch)
    with watch.Watch() as seen:
        seen.sampler.stop(0.3)
        result = seen.result
    said = " ".join(f"{one.title} {one.evidence}" for one in watch.findings(result))
    assert "the driver does not answer" in said and "shows no card" not in said


def test_ctrl_c_while_the_command_loads_is_no_traceback(tmp_path) -> None:
    """A module that the command line needs sends it, so that it always falls into that time."""
    (tmp_path / "cyclopts.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)")
    seen = run("verify", PYTHONPATH=str(tmp_path))
    assert (seen.returncode, seen.stdout, seen.stderr) == (-signal.SIGINT, "", "")
    program = tmp_path / "bin"
    program.write_text("from gpuworkshop.__main__ import main; raise SystemExit(main())")
    again = subprocess.run(
        [sys.executable, program, "verify"], env=os.environ | {"PYTHONPATH": str(tmp_path)}, timeout=60
    )
    assert again.returncode == -signal.SIGINT


# ---------------------------------------------------------------- site files


def test_a_site_file_with_a_byte_order_mark_is_read(tmp_path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xef\xbb\xbf" + (site.SHIPPED / "generic.toml").read_bytes())
    assert site.load(file).name == site.load("generic").name


def test_what_is_no_plain_file_is_called_what_it_is(tmp_path) -> None:
    (tmp_path / "d.toml").mkdir()
    (tmp_path / "l.toml").symlink_to("l.toml")
    os.mkfifo(tmp_path / "p.toml")
    for name, says in (("d", "a folder"), ("l", "not a plain file"), ("p", "not a plain file"), ("n", "no such file")):
        with pytest.raises(site.SiteError, match=f"{name}.toml: {says}$"):
            site.load(tmp_path / f"{name}.toml")


# ---------------------------------------------------------------- Slurm


def stand_in(tmp_path: Path, script: str) -> str:
    """A PATH on which sinfo and scontrol do this."""
    for name in ("sinfo", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def test_a_slurm_that_hangs_leaves_no_process(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", stand_in(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait"))
    with pytest.raises(discover.NoSlurm, match="no answer within 1 s"):
        discover.run(("sinfo",), 1.0)
    process = int((tmp_path / "pid").read_text())
    ends = time.monotonic() + 10  # a signal takes its time on a busy machine
    while (left := _runs(process)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not left


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_many_lines_of_one_partition_are_put_together_once(monkeypatch) -> None:
    made = []
    replace = msgspec.structs.replace
    monkeypatch.setattr(msgspec.structs, "replace", lambda *a, **k: made.append(1) or replace(*a, **k))
    live = discover.parse("gpu|up|1:00:00|2|idle|64|512000|gpu:a100:8\n" * 500)
    assert len(live.partitions[0].nodes) == 500 and len(made) == 1


# ---------------------------------------------------------------- traces


def test_a_trace_that_never_ends_is_not_read(tmp_path) -> None:
    os.mkfifo(tmp_path / "t.json")
    for name in ("/dev/null", str(tmp_path / "t.json")):
        with pytest.raises(trace.NoTrace, match="not a plain file$"):
            trace.read(name)


# ---------------------------------------------------------------- start


def test_an_empty_name_of_a_kernel_does_not_replace_jupyters_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    with pytest.raises(ValueError, match="name is empty"):
        kernel.install("", "x")
    assert not (tmp_path / "data").exists()


def test_an_empty_folder_is_not_the_present_one(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["start", "--folder", ""]) == 2
    assert "--folder is empty" in capsys.readouterr().err and not os.listdir()


def test_a_display_name_that_is_no_text_is_made_one(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert cli.main(["start", "--folder", str(tmp_path / "n"), "--display-name", NOT_TEXT + "\x1b[2J"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    (there,) = (tmp_path / "data" / "kernels").rglob("kernel.json")
    assert json.loads(there.read_text())["display_name"] == "\ufffd\ufffd[2J"


def test_a_present_folder_that_is_gone_is_said(tmp_path) -> None:
    words = f"{sys.executable} -m gpuworkshop start --folder x"
    line = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir ../gone && exec {words}"
    env = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "JUPYTER_DATA_DIR": str(tmp_path / "data")}
    seen = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)
    assert seen.returncode == 1 and "Traceback" not in seen.stderr and seen.stdout == ""
    assert seen.stderr.endswith("the present folder has been removed: cd to another one\n")
