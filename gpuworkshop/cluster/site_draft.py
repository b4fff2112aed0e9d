"""Draft a site file from a live Slurm: what Slurm knows is filled in, guesses are marked, the rest is left to ask."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable

from gpuworkshop.cluster import site_show, slurm_time
from gpuworkshop.cluster.discover import Gres, Live, LivePartition
from gpuworkshop.cluster.facts import MOST, is_name
from gpuworkshop.cluster.site import VARIABLE, parse
from gpuworkshop.numbers import counted
from gpuworkshop.report import Finding, Report, clean, measured_here

_DEVEL = re.compile(r"dev|debug|test|inter|short|quick|express", re.IGNORECASE)
_PROFILE = re.compile(r"[_.-]?\d+g\.\d+gb.*", re.IGNORECASE)
_HOUR, _MEMORY = 3600, 32  # a job that was never measured: at most 4 hours and 32 GiB a card

_IDLE = "Does the site cancel jobs whose card is idle: after how many minutes, below which utilization?"
_HEAD = """\
# Drafted from what Slurm says about itself. It knows partitions, time limits and GRES; everything else is yours:
# portal, help, modules, storage, the policy for idle jobs (see the shipped sites for the tables). Leave out what you
# do not know. `unverified = true` marks a guess: check it, then delete that line and the question."""


def draft(live: Live, name: str = "", date: str = "") -> str:
    """The text of a site file for this Slurm. `name` of the site, not given: the cluster's; `date` is an ISO date.

    The text loads, and passes the check against the same Slurm.
    """
    site = name or live.cluster or "my cluster"
    source = f"sinfo on {live.cluster or site}" + (f", {date}" if date else "")
    kinds = _kinds(live)
    names = {gres.name for gres in kinds}
    usable = [one for one in live.partitions if is_name(one.name) and names.intersection(one.gres())]
    tables = [
        "\n".join([f'{_HEAD}\n\nname = {_quoted(site)}\nsource = "slurm"', *_every(live)]),
        f"[sources]\nslurm = {_quoted(source)}",
        *(_family(kind, gres, live) for gres, kind in kinds.items()),
        *(_partition(one, kinds) for one in usable),
        *_left_out(live, usable),
        _request(usable),
        _conventions(usable),
        f"[idle]\nask = {_quoted(_IDLE)}",
    ]
    return "\n\n".join(tables) + "\n"


def report(text: str, live: Live, file: str = "") -> Report:
    """What was drafted and what is still to be asked; `file` is where the text was written, "" for nowhere."""
    site = parse(text)
    cluster = f"Slurm cluster {live.cluster}".rstrip()
    counts = (counted(len(found), kind) for kind, found in (("partition", site.partitions), ("kind", site.families)))
    what = f"{' and '.join(counts)} of cards, as {cluster} says"
    use = f"export {VARIABLE}={shlex.quote(os.path.abspath(file))}" if file else ""
    done = Finding("ok", f"The draft is written to {file}" if file else "The draft", what, use)
    return Report(f"A site file for {site.name}", measured_here(cluster), (done, *site_show.findings(site)))


def _every(live: Live) -> Iterable[str]:
    if live.every:
        yield f"every_partition = {json.dumps(live.every)}  # sbatch refuses any other"


def _kinds(live: Live) -> dict[Gres, str]:
    """Each kind of card (its count left out) and the name of its family; a type that no file can hold is left out."""
    kinds: dict[Gres, str] = {}
    for partition in live.partitions:
        for kind in sorted({gres.type for group in partition.nodes for gres in group.gres}):
            name = kind or "gpu"
            if Gres(kind, 0) not in kinds and is_name(name):
                kinds[Gres(kind, 0)] = name if name not in kinds.values() else f"{name}-2"
    return kinds


