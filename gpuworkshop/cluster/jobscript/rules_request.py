"""Rules about what is asked for: numbers that disagree, and limits, which come from the site file or from nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.facts import Family, Partition
from gpuworkshop.cluster.jobscript.request import megabytes, seconds
from gpuworkshop.cluster.jobscript.rule import Job, Seen, directive
from gpuworkshop.cluster.jobscript.script import MAGIC
from gpuworkshop.numbers import counted

_TOGETHER = (("mem", "mem-per-cpu", "mem-per-gpu"), ("cpus-per-task", "cpus-per-gpu"))
_CARD_WORDS = re.compile(r"\b(v-?ram|gpu'?s?\s+(?:own\s+)?(?:mem|ram)|card'?s?\s+(?:own\s+)?mem)", re.IGNORECASE)
_SYMBOLS = re.compile(r"%\d*[A-Za-z]")


def time(job: Job) -> Iterator[Seen]:
    """The time limit: there, and within the partition's."""
    too_long = [found for name in ("time", "time-min") if (found := _too_long(job, name))]
    yield from too_long
    given = job.script.last("time")
    if given is None:
        yield from _no_time(job)
    elif not too_long and (found := re.fullmatch(r"(\d{1,2}):00", given.value)) and 0 < int(found[1]) <= 24:
        hours = f"{int(found[1]):02d}"
        yield Seen("short-time", given.line, {"time": given.value, "minutes": int(found[1]), "hours": hours})


def _no_time(job: Job) -> Iterator[Seen]:
    if job.script.of("foreign") or job.script.meant("time"):
        return
    where = next((place for place in _places(job) if place.time_limit), None)
    cause = f"in {where.name} at most {where.time_limit}; " if where else ""
    cause += "a shorter request starts sooner, and a default may be too short"
    yield Seen("no-time", 0, {"cause": cause, "time": _time(job)})


def _too_long(job: Job, name: str) -> Seen | None:
    """A time above the limit of every partition that is asked for."""
    given, places = job.script.last(name), _places(job)
    asked = seconds(given.value) if given else None
    if asked is None or not places or any(place.seconds is None or asked <= place.seconds for place in places):
        return None
    where = max(places, key=lambda place: place.seconds)
    fields = {"name": name, "time": given.value, "partition": where.name, "limit": where.time_limit}
    return Seen("time-limit", given.line, fields | {"fix": _shorter(job, where, asked, name)})


def _time(job: Job) -> str:
    limits = [place.seconds for place in _places(job) if place.seconds]
    usual = slurm_time.seconds(job.site.conventions.time)
    return slurm_time.text(min([usual, *limits]))


def _shorter(job: Job, partition: Partition, asked: float, name: str) -> str:
    """The limit of this partition; and another partition with the same cards where the time fits."""
    fix = directive(name, partition.time_limit)
    same = (one for one in job.site.partitions if one.families == partition.families and one.seconds)
    longer = next((one for one in same if one.seconds >= asked), None)
    return fix + (f"\n# or, at most {longer.time_limit}:\n{directive('partition', longer.name)}" if longer else "")


def partition(job: Job) -> Iterator[Seen]:
    """The partition: there, known, with these cards and these options."""
    names, site = job.request.partitions, job.site
    given = job.script.last("partition")
    if given is None:
        if not job.script.of("foreign") and not job.script.meant("partition"):
            with_cards = [one.name for one in site.partitions if one.families]
            some = bool(with_cards and job.request.cards)
            cause = f"; {site.name} has cards in {', '.join(with_cards)}" if some else ""
            wanted = site.request.partition or next(iter(with_cards), "NAME")
            yield Seen("no-partition", 0, {"cause": cause, "partition": wanted}, None if some else "notice")
        return
    for name in names:
        if (site.partitions or site.every_partition) and not site.partition(name) and re.fullmatch(r"[\w.+-]+", name):
            yield _unknown(job, name, given.line)
    for place in _places(job):
        for option in place.options:
            if not job.script.last(option.lstrip("-").partition("=")[0]):
                fields = {"partition": place.name, "option": option, "site": site.name}
                yield Seen("partition-options", given.line, fields)
        yield from _cards(job, place)


