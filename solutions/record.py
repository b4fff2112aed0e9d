"""Put results into the recordings of the course, without what belongs to their owner: host, user, paths.

``python solutions/record.py verify-h200.json watch-h200.json``: each file is what ``--json`` printed, and its name says
what was measured and on which card. Paths keep their last part; everything that was measured stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from gpuworkshop.course import replay

PRIVATE = ("host", "user", "home")
_PATH = re.compile(r"(?<![\w.~])~?/(?:[^\s/:,;\"']+/)*([^\s/:,;\"']+)")


def shareable(value: Any) -> Any:
    """The same JSON without names of hosts and users, and with the last part of every path."""
    if isinstance(value, dict):
        return {key: "" if key in PRIVATE and isinstance(part, str) else shareable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shareable(part) for part in value]
    return _PATH.sub(r"\1", value) if isinstance(value, str) else value


def record(file: Path, folder: Path = replay.FOLDER) -> Path:
    """Write one result into the folder of recordings. ValueError if it cannot be replayed."""
    what, _, card = file.stem.partition("-")
    if what not in replay.KINDS or not card:
        raise ValueError(f"{file.name}: name it WHAT-CARD.json, with one of {', '.join(replay.KINDS)}")
    kept = folder / file.name
    kept.write_text(json.dumps(shareable(json.loads(file.read_text())), separators=(",", ":")) + "\n")
    try:
        replay.load(what, card, folder)
    except ValueError:
        kept.unlink()
        raise
    return kept


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(record(Path(name)))
