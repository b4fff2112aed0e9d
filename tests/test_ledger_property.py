"""Whatever became of the ledger's file: what was written whole comes back as it was, and the rest is counted."""

from __future__ import annotations

import msgspec
import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop import state
from gpuworkshop.course import replay
from gpuworkshop.loop import evidence, ledger
from gpuworkshop.loop.ledger import Record

RECORDS = replay.load("loop").records
LINES = [msgspec.json.encode(record) for record in RECORDS]
junk = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")) | st.sampled_from(
    [b"{", b"null", b"[]", b'{"when": 1}', b"\xff\xfe", b"{}" * 3, b'{"a":' * 3000, b"", b" ", b"\0" * 9]
)
values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
PATHS = [(name,) for name in RECORDS[1].__struct_fields__]
PATHS += [("config", name) for name in RECORDS[1].config.__struct_fields__]
PATHS += [("rate", "value"), ("comparison", "ratio"), ("conditions", "machine"), ("conditions", "cpus")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """The ledger's file, and a reader of it, in a state folder of this module."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("ledger")
        patch.setenv("GPUWORKSHOP_STATE", str(folder))
        patch.setattr(state, "spare_folder", lambda: folder / "spare")
        yield folder / ledger.FILE


@pytest.fixture
def own_state() -> None:
    """In place of the folder that each test gets: here one serves all inputs."""


def read(place, data: bytes) -> tuple[list[Record], int]:
    """What is read of a file with these bytes; what is made of it can be shown."""
    place.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUWORKSHOP_STATE", str(place.parent))
        patch.setattr(state, "spare_folder", lambda: place.parent / "spare")
        records, torn = ledger.read()
        evidence.gather().busy()
    return records, torn


def kept(line: bytes) -> bool:
    """Whether this line alone is a record."""
    try:
        msgspec.json.decode(line, type=Record)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


@fuzz()
@given(st.lists(st.integers(0, len(LINES) - 1) | junk, max_size=8))
def test_whole_lines_come_back_in_order_and_the_others_are_counted(place, drawn) -> None:
    lines = [LINES[one] if isinstance(one, int) else one for one in drawn]
    records, torn = read(place, b"\n".join(lines))
    assert records == [RECORDS[one] for one in drawn if isinstance(one, int)]
    assert torn <= sum(len(one.splitlines()) for one in drawn if isinstance(one, bytes))


@fuzz()
@given(st.lists(st.integers(0, len(LINES) - 1), min_size=1, max_size=4), st.integers(0, 10**9))
def test_a_file_that_ends_anywhere_costs_one_line_at_most(place, drawn, cut) -> None:
    data = b"".join(LINES[one] + b"\n" for one in drawn)
    cut %= len(data) + 1
    records, torn = read(place, data[:cut])
    whole = [RECORDS[one] for one in drawn]
    assert records == whole[: len(records)] and len(records) >= data[:cut].count(b"\n")
    assert len(records) + torn <= data[:cut].count(b"\n") + 1


@fuzz()
@given(st.sampled_from(PATHS), values)
def test_a_record_with_another_value_is_read_as_it_is_or_counted(place, path, value) -> None:
    """Nothing is put in for a value that does not fit."""
    whole = msgspec.to_builtins(RECORDS[1])
    spot = whole
    for name in path[:-1]:
        spot = spot[name]
    spot[path[-1]] = value
    line = msgspec.json.encode(whole)
    records, torn = read(place, line + b"\n" + LINES[0])
    assert records[-1] == RECORDS[0]
    assert (len(records), torn) == ((2, 0) if kept(line) else (1, 1))
