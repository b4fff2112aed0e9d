"""Rules about how the training is started: ranks against cards, tasks and nodes, workers against CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuworkshop.cluster.jobscript import launch as launches
from gpuworkshop.cluster.jobscript import training
from gpuworkshop.cluster.jobscript.launch import Launch
from gpuworkshop.cluster.jobscript.rule import Job, Seen, directive
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.numbers import counted, shortened

_PORTS = ("--master_port", "--master-port", "--main_process_port", "--main-process-port")
_ENDPOINTS = ("--rdzv_endpoint", "--rdzv-endpoint")
_PORT = "$((20000 + SLURM_JOB_ID % 10000))"
_PER_NODE = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed")
_RANKS = (*_PER_NODE, "accelerate")
_APART = {
    "no": "{script} joins no other process",
    "imported": "{script} line {at} imports what would join them, and nothing calls it",
    "dataparallel": "{script} line {at}: DataParallel is not DDP, each process uses all cards",
}
"""Why the ranks of a script do not know each other, by what its code does."""


def ranks(job: Job) -> Iterator[Seen]:
    """Each start of a training: how many ranks it makes of the cards that the job has."""
    starts = job.trainings
    if launches.side_by_side(job.script) or job.script.heterogeneous:
        return
    shared = [one for one in starts if _uses_several(job, one)]
    for one in starts:
        if not one.starter and any(other is not one for other in shared):
            continue  # what prepares or evaluates, in one process, beside a training on all cards
        tasks = _tasks_on_node(job, one)
        if one.starter in _RANKS and tasks is not None and tasks > 1:
            yield from _multiplied(job, one, tasks)
        elif tasks == 1:
            yield from _against_cards(job, one)
        yield from _nodes(job, one)


def _uses_several(job: Job, one: Launch) -> bool:
    """Whether a start is on several cards or nodes, or may well be."""
    if one.starter:
        made = _made(job, one)
        return made is None or made > 1
    return one.srun is not None and job.request.task_count > 1 or bool(launches.several_cards(one, job.read))


def _tasks_on_node(job: Job, one: Launch) -> int | None:
    """How often it is started on a node; None where the script does not say."""
    if one.srun is None:
        return 1
    if (each := one.srun.get("ntasks-per-node")) is not None:
        return launches.number(each, job.script)
    total = one.srun.get("ntasks")
    if total is None:
        return job.request.tasks_on_node
    if re.fullmatch(r"\$\{?SLURM_(NNODES|JOB_NUM_NODES)\}?", total):
        return 1
    count = launches.number(total, job.script)
    nodes = launches.number(one.srun.get("nodes", ""), job.script) or job.request.node_count
    return None if count is None else -(-count // nodes)


def _made(job: Job, one: Launch) -> int | None:
    """The ranks on one node that a starter makes."""
    made = launches.processes(one, job.script, job.request.cards_on_node)
    return made if made is None or one.starter in _PER_NODE else -(-made // job.request.node_count)


def _multiplied(job: Job, one: Launch, tasks: int) -> Iterator[Seen]:
    """A starter of ranks, started once for each rank."""
    made = _made(job, one)
    if made == 1 and "--standalone" not in one.words:
        return  # one agent a task is a way too
    each = counted(made, "process") if made == 1 else f"{made} processes" if made else "all ranks"
    total = f"{tasks * made} processes a node" if made else f"{tasks} times all ranks"
    fields = {"starter": one.starter, "tasks": tasks, "processes": each, "all": total, "fix": _one_task(job)}
    given = job.script.last("ntasks-per-node", "ntasks")
    own = one.srun and ("ntasks" in one.srun or "ntasks-per-node" in one.srun)
    if own or given is None:
        fields["fix"] = f"srun --ntasks-per-node=1 {shortened(one.text, 200)}"
    yield Seen("n-by-n", one.line if own or given is None else given.line, fields)


def _one_task(job: Job) -> str:
    """The directives for one task a node with the CPUs of all."""
    request = job.request
    name, value = ("ntasks-per-node", 1) if request.tasks_per_node else ("ntasks", request.node_count)
    lines = [directive(name, value)]
    if request.cpus_per_task and request.tasks_on_node > 1:
        lines.append(directive("cpus-per-task", request.cpus_per_task * request.tasks_on_node))
    return "\n".join(lines)


def _against_cards(job: Job, one: Launch) -> Iterator[Seen]:
    """One task a node: its processes against the node's cards."""
    cards = _cards_of(job, one)
    made = _made(job, one) if one.starter else 1
    if one.starter in _RANKS and one.srun is None and job.request.tasks_on_node > 1:
        fields = {"tasks": job.request.tasks_on_node, "starter": one.starter, "fix": _one_task(job)}
        given = job.script.last("ntasks-per-node", "ntasks")
        yield Seen("one-task-is-enough", given.line if given else one.line, fields)
    if not cards or made is None:
        return
    words = shortened(" ".join(one.words), 120)
    if made > cards:
        fields = {"processes": f"{made} processes", "cards_counted": counted(cards, "card"), "words": words}
        yield Seen("more-ranks", one.line, fields | {"fix": _all_cards(one)})
    elif made == 1 < cards:
        yield from _one_process(job, one, cards)
    elif made < cards:
        fields = {"processes": f"{made} processes", "cards": cards, "words": words, "fix": _all_cards(one)}
        yield Seen("fewer-ranks", one.line, fields)


