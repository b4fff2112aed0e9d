"""The verbs of the site file: show the one that counts, draft one from a live Slurm, hold one to a live Slurm.

Which one counts: the file or name that is given, else $GPUWORKSHOP_SITE, else the shipped site that this Slurm cluster
is named after, else the generic one (`cluster.site.choose`).
"""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from gpuworkshop.cli.base import FINE, AsJson, BadInput, Switch, app, bad_input, show_json, show_report
from gpuworkshop.cli.files import new_file

if TYPE_CHECKING:
    from gpuworkshop.cluster.discover import Live
    from gpuworkshop.cluster.site import Site

verbs = App(name="site", help="What the kit knows about your cluster: show it, draft it, check it.")
app.command(verbs)

Which = Annotated[str | None, Parameter(name=["--site"], show_default=False)]


@verbs.command
def show(site: Which = None, *, as_json: AsJson = False) -> int:
    """Print every fact of a site with its source, and the questions that only the site can answer.

    Parameters
    ----------
    site
        A site that ships with the kit, or a file of yours (X.toml). Not given: GPUWORKSHOP_SITE, else the site that
        this Slurm cluster is named after, else generic.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster import site_show

    found, said_by = _load(site)
    report = site_show.report(found, said_by)
    return show_json(found, report.origin, report.findings) if as_json else show_report(report)


@verbs.command
def check(site: Which = None, *, as_json: AsJson = False) -> int:
    """Hold a site file to the Slurm of this machine: partitions, time limits, cards, and whether a job fits a node.

    Parameters
    ----------
    site
        The file (X.toml), or the name of a site that ships with the kit. Not given: as for `site show`.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster import site_check

    found, said_by = _load(site)
    live = _live()
    report = site_check.report(found, live, said_by)
    return show_json({"site": found, "slurm": live}, report.origin, report.findings) if as_json else show_report(report)


@verbs.command
def init(
    file: Path | None = None,
    *,
    name: Annotated[str, Parameter(show_default=False)] = "",
    force: Switch = False,
    as_json: AsJson = False,
) -> int:
    """Draft a site file from the Slurm of this machine: on stdout, or into a file.

    Parameters
    ----------
    file
        Where to write it. One that is there already stays, unless --force.
    name
        What the site is called. Not given: the cluster's own name.
    force
        Replace the file if there is one.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.cluster import site_draft

    if file and not force and os.path.lexists(file):
        raise _is_there(file)
    live = _live()
    text = site_draft.draft(live, name, date.today().isoformat())
    if file:
        _write(file, text, force)
    elif not as_json:
        print(text, end="")
        return FINE
    report = site_draft.report(text, live, str(file or ""))
    result = {"file": str(file) if file else None, "text": text}
    return show_json(result, report.origin, report.findings) if as_json else show_report(report)


def _load(name: str | None) -> tuple[Site, str]:
    """The site that counts, and what said so."""
    from gpuworkshop.cluster.site import choose, load

    chosen, said_by = choose(name)
    with bad_input(f"{said_by}: " if said_by.startswith("$") else ""):
        return load(chosen), said_by


def _live() -> Live:
    from gpuworkshop.cluster import discover

    with bad_input(kind=discover.NoSlurm):
        return discover.ask()


def _write(file: Path, text: str, force: bool) -> None:
    """A new file, or with `force` a whole one in place of another."""
    try:
        if force:
            beside = file.with_name(f".{file.name}-{os.getpid()}")
            new_file(beside, text)
            beside.replace(file)
        else:
            new_file(file, text)
    except FileExistsError:
        raise _is_there(file) from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be written: {error.strerror}") from error


def _is_there(file: Path) -> BadInput:
    return BadInput(f"{file} is there already and was not changed; --force replaces it")
