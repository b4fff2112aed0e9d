"""The verbs of a job: write its script, check it, see whether it is ready, and read its report card after."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from gpuworkshop.cli.base import AsJson, BadInput, app, bad_input, show, show_json, show_report
from gpuworkshop.cli.files import new_file

verbs = App(name="job", help="A job's script before it runs, and its report card after.")
app.command(verbs)

Site = Annotated[str | None, Parameter(name=["--site"], show_default=False)]
Files = Annotated[tuple[str, ...], Parameter(name=["--from"], negative="", consume_multiple=True, show_default=False)]
Ledger = Annotated[bool, Parameter(name=["--ledger"], negative="--no-ledger", show_default=False)]
Given = Annotated[str | None, Parameter(show_default=False)]


@verbs.command
def write(
    *script: Annotated[str, Parameter(show_default=False)],
    files: Files = (),
    ledger: Ledger = True,
    out: Given = None,
    name: str = "train",
    steps: int | None = None,
    step_ms: float | None = None,
    cards: int | None = None,
    workers: int | None = None,
    host_memory: Given = None,
    card_memory: Given = None,
    data: Given = None,
    family: Given = None,
    partition: Given = None,
    site: Site = None,
    as_json: AsJson = False,
) -> int:
    """Write a job script from measured numbers; each line has its reason above it, and where its number is from.

    gpuworkshop job write --from scale.json loop.json --steps 20000 --out job.sbatch -- train.py --epochs 10

    Numbers come from result files, else from the newest loop in your ledger; a flag counts more than both, and so do
    workers in your training's own command. What was not measured takes the site's convention, and its line says so.

    Parameters
    ----------
    script
        Your training with its arguments, after --. Not given: the kit's training with the measured settings.
    files
        What memory, scale, loop, watch, starve, profile or `job stats` printed with --json: one file or several.
    ledger
        --no-ledger: leave the ledger's newest run alone.
    out
        The file to write. Not given: the script is printed on stdout, and what to know about it on stderr.
    name
        The job's name.
    steps
        Steps that the training takes: without them --time cannot follow from the time of one.
    step_ms
        Milliseconds of a step.
    cards
        Cards on one node.
    workers
        Loader workers of each rank.
    host_memory
        The peak of host memory, such as 11GiB.
    card_memory
        The peak of a card's memory, such as 70GiB.
    data
        A folder to copy to the node's own disk when the job starts.
    family
        The kind of card, as the site file names it.
    partition
        The partition.
    site
        A site that ships with the kit, or a file of yours (X.toml). Not given: as for `site show`.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster.site import load
    from gpuworkshop.loop import evidence, rightsize

    sizes = {
        "host_memory": _bytes("--host-memory", host_memory),
        "card_memory": _bytes("--card-memory", card_memory),
    }
    given = {"data": data or "", "family": family or "", "partition": partition or "", **sizes}
    numbers = {"steps": steps, "step_ms": step_ms, "cards": cards, "workers": workers}
    with bad_input():
        asked = rightsize.Asked(name=name, script=script, **numbers, **given)
        made = rightsize.write(evidence.gather(files, ledger), load(site), asked)
        text = made.text(out or "")
    if out is not None:
        _save(out, text)
    if as_json:
        return show_json(made, made.origin, rightsize.findings(made))
    if out is None:
        print(text, end="")
        return show_report(rightsize.report(made), sys.stderr)
    return show_report(rightsize.report(made, out))


@verbs.command
def ready(file: str, *, files: Files = (), ledger: Ledger = True, site: Site = None, as_json: AsJson = False) -> int:
    """Is a job script ready for batch? Ten items, each green, red or unknown, with the measured number behind it.

    Parameters
    ----------
    file
        The script.
    files
        What verify, watch, loop, starve, profile, memory or precision printed with --json: one file or several.
    ledger
        --no-ledger: leave the ledger's newest run alone.
    site
        A site that ships with the kit, or a file of yours (X.toml). Not given: as for `site show`.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster.site import load
    from gpuworkshop.loop import checklist, evidence

    with bad_input():
        result = checklist.run(file, load(site), evidence.gather(files, ledger))
    return show(checklist, result, as_json)


def _save(out: str, text: str) -> None:
    """Write a new file; BadInput where it cannot be, or something is there already."""
    if not out.strip():
        raise BadInput("--out: the name of a file is expected")
    try:
        new_file(Path(out), text)
    except FileExistsError:
        raise BadInput(f"--out: {out} is there already: name another file, or remove it") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"--out: {out}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _bytes(flag: str, text: str | None) -> int | None:
    """A size such as 8GiB in bytes; None where none is given, BadInput for anything else."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*([mgt])(?:i?b)?\s*", text.lower())
    size = int(float(found[1]) * 2 ** {"m": 20, "g": 30, "t": 40}[found[2]]) if found else 0
    if not size:
        raise BadInput(f"{flag}: {text[:20]!r} is not a size: write 8GiB or 500MiB")
    return size


@verbs.command
def check(file: str, *, site: Site = None, as_json: AsJson = False) -> int:
    """Check a job script: what sbatch refuses, and what it accepts in silence and is wrong, with the corrected lines.

    Parameters
    ----------
    file
        The script. Its log folders are looked for in the present folder, where sbatch would be called, and beside it.
    site
        A site that ships with the kit, or a file of yours (X.toml): partitions and limits are known from there. Not
        given: as for `site show`.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster.jobscript import check as instrument
    from gpuworkshop.cluster.site import load

    with bad_input():
        result = instrument.run(file, load(site))
    return show(instrument, result, as_json)


@verbs.command
def stats(job: Annotated[str, Parameter(allow_leading_hyphen=True)], *, as_json: AsJson = False) -> int:
    """Read a job's report card by jobstats: what was used, what was asked for and not used, and what to do next.

    Parameters
    ----------
    job
        A file with jobstats' report, its JSON or a JS1: payload; - for stdin, as in `jobstats 123 | gpuworkshop job
        stats -`; or the job's number, for which sacct is asked.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster import jobstats as instrument

    with bad_input():
        jobs = instrument.get(job)
    if not as_json:
        return max(show_report(instrument.report(one)) for one in jobs)
    result = jobs[0] if len(jobs) == 1 else {"jobs": jobs}
    return show_json(result, jobs[0].origin, instrument.of_all(jobs))