def _unknown(job: Job, name: str, line: int) -> Seen:
    """A partition that the site file has no table for: Slurm has none, has one all the same, or nobody knows."""
    known, every = [one.name for one in job.site.partitions], job.site.every_partition
    near = [] if every else get_close_matches(name, known, 1, 0.75)
    fields = {"site": job.site.name, "name": name, "known": ", ".join(known) or "none", "near": near[0] if near else ""}
    if near:
        return Seen("near-partition", line, fields | {"fix": directive("partition", near[0])})
    if every and name not in every and not job.script.last("clusters"):
        wanted = (get_close_matches(name, every, 1) or known or every)[0]
        return Seen(
            "no-such-partition", line, fields | {"known": ", ".join(every), "fix": directive("partition", wanted)}
        )
    return Seen("unknown-partition", line, fields)


def _cards(job: Job, place: Partition) -> Iterator[Seen]:
    """Cards against the partition's families."""
    families = [job.site.family(name) for name in place.families]
    given = job.script.last("partition")
    if families and not job.request.cards:
        zero = job.script.last("gres", "gpus", "gpus-per-node", "gpus-per-task", "tres-per-task")
        meant = zero or any(map(job.script.meant, ("gres", "gpus", "gpus-per-node", "gpus-per-task")))
        if not meant and not job.script.of("foreign"):
            yield Seen("no-card", given.line, {"partition": place.name, "gres": families[0].gres})
    for one in job.request.cards:
        if one.type and _is_other_family(one.type, families, job):
            kinds = ", ".join(family.name for family in families) or "none"
            fix = _other_place(job, place, one.type) or directive("gres", f"gpu:{one.count}")
            fields = {"partition": place.name, "type": one.type, "site": job.site.name, "families": kinds, "fix": fix}
            yield Seen("wrong-family", one.line, fields)
        elif right := _right_type(one.type, families):
            fields = {"right": right, "type": one.type, "site": job.site.name}
            value = f"{right}:{one.count}" if one.option == "gres" else f"{right.partition(':')[2]}:{one.count}"
            yield Seen("wrong-type", one.line, fields | {"fix": directive(one.option, value)})
    known = [family.cards_per_node for family in families if family.cards_per_node]
    certain = job.request.nodes == 1 or any(one.each == "node" for one in job.request.cards)
    asked = job.request.cards_on_node if certain else None
    if known and len(known) == len(families) and asked and asked > max(known):
        fields = {"cards": asked, "family": families[0].name, "most": max(known)}
        fix = directive(job.request.cards[0].option, max(known))
        if job.request.cards[0].option == "gres":
            fix = directive("gres", f"{families[0].gres}:{max(known)}")
        yield Seen("too-many-cards", job.request.cards[0].line, fields | {"fix": fix})


def _is_other_family(kind: str, families: list[Family], job: Job) -> bool:
    """Whether this type belongs to a family of the site that the partition does not have; MIG slices are left alone."""

    def named(family: Family) -> bool:
        words = {family.name, family.gres.partition(":")[2]} - {""}
        return kind in words or bool(re.match("|".join(map(re.escape, words)) + r"[_.-]", kind))

    return not any(map(named, families)) and any(named(family) for family in job.site.families)


def _right_type(kind: str, families: list[Family]) -> str:
    """The GRES that was meant by a type in other letters, such as B200 for gpu:b200; "" for none."""
    right = [family.gres for family in families if family.gres.partition(":")[2].lower() == kind.lower()]
    return right[0] if kind and right and right[0].partition(":")[2] != kind else ""


