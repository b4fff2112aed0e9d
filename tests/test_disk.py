"""Room on disk: what is asked, what a quota command means, and that a dead file server never holds us up."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from gpuworkshop import state
from gpuworkshop.machine import disk, disk_findings
from gpuworkshop.machine.disk import Disk, Place, Quota

GB = 10**9


def program(folder: Path, name: str, script: str) -> None:
    """A small shell program on its own."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_room_is_that_of_the_system(tmp_path: Path) -> None:
    found = disk.look({"a": str(tmp_path), "b": str(tmp_path / "not" / "yet")})
    a, b = found.places
    room = os.statvfs(tmp_path)
    assert a.total == b.total == room.f_blocks * room.f_frsize
    assert 0 < a.free <= a.total
    assert (a.exists, b.exists, a.writable, b.writable) == (True, False, True, True)
    assert b.path.endswith("/not/yet") and a.problem == b.problem == ""
    assert os.path.ismount(a.mount) and a.filesystem


def test_the_usual_places_are_the_course_s(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GPUWORKSHOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    asked = disk.places(course=tmp_path / "course")
    wanted = {"home": "home", "cache": "cache", "course": "course", "here": "."}
    assert {name: asked[name] for name in wanted} == {n: str(tmp_path / place) for n, place in wanted.items()}
    assert asked["state"] == str(state.chosen())
    assert ("shm" in asked) is (sys.platform == "linux")
    assert list(tmp_path.iterdir()) == []  # nothing was made


def test_who_may_not_write_is_told(tmp_path: Path, monkeypatch) -> None:
    """The system's answer is passed on; made up here, for the tests may be root's, who may write anywhere."""
    child = tmp_path / "child.py"
    refuse = "import os\nos.access = lambda path, mode: not (path.endswith('/shared') and mode & os.W_OK)\n"
    child.write_text(refuse + disk.CHILD.read_text())
    monkeypatch.setattr(disk, "CHILD", child)
    (tmp_path / "shared").mkdir()
    found = disk.look(
        {"course": str(tmp_path / "shared"), "later": str(tmp_path / "shared" / "x"), "own": str(tmp_path)}
    )
    assert [one.writable for one in found.places] == [False, False, True]


STUCK = """
import os, time
real = os.statvfs
def statvfs(path):
    if path.endswith("/dead"):
        time.sleep(600)
    return real(path)
os.statvfs = statvfs
"""


@pytest.fixture
def dead_server(tmp_path: Path, monkeypatch) -> Path:
    """A child for which every folder of the name `dead` hangs, as on a file server that is gone."""
    child = tmp_path / "child.py"
    child.write_text(STUCK + disk.CHILD.read_text())
    monkeypatch.setattr(disk, "CHILD", child)
    return tmp_path


def test_a_dead_file_server_silences_only_itself(dead_server: Path) -> None:
    (dead_server / "dead").mkdir()
    asking = disk.Asking({"home": str(dead_server / "dead"), "tmp": str(dead_server)}, seconds=1.0)
    found = asking.answer()
    home, tmp = found.places
    assert tmp.answered and not home.answered
    assert (home.free, home.writable, home.problem) == (None, None, "no answer within 1 s")
    assert asking._child.poll() is not None
    (said,) = disk_findings.findings(Disk((home,)))
    assert said.level == "warning" and "no answer within 1 s" in said.title


def test_a_child_that_cannot_be_ended_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    """A process in a dead NFS takes no signal; waiting for it would hang us too."""
    child = tmp_path / "child.py"
    child.write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(disk, "CHILD", child)
    asking = disk.Asking({"home": "/x"}, seconds=0.2)
    ended = asking._child
    monkeypatch.setattr(disk.os, "killpg", lambda group, number: None)
    start = time.monotonic()
    try:
        assert asking.answer().places[0].problem == "no answer within 0.2 s"
        assert time.monotonic() - start < 60 and ended.poll() is None
    finally:
        ended.kill()
        ended.wait()


def test_asking_takes_no_time_until_the_answer_is_wanted(dead_server: Path) -> None:
    """The question goes out at once; the limit counts from there and not from the call of `answer`."""
    asking = disk.Asking({"tmp": str(dead_server)}, seconds=5.0)
    asking._child.wait(60)
    assert asking.answer().place("tmp").answered
    assert asking.answer().place("home") is None


def test_without_a_child_everything_is_unknown(monkeypatch) -> None:
    monkeypatch.setattr(disk.sys, "executable", "/no/such/python")
    (place,) = disk.look({"home": "/x"}, seconds=0.2).places
    assert not place.answered and place.problem


# Quota


NINE = """\
Disk quotas for user j_smith_neu (uid 1000): 
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
server:/export/home 96000000* 90000000 100000000 1766000000 120000 0 200000 0
"""  # noqa: W291


@pytest.mark.parametrize(
    ("text", "said_by", "found"),
    [
        (NINE, "quota", [("server:/export/home", 96_000_000, 90_000_000, 120_000, 200_000)]),
        ("/dev/sda1 10 0 0 3 0 0", "quota", [("/dev/sda1", 10, None, 3, None)]),
        ("/dev/sda1 10* 5 20 6days 3 0 0", "quota", [("/dev/sda1", 10, 5, 3, None)]),
        ("/dev/sda1 10 50 20 3* 2 9 none", "quota", [("/dev/sda1", 10, 20, 3, 2)]),
        ("/scratch 10 0 50 - 7 0 90 -", "lfs", [("/scratch", 10, 50, 7, 90)]),
        ("/scratch/a/very/long/name\n  10 0 50 - 7 0 90 -\n", "lfs", [("/scratch/a/very/long/name", 10, 50, 7, 90)]),
        ("/scratch [10] 0 50 - [7] 0 90 -", "lfs", [("/scratch", 10, 50, 7, 90)]),
        ("Disk quotas for user x (uid 1): none", "quota", []),
        ("a b c d e f g h i", "quota", []),
        ("/x 1 2 3 - x y z -", "quota", []),
        ("/x " + "9" * 400 + " 0 0 0 0 0 0 0", "quota", []),
        ("", "quota", []),
    ],
)
def test_what_a_quota_command_prints_is_read(text: str, said_by: str, found: list[tuple]) -> None:
    wanted = [(name, used * 1024, limit and limit * 1024, files, most) for name, used, limit, files, most in found]
    read = disk.parse_quota(text, said_by)
    assert [(q.filesystem, q.used, q.limit, q.files, q.files_limit) for q in read] == wanted


def test_a_quota_command_is_asked_and_may_fail_or_hang(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "answer").write_text(NINE)
    program(tmp_path, "quota", f'test "$*" = "-w -p" && cat {tmp_path}/answer; exit 1')  # 1: over quota
    (quota,) = disk.look({"tmp": str(tmp_path)}, seconds=20).quotas
    assert (quota.filesystem, quota.said_by) == ("server:/export/home", "quota")
    program(tmp_path, "quota", "exec sleep 600")
    found = disk.look({"tmp": str(tmp_path)}, seconds=0.5)
    assert found.quotas == () and found.place("tmp").answered


def test_lustre_is_asked_for_its_own_quota(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "lfs", 'echo "$5 10 0 50 - 7 0 90 -"')
    child = tmp_path / "child.py"
    text = disk.CHILD.read_text()
    child.write_text(text.replace('if __name__ == "__main__":', 'mounted = lambda *_: ("/", "lustre")\nif True:'))
    assert child.read_text() != text
    monkeypatch.setattr(disk, "CHILD", child)
    (quota,) = (one for one in disk.look({"here": str(tmp_path)}, seconds=20).quotas if one.said_by == "lfs")
    assert (quota.filesystem, quota.limit) == (str(tmp_path), 50 * 1024)


# What it means


def place(name: str = "cache", **values) -> Place:
    """A place with room for everything, but for what is given."""
    usual = {"exists": True, "writable": True, "total": 100 * GB, "free": 50 * GB, "files": 0, "files_free": 0}
    return Place(place=name, path=f"/{name}", filesystem="nfs4", mount="/m", **{**usual, **values})


@pytest.mark.parametrize(
    ("one", "level", "says", "fix"),
    [
        (place(free=0), "fail", "cache of the kit (/cache) is full", "GPUWORKSHOP_CACHE"),
        (place(free=150 * 10**6), "warning", "has 150 MB left", "GPUWORKSHOP_CACHE"),
        (place(free=250 * 10**6), None, "", ""),
        (place("state", writable=False), "warning", "cannot be written", "GPUWORKSHOP_STATE"),
        (place("course", writable=False), None, "", ""),
        (place("course", free=0), None, "", ""),
        (place("shm", total=67108864, free=67108864), "warning", "shared memory (/shm) has 67.1 MB left", "--shm-size"),
        (place("home", files=1000, files_free=0), "fail", "no new one can be made", "du "),
        (place("tmp", free=None, total=None, problem="Stale file handle"), "warning", "Stale file handle", ""),
    ],
)
def test_what_stands_in_the_way_is_said_with_its_fix(one: Place, level: str | None, says: str, fix: str) -> None:
    (found,) = disk_findings.findings(Disk((one,)))
    assert found.level == (level or "ok")
    assert says in found.title and fix in found.fix


@pytest.mark.parametrize(
    ("used", "files", "levels"),
    [(80, 0, ["ok"]), (90, 0, ["warning"]), (100, 0, ["fail"]), (0, 95, ["warning"]), (120, 100, ["fail", "fail"])],
)
def test_a_quota_is_said_before_and_when_it_is_reached(used: int, files: int, levels: list[str]) -> None:
    quota = Quota("home", used * GB, 100 * GB, files, 100, "quota")
    assert [one.level for one in disk_findings.findings(Disk((place(),), (quota,)))] == levels


def test_no_limit_is_no_quota() -> None:
    quota = Quota("home", 10**15, None, 10**9, None, "quota")
    found = disk_findings.findings(Disk((place(),), (quota,)))
    assert [one.level for one in found] == ["ok"] and "50.0 GB free for cache of the kit" in found[0].evidence
    assert "1,000 TB of no limit" in found[0].evidence
