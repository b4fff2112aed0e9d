"""Two job scripts to read: a minimal one that is right, and one with three faults. Site facts are the site file's."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.facts import Partition
from gpuworkshop.cluster.scripts import activation, logs_folder, usual_time
from gpuworkshop.cluster.site import Site, shipped
from gpuworkshop.course.faces import Note
from gpuworkshop.machine.allocation import workers_rule

RESERVE = 1.2
"""Expected run time + 20%."""
WORKERS, TOO_FEW_CPUS = 7, 4
FAULTS = {
    "cpus": ("--cpus-per-task", "--workers"),
    "logs": ("mkdir", "--output", "--error"),
    "hidden": ("CUDA_VISIBLE_DEVICES",),
}
"""The faults of `faulty`, each with the words that stand in the lines it shows in: the two sides of one mistake."""


class Script(msgspec.Struct, frozen=True):
    """A job script, shown with the numbers of its lines. ``about`` says what it is and where its facts come from."""

    title: str
    about: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The script as its file would have it."""
        return "\n".join(self.lines) + "\n"

    def places(self, words: str | int) -> list[int]:
        """The numbers of the lines in which these words stand; of a line that is given by its number, that number."""
        if isinstance(words, int):
            return [words] if 1 <= words <= len(self.lines) else []
        return [place for place, line in enumerate(self.lines, 1) if words in line]

    def _note(self) -> Note:
        numbered = "\n".join(f"{place:>2}  {line}".rstrip() for place, line in enumerate(self.lines, 1))
        return Note(self.title, text=self.about, code=numbered)

    def __str__(self) -> str:
        return str(self._note())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._note()._repr_mimebundle_()


def minimal(site: Site) -> Script:
    """One card for one task: the smallest script that is right at this site."""
    start = site.conventions
    workers = workers_rule(start.cpus_per_card)
    lines = (
        *_header(site, start.cpus_per_card),
        f"#SBATCH --error={start.error}",
        "",
        *site.module_lines(),
        *activation(site),
        "",
        "set -e   # from here on, stop at the first command that fails",
        _verify(site),
        f"python train.py --workers {workers}",
    )
    about = (_source(site), f"Once, before the first `sbatch`: `mkdir -p {logs_folder(site)}`")
    return Script(f"A minimal job script for {site.name}", about, lines)


def faulty(site: Site) -> Script:
    """A script with the faults of FAULTS and no other."""
    lines = (
        *_header(site, TOO_FEW_CPUS),
        "",
        f"mkdir -p {logs_folder(site)}",
        *site.module_lines(),
        *activation(site),
        "export CUDA_VISIBLE_DEVICES=1",
        "",
        "set -e",
        _verify(site),
        f"python train.py --workers {WORKERS}",
    )
    minutes = slurm_time.seconds(usual_time(site)) / 60 / RESERVE
    about = (
        f"Made up for this exercise. {_source(site)}",
        f"The job trains on one card. In a test run it took {minutes:g} minutes, 20 GB of CPU memory and 60 GB of the "
        "card's memory.",
    )
    return Script("A job script with three faults", about, lines)


def _source(site: Site) -> str:
    name = site.name.lower()
    which = f" --site {name}" if name in shipped() else ""
    shown = f"`gpuworkshop site show{which}`"
    return f"What is specific to the site comes from its site file; {shown} names the sources."


def _header(site: Site, cpus: int) -> Iterator[str]:
    start, partition = site.conventions, site.partition(site.request.partition)
    yield "#!/bin/bash -l"
    yield "#SBATCH --job-name=train"
    if partition:
        yield f"#SBATCH --partition={partition.name}"
        yield from (f"#SBATCH {option}" for option in partition.options)
    yield "#SBATCH --nodes=1"
    yield "#SBATCH --ntasks=1"
    yield f"#SBATCH --cpus-per-task={cpus}"
    yield f"#SBATCH --gres={_gres(site, partition)}:1"
    yield f"#SBATCH --mem={start.memory}"
    yield f"#SBATCH --time={usual_time(site)}"
    yield f"#SBATCH --output={start.output}"


def _gres(site: Site, partition: Partition | None) -> str:
    family = site.family(partition.families[0]) if partition and partition.families else None
    return family.gres if family else "gpu"


def _verify(site: Site) -> str:
    partition = site.partition(site.request.partition)
    expect = f" --expect {partition.families[0]}" if partition and partition.families else ""
    return f"gpuworkshop verify{expect}"