def _other_place(job: Job, place: Partition, kind: str) -> str:
    wanted = next((one.name for one in job.site.families if kind in (one.name, one.gres.partition(":")[2])), "")
    found = job.site.partition_for(wanted, place.purpose)
    return directive("partition", found.name) if found else ""


def memory(job: Job) -> Iterator[Seen]:
    """Host memory: its unit, all of it, and the card's memory by mistake."""
    given = job.script.last("mem")
    if given is None:
        return
    share = job.site.conventions.share(max(1, job.request.cards_on_node or 1))[1]
    if given.value.isdecimal() and 0 < int(given.value[:9]) < 1000 and len(given.value) < 5:
        yield Seen("memory-unit", given.line, {"value": given.value})
    elif job.request.memory == 0:
        if not _takes_all(job):
            yield Seen("whole-memory", given.line, {"memory": share})
    elif why := _is_cards_memory(job, given.line, share):
        yield Seen("card-memory", given.line, {"value": given.value, "why": why, "memory": share})


def _takes_all(job: Job) -> bool:
    """Whether nobody else can use the node anyway: it is asked for alone, or with all its cards."""
    families = [job.site.family(name) for place in _places(job) for name in place.families]
    most = max((one.cards_per_node or 0 for one in families), default=0)
    return job.script.last("exclusive") is not None or bool(most and (job.request.cards_on_node or 0) >= most)


def _is_cards_memory(job: Job, line: int, share: str) -> str:
    """Why --mem looks like the card's memory; "" if it does not."""
    text = job.script.lines[line - 1]
    comment = text[1:].partition("#")[2]
    above = job.script.lines[line - 2].strip() if line > 1 else ""
    said = comment or (above[1:] if above.startswith("#") and not above.startswith((MAGIC, "#!")) else "")
    denied = re.search(r"\b(not|no|isn't|never|besides?|beside|host|cpu)\b", said, re.IGNORECASE)
    if _CARD_WORDS.search(said) and not denied:
        return f"its comment says {said.strip()[:60]!r}"
    cards = job.request.cards_on_node
    if not cards or job.request.memory == megabytes(share):
        return ""
    for place in _places(job):
        for family in map(job.site.family, place.families):
            if family.memory_gb and job.request.memory == family.memory_gb * cards * 1024:
                each = f"{cards} x {family.memory_gb:g} GB" if cards > 1 else f"{family.memory_gb:g} GB"
                return f"{each} is what {counted(cards, 'card')} of family {family.name} has"
    return ""


def together(job: Job) -> Iterator[Seen]:
    """Options that exclude or need each other, as sbatch says."""
    last, request = job.script.last, job.request
    for group in _TOGETHER:
        both = [found for name in group if (found := last(name))]
        if len(both) > 1:
            lines = "\n".join(directive(one.name, one.value) for one in both)
            names = " and ".join(f"--{one.name}" for one in both)
            yield Seen("exclude-each-other", both[-1].line, {"options": names, "fix": lines})
    per_task, total = last("gpus-per-task"), last("gpus")
    if per_task and not total and not last("ntasks", "ntasks-per-node"):
        fix = directive("ntasks", request.task_count)
        why = "--gpus-per-task used without either --gpus or -n/--ntasks is not allowed"
        fields = {"name": "gpus-per-task", "needs": "--ntasks or --gpus", "why": why, "fix": fix}
        yield Seen("needs-another", per_task.line, fields)
    if (found := last("mem-per-gpu")) and not request.cards:
        fields = {"name": "mem-per-gpu", "needs": "a request for cards", "why": "it did not request any GPU"}
        yield Seen("needs-another", found.line, fields | {"fix": directive("gres", "gpu:1")})
    if (found := last("gpus-per-socket")) and not last("sockets-per-node"):
        fields = {"name": "gpus-per-socket", "needs": "--sockets-per-node", "why": "it requires it"}
        yield Seen("needs-another", found.line, fields | {"fix": directive("sockets-per-node", 1)})
    yield from _disagree(job)


