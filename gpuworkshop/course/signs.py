"""The signs of a profile, each on a job of `planted_steps`: measured here, or on the card of a child process.

Recorded, one sign a file, by

    python -m gpuworkshop.course.signs gaps > gaps-h200.json
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpuworkshop import child
from gpuworkshop.child import Tell
from gpuworkshop.course.faces import Note
from gpuworkshop.instruments import profile
from gpuworkshop.instruments.profile_result import ProfileResult, brief, signs
from gpuworkshop.report import Finding, Report, envelope
from gpuworkshop.timing import Plan

ON_CARD = ("gaps", "copies", "elsewhere")
"""The signs that only a card can show."""
STEPS = 10
SHORT = Plan(block_seconds=0.1, min_rounds=2, max_warm_up_blocks=2, budget_seconds=0.2)
"""The plain steps of a sign: a rate to set beside, and no verdict."""

SHOWS: dict[str, str] = {
    "gaps": "launching",
    "copies": "copies",
    "elsewhere": "not on the card",
    "loader": "loader",
}
"""The sign that a planted job should show; one without a sign shows in its top row."""


def lines(name: str) -> Note:
    """The job of a sign: what is planted in it, and its lines."""
    from gpuworkshop.course.planted_steps import JOBS

    code = inspect.getsource(JOBS[name])
    shown = "".join(line for line in code.splitlines(keepends=True) if '"""' not in line)
    return Note(f"Planted: {_planted(name)}", code=shown)


def _planted(name: str) -> str:
    from gpuworkshop.course.planted_steps import JOBS

    return inspect.getdoc(JOBS[name]) or name


def measure(
    name: str,
    device: str | None = None,
    *,
    progress: Callable[[child.Progress], None] | None = None,
    tell: Tell | None = None,
) -> ProfileResult:
    """Profile the job of a sign in this process, on ``device`` or the default one. KeyError names an unknown sign."""
    from gpuworkshop.course.planted_steps import JOBS
    from gpuworkshop.machine.gpus import default_device

    device = device or default_device()
    loader, step = JOBS[name](device)
    stays = {"prepare": lambda batch: batch} if name == "elsewhere" else {}
    how = {"steps": STEPS, "device": device, "plan": SHORT, "progress": progress, "tell": tell}
    seen = profile.measure(loader, step, workload="a planted job", **how, **stays)
    return msgspec.structs.replace(seen, planted=_planted(name))


def report(result: ProfileResult, name: str = "") -> Report:
    """What is read first of a profile; with the ``name`` of a sign also whether that sign is not there."""
    shown = brief(result)
    if name not in SHOWS or any(seen.sign == SHOWS[name] for seen in signs(result.sums)):
        return shown
    if result.origin.mark == "recorded on":
        title, instead = "This recording does not show the sign", "read the planted lines and the host's lane instead"
    else:
        title = "This machine does not show the sign"
        instead = "what is planted costs too little here; trust what you measured, and see the recording for the sign"
    missing = Finding("unknown", title, instead)
    return msgspec.structs.replace(shown, findings=(*shown.findings, missing))


def shown(name: str, measured: Mapping[str, ProfileResult]) -> Report | Note:
    """The sign as it was measured; where it was not, its recording; where there is none, a note that says so."""
    from gpuworkshop.course import replay

    result = measured.get(name) or replay.load(name)
    return report(result, name) if result else replay.show(name)


def run(
    names: Sequence[str] = ON_CARD,
    *,
    launcher: Sequence[str] = (),
    progress: Callable[[child.Progress], None] | None = None,
) -> dict[str, ProfileResult]:
    """Profile the jobs of several signs on the card of a child process; ChildFailed where there is none."""
    wanted = dict[str, ProfileResult]
    return child.run(
        "gpuworkshop.course.signs:in_child", list(names), type=wanted, launcher=launcher, progress=progress
    )


def in_child(names: Sequence[str], tell: Tell) -> dict[str, ProfileResult]:
    """What the child does."""
    from gpuworkshop.machine.gpus import default_device

    device = default_device()
    if device == "cpu" and set(names) & set(ON_CARD):
        raise ValueError("this needs a GPU, and there is none here")
    parts = [tell.part(place / len(names), (place + 1) / len(names)) for place in range(len(names))]
    return {name: measure(name, device, tell=part) for name, part in zip(names, parts, strict=True)}


def main(name: str) -> None:
    """Measure one sign here and print the envelope, which is what a recording is."""
    try:
        result = run((name,))[name]
    except child.ChildFailed as failed:
        sys.exit(str(failed))
    sys.stdout.buffer.write(envelope(result, result.origin, profile.findings(result)) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
