"""What could not be seen of a script, each in one plain sentence with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuworkshop.own.command import Understood
from gpuworkshop.own.records import Records
from gpuworkshop.own.result import OwnResult

STEP_LINE = 'getattr(torch, "gpuworkshop_step", int)()'
"""What a script without an optimizer object writes after each step; it does nothing where nobody watches."""
ENOUGH = "at least 200 steps and about 10 s of them on a CPU, 40 s on a card"


def not_seen(result: OwnResult, what: Understood, records: Records, budget: float | None) -> tuple[str, ...]:
    """The sentences, the most important first."""
    notes = {one["what"]: one for process in records.processes.values() for one in process.of("note")}
    found = [*_forked(notes), *_start(result, what, records, notes), *_faults(records)]
    if result.settings is not None:
        found += [*_data(result, notes), *_steps(result, notes, budget), *_processes(result, notes, records)]
        found += _beside(result, notes)
    return tuple(dict.fromkeys(found))


def _start(result: OwnResult, what: Understood, records: Records, notes: dict[str, Any]) -> Iterator[str]:
    """Why no step was seen at all, where the script's own words do not say it."""
    processes = records.processes.values()
    if not processes and what.isolated:
        yield "Python was started with -I, -E or -S and so never looked for the hooks: leave that option out."
    elif not processes and result.exit_code in (0, None):
        yield (
            "No Python of this command looked for the hooks; it may start one elsewhere, or with another environment: "
            "put gpuworkshop loop -- right before python, behind what starts it."
        )
    elif processes and not any(process.of("torch") for process in processes):
        if result.ended in ("by itself", "timed out"):
            when = "within the time" if result.ended == "timed out" else "at all"
            yield f"The script did not finish importing torch {when}, so nothing of it could be watched."
    elif processes and records.main is None and result.ended in ("by itself", "timed out") and "forked" not in notes:
        yield (
            f"No step was seen in {result.seconds:.0f} s: neither an optimizer's step nor 30 backward passes. If your "
            f"script makes steps in its own way, write {STEP_LINE} after each step; it does nothing without the watch."
        )


def _forked(notes: dict[str, Any]) -> Iterator[str]:
    if "forked" in notes:
        yield (
            "The script trains in processes that it forked after it had imported torch; those cannot be watched: start "
            "them with torchrun, or by torch.multiprocessing with the start method spawn."
        )


def _faults(records: Records) -> Iterator[str]:
    for process in records.processes.values():
        for fault in process.of("fault"):
            where, words = fault["where"], fault["words"]
            yield f"The hooks failed ({where}: {words}), and nothing more was measured: please report it."


def _data(result: OwnResult, notes: dict[str, Any]) -> Iterator[str]:
    """Of what feeds the steps."""
    settings = result.settings
    if not settings.loaders and "loader in a thread" not in notes:
        seen = "" if settings.device.startswith("cpu") else "; of waits for data only an idle card is seen"
        yield (
            f"No DataLoader fed the steps, so no headroom could be measured{seen}: look at the lines at which the "
            "script was found."
        )
    if "loader in a thread" in notes:
        yield (
            "A DataLoader is read by a thread of its own, so how long the step waits for it could not be measured: "
            "read it in the training loop while you measure."
        )
    if settings.loaders and result.starve is None and result.rate is not None and "ranks unseen" not in notes:
        yield f"The loader's headroom was not measured: the script ended before. Let it run for longer: {ENOUGH}."


def _steps(result: OwnResult, notes: dict[str, Any], budget: float | None) -> Iterator[str]:
    """Of the steps themselves."""
    if result.rate is None:
        yield (
            f"The script ended after {result.steps} steps, too few to measure: give it more epochs or more data, "
            f"{ENOUGH}."
        )
    if "no optimizer" in notes:
        yield (
            "No optimizer object made a step, so each backward pass was taken as one. If that is wrong, write "
            f"{STEP_LINE} after each step; it does nothing without the watch."
        )
    if "budget" in notes and budget:
        yield (
            f"The budget of {budget:.0f} s was enough for {notes['budget']['steps']} plain steps instead of 50, so "
            "intervals are wider: give it more time for narrower ones."
        )


def _processes(result: OwnResult, notes: dict[str, Any], records: Records) -> Iterator[str]:
    """Of scripts that are more than one process."""
    nodes = {process.one("hello").get("node") for process in records.trained}
    if "ranks unseen" in notes or len(nodes) > 1:
        yield (
            "Ranks on other nodes were not watched, so their loaders could not be replayed: the numbers are rank 0's. "
            "Run it on one node for the loader's headroom."
        )
    if result.settings.forks:
        yield "The script starts processes itself that train too: only one of them was measured."
    if result.settings.devices_set and result.settings.world == 1:
        yield "The script chooses its card itself; what was measured is the card that its weights lie on."


def _beside(result: OwnResult, notes: dict[str, Any]) -> Iterator[str]:
    """Of the profile and the count, and what the run left behind."""
    if "profiler taken" in notes:
        yield "Another profiler of PyTorch is at work in the script, so none of ours could be: switch it off for this."
    if "profiler failed" in notes:
        yield f"PyTorch's profiler failed: {notes['profiler failed']['words']}."
    if "no time for a profile" in notes:
        yield "There was no time for a profile: give the measurement a larger budget."
    if "flops" in notes:
        yield _uncounted(notes["flops"]["why"])
    elif result.ended == "stopped by us" and result.traced is not None and result.achieved is None:
        yield "Operations could not be counted: a step with PyTorch's counter failed."
    if "saved" in notes:
        yield (
            f"The script wrote {notes['saved']['file']} meanwhile: it holds a run of {result.steps} steps, some of "
            "them on batches that were used again. Do not go on from it."
        )


def _uncounted(why: str) -> str:
    if why == "old":
        return "Operations were not counted: PyTorch has a counter from version 2.1 on."
    if why in ("compiled", "FSDP", "DataParallel"):
        how = "is compiled" if why == "compiled" else f"is in {why}"
        return f"Operations were not counted, because the model {how}: leave that out for once to see FLOP/s."
    return f"Operations were not counted, because PyTorch's counter failed: {why}."