def _cards_of(job: Job, one: Launch) -> int | None:
    """The cards that this start has on a node: srun may give it fewer than the job has."""
    for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
        if one.srun and name in one.srun:
            found = re.search(r"(\d{1,4})\Z", one.srun[name])
            return int(found[1]) if found else None
    return job.request.cards_on_node


def _one_process(job: Job, one: Launch, cards: int) -> Iterator[Seen]:
    if not one.starter and (one.script.startswith("-m ") or launches.several_cards(one, job.read)):
        return
    known = "" if one.starter or job.read(one.script) is None else f", {one.script} makes no more"
    request = job.request.cards[0]
    single = f"gpu:{request.type}:1" if request.type else "gpu:1"
    lines = [directive(request.option, single if request.option == "gres" else 1)]
    if one.starter:
        lines = [_all_cards(one)]
    else:
        lines += [f"# or, where {one.script} is distributed (DDP):", _all_ranks(one)]
    fields = {"cards": cards, "which": known, "fix": "\n".join(lines)}
    yield Seen("one-process", one.line, fields)


def _all_cards(one: Launch) -> str:
    """The same start with one rank for each card."""
    known = launches.starter(one.starter)
    names = known.processes if known else ()
    words, rest = [], list(one.words)
    while rest:
        word = rest.pop(0)
        if word.partition("=")[0] not in names:
            words.append(word)
        elif "=" not in word and rest:
            rest.pop(0)
    option = f'{names[0]}="$SLURM_GPUS_ON_NODE"' if names else ""
    place = 3 if words[1:2] == ["-m"] else 2 if one.starter == "accelerate" else 1
    srun = ["srun"] if one.srun is not None else []
    return " ".join([*srun, *one.front, *words[:place], option, *words[place:]])


def _nodes(job: Job, one: Launch) -> Iterator[Seen]:
    """Several nodes: is it started on all, and do they know each other?"""
    nodes = job.request.node_count
    if nodes < 2 or (one.starter and one.starter not in _RANKS):
        return
    words = shortened(one.text, 200)
    if one.srun is None and one.starter != "deepspeed":
        fix = f"srun {words}"
        if not one.starter:  # or each node would train by itself
            fix = f"{directive('nodes', 1)}\n# or, where {one.script or one.words[0]} is distributed:\n{fix}"
        yield Seen("first-node-only", one.line, {"nodes": nodes, "fix": fix})
    elif "--standalone" in one.words:
        meeting = f'--rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d --rdzv_endpoint="$HEAD:{_PORT}"'
        head = 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        fix = f"{head}\nsrun {words.replace('--standalone', f'--nnodes={nodes} {meeting}')}"
        yield Seen("standalone", one.line, {"nodes": nodes, "fix": fix})


