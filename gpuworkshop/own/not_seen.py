"""What could not be seen of a script, each in one plain sentence with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.own.command import Understood
from gpuworkshop.own.records import Records
from gpuworkshop.own.result import OwnResult

STEP_LINE = 'getattr(torch, "gpuworkshop_step", int)()'
"""What a script without an optimizer object writes after each step; it does nothing where nobody watches."""


def not_seen(result: OwnResult, what: Understood, records: Records, budget: float | None) -> tuple[str, ...]:
    """The sentences, the most important first."""
    return tuple(dict.fromkeys(_sentences(result, what, records, budget)))


def _sentences(result: OwnResult, what: Understood, records: Records, budget: float | None) -> Iterator[str]:
    yield from _no_steps(result, what, records)
    notes = {one["what"]: one for process in records.processes.values() for one in process.of("note")}
    for process in records.processes.values():
        for fault in process.of("fault"):
            yield f"The hooks failed at {fault['where']} ({fault['words']}), and the script went on unwatched."
    if result.settings is None:
        return
    if not result.settings.loaders:
        yield (
            "No DataLoader fed the steps, so neither its wait nor a headroom could be measured: where a step's data "
            "come from must be looked at in the profile."
        )
    elif result.starve is None and result.rate is not None and "several processes" not in notes:
        yield "The loader's headroom was not measured: the script ended before it. Let it run for more steps."
    if result.rate is None:
        yield (
            f"The script ended after {result.steps} steps, which is too few to measure: give it more epochs or more "
            "data, at least 150 steps."
        )
    if "no optimizer" in notes:
        yield (
            "No optimizer object made a step: each backward pass was taken as a step. If that is wrong, write "
            f"{STEP_LINE} after each step; it does nothing without the watch."
        )
    if "budget" in notes and budget:
        yield (
            f"The budget of {budget:.0f} s was enough for {notes['budget']['steps']} plain steps instead of 50, so "
            "intervals are wider: give it more time for narrower ones."
        )
    if "several processes" in notes:
        yield (
            f"{notes['several processes']['world']} processes train together: only the plain steps of each were "
            "measured. Run it as one process for the loader's headroom and a profile."
        )
    if result.settings.forks:
        yield "The script starts processes itself that train too: only one of them was measured."
    if "profiler taken" in notes:
        yield "Another profiler of PyTorch was at work in the script, so none of ours ran: switch it off for this."
    if "profiler failed" in notes:
        yield f"PyTorch's profiler failed: {notes['profiler failed']['words']}."
    if "no time for a profile" in notes:
        yield "There was no time for a profile: give the measurement a larger budget."
    if result.ended == "stopped by us" and result.achieved is None:
        why = notes.get("flops", {}).get("why")
        yield "Operations were not counted" + (
            f": the model is {why}." if why == "compiled" else f": the model is in {why}." if why else "."
        )


def _no_steps(result: OwnResult, what: Understood, records: Records) -> Iterator[str]:
    if not records.processes:
        if what.isolated:
            yield "Python was started with -I, -E or -S and so never looked for the hooks: leave that option out."
        elif result.exit_code in (0, None):
            yield (
                "No Python of this command looked for the hooks: it may start one in another environment. Put what "
                "starts it in front: srun ... gpuworkshop loop -- python ..."
            )
        return
    if not any(process.of("torch") for process in records.processes.values()):
        if result.exit_code == 0:
            yield "The script never imported torch, so nothing of it could be watched."
        return
    if records.main is None and result.ended in ("by itself", "timed out"):
        yield (
            "No step was seen: neither an optimizer's step nor a backward pass. If your script makes steps in its own "
            f"way, write {STEP_LINE} after each step; it does nothing without the watch."
        )
