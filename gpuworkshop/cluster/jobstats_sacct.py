"""What Slurm keeps of a job: sacct's rows, with jobstats' payload in AdminComment, and seff's page for a short run."""

from __future__ import annotations

import re
import shutil

import msgspec

from gpuworkshop.cluster import discover, jobstats_payload, slurm_time
from gpuworkshop.cluster.jobstats_result import JobUse, Missing, NoReport
from gpuworkshop.numbers import shortened

FIELDS = (
    *(
        "JobIDRaw",
        "JobID",
        "State",
        "ElapsedRaw",
        "TimelimitRaw",
        "Start",
        "End",
        "NNodes",
        "NCPUS",
        "ReqMem",
        "AllocTRES",
    ),
    *("Partition", "AdminComment", "JobName"),
)
_JOB = re.compile(r"[1-9]\d{0,11}(?:[_+]\d{1,9})?(?:;\w+)?", re.ASCII)
_CARDS = re.compile(r"(?:^|,)gres/gpu=(\d{1,6})(?:,|$)")
_NOTHING = (Missing("all", "Slurm keeps no figures of jobstats for it"),)
_UNKNOWN = ("", "none", "unknown", "n/a", "partition_limit", "invalid")


def is_job(text: str) -> bool:
    """Whether this is the number of a job, of a task of an array, or of a part of a heterogeneous job."""
    return _JOB.fullmatch(text) is not None


def ask(job: str) -> JobUse:
    """Ask sacct about a job, and jobstats where sacct has no figures. Raises NoReport."""
    number, _, cluster = job.partition(";")
    command = ("sacct", *(("-M", cluster) if cluster else ()), "-X", "-P", "-o", ",".join(FIELDS), "-j", number)
    by_hand = f"jobstats {job} | gpuworkshop job stats -"
    try:
        found = rows(discover.run(command))
    except discover.NoSlurm as error:
        raise NoReport(f"{error}; where jobstats is: {by_hand}") from error
    if not found:
        raise NoReport(f"sacct knows no job {job}; a job of another cluster is given as its report: {by_hand}")
    use = found[0]
    return _by_jobstats(use, job) if not use.nodes and use.started and shutil.which("jobstats") else use


def _by_jobstats(use: JobUse, job: str) -> JobUse:
    """The same job with the figures that the command jobstats has for it, if it has any."""
    try:
        other = jobstats_payload.read_json(discover.run(("jobstats", "-j", job)))
    except (discover.NoSlurm, NoReport) as error:
        return msgspec.structs.replace(use, missing=(*use.missing, Missing("all", f"jobstats: {error}")))
    return _joined(use, other)


def is_rows(text: str) -> bool:
    """Whether this is what `sacct -P` prints: a first line with its fields."""
    first = text.lstrip().split("\n", 1)[0].lower().split("|")
    return len(first) > 2 and "state" in first and bool({"jobid", "jobidraw"} & set(first))


def rows(text: str) -> list[JobUse]:
    """The jobs of `sacct -P`, without their steps. Raises NoReport where the only payload is damaged."""
    lines = [line.rstrip("\r") for line in text.strip("\n").split("\n") if line.strip()]
    names = lines[0].strip().lower().split("|")
    jobs = []
    for line in lines[1:]:
        cells = line.split("|", len(names) - 1)  # a job's name may hold a |
        row = dict(zip(names, cells, strict=False))
        if len(cells) == len(names) and "." not in row.get("jobid", row.get("jobidraw", "")):
            jobs.append(_row(row, alone=len(lines) == 2))
    return jobs


