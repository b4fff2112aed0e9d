"""Attacks on claims: files of odd kinds and numbers, two recordings at once, flags that nobody reads."""

import errno
import itertools
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest
from test_claims import HERE, part

from gpuworkshop import cli, state
from gpuworkshop.course import claims, claims_store
from gpuworkshop.course.claims_result import ClaimsResult, Reading


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("gpuworkshop: ") and said.err.count("\n") == 1, said
    return said.err


def made(name: str, readings: dict[str, Reading] | None = None):
    return part(name, **(readings or {}))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x.json", "a" * 300, "a/" * 3000])
def test_a_name_that_no_file_can_have_is_one_line(name, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="cannot be written: .*; name another place"):
        claims_store.InFile(Path(name), HERE.machine)
    assert cli.main(["claims", name]) == 2 and "cannot be read" in one_line(capsys)


def test_a_file_that_somebody_made_read_only_is_not_replaced(tmp_path, monkeypatch) -> None:
    file = tmp_path / "claims.json"
    claims_store.InFile(file, HERE.machine).add(made("verify"))
    before = file.read_bytes()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # as for anybody but root
    with pytest.raises(ValueError, match="it is read-only; name another place"):
        claims_store.InFile(file, HERE.machine)
    assert file.read_bytes() == before


def test_what_is_no_usual_file_is_neither_read_nor_written(tmp_path) -> None:
    with pytest.raises(ValueError, match="/dev/zero cannot be read: it is a device"):
        claims_store.load(Path("/dev/zero"))
    os.mkfifo(pipe := tmp_path / "pipe")
    for place, why in ((pipe, "it is no usual file"), (tmp_path, "it is a folder")):
        with pytest.raises(ValueError, match=f"cannot be written: {why}"):
            claims_store.InFile(place, HERE.machine)


def test_two_recordings_into_one_file_keep_the_parts_of_both(tmp_path, monkeypatch) -> None:
    """Each reads the file and writes it whole: without a lock the second one drops what the first has added."""
    file, write = tmp_path / "claims.json", claims_store._write
    monkeypatch.setattr(claims_store, "_write", lambda *words: (time.sleep(0.05), write(*words)))
    names = ["verify", "calls", "loader", "batch"]
    stores = [claims_store.InFile(file, HERE.machine) for _ in names]
    threads = [
        threading.Thread(target=store.add, args=(made(name),)) for store, name in zip(stores, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in claims_store.load(file).parts} == set(names)
    assert [one.name for one in tmp_path.iterdir() if one != file and "claims" in one.name] == []


def test_a_disk_that_fills_up_meanwhile_is_one_line_and_the_file_is_as_it_was(tmp_path, monkeypatch) -> None:
    file = tmp_path / "claims.json"
    store = claims_store.InFile(file, HERE.machine)
    store.add(made("verify"))
    before = file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="the part calls cannot be kept in .*claims.json: No space left"):
        store.add(made("calls"))
    assert file.read_bytes() == before and [one for one in tmp_path.iterdir() if one.is_file()] == [file]


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    "numbers", [(5.0, 6.0, 7.0), (5.0, 9.0, 1.0), (1.0, None, 0.5), (1.0, 2.0, None), (-1.0, 0.0, 1.0)]
)
def test_a_value_outside_of_its_interval_is_no_reading(numbers, tmp_path) -> None:
    """Ends that were swapped by hand would lie within any bounds."""
    with pytest.raises(ValueError, match="lies outside of its interval"):
        Reading(*numbers)
    file = tmp_path / "claims.json"
    claims_store.InFile(file, HERE.machine).add(made("verify", {"verify-5s": Reading(2.0, 1.0, 3.0, 3, "s")}))
    whole = msgspec.json.decode(file.read_bytes())
    reading = whole["result"]["parts"][0]["readings"]["verify-5s"]
    reading |= dict(zip(("value", "low", "high"), numbers, strict=True))
    file.write_bytes(msgspec.json.encode(whole))
    with pytest.raises(ValueError, match="is no whole recording of claims: .* lies outside of its interval"):
        claims_store.load(file)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", '"2.0"', "true", "[]"])
def test_what_is_no_number_is_no_recording(number, tmp_path) -> None:
    file = tmp_path / "claims.json"
    claims_store.InFile(file, HERE.machine).add(made("verify", {"verify-5s": Reading(2.0, unit="s")}))
    file.write_text(file.read_text().replace('"value":2.0', f'"value":{number}', 1))
    with pytest.raises(ValueError, match="is no whole recording of claims"):
        claims_store.load(file)


@pytest.mark.parametrize("unit", ["x", "", "yes", "%", "GB/s"])
def test_numbers_of_any_size_are_a_table_that_can_be_read(unit) -> None:
    some = (None, 0.0, -1.0, 1e308, -1e308, 1e-320, 1.0)
    for value, low, high in itertools.product(some, some, some):
        if value is None or not (value if low is None else low) <= value <= (value if high is None else high):
            continue
        reading = Reading(value, low, high, -3, unit, "<script>", "<script>")
        all_of_them = made("verify", {claim.id: reading for claim in claims.claims()})
        shown = claims.report(ClaimsResult((all_of_them,), all_of_them.origin))
        assert len(str(reading)) < 120 and len(str(shown)) < 60_000
        assert "<script>" not in shown._repr_mimebundle_()["text/html"]


# ---------------------------------------------------------------- the verb


@pytest.mark.parametrize("words", [["--replay"], ["some.json"]])
def test_a_launcher_that_nobody_needs_is_refused(words, capsys) -> None:
    assert cli.main(["claims", *words, "--launcher", "srun"]) == 2
    assert "a recording is shown where you are" in one_line(capsys)


# ---------------------------------------------------------------- variables


def test_the_cache_is_in_the_home_that_its_name_begins_with(monkeypatch, tmp_path) -> None:
    """Slurm's --export and a notebook's %env hand a ~ over as it stands; it made a folder of that name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GPUWORKSHOP_CACHE", "~/cache")
    assert state.chosen_cache() == tmp_path / "cache"
    monkeypatch.setenv("GPUWORKSHOP_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(RuntimeError):
        state.chosen_cache()
