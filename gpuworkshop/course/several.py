"""What chapter 6 shows of several cards: their request from the site file, and small scripts run as ranks on CPUs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuworkshop.child import ChildFailed, Progress
from gpuworkshop.cluster import scripts
from gpuworkshop.cluster import site as sites
from gpuworkshop.cluster.facts import Family
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.cluster.site import Site
from gpuworkshop.course import lesson
from gpuworkshop.course.faces import Fold, Note
from gpuworkshop.course.script import Script
from gpuworkshop.figures.all_reduce import all_reduce_figure
from gpuworkshop.instruments import scaling_witness
from gpuworkshop.instruments.scaling_by_hand import ByHand
from gpuworkshop.instruments.scaling_result import ScalingResult
from gpuworkshop.instruments.scaling_witness import WitnessResult
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.report import Figure, Report
from gpuworkshop.timing import Plan
from gpuworkshop.workloads.config import Job

RANKS = 2
"""Of the small scripts: as many as any machine with two CPUs takes."""

SECONDS = 30.0
"""A small script that has not ended by then is stopped."""

QUICK = Plan(block_seconds=0.12, min_rounds=6, budget_seconds=1.2, max_warm_up_blocks=3)
"""Of a scaling measurement on CPUs in a chapter: some seconds, and an interval that tells so."""

BUSY = "Is something else running? Ranks that share busy CPUs take from each other. Run the measurement again."

ONE_TASK = "--ntasks-per-node=1"


@contextmanager
def on_cpus() -> Iterator[None]:
    """Hide the cards from everything that the enclosed lines start."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def watched(
    text: str, name: str, *, folder: Path | None = None, progress: Callable[[Progress], None] | None = None
) -> WitnessResult:
    """Run the text of a small script as two gloo ranks on CPUs, in ``folder`` if it is to leave something there.

    Raises ChildFailed where that cannot be.
    """
    with tempfile.TemporaryDirectory(prefix="gpuworkshop-") as spare, on_cpus():
        file = (folder or Path(spare)) / name
        file.write_text(text, encoding="utf-8")
        return scaling_witness.run(str(file), ranks=RANKS, seconds=SECONDS, progress=progress)


def witness(text: str, name: str, *, progress: Callable[[Progress], None] | None = None) -> Report | Note:
    """Whether a small script uses two ranks, as a report; a note where they cannot be started."""
    try:
        return scaling_witness.report(watched(text, name, progress=progress))
    except ChildFailed as failed:
        return Note(f"{name} was not run as {RANKS} ranks", "hint", text=(str(failed),))


def all_reduce(seen: ByHand) -> Figure:
    """One step of the ranks, with the first numbers of their gradients."""
    return all_reduce_figure(seen.own, seen.averaged, seen.origin)


def plan(job: Job) -> Plan | None:
    """How long the chapter measures scaling: short without a card, as usual with one."""
    return None if job.sizes.needs_card else QUICK


def effect(scaled: ScalingResult) -> Note:
    """Whether this machine shows that several ranks do more than one, and what to do where it does not."""
    if scaled.ranks == 1:
        words = ("One rank has nobody to share its work with. In a session with two cards this chapter measures two.",)
        return Note("One card: nothing to scale to", "hint", text=words)
    return lesson.effect("several ranks do more than one", scaled.world("weak").speedup, BUSY)


def request(site: Site) -> Script:
    """The job script for several cards of one node at this site."""
    lines = tuple(scripts.ddp(site, _family(site)))
    cards = _cards(site)
    cpus, _ = site.conventions.share(cards)
    workers = workers_rule(site.conventions.cpus_per_card)
    name = site.name.lower()
    shown = f"`gpuworkshop site show{f' --site {name}' if name in sites.shipped() else ''}`"
    about = (
        f"{cards} ranks x ({workers} workers + 1) = {cpus} CPUs, in one task.",
        f"What is specific to the site comes from its site file; {shown} names the sources.",
    )
    return Script(f"{cards} cards of one node: {site.name}", about, lines)


def multiplied(site: Site) -> Report:
    """What `job check` says when the same script asks for one task a card."""
    cards, start = _cards(site), site.conventions
    cpus, _ = start.share(cards)
    text = request(site).text.replace(ONE_TASK, ONE_TASK[:-1] + str(cards))
    return _checked(text.replace(f"--cpus-per-task={cpus}", f"--cpus-per-task={start.cpus_per_card}"), site)


def plain(site: Site) -> Report:
    """What `job check` says when the same script starts a plain script, without torchrun."""
    kept = [line for line in request(site).lines if "torchrun" not in line or line.startswith("#")][:-1]
    workers = workers_rule(site.conventions.cpus_per_card)
    return _checked("\n".join([*kept, f"srun python train.py --workers {workers}", ""]), site)


def folded(report: Report) -> Note:
    """A report that shows when it is opened: the answer to a question that stands above it."""
    fold = Fold("Show what `job check` says", code=str(report), plain="`print` of the report shows it.")
    return Note(report.title, fold=fold)


def _checked(text: str, site: Site) -> Report:
    """The check of a script, without what is only a question about this machine."""
    checked = check.check(text.encode(), site, "ddp.sbatch")
    found = tuple(one for one in check.findings(checked) if one.level in ("fail", "warning"))
    return Report(f"Job script {checked.file}, changed", checked.origin, found)


def _family(site: Site) -> Family | None:
    return site.families[0] if site.families else None


def _cards(site: Site) -> int:
    family = _family(site)
    return min(scripts.DDP_CARDS, (family and family.cards_per_node) or scripts.DDP_CARDS)
