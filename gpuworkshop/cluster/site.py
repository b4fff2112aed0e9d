"""One site: everything the kit knows about where a job runs, from one TOML file.

No other place of the kit knows a site fact. `load` reads a file that ships with the kit or one of your own; a file
that is wrong is refused with one line: the file, the key, what was expected, what was found.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from gpuworkshop.cluster import discover, slurm_time
from gpuworkshop.cluster.explain import explain, unknown
from gpuworkshop.cluster.facts import (
    Conventions,
    Fact,
    Family,
    Habit,
    Help,
    Idle,
    Jobstats,
    Module,
    Name,
    Partition,
    Portal,
    Purpose,
    Request,
    Storage,
    Training,
)
from gpuworkshop.numbers import shortened
from gpuworkshop.report import Origin, clean

VARIABLE = "GPUWORKSHOP_SITE"
ANY = "generic"
SHIPPED = Path(__file__).parent / "sites"
LONGEST = 600
"""Characters of an error; names in a file may have any length."""


class SiteError(ValueError):
    """A site file that cannot be used; the message is one line."""


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the kit knows about one site. Raises ValueError when its parts do not fit together."""

    name: str
    source: str
    sources: dict[str, str]
    request: Request
    conventions: Conventions
    shared_by: str = ""
    user_name: str = ""
    every_partition: tuple[Name, ...] = ()
    """Every partition that Slurm has, where that is known: sbatch refuses any other. Those of CPUs need no table."""
    portal: Portal = Portal()
    help: Help = Help()
    training: Training = Training()
    families: tuple[Family, ...] = msgspec.field(name="family", default=())
    partitions: tuple[Partition, ...] = msgspec.field(name="partition", default=())
    modules: tuple[Module, ...] = msgspec.field(name="module", default=())
    storage: tuple[Storage, ...] = ()
    idle: Idle = Idle()
    habit: Habit = Habit()
    jobstats: Jobstats = Jobstats()

    def __post_init__(self) -> None:
        for problem in _misfits(self):
            raise ValueError(problem)

    @property
    def origin(self) -> Origin:
        """The mark for what the file says: its main source."""
        return Origin("claimed by", self.sources[self.source])

    def source_of(self, fact: Fact) -> str:
        """The source of a fact in words: its own, or the file's."""
        return self.sources[fact.source or self.source]

    def facts(self) -> tuple[tuple[str, Fact], ...]:
        """Every table of the file under the name by which a reader finds it, such as `partition "gpu"`."""
        named = [
            (f'{kind} "{getattr(fact, key)}"', fact)
            for kind, key, facts in (
                ("family", "name", self.families),
                ("partition", "name", self.partitions),
                ("module", "name", self.modules),
                ("storage", "path", self.storage),
            )
            for fact in facts
        ]
        single = ("portal", "help", "training", "idle", "request", "conventions", "habit", "jobstats")
        return (*named, *((name, getattr(self, name)) for name in single))

    def family(self, name: str) -> Family | None:
        """The family of this name; None if the site has none such."""
        return next((family for family in self.families if family.name == name), None)

    def partition(self, name: str) -> Partition | None:
        """The partition of this name; None if the site has none such."""
        return next((partition for partition in self.partitions if partition.name == name), None)

    def partition_for(self, family: str, purpose: Purpose) -> Partition | None:
        """The first partition with cards of this family for this purpose; None if the site has none such."""
        fitting = (p for p in self.partitions if family in p.families and p.purpose == purpose)
        return next(fitting, None)

    def srun(self, partition: str = "", cards: int = 1) -> tuple[str, ...]:
        """The words of an srun for one task with cards in `partition` (not given: the one for interactive requests).

        In front of a command they run it beside a card. Raises ValueError for a partition that the file does not have,
        or that has no cards.
        """
        name = partition or self.request.partition
        found = self.partition(name)
        if name and (problem := _no_cards(name, self)):
            raise ValueError(problem)
        where = ("-p", found.name, *found.options) if found else ()
        gres = self.family(found.families[0]).gres if found else "gpu"
        cpus, memory = self.conventions.share(cards)
        return (
            *("srun", *where, "-N", "1", "-n", "1", "-c", str(cpus)),
            *(f"--mem={memory}", f"--gres={gres}:{cards}", f"--time={self.request.time}"),
        )

    def interactive(self, partition: str = "", cards: int = 1) -> str:
        """The line that asks for an interactive session, ready to paste."""
        return shlex.join((*self.srun(partition, cards), "--pty", self.request.shell))

    def module_lines(self) -> tuple[str, ...]:
        """The lines of a job script that load the site's modules; none where the file names none."""
        if not self.modules:
            return ()
        return ("module purge", "module load " + " ".join(module.name for module in self.modules))


