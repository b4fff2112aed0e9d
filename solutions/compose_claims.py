"""Read the claims of a card from recordings that the course already has: ``python solutions/compose_claims.py h200``.

Only what those recordings measured is taken, each part with the names of its sources; what is left stays "not recorded
yet". A part of ``claims-CARD.json`` that was measured for the claims is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from record import shareable

from gpuworkshop.course import claims, claims_readings, claims_store, replay
from gpuworkshop.course.claims_readings import Readings
from gpuworkshop.course.claims_result import ClaimsResult, Part, merged
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.machine.conditions import Conditions, known
from gpuworkshop.report import envelope


def _loader(sweep, starve) -> Readings:
    return claims_readings.swept(sweep, starve) | claims_readings.loader_alone(starve)


def _memory(life, ceiling) -> Readings:
    return claims_readings.life(life) | claims_readings.ceiling(ceiling)


def _busy(busy, watch) -> Readings:
    return claims_readings.busy(busy) | claims_readings.watched(watch, idle=False)


def _verify(result: VerifyResult) -> Readings:
    """The steps of one run that the child timed: less than the whole run took."""
    found = claims_readings.verified([sum(result.torch.seconds.values())])
    says = "one run: PyTorch's steps alone, without starting Python"
    return {id: msgspec.structs.replace(reading, says=says) for id, reading in found.items()}


PARTS: dict[str, tuple[tuple[str, ...], Callable[..., Readings]]] = {
    "verify": (("verify",), _verify),
    "calls": (("calls",), claims_readings.calls),
    "loader": (("sweep", "starve"), _loader),
    "batch": (("batches",), claims_readings.batches),
    "memory": (("memory", "ceiling"), _memory),
    "precision": (("precision",), claims_readings.precision),
    "busy": (("busy", "watch"), _busy),
}
"""The parts that other recordings can answer: from which, and how."""


def parts(card: str, folder: Path = replay.FOLDER) -> Iterator[Part]:
    """A part from the recordings of one card, for each of which they are all there."""
    for name, (needs, read) in PARTS.items():
        results = [_raw(folder / f"{need}-{card}.json", need) for need in needs]
        if all(results):
            here = _conditions(results[0])
            sources = tuple(f"{need}-{card}.json" for need in needs)
            yield Part(name, read(*results), 0.0, here, results[0].origin, sources)


def _raw(file: Path, what: str) -> Any:
    """A result as it was measured; None where there is no such recording."""
    return msgspec.convert(json.loads(file.read_text())["result"], replay.KINDS[what]) if file.exists() else None


def _conditions(result: Any) -> Conditions:
    if not isinstance(result, VerifyResult):
        return result.conditions
    here = known("cuda:0", result.cards, result.first.cpus, result.first.driver)
    more = dict(torch=result.torch.build.version, python=result.first.python, threads=None, cpus_asked=None)
    return msgspec.structs.replace(here, kit=result.origin.kit, date=result.origin.date, **more)


def compose(card: str, folder: Path = replay.FOLDER) -> ClaimsResult:
    """Parts read from recordings, and instead of them those that were measured. ValueError where they do not agree."""
    file = folder / f"claims-{card}.json"
    measured = [part for part in claims_store.load(file).parts if not part.sources] if file.exists() else []
    return merged([*parts(card, folder), *measured])


def main(card: str, folder: Path = replay.FOLDER) -> Path:
    """Write the recording of the claims of one card."""
    result, file = compose(card, folder), folder / f"claims-{card}.json"
    whole = json.loads(envelope(result, result.origin, claims.findings(result)))
    file.write_text(json.dumps(shareable(whole), separators=(",", ":")) + "\n")
    return file


if __name__ == "__main__":
    print(main(sys.argv[1]))