def _family(name: str, gres: Gres, live: Live) -> str:
    card = _card(gres)
    lines = [f"name = {_quoted(name)}", f"gres = {_quoted(gres.name)}"]
    most = max(one.most(gres.name) for one in live.partitions if gres.name in one.gres())
    lines += [f"cards_per_node = {min(most, MOST)}"]
    if card:
        question = f"Is {card} in the card's name? Guessed from {gres.name}; compare nvidia-smi -L on such a node."
        lines += [f"card = {_quoted(card)}", "unverified = true", f"ask = {_quoted(question)}"]
    else:
        lines += [f"ask = {_quoted(f'Which card is it? Slurm only says {gres.name}.')}"]
    if gres.is_slice:
        lines += ['use = "a MIG slice: a part of one card"']
    return "\n".join(["[[family]]", *lines])


def _card(gres: Gres) -> str:
    """The card that a GRES type seems to name, without the profile of a MIG slice; "" if it names none."""
    words = re.split(r"[_\s-]+", _PROFILE.sub("", gres.type))
    return " ".join(word.upper() for word in words if word and word.lower() != "nvidia")


def _partition(one: LivePartition, kinds: dict[Gres, str]) -> str:
    families = [name for gres, name in kinds.items() if gres.name in one.gres()]
    guess = "devel" if _DEVEL.search(one.name) else "batch"
    lines = [
        f"name = {_quoted(one.name)}",
        f"families = {json.dumps(families)}",
        f'purpose = "{guess}"  # guessed from the name: devel or batch',
    ]
    lines += [f"time_limit = {_quoted(one.time_limit)}"] if one.time_limit else []
    lines += ['ask = "How many jobs may one user run here at a time? Must a job name an account or a QOS?"']
    return "\n".join(["[[partition]]", *lines])


def _left_out(live: Live, usable: list[LivePartition]) -> Iterable[str]:
    names = [" ".join(clean(one.name).split()) for one in live.partitions if one not in usable]
    if names:
        yield "# Left out: no cards there, or a name that cannot stand in a job script.\n# " + ", ".join(names)


def _request(usable: list[LivePartition]) -> str:
    first = next((one for one in usable if _DEVEL.search(one.name)), usable[0] if usable else None)
    lines = [f"partition = {_quoted(first.name)}"] if first else []
    return "\n".join(["[request]", *lines, f'time = "{_time([first] if first else [], _HOUR)}"'])


def _conventions(usable: list[LivePartition]) -> str:
    """A fair share of the smallest node with cards, and no more than an unmeasured job should take."""
    shares = _shares(usable)
    cpus = min((cpus for cpus, _ in shares), default=8)
    memory = min((memory for _, memory in shares), default=_MEMORY)
    batch = [one for one in usable if not _DEVEL.search(one.name)]
    return "\n".join(
        [
            "[conventions]  # a start for a job that was never measured, per card",
            f"cpus_per_card = {max(1, min(cpus, MOST))}",
            f'memory = "{max(1, min(memory, _MEMORY))}G"',
            f'time = "{_time(batch or usable, 4 * _HOUR)}"',
            'output = "logs/%x_%j.out"',
            'error = "logs/%x_%j.err"',
        ]
    )


def _shares(usable: list[LivePartition]) -> list[tuple[int, int]]:
    """CPUs and GiB a card of each group of nodes with cards; nodes with MIG slices count where there are no others."""
    groups = [group for one in usable for group in one.nodes if sum(gres.count for gres in group.gres)]
    whole = [group for group in groups if not any(gres.is_slice for gres in group.gres)]
    cards = [(group, sum(gres.count for gres in group.gres)) for group in whole or groups]
    return [(group.cpus // count, group.memory_mb // 1024 // count) for group, count in cards]


def _time(partitions: Iterable[LivePartition], most: float) -> str:
    """`most` seconds, or the shortest limit of these partitions if that is less."""
    limits = [slurm_time.seconds(one.time_limit) for one in partitions if one.time_limit]
    return slurm_time.text(min([most, *limits]))


def _quoted(text: str) -> str:
    """A TOML string of any text; what would steer a terminal is made visible first."""
    return json.dumps(clean(text), ensure_ascii=False)