def shipped() -> tuple[str, ...]:
    """The names of the sites that ship with the kit."""
    return tuple(sorted(file.stem for file in SHIPPED.glob("*.toml")))


def choose(
    name: str | Path | None = None, env: Mapping[str, str] = os.environ, cluster: Callable[[], str] | None = None
) -> tuple[str, str]:
    """Which site counts, as a name or a path, and what said so: the name that was given, else $GPUWORKSHOP_SITE, else
    the shipped site that this Slurm cluster is named after, else the generic one.

    `cluster` asks for the cluster's name; not given: the Slurm of this machine.
    """
    if name:
        return str(name), "asked for"
    if env.get(VARIABLE):
        return env[VARIABLE], f"${VARIABLE}"
    live = cluster() if cluster else discover.cluster(env)
    words = re.split(r"[^a-z0-9]+", live.lower())
    for one in shipped():
        if one in words:
            return one, f"this is the Slurm cluster {live}"
    return ANY, f"the Slurm cluster {live} is none that the kit knows" if live else "no Slurm answers here"


def load(name: str | Path | None = None, env: Mapping[str, str] = os.environ) -> Site:
    """The site of this name, or of this path (a path has a separator or ends in .toml); without a name the one that
    `choose` says. Raises SiteError.
    """
    chosen, said_by = choose(name, env)
    said = f"{said_by}: " if said_by.startswith("$") else ""
    if chosen.endswith(".toml") or "/" in chosen or os.sep in chosen:
        file = Path(chosen).expanduser()
    elif chosen in shipped():
        file = SHIPPED / f"{chosen}.toml"
    else:
        known = f"(the kit has {', '.join(shipped())}; a file of yours is given by its path, X.toml)"
        raise _error(f"{said}{unknown('site', chosen, shipped())} {known}")
    return parse(_read(file, said), file.name if file.parent == SHIPPED else str(file))


def _read(file: Path, said: str) -> str:
    try:
        if not file.is_file():  # a pipe or a device would never end
            what = "no such file" if not os.path.lexists(file) else "a folder" if file.is_dir() else "not a plain file"
            raise _error(f"{said}{file}: {what}")
        return file.read_bytes().decode("utf-8-sig")  # some editors put a mark in front
    except OSError as error:
        raise _error(f"{said}{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _error(f"{said}{file}: not text in UTF-8") from error


def parse(text: str, file: str = "site.toml") -> Site:
    """The site that a TOML text describes; `file` is the name for errors. Raises SiteError."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _error(f"{file}: not TOML: {error}") from error
    try:
        return msgspec.convert(data, Site)
    except msgspec.ValidationError as error:
        raise _error(f"{file}: {explain(error, Site, data)}") from error


def _error(message: str) -> SiteError:
    return SiteError(shortened(" ".join(clean(message).split()), LONGEST))


def _misfits(site: Site) -> Iterable[str]:
    """What the single tables cannot know: names that occur twice or lead nowhere, a request that does not fit."""
    families, partitions = [[one.name for one in group] for group in (site.families, site.partitions)]
    for kind, names in (("family", families), ("partition", partitions)):
        twice = {name for name in names if names.count(name) > 1}
        yield from (f'{kind} "{name}": expected once, found {names.count(name)} times' for name in sorted(twice))
    if site.source not in site.sources:
        yield "source: " + unknown("key in sources", site.source, site.sources)
    for where, fact in site.facts():
        if fact.source and fact.source not in site.sources:
            yield f"{where}: source: " + unknown("key in sources", fact.source, site.sources)
    for partition in site.partitions:
        for name in partition.families:
            if name not in families:
                yield f'partition "{partition.name}": families: ' + unknown("family", name, families)
    yield from _request_misfits(site)


def _request_misfits(site: Site) -> Iterable[str]:
    name, asked = site.request.partition, slurm_time.seconds(site.request.time)
    if not name:
        return
    if problem := _no_cards(name, site):
        yield f"request: partition: {problem}"
    elif (limit := site.partition(name).seconds) is not None and asked > limit:
        most = f'at most {slurm_time.text(limit)}, the limit of "{name}"'
        yield f"request: time: expected {most}, found {site.request.time}"


def _no_cards(name: str, site: Site) -> str:
    """Why nobody can ask for a card in this partition; "" if one can."""
    found = site.partition(name)
    if found is None:
        return unknown("partition", name, (one.name for one in site.partitions))
    return "" if found.families else f'"{name}" has no cards'
