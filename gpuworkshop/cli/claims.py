"""The verb claims: what the workshop states, beside what was measured here or on a recorded card."""

import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuworkshop.cli.base import FAILED, AsJson, BadInput, Switch, app, bad_input, say, show_json, show_report


@app.command
def claims(
    file: str | None = None,
    /,
    *,
    record: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="", show_default=False)] = None,
    again: Switch = False,
    into: Annotated[str | None, Parameter(show_default=False)] = None,
    replay: Switch = False,
    launcher: Annotated[str, Parameter(show_default=False)] = "",
    as_json: AsJson = False,
) -> int:
    """What does the workshop state, and what was measured? Every claim with its verdict, from what was recorded here.

    Parts that can be recorded: verify, calls, loader, batch, memory, precision, busy, profile, scale; or all. Each
    takes at most some minutes, and is kept as soon as it is done.

    Parameters
    ----------
    file
        A recording to show, as --into wrote it.
    record
        Parts to measure now, such as --record verify calls. What was recorded with this card and kit is kept.
    again
        Measure them although they were recorded.
    into
        A file to record into, instead of the state folder, to be sent elsewhere.
    replay
        Show the recording of a card that comes with the kit.
    launcher
        Command to put in front, in quotes: "srun --gres=gpu:1 --cpus-per-task=8".
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.course import claims_parts, claims_store

    given = [name for name, there in (("FILE", file), ("--record", record), ("--replay", replay)) if there]
    if record == []:
        raise BadInput(f"--record what? {', '.join(claims_parts.PARTS)}, or all")
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} are two questions: ask one of them")
    for name, there in (("--again", again), ("--into", into)):
        if there and not record:
            raise BadInput(f"{name} goes with --record PART: {', '.join(claims_parts.PARTS)}, or all")
    if launcher and (file is not None or replay):
        raise BadInput("--launcher is for a measurement: a recording is shown where you are")
    if replay:
        from gpuworkshop.course import replay as recordings

        with bad_input():
            return _show(recordings.load("claims"), "", as_json)
    if file is not None:
        with bad_input():
            return _show(claims_store.load(Path(file)), "", as_json)
    with bad_input("--launcher: "):
        words = tuple(shlex.split(launcher))
    if record:
        return _record(record, again, into, words, as_json)
    machine = claims_parts.here(words).machine
    return _show(claims_store.InState(machine).read(), machine, as_json)


def _record(names: list[str], again: bool, into: str | None, launcher: tuple[str, ...], as_json: bool) -> int:
    """Measure parts, say on stderr how it goes, and show what there is then."""
    from gpuworkshop.course import claims_parts, claims_store

    with bad_input():
        wanted = claims_store.which(names, list(claims_parts.PARTS))
    with bad_input():
        setup = claims_parts.reached(claims_parts.here(launcher))
        store = claims_store.InFile(Path(into), setup.machine) if into else claims_store.InState(setup.machine)
    done = lambda part: say(f"{part.name}: recorded in {part.seconds:.0f} s")  # noqa: E731
    with bad_input():
        told = claims_store.record(wanted, store, lambda name: _measured(name, setup), again=again, done=done)
    for name in told.before:
        say(f"{name}: was recorded before; --again measures it anew")
    for name, words in told.failed.items():
        say(f"{name}: not recorded: {words}")
    return max(_show(told.result, setup.machine, as_json), FAILED if told.failed else 0)


def _measured(name: str, setup):
    """One part, with a progress bar where somebody watches."""
    import msgspec

    from gpuworkshop import child
    from gpuworkshop.course import claims_parts

    if not sys.stderr.isatty():
        return claims_parts.measure(name, setup)
    with closing(child.Bar(name, sys.stderr)) as bar:
        return claims_parts.measure(name, msgspec.structs.replace(setup, progress=bar))


def _show(result, machine: str, as_json: bool) -> int:
    """The table; as JSON the result, which is null where nothing was recorded."""
    from gpuworkshop.course import claims as table
    from gpuworkshop.report import measured_here

    if as_json:
        origin = result.origin if result else measured_here(machine)
        return show_json(result, origin, table.findings(result))
    return show_report(table.report(result, machine))
