"""The verb loop: on a built-in job, on a script of one's own, again after a change, and the prompt of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuworkshop.cli.base import (
    FAILED,
    FINE,
    BadInput,
    Switch,
    app,
    bad_input,
    progress_bar,
    say,
    seconds,
    show,
    show_json,
)
from gpuworkshop.cli.measure import Where

if TYPE_CHECKING:
    from gpuworkshop.own.prompt import Prompt
    from gpuworkshop.own.result import OwnResult

HERE, INTO = Where(), "prompt.md"


@app.command
def loop(
    *command: Annotated[str, Parameter(show_default=False)],
    budget: str | None = None,
    max_changes: int | None = None,
    again: Switch = False,
    prompt: Annotated[str | None, Parameter(show_default=False)] = None,
    into: Annotated[str | None, Parameter(show_default=False)] = None,
    yes: Switch = False,
    show_output: Annotated[bool, Parameter(name="--show", negative="", show_default=False)] = False,
    where: Where = HERE,
) -> int:
    """Measure, diagnose, change one thing, measure again; until nothing pays.

    On your own script, unmodified: gpuworkshop loop -- python train.py --lr 3, also with torchrun, accelerate launch,
    srun, apptainer exec or python -m in front. It says what limits the script and which one change to make first; make
    it, then gpuworkshop loop --again. Without COMMAND the built-in job is changed by itself.

    Parameters
    ----------
    command
        What starts your training, with its arguments, after --
    budget
        Time for it all, such as 90s or 2m; none: as long as it takes. Not given: of the built-in job 50s on a CPU and
        as long as it takes on a GPU; of your own script what its steps need. On a GPU, comparisons of the
        built-in job get shorter with it, so that several fit; their intervals are shown.
    max_changes
        Of the built-in job: changes to keep at most.
    again
        Launch your script as it was and as it is now, in turn: what changed, and what it brought.
    prompt
        Your job script: print a prompt for an assistant with what was measured of your newest run. Paths, users, hosts
        and secrets are replaced.
    into
        With --prompt: write it to this file.
    yes
        With --prompt: write it without asking; not given --into: to prompt.md.
    show_output
        Show what your script printed, too.
    """
    _check(command, again, prompt, into or yes, max_changes, where)
    if prompt is not None:
        return _prompt(prompt, into, yes)
    if again:
        return _again(command, budget, show_output, where.as_json)
    if command:
        return _own(command, budget, show_output, where.as_json)
    if show_output:
        raise BadInput("--show is for a script of your own: gpuworkshop loop -- COMMAND")
    return _built_in(budget, max_changes, where)


def _check(
    command: tuple[str, ...], again: bool, prompt: str | None, writes: Any, max_changes: int | None, where: Where
) -> None:
    """BadInput for flags that do not go together."""
    own = "--again" if again else "--prompt" if prompt is not None else "a script of your own" if command else ""
    if again and prompt is not None:
        raise BadInput("--again measures and --prompt writes: one after the other")
    if command and prompt is not None:
        raise BadInput("--prompt takes your newest run: gpuworkshop loop -- COMMAND first, then --prompt JOBSCRIPT")
    if writes and prompt is None:
        raise BadInput("--into and --yes belong to --prompt JOBSCRIPT")
    given = [name for name in ("preset", "data", "storage_wait_ms", "launcher") if getattr(where, name)]
    given += ["max_changes"] if max_changes is not None else []
    if own and given:
        raise BadInput(f"--{given[0].replace('_', '-')} is for the built-in job, not for {own}")
    if prompt is not None and where.as_json:
        raise BadInput("--prompt prints text, no JSON")


def _built_in(budget: str | None, max_changes: int | None, where: Where) -> int:
    from gpuworkshop.loop import climb

    limits: dict[str, Any] = {} if budget is None else {"budget_seconds": _budget(budget)}
    if max_changes is not None and max_changes < 0:
        raise BadInput(f"--max-changes is {max_changes}: it counts changes, 0 or more")
    if max_changes is not None:
        limits["max_changes"] = max_changes
    result = climb.run(where.job(), **limits, **where.how("loop"))
    return show(climb, result, where.as_json)


def _own(command: tuple[str, ...], budget: str | None, show_output: bool, as_json: bool) -> int:
    from gpuworkshop.own import again, launch, verdict
    from gpuworkshop.own.code import look

    code = look(command)
    result = launch.run(command, budget_seconds=_budget(budget), tell=_tell("your script"))
    if show_output:
        _output(result, as_json)
    status = show(verdict, result, as_json)
    if again.begin(result, code) and not as_json:
        print("\nKept. Make the change, then: gpuworkshop loop --again", file=sys.stderr)
    return status


def _again(command: tuple[str, ...], budget: str | None, show_output: bool, as_json: bool) -> int:
    from gpuworkshop.own import again
    from gpuworkshop.own.again_result import diff

    with bad_input(kind=again.CannotCompare):
        result = again.run(command, budget_seconds=_budget(budget), tell=_tell("again"))
    if show_output and result.output:
        _file(result.output, result.name, as_json)
    if as_json:
        return show_json(result, result.origin, again.findings(result))
    if text := diff(result):
        say(text + "\n", sys.stdout)
    return show(again, result, as_json)


def _prompt(job: str, into: str | None, yes: bool) -> int:
    """Show the prompt, then write it where that was asked for, or after a yes."""
    from gpuworkshop.own import prompt, snapshot

    with bad_input(kind=snapshot.CannotCompare):
        run = snapshot.newest()
    with bad_input(kind=prompt.NoPrompt):
        made = prompt.prompt(run, job)
    file = Path(into or INTO)
    if file.is_dir() or (file.exists() and not yes):
        raise BadInput(f"{file}: {'a folder' if file.is_dir() else 'is there already: --yes writes over it'}")
    say(made.text, sys.stdout)
    print(f"Replaced in it: {made.replaced}. Read it before you give it to anybody.", file=sys.stderr)
    return _written(made, file, bool(into) or yes)


def _written(made: Prompt, file: Path, wanted: bool) -> int:
    if not wanted:
        if not sys.stdin.isatty():
            print(f"Not written. To write it: --into FILE, or --yes for {file}", file=sys.stderr)
            return FINE
        print(f"Write it to {file}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Not written.", file=sys.stderr)
            return FINE
    try:
        file.write_text(made.text, encoding="utf-8")
    except OSError as error:
        print(f"gpuworkshop: {file}: cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    print(f"Written to {file}", file=sys.stderr)
    return FINE


def _output(result: OwnResult, as_json: bool) -> None:
    _file(result.output, Path(result.script).name or "the command", as_json)


def _file(output: str, name: str, as_json: bool) -> None:
    """What a script printed; beside JSON it goes to stderr."""
    stream = sys.stderr if as_json else sys.stdout
    try:
        text = Path(output).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        text = f"(its output cannot be read: {error.strerror})"
    say(f"--- what {name} printed ---\n{text.rstrip()}\n--- end ---\n", stream)


def _tell(title: str) -> Any:
    """Progress for whoever watches; None for a log file."""
    from gpuworkshop.own.pairs import Telling

    bar = progress_bar(title)
    return Telling(bar) if bar else None


def _budget(words: str | None) -> float | None:
    """Seconds; None for no limit."""
    if words is None:
        return None
    with bad_input("--budget: "):
        return None if words.strip().lower() == "none" else seconds(words)