def _disagree(job: Job) -> Iterator[Seen]:
    """Several requests for cards that cannot all be right."""
    counts = {each: sum(one.count for one in job.request.cards if one.each == each) for each in ("node", "task", "job")}
    total = next((one for one in job.request.cards if one.each == "job"), None)
    if total is None:
        return
    several = counts["node"] * (job.request.nodes or 1)
    if counts["node"] and (counts["job"] % several or (job.request.nodes and counts["job"] != several)):
        other = next(one for one in job.request.cards if one.each == "node")
        why = "--gpus is the whole job, --gres and --gpus-per-node are one node"
        fix = directive("gpus", counts["node"] * job.request.node_count)
        yield _disagreement(other.option, total.line, why, fix)
    elif counts["task"] and job.request.tasks and counts["task"] * job.request.tasks != counts["job"]:
        why = "based on --gpus and --gpus-per-task the number of tasks differs from --ntasks"
        yield _disagreement("gpus-per-task", total.line, why, directive("gpus", counts["task"] * job.request.tasks))


def _disagreement(option: str, line: int, why: str, fix: str) -> Seen:
    return Seen("cards-disagree", line, {"options": f"--gpus and --{option}", "why": why, "fix": fix})


def tasks(job: Job) -> Iterator[Seen]:
    """Nodes, tasks and tasks a node: their product."""
    request, given = job.request, job.script.last("ntasks")
    if given is None or not request.tasks:
        return
    nodes, each = request.nodes, request.tasks_per_node
    if nodes and each and request.tasks != nodes * each:
        fields = {"tasks": request.tasks, "nodes": nodes, "each": each, "fix": directive("ntasks", nodes * each)}
        yield Seen("too-many-tasks" if request.tasks > nodes * each else "task-arithmetic", given.line, fields)
    elif nodes and request.tasks < nodes:
        words = counted(request.tasks, "task")
        fields = {"nodes": nodes, "tasks": request.tasks, "tasks_counted": words}
        yield Seen("idle-nodes", given.line, fields | {"fix": directive("nodes", request.tasks)})


def logs(job: Job) -> Iterator[Seen]:
    """The folders of the log files."""
    made = [command for command in job.script.shell.commands if command.name == "mkdir"]
    told: set[str] = set()
    for name in ("output", "error"):
        given = job.script.last(name)
        folder = given.value.rpartition("/")[0] if given and "$" not in given.value and "~" not in given.value else ""
        if given is None or not folder or folder in told:
            continue
        told.add(folder)
        place = _filled(job, folder)
        there = None if _SYMBOLS.search(place) else job.is_folder(_from_chdir(job, place))
        inside = next((one.line for one in made if any(_same(word, folder) for word in one.argv[1:])), 0)
        fields = {"folder": folder, "name": name, "late": f"; mkdir in line {inside} is too late" if inside else ""}
        if there is False or (there is None and inside):
            yield Seen("log-folder", given.line, fields)
        elif there is None:
            yield Seen("log-folder-unknown", given.line, fields)


def _filled(job: Job, folder: str) -> str:
    name = job.script.last("job-name")
    return folder.replace("%x", name.value) if name else folder


def _from_chdir(job: Job, folder: str) -> str:
    chdir = job.script.last("chdir")
    return folder if folder.startswith("/") or not chdir else f"{chdir.value.rstrip('/')}/{folder}"


def _same(word: str, folder: str) -> bool:
    def plain(text: str) -> str:
        return re.sub(r"^\./", "", text.removeprefix("$SLURM_SUBMIT_DIR/")).rstrip("/")

    return plain(word) == plain(folder)


def _places(job: Job) -> list[Partition]:
    """The partitions that are asked for, as far as the site file knows them."""
    return [found for name in job.request.partitions if (found := job.site.partition(name))]


LOOKS = (time, partition, memory, together, tasks, logs)
"""All need a request that was understood."""
