"""Hold a site file to a live Slurm: partitions, time limits, GRES, and whether what a job asks for fits a node."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.discover import Live, LivePartition
from gpuworkshop.cluster.facts import Family, Partition
from gpuworkshop.cluster.site import Site
from gpuworkshop.report import Finding, Report, measured_here

_SILENT = Finding(
    "unknown",
    "Slurm does not say the rest: ask the site",
    "limits on running jobs, card memory, modules, storage, the policy for idle jobs, the portal",
)


def check(site: Site, live: Live) -> tuple[Finding, ...]:
    """What of the file is not so in this Slurm, and what of Slurm the file does not know.

    fail: a job written from the file would be refused. warning: the file is behind. notice: as things are now.
    """
    found = [*_request(site, live)]
    found += [finding for partition in site.partitions for finding in _partition(site, partition, live)]
    found += [finding for family in site.families for finding in _family(site, family, live)]
    return (*found, *_new(site, live), *_every(site, live), _SILENT)


def report(site: Site, live: Live, said_by: str = "") -> Report:
    """The check with its mark: asked here, today; `said_by` is what chose this site."""
    chosen = (Finding("ok", f"Which site counts: {said_by}"),) if said_by else ()
    origin = measured_here(f"Slurm cluster {live.cluster}".rstrip())
    return Report(f"The site file {site.name} against this Slurm", origin, (*chosen, *check(site, live)))


def _partition(site: Site, partition: Partition, live: Live) -> list[Finding]:
    """What differs in one partition; one ok if nothing does."""
    actual = live.partition(partition.name)
    if actual is None:
        return [_missing(site, partition, live)]
    wrong = [*_time(partition, actual), *_cards(site, partition, actual), *_fit(site, partition, actual)]
    if not wrong:
        limit = f"at most {actual.time_limit}" if actual.time_limit else "time limit not said"
        wrong = [Finding("ok", f'partition "{partition.name}" is as the file says', f"{limit}; {_offers(actual)}")]
    return [*wrong, *_now(actual)]


def _missing(site: Site, partition: Partition, live: Live) -> Finding:
    spare = [one.name for one in live.partitions if not site.partition(one.name)]
    near = get_close_matches(partition.name, spare, 1)
    return Finding(
        "fail",
        f'Slurm has no partition "{partition.name}"',
        f"it has {_names(live.partitions)}",
        f'name = "{near[0]}"' if near else f'remove the [[partition]] "{partition.name}" from the file',
    )


def _new(site: Site, live: Live) -> Iterable[Finding]:
    """Partitions with cards that the file does not know; one finding for a file that knows none."""
    new = [one for one in live.partitions if one.gres() and not site.partition(one.name)]
    if new and not site.partitions:
        yield Finding("warning", "the file names no partition", f"Slurm has {_names(new)}", "gpuworkshop site init")
        return
    for one in new:
        title = f'Slurm has a partition with cards that the file does not know: "{one.name}"'
        evidence = f"at most {one.time_limit or 'unknown'}; {_offers(one)}"
        yield Finding("warning", title, evidence, f'gpuworkshop site init  # copy the tables of "{one.name}"')


def _every(site: Site, live: Live) -> Iterable[Finding]:
    """The list by which job check refuses a partition."""
    differ = sorted(set(site.every_partition) ^ set(live.every))
    if site.every_partition and live.every and differ:
        title = f"every_partition is not what Slurm has: {', '.join(differ)}"
        fix = f"every_partition = {json.dumps(live.every)}"
        yield Finding("warning", title, "job check refuses a partition that is not in this list", fix)


def _names(partitions: Iterable[LivePartition]) -> str:
    return ", ".join(one.name for one in partitions)


def _request(site: Site, live: Live) -> Iterable[Finding]:
    """A request that names no partition needs a default with cards."""
    default = next((one for one in live.partitions if one.default), None)
    if site.request.partition or (default and default.gres()):
        return
    with_cards = [one.name for one in live.partitions if one.gres()]
    yield Finding(
        "fail",
        "the file names no partition for interactive requests, and Slurm's default has no cards",
        f"the default is {default.name}" if default else "there is no default partition",
        f'[request]\npartition = "{with_cards[0]}"' if with_cards else "no partition of this Slurm has cards",
    )


def _time(partition: Partition, actual: LivePartition) -> Iterable[Finding]:
    if not actual.time_limit or partition.seconds == slurm_time.seconds(actual.time_limit):
        return
    title = f'partition "{partition.name}" ends jobs after {actual.time_limit}'
    fix = f'time_limit = "{actual.time_limit}"'
    if partition.seconds is None:
        yield Finding("notice", title, "the file does not say", fix)
    else:
        longer = partition.seconds > slurm_time.seconds(actual.time_limit)
        level, means = ("fail", "a job of that length never starts") if longer else ("warning", "longer jobs may run")
        yield Finding(level, title, f"the file says {partition.time_limit}: {means}", fix)


def _cards(site: Site, partition: Partition, actual: LivePartition) -> Iterable[Finding]:
    """Every family of the partition can be asked for, and every kind of card in it has a family."""
    offered, asked = actual.gres(), [site.family(name).gres for name in partition.families]
    refused = [gres for gres in asked if gres not in offered and (gres != "gpu" or not offered)]
    unknown = [gres for gres in offered if gres not in asked and "gpu" not in asked]
    for gres in refused:
        title = f'partition "{partition.name}" has no {gres}: a job that asks for it is refused'
        fix = f'gres = "{offered[0]}"' if offered else "families = []"
        yield Finding("fail", title, _offers(actual), fix)
    if unknown and not refused:
        title = f'partition "{partition.name}" has cards of which the file knows no family: {", ".join(unknown)}'
        fix = f'[[family]]\nname = "{unknown[0].removeprefix("gpu:")}"\ngres = "{unknown[0]}"'
        yield Finding("warning", title, _offers(actual), fix)
    if "gpu" in asked and len(offered) > 1:
        title = f'--gres=gpu:1 in partition "{partition.name}" may give any of {", ".join(offered)}'
        yield Finding("notice", title, fix=f"--gres={next(gres for gres in offered if gres != 'gpu')}:1")


def _fit(site: Site, partition: Partition, actual: LivePartition) -> Iterable[Finding]:
    """What one card's job asks for must fit a node with cards."""
    nodes = [group for group in actual.nodes if group.gres]
    asked = site.conventions
    if not partition.families or not nodes:
        return
    if not any(group.cpus >= asked.cpus_per_card and group.memory_mb >= asked.memory_mb for group in nodes):
        cpus, memory = max(group.cpus for group in nodes), max(group.memory_mb for group in nodes)
        enough = asked.memory if memory >= asked.memory_mb else f"{memory // 1024}G"
        yield Finding(
            "fail",
            f'no node of partition "{partition.name}" has {asked.cpus_per_card} CPUs and {asked.memory} for one card',
            f"at most {cpus} CPUs and {memory // 1024}G",
            f'cpus_per_card = {min(cpus, asked.cpus_per_card)}\nmemory = "{enough}"',
        )


