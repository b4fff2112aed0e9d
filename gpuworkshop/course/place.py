"""What the site says of its cards and partitions, for a learner who chooses: all of it from the site file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from gpuworkshop.cluster import site as sites
from gpuworkshop.cluster.facts import Partition
from gpuworkshop.cluster.site import Site
from gpuworkshop.course.faces import Note
from gpuworkshop.report import Finding, Report, Table

UNKNOWN = "unknown"
HOME = "aicr"
"""The site for which the course is made: the example where there is no cluster."""


def site() -> Site:
    """The site whose facts a lesson shows: the one that is named or whose Slurm is here, else the course's home."""
    nothing_says = not os.environ.get(sites.VARIABLE) and not shutil.which("scontrol")
    return sites.load(HOME if nothing_says else None)


def choice(site: Site) -> Report:
    """The partitions, the cards in them, and what each is for."""
    found = list(_running_jobs(site))
    if site.shared_by:
        found.insert(0, Finding("notice", f"Shared by {site.shared_by}", "somebody waits for an idle card"))
    if site.conventions.cards:
        found.insert(0, Finding("notice", f"How many cards: {site.conventions.cards}"))
    tables = tuple(table for table in (_partitions(site), _families(site)) if table.rows)
    return Report(f"Where to ask for a card: {site.name}", site.origin, tuple(found), tables)


def _partitions(site: Site) -> Table:
    rows = tuple((p.name, _cards(site, p), p.use or p.purpose, p.time_limit or UNKNOWN) for p in site.partitions)
    return Table(("partition", "cards", "for", "at most"), rows)


def _cards(site: Site, partition: Partition) -> str:
    names = (site.family(name).card or name for name in partition.families)
    return ", ".join(names) or "none, CPUs only"


def _families(site: Site) -> Table:
    rows = tuple((f.card or f.name, f"{f.memory_gb:g} GB" if f.memory_gb else UNKNOWN, f.use) for f in site.families)
    return Table(("card", "memory", "choose it for"), rows, "Memory as advertised: a card reports less")


def _running_jobs(site: Site) -> Iterator[Finding]:
    for partition in site.partitions:
        if partition.running_jobs:
            title = f"{partition.name}: at most {partition.running_jobs} running jobs a user"
            yield Finding("notice", title, partition.note)


def request(site: Site) -> Note:
    """How one card to work at is asked for, and whom to ask."""
    facts = (
        ("In a browser", site.portal.url and f"{site.portal.name or 'the portal'}, {site.portal.url}"),
        ("User name", site.user_name and f"such as {site.user_name}"),
        ("Questions", ", ".join(filter(None, (site.help.email, site.help.page, site.help.offers)))),
        ("Training", _training(site)),
        ("In a terminal", "on a login node:"),
    )
    known = tuple((name, value) for name, value in facts if value)
    return Note(f"One card to work at: {site.name}", facts=known, code=site.interactive())


def _training(site: Site) -> str:
    where = f", cloned to {site.training.folder}" if site.training.folder else ""
    return f"{site.training.repository}{where}" if site.training.repository else ""


def claims(site: Site) -> Report:
    """What is said of the power of the site's cards. Nothing of it is measured."""
    said = [(f.card or f.name, claim) for f in site.families for claim in f.claims]
    power = [(f.card or f.name, f"takes about {f.power_watts:g} W at work") for f in site.families if f.power_watts]
    table = Table(("card", "claimed, not measured"), (*power, *said))
    return Report(f"What is said of the cards: {site.name}", site.origin, (), (table,) if table.rows else ())