def ports(job: Job) -> Iterator[Seen]:
    """Ports that two jobs would share."""
    for command in job.script.shell.commands:
        value = command.assigned.get("MASTER_PORT", "")
        if value.isdecimal() and value != "0":
            yield Seen("fixed-port", command.line, {"port": value, "fix": f"export MASTER_PORT={_PORT}"})
    for one in job.starts:
        if "--standalone" in one.words:
            continue
        for option, pattern in ((_PORTS, r"(.+)"), (_ENDPOINTS, r".*:(.+)")):
            value = one.option(*option) or ""
            found = re.fullmatch(pattern, value)
            port = launches.number(found[1], job.script) if found else None
            if port:
                word = next(word for word in one.words if word.partition("=")[0] in option)
                fix = f'{word.partition("=")[0]}="{value[: -len(found[1])]}{_PORT}"'
                yield Seen("fixed-port", one.line, {"port": port, "fix": fix})


def cpus(job: Job) -> Iterator[Seen]:
    """Loader workers against CPUs, and what srun makes of --cpus-per-task."""
    told = False
    for one in job.trainings:
        found = launches.workers(one, job.script)
        if found:
            for seen in _workers(job, one, *found):
                told = True
                yield seen
    if not told:
        yield from _no_cpus(job)
    yield from _srun_cpus(job)


