"""The verbs of a job: check its script before sbatch, read its report card after."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from gpuworkshop.cli.base import AsJson, app, bad_input, show, show_json, show_report

verbs = App(name="job", help="A job's script before it runs, and its report card after.")
app.command(verbs)

Site = Annotated[str | None, Parameter(name=["--site"], show_default=False)]


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