def _now(actual: LivePartition) -> Iterable[Finding]:
    """How things stand at this moment, whatever the file says."""
    if actual.state.lower() != "up":
        yield Finding("notice", f'partition "{actual.name}" is in state {actual.state}: its jobs wait')
    elif not any(group.in_use for group in actual.nodes):
        yield Finding("notice", f'no node of partition "{actual.name}" takes jobs at the moment')


def _family(site: Site, family: Family, live: Live) -> Iterable[Finding]:
    """The cards of a node, where the file says how many there are."""
    places = (live.partition(one.name) for one in site.partitions if family.name in one.families)
    most = max((actual.most(family.gres) for actual in places if actual), default=0)
    if not most or family.cards_per_node in (None, most):
        return
    more = family.cards_per_node > most
    yield Finding(
        "fail" if more else "warning",
        f'a node of family "{family.name}" has {most} cards, the file says {family.cards_per_node}',
        "a job that asks for more on one node is refused" if more else "a job may ask for more on one node",
        f"cards_per_node = {most}",
    )


def _offers(actual: LivePartition) -> str:
    """The nodes of a partition in words, such as `2 nodes with 64 CPUs, gpu:b200 x 8`."""
    kinds: dict[str, int] = {}
    for group in actual.nodes:
        cards = ", ".join(f"{gres.name} x {gres.count}" for gres in group.gres) or "no cards"
        words = f"with {group.cpus} CPUs, {cards}"
        kinds[words] = kinds.get(words, 0) + group.count
    return "; ".join(f"{count} node{'s' if count > 1 else ''} {words}" for words, count in kinds.items()) or "no nodes"
