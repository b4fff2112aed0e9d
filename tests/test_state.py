"""The state folder: whole lines from many writers, atomic values, and never a broken lesson."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop import state


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forget what was tried before; the temporary folder is the test's own."""
    monkeypatch.setattr(state, "_problems", {})
    spare = tmp_path / "tmp"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    return spare


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chosen folder that nobody can make, not even root: its parent is a file."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("GPUWORKSHOP_STATE", str(file / "state"))
    return file / "state"


def test_the_folder_is_the_setting_then_xdg_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.folder() == Path(os.environ["GPUWORKSHOP_STATE"])
    monkeypatch.setenv("GPUWORKSHOP_STATE", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state.folder() == tmp_path / "xdg" / "gpuworkshop"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state.folder() == tmp_path / ".local" / "state" / "gpuworkshop"
    assert state.problem() == ""


def test_what_is_set_apart_stays_out_of_the_learners_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solution notebook, run again and again, and what it starts."""
    own = state.folder()
    state.append("a.jsonl", {"n": 1})
    monkeypatch.setenv("GPUWORKSHOP_STATE", str(own))  # put back after the test
    for _ in range(2):
        state.set_apart("solutions")
        state.append("a.jsonl", {"n": 2})
    assert state.folder() == own / "solutions" and os.environ["GPUWORKSHOP_STATE"] == str(own / "solutions")
    assert state.read_lines("a.jsonl") == ([{"n": 2}, {"n": 2}], 0)
    assert (own / "a.jsonl").read_bytes().count(b"\n") == 1


def test_numbers_of_numpy_and_paths_are_kept_as_json_knows_them() -> None:
    assert state.append("a.jsonl", {"x": np.float32(0.5), "y": Path("here")})
    assert state.read_lines("a.jsonl") == ([{"x": 0.5, "y": "here"}], 0)


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53) | st.none())))
def test_records_come_back_as_they_went(records: list[dict]) -> None:
    name = f"{len(list(state.folder().iterdir())) if state.folder().exists() else 0}.jsonl"
    for record in records:
        assert state.append(name, record)
    assert state.read_lines(name) == (records, 0)


WRITER = """
import sys
from gpuworkshop import state
if sys.argv[2] == "no locks":
    state.fcntl = None
for place in range(150):
    state.append("many.jsonl", {"who": sys.argv[1], "place": place, "fill": "x" * (place * 97 % 9000)})
"""


@pytest.mark.parametrize("locks", ["locks", "no locks"])
def test_many_writers_lose_and_mix_nothing(locks: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(who), locks]) for who in range(5)]
    assert [writer.wait(120) for writer in writers] == [0] * 5
    records, broken = state.read_lines("many.jsonl")
    assert broken == 0
    for who in range(5):
        own = [record for record in records if record["who"] == str(who)]
        assert [record["place"] for record in own] == list(range(150))
        assert all(len(record["fill"]) == record["place"] * 97 % 9000 for record in own)


def test_a_torn_line_costs_only_itself() -> None:
    state.append("a.jsonl", {"n": 1})
    with (state.folder() / "a.jsonl").open("ab") as file:
        file.write(b'{"n": 2, "cut of')
    state.append("a.jsonl", {"n": 3})
    assert state.read_lines("a.jsonl") == ([{"n": 1}, {"n": 3}], 1)


def test_broken_lines_are_skipped_and_counted() -> None:
    state.append("a.jsonl", {"n": 1})
    with (state.folder() / "a.jsonl").open("ab") as file:
        file.write(b'\n[1, 2]\n"\xff"\n\0\0\0\n   \n{"n": 2}\n')
    assert state.read_lines("a.jsonl") == ([{"n": 1}, {"n": 2}], 3)


def test_a_lock_that_is_never_given_back_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl", reason="only POSIX has file locks")
    monkeypatch.setattr(state, "LOCK_SECONDS", 0.05)
    state.append("a.jsonl", {"n": 1})
    with (state.folder() / "a.jsonl").open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        writer = threading.Thread(target=state.append, args=("a.jsonl", {"n": 2}), daemon=True)
        writer.start()
        writer.join(60)
        assert not writer.is_alive()
    assert state.read_lines("a.jsonl") == ([{"n": 1}, {"n": 2}], 0)


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), None])
def test_a_file_system_without_locks_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(handle: int, how: int) -> None:
            raise error

    monkeypatch.setattr(state, "fcntl", NoLocks if error else None)
    assert state.append("a.jsonl", {"n": 1})
    assert state.read_lines("a.jsonl") == ([{"n": 1}], 0)


def test_an_unusable_folder_is_said_once_and_the_temporary_one_is_used(
    unusable: Path, fresh: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert state.append("a.jsonl", {"n": 1})
    assert state.folder().parent == fresh
    said = capsys.readouterr().err
    assert said == state.problem() + "\n"
    assert str(unusable) in said and str(state.folder()) in said
    assert state.read_lines("a.jsonl") == ([{"n": 1}], 0)
    assert state.folder().stat().st_mode & 0o077 == 0


def test_a_disk_that_fills_up_later_loses_nothing(fresh: Path) -> None:
    state.append("a.jsonl", {"n": 1})
    assert state.problem() == ""
    full = state.folder() / "b.jsonl"
    full.symlink_to("/dev/full")
    assert state.append("b.jsonl", {"n": 2})
    assert "No space left" in state.problem()
    full.unlink()
    state.append("a.jsonl", {"n": 3})
    assert state.read_lines("a.jsonl") == ([{"n": 1}, {"n": 3}], 0)
    assert state.read_lines("b.jsonl") == ([{"n": 2}], 0)
    assert state.folder().parent == fresh


def test_a_line_cut_short_by_a_full_disk_is_written_whole_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    state.append("a.jsonl", {"n": 1})
    write, cuts = os.write, iter([4])  # only the first write is cut, after 4 bytes
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[: next(cuts, None)]))
    assert state.append("a.jsonl", {"n": 2})
    assert state.read_lines("a.jsonl") == ([{"n": 1}, {"n": 2}], 1)
    assert "No space left" in state.problem()


def test_no_folder_at_all_is_no_error(unusable: Path, fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh.rmdir()
    fresh.write_text("")
    assert state.append("a.jsonl", {"n": 1}) is False
    assert state.read_lines("a.jsonl") == ([], 0)
    assert capsys.readouterr().err == state.problem() + "\n"
    assert "cannot be written" in state.problem()


def test_no_home_at_all_is_said(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("GPUWORKSHOP_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert state.append("a.jsonl", {"n": 1})
    assert state.folder().parent == fresh
    assert "no home folder" in state.problem()


def test_a_spare_folder_of_somebody_else_is_not_used(unusable: Path, fresh: Path) -> None:
    theirs = fresh / "theirs"
    theirs.mkdir()
    (fresh / f"gpuworkshop-{os.getuid()}").symlink_to(theirs)
    assert state.append("a.jsonl", {"n": 1})
    assert list(theirs.iterdir()) == []


def test_what_is_no_json_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="object"):
        state.append("a.jsonl", {"n": object()})
