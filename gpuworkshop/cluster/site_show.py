"""What a site file says, as a report: every fact with its source, and the questions that only the site can answer."""

from __future__ import annotations

from collections.abc import Iterable

from gpuworkshop.cluster.facts import Fact, Family, Storage
from gpuworkshop.cluster.site import Site
from gpuworkshop.report import Finding, Report, Table

UNKNOWN = "unknown"


def findings(site: Site) -> tuple[Finding, ...]:
    """The questions of the file, each once; a warning where nobody should rely on the answer yet."""
    places: dict[tuple[bool, str], list[tuple[str, Fact]]] = {}
    for where, fact in site.facts():
        if fact.ask:
            places.setdefault((fact.unverified, fact.ask), []).append((where, fact))
    return tuple(_question(unverified, ask, asked) for (unverified, ask), asked in places.items())


def _question(unverified: bool, ask: str, places: list[tuple[str, Fact]]) -> Finding:
    where = ", ".join(where for where, _ in places)
    if unverified:
        return Finding("warning", f"{where} is not verified; ask: {ask}")
    return Finding("unknown", f"{where}; ask: {ask}")


def report(site: Site, said_by: str = "") -> Report:
    """The face of `site show`: partitions, cards, places, the rest, the sources; `said_by` is what chose this site."""
    chosen = (Finding("ok", f"Which site counts: {said_by}"),) if said_by else ()
    tables = (_partitions(site), _families(site), _storage(site), _rest(site), _sources(site))
    shown = tuple(table for table in tables if table.rows)
    return Report(f"What the kit knows of {site.name}", site.origin, (*chosen, *findings(site)), shown)


def _partitions(site: Site) -> Table:
    rows = tuple(
        (
            one.name,
            ", ".join(one.families) or "CPUs only",
            one.purpose,
            one.time_limit or UNKNOWN,
            _known(one.running_jobs),
            "; ".join(part for part in (one.use, one.note, " ".join(one.options)) if part),
            _source(site, one),
        )
        for one in site.partitions
    )
    return Table(("partition", "cards", "for", "at most", "running jobs a user", "use", "source"), rows)


def _families(site: Site) -> Table:
    rows = tuple(
        (
            one.name,
            one.card or UNKNOWN,
            f"--gres={one.gres}:N",
            _known(one.memory_gb, " GB"),
            _known(one.power_watts, " W"),
            _known(one.cards_per_node),
            _use(one),
            _source(site, one),
        )
        for one in site.families
    )
    columns = ("--expect", "card", "request", "memory", "power", "a node", "use", "source")
    return Table(columns, rows, "Cards; memory and power as advertised, the device reports less memory")


def _use(family: Family) -> str:
    return "; ".join([*filter(None, [family.use]), *(f"claimed: {claim}" for claim in family.claims)])


def _storage(site: Site) -> Table:
    rows = tuple((one.path, _quota(one), one.purge or UNKNOWN, _about(one), _source(site, one)) for one in site.storage)
    return Table(("place", "quota", "purged", "file system, use", "source"), rows)


def _about(place: Storage) -> str:
    return "; ".join(filter(None, (place.filesystem or f"file system {UNKNOWN}", place.note)))


def _quota(place: Storage) -> str:
    gb = place.quota_gb
    return UNKNOWN if gb is None else f"{gb / 1000:g} TB" if gb >= 1000 else f"{gb:g} GB"


def _rest(site: Site) -> Table:
    rows = tuple((name, value, _source(site, fact)) for name, value, fact in _lines(site) if value)
    return Table(("what", "", "source"), rows)


def _lines(site: Site) -> Iterable[tuple[str, str, Fact | None]]:
    idle, start, stats = site.idle, site.conventions, site.jobstats
    yield "every partition", ", ".join(site.every_partition), None
    yield "shared by", site.shared_by, None
    yield "user names", f"like {site.user_name}" if site.user_name else "", None
    yield "portal", " ".join(filter(None, (site.portal.name, site.portal.url))), site.portal
    yield "help", ", ".join(filter(None, (site.help.email, site.help.page, site.help.offers))), site.help
    yield "documentation", site.help.docs or "", site.help
    yield "training", " cloned to ".join(filter(None, (site.training.repository, site.training.folder))), site.training
    yield "interactive", site.interactive(), site.request
    for module in site.modules:
        yield "module", " ".join(filter(None, (module.name, module.note and f"({module.note})"))), module
    yield "a job starts with", f"{start.cpus_per_card} CPUs and {start.memory} a card, {start.time}", start
    yield "logs", f"{start.output} and {start.error}", start
    yield "cards", start.cards, start
    yield "idle jobs", idle.says or {True: "canceled", False: "not canceled", None: UNKNOWN}[idle.cancels], idle
    yield "canceled after", _known(idle.minutes, " minutes"), idle
    yield "idle means below", _known(idle.below_percent, " % utilization"), idle
    yield "so", " ".join(idle.advice), idle
    yield "habit", site.habit.says, site.habit
    yield "in devel", ", ".join(site.habit.devel), site.habit
    yield "in batch", ", ".join(site.habit.batch), site.habit
    available = {True: "yes", False: "no", None: UNKNOWN}[stats.available]
    yield "jobstats", "; ".join(filter(None, (available, stats.note))), stats


def _sources(site: Site) -> Table:
    return Table(("source", "in words"), tuple(site.sources.items()))


def _source(site: Site, fact: Fact | None) -> str:
    key = (fact and fact.source) or site.source
    return f"{key}, not verified" if fact and fact.unverified else key


def _known(number: float | None, unit: str = "") -> str:
    return UNKNOWN if number is None else f"{number:g}{unit}"
