"""Recordings hold what was measured and nothing of whose machine it was."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from gpuworkshop.course import replay

REPOSITORY = Path(__file__).parents[1]

spec = importlib.util.spec_from_file_location("record", REPOSITORY / "solutions" / "record.py")
recorder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recorder)


def strings(value):
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ((key, text) for _, text in strings(part)) if isinstance(part, str) else strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)
    elif isinstance(value, str):
        yield "", value


@pytest.mark.parametrize("file", sorted(replay.FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_no_recording_names_a_host_a_user_or_a_path(file) -> None:
    for key, text in strings(json.loads(file.read_text())):
        assert key not in recorder.PRIVATE or not text, f"{key}: {text}"
        assert not re.search(r"(^|[\s\"'(=])~?/[\w.-]+", text), text


def test_paths_keep_their_last_part_and_units_stay() -> None:
    raw = {
        "host": "gpu07.cluster",
        "executable": "/home/somebody/envs/kit/bin/python3",
        "unit": "images/s",
        "evidence": "PyTorch in /opt/env/lib/torch/__init__.py: 400 images/s (3 of 4), home ~/work/thing",
        "parts": [{"path": "/"}, 3.5, None],
    }
    kept = recorder.shareable(raw)
    assert kept["host"] == "" and kept["executable"] == "python3" and kept["unit"] == "images/s"
    assert kept["evidence"] == "PyTorch in __init__.py: 400 images/s (3 of 4), home thing"
    assert kept["parts"] == [{"path": "/"}, 3.5, None]


def test_a_result_is_recorded_and_what_is_none_leaves_nothing(tmp_path) -> None:
    whole = (replay.FOLDER / "starve-h200.json").read_text()
    (tmp_path / "in").mkdir()
    good, odd = tmp_path / "in" / "starve-mine.json", tmp_path / "in" / "holiday-mine.json"
    good.write_text(whole)
    odd.write_text(whole)
    assert recorder.record(good, tmp_path).name == "starve-mine.json"
    with pytest.raises(ValueError, match="WHAT-CARD"):
        recorder.record(odd, tmp_path)
    assert [file.name for file in tmp_path.glob("*.json")] == ["starve-mine.json"]
