"""What chapter 7 takes from the site file: the habit of devel and batch, jobstats, and the list before a batch job."""

from __future__ import annotations

from pathlib import PurePosixPath

from gpuworkshop.cluster import site as sites
from gpuworkshop.cluster.site import Site
from gpuworkshop.course import place
from gpuworkshop.report import Finding, Report, Table


def habit(here: Site | None = None) -> Report:
    """The order of work that ``here`` (default: the site of the lessons) asks for, and whether it has jobstats.

    Where nobody stated one, that of the site for which the course is made stands as an example.
    """
    here = here or place.site()
    shown = here if here.habit.says else sites.load(place.HOME)
    found = [Finding("notice", f"{shown.name}: {shown.habit.says}")]
    if shown is not here:
        found[:0] = [
            _jobstats(here),
            Finding("unknown", f"{here.name}: nobody stated a habit; here is one as an example"),
        ]
    steps = [("devel", step) for step in shown.habit.devel] + [("batch", step) for step in shown.habit.batch]
    tables = (Table(("where", "what"), tuple(steps)),)
    return Report(f"From devel to batch: {shown.name}", shown.origin, (*found, _jobstats(shown)), tables)


def _jobstats(here: Site) -> Finding:
    told = here.jobstats
    if told.available is None:
        return Finding(
            "unknown", f"{here.name}: nobody stated whether there is jobstats", "ask, or try it in a terminal"
        )
    if not told.available:
        return Finding("notice", f"{here.name} has no jobstats", told.note)
    return Finding("ok", f"{here.name} has jobstats", told.note, "jobstats JOBID   # after the job has ended")


def checklist(here: Site | None = None) -> Report:
    """What to look at before a job goes to batch, with the names and numbers of the site."""
    here = here or place.site()
    cpus = here.conventions.cpus_per_card
    batch = [partition.name for partition in here.partitions if partition.purpose == "batch"]
    devel = [partition.name for partition in here.partitions if partition.purpose == "devel"]
    logs = PurePosixPath(here.conventions.output).parent
    rows = (
        ("verify passes", "at the top of the job script", "1"),
        ("GPU utilization above 70%", "in a test of 50 steps", "2"),
        ("20 steps are profiled", "and the CUDA column was read", "3"),
        ("workers are not 0", f"CPUs - 1: {cpus - 1} of {cpus}, then the sweep", "4"),
        ("pin_memory is on", "with a card", "4"),
        ("the batch uses 60% of the memory", "ours: or it is at the knee, whichever comes first", "5"),
        ("BF16 autocast is on", "and the model still learns", "5"),
        ("the partition is right", f"batch: {', '.join(batch) or 'ask'}", "1"),
        ("--cpus-per-task", f"at least 4, and workers + 1; for each rank: {cpus} a card here", "1, 6"),
        (f"the folder {logs} exists", "Slurm opens the log before the first line of the script", "1"),
        ("--time", "what the run is expected to take, and 20% more", "1"),
    )
    after = f"then cancel the devel session ({', '.join(devel)})" if devel else "then give the devel session back"
    table = Table(("before a batch job", "how", "chapter"), rows)
    return Report(
        f"Before a batch job: {here.name}", here.origin, (Finding("notice", f"All of it done: {after}"),), (table,)
    )