def _row(row: dict[str, str], alone: bool) -> JobUse:
    """One job; a damaged payload beside those of other jobs is a figure that is missing."""
    comment = row.get("admincomment", "")
    try:
        figures = jobstats_payload.payload(comment) if "JS1:" in comment else JobUse("sacct", missing=_NOTHING)
    except NoReport as error:
        if alone:
            raise
        figures = JobUse("sacct", missing=(Missing("all", str(error)),))
    state = row.get("state", "").split(" ")[0]
    seconds = _elapsed(row)
    start = row.get("start", "-").lower()
    never = start in _UNKNOWN or state == "PENDING" or (seconds == 0 and state in ("CANCELLED", "PENDING"))
    cards = _CARDS.search(row.get("alloctres", ""))
    use = JobUse(
        "sacct",
        job=(row.get("jobid") or row.get("jobidraw", ""))[:40],
        name=row.get("jobname", "")[:80],
        state=state[:40],
        partition=row.get("partition", "")[:80],
        node_count=_whole(row.get("nnodes", "")),
        cpus=_whole(row.get("ncpus", "")),
        gpus=int(cards[1]) if cards else None,
        memory_asked=row.get("reqmem", "")[:20],
        seconds=None if never else seconds,
        limit=_limit(row),
        started=not never,
        running=state in ("RUNNING", "COMPLETING", "SUSPENDED"),
    )
    return _joined(use, figures)


def _joined(use: JobUse, figures: JobUse) -> JobUse:
    """What Slurm says of the job, with the figures of jobstats."""
    return msgspec.structs.replace(
        use,
        form=figures.form,
        gpus=use.gpus if use.gpus is not None else figures.gpus,
        cpus=use.cpus if use.cpus is not None else figures.cpus,
        seconds=use.seconds if use.seconds is not None or not use.started else figures.seconds,
        **{name: getattr(figures, name) for name in ("cpu", "memory", "gpu", "gpu_memory", "nodes", "missing")},
    )


def _elapsed(row: dict[str, str]) -> float | None:
    if (raw := _whole(row.get("elapsedraw", ""))) is not None:
        return raw
    start, end = _whole(row.get("start", "")), _whole(row.get("end", ""))
    if start and end and end >= start:
        return end - start
    return _time(row.get("elapsed", ""))


def _limit(row: dict[str, str]) -> float | None:
    """The time limit: minutes in TimelimitRaw, a time in Timelimit; words are not known, UNLIMITED is infinite."""
    text = row.get("timelimitraw", row.get("timelimit", "")).strip()
    if text.lower() == slurm_time.UNLIMITED:
        return float("inf")
    if (minutes := _whole(text)) is not None and "timelimitraw" in row:
        return minutes * 60.0
    return _time(text)


def _time(text: str) -> float | None:
    try:
        return slurm_time.seconds(text) if ":" in text else None
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None


def is_seff(lines: list[str]) -> bool:
    """Whether this is seff's page, which jobstats prints for a run that is too short."""
    said = {line.partition(":")[0] for line in lines}
    return "CPU Efficiency" in said and "Job ID" in said


def seff(lines: list[str]) -> JobUse:
    """The job of seff's page: no figure of a card is in it."""
    said = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    percent = re.match(r"(\d{1,3}(?:\.\d+)?)%", said.get("CPU Efficiency", ""))
    nodes = _whole(said.get("Nodes", ""))
    each = _whole(said.get("Cores per node", "") or said.get("Cores", ""))
    memory = re.search(r"% of ([\d.]+ ?[KMGTP]B)", said.get("Memory Efficiency", ""))
    return JobUse(
        "seff",
        job=said["Job ID"][:40],
        state=said.get("State", "").split(" ")[0][:40],
        node_count=nodes,
        cpus=each * (nodes or 1) if each else None,
        seconds=_time(said.get("Job Wall-clock time", "")),
        memory_asked=memory[1] if memory else "",
        cpu=float(percent[1]) / 100 if percent and float(percent[1]) <= 100 else None,
        running=said.get("State", "").startswith("RUNNING"),
        missing=(Missing("gpu", "seff knows no GPU"), Missing("gpu_memory", "seff knows no GPU")),
    )


def nothing(lines: list[str]) -> JobUse | None:
    """A job of which jobstats printed a sentence and no figure; None for a text that is something else."""
    words = [line for line in lines if line]
    if not 0 < len(words) <= 5 or not any(re.search(r"\bjobs?\b", line, re.IGNORECASE) for line in words):
        return None
    number = re.search(r"\b\d{3,12}(?:_\d+)?\b", " ".join(words))
    said = shortened(" ".join(words), 200)
    return JobUse("nothing", number[0] if number else "", said=said, missing=(Missing("all", said),))