def _workers(job: Job, one: Launch, workers: int, words: str) -> Iterator[Seen]:
    tasks = _tasks_on_node(job, one)
    made = (_made(job, one) or job.request.cards_on_node) if one.starter else 1
    if tasks is None or not made or not workers:
        return
    each = launches.number((one.srun or {}).get("cpus-per-task", ""), job.script) or job.request.cpus_per_task
    have = (each or 1) * tasks if one.srun is not None else job.request.cpus_on_node or job.request.tasks_on_node
    ranks = made * tasks
    need = (workers + 1) * ranks
    if need <= have or (job.request.cpus_on_node is None and job.script.last("exclusive", "mincpus")):
        return
    asked = f"{counted(have, 'CPU')} {'is' if have == 1 else 'are'} there"
    if not each and not job.request.cpus_per_card:
        asked = f"there is no --cpus-per-task, so {counted(have, 'CPU')}"
    at_most = workers_rule(have // ranks) if have // ranks > 1 else 0
    fix = directive("cpus-per-task", -(-need // job.request.tasks_on_node))
    option = re.split(r"[= ]", words)[0]
    fix += f"   # or {words[: len(option) + 1]}{at_most}" if at_most else ""
    fields = {"words": words, "need": counted(need, "CPU"), "has": asked, "fix": fix}
    fields["each"] = f", for each of {ranks} ranks" if ranks > 1 else ""
    yield Seen("tight-cpus" if workers * ranks == have else "few-cpus-for-workers", one.line, fields)


def _no_cpus(job: Job) -> Iterator[Seen]:
    request = job.request
    starts = job.trainings
    known = request.cpus_per_task or request.cpus_per_card or job.script.meant("cpus-per-task")
    known = known or job.script.last("exclusive", "mincpus", "ntasks-per-core")
    if not starts or known or not request.cards or job.script.of("foreign") or request.tasks_on_node > 4:
        return
    enough = job.site.conventions.cpus_per_card * max(1, request.cards_on_node or 1) // request.tasks_on_node
    yield Seen("few-cpus", 0, {"cpus": max(1, enough)})


def _srun_cpus(job: Job) -> Iterator[Seen]:
    cpus = job.request.cpus_per_task
    commands = job.script.shell.commands
    if not cpus or cpus < 2 or any("SRUN_CPUS_PER_TASK" in command.assigned for command in commands):
        return
    for one in job.starts:
        if one.srun is not None and "cpus-per-task" not in one.srun:
            yield Seen("srun-cpus", one.line, {"cpus": cpus})
            return


def copies_by_srun(job: Job) -> Iterator[Seen]:
    """An srun that asks for CPUs a task and says no tasks: it starts as many as fit the job's CPUs."""
    if job.script.last("ntasks", "ntasks-per-node", "ntasks-per-gpu"):
        return
    for one in job.starts:
        asked = one.srun or {}
        cpus = launches.number(asked.get("cpus-per-task", ""), job.script)
        have = job.request.cpus_on_node
        if cpus and have and have >= 2 * cpus and not {"ntasks", "ntasks-per-node"} & asked.keys():
            words = shortened(one.text, 200)
            fields = {"cpus": cpus, "tasks": have // cpus, "fix": f"srun -n 1 -c {cpus} {words}"}
            yield Seen("srun-copies", one.line, fields)


def peers(job: Job) -> Iterator[Seen]:
    """Requests that hide the other cards from each task."""
    starts = [one for one in job.starts if one.srun is not None]
    if starts and all(one.command.then == "&" for one in starts):
        return
    tasks = job.request.tasks_on_node
    bind = job.script.last("gpu-bind")
    per_task = job.script.last("gpus-per-task")
    fix = _cards_per_node(job, tasks)
    if tasks > 1 and per_task and not (bind and bind.value == "none"):
        yield Seen("hides-peers", per_task.line, {"option": f"--gpus-per-task={per_task.value}", "fix": fix})
    elif tasks > 1 and bind and re.match(r"(gpu:)?single|per_task", bind.value):
        yield Seen(
            "hides-peers", bind.line, {"option": f"--gpu-bind={bind.value}", "fix": f"# remove line {bind.line}"}
        )
    for one in starts:
        count = _tasks_on_node(job, one)
        for name in ("gpus-per-task", "gpu-bind"):
            value = one.srun.get(name, "")
            hides = name == "gpus-per-task" or re.match(r"(gpu:)?single|per_task", value)
            if value and hides and count and count > 1 and one.srun.get("gpu-bind") != "none":
                fields = {"option": f"--{name}={value}", "fix": f"srun ...   # without --{name}"}
                yield Seen("hides-peers", one.line, fields)


def _cards_per_node(job: Job, tasks: int) -> str:
    each = sum(one.count for one in job.request.cards if one.each == "task")
    lines = [directive("gpus-per-node", each * tasks)]
    if not job.script.last("ntasks-per-node"):
        lines.append(directive("ntasks-per-node", tasks))
    return "\n".join(lines)


def scripts(job: Job) -> Iterator[Seen]:
    """The Python files that the job trains with, as far as they lie here: do their ranks know each other?"""
    for one in job.trainings:
        text = job.read(one.script) if one.script and not one.script.startswith("-m ") else None
        found = training.read(text) if text else None
        if found is None:
            continue
        where = {"script": one.script, "at": found.line}
        if one.starter in _RANKS and found.use in _APART:
            made = _made(job, one)
            if made is None or made > 1:
                processes = f"{made} processes" if made else "several processes"
                why = _APART[found.use].format(script=one.script, at=found.line)
                yield Seen("copies", one.line, {"processes": processes, "why": why, **where})
        elif found.use == "dataparallel" and (job.request.cards_on_node or 0) > 1:
            yield Seen("data-parallel", one.line, where | {"fix": f"# DDP in {one.script}, then:\n{_all_ranks(one)}"})
        if found.same_order:
            yield Seen("same-order", one.line, where | {"at": found.same_order})


def _all_ranks(one: Launch) -> str:
    """The same start through torchrun."""
    ranks = 'torchrun --standalone --nnodes=1 --nproc_per_node="$SLURM_GPUS_ON_NODE"'
    return " ".join((*one.front, ranks, *one.words[1:]))


LOOKS = (ranks, scripts, ports, cpus, copies_by_srun, peers)
