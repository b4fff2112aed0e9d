"""What chapter 3 says of the rungs above the profiler, and of where to profile: from the machine and the site file."""

from __future__ import annotations

import shlex

from gpuworkshop.cluster import site
from gpuworkshop.cluster.site import Site, SiteError
from gpuworkshop.course import place
from gpuworkshop.course.faces import Note
from gpuworkshop.instruments import nsight
from gpuworkshop.instruments.profile_result import ProfileResult, short
from gpuworkshop.report import Finding, Origin, Report, Table

TITLE = "Where to profile"
ALLOWED = {
    True: "allowed here",
    False: "not allowed here: only administrators may read the counters",
    None: "not known: no driver that says it",
}


def lines(command: str, seen: ProfileResult | None = None) -> Note:
    """The lines of Nsight Systems and Nsight Compute for a command of the learner's.

    The second one looks at the first kernel of ``seen``, or at any. ValueError for a command whose quotes do not close,
    and for none.
    """
    words = shlex.split(command) if isinstance(command, str) else []  # of None it would read stdin
    if not words:
        raise ValueError(f"command is {command!r:.60}: your line as you type it, such as 'python train.py'")
    kernels = seen.sums.top_kernels if seen else ()
    kernel = short(kernels[0].name).partition(" ")[0] if kernels else ""
    counters = ALLOWED[nsight.counters_allowed()]
    facts = (("Timeline", "Nsight Systems; needs no counters"), ("Kernel", f"Nsight Compute; counters: {counters}"))
    timeline = _folded(nsight.systems(words), " --output=")
    one_kernel = _folded(nsight.compute(words, kernel=kernel), " --launch-skip ", " --export ")
    return Note(f"The next rungs for `{command}`", facts=facts, code=f"{timeline}\n{one_kernel}")


def _folded(line: str, *options: str) -> str:
    """A long line as the shell takes it in several, broken before some of its own options: they precede the command."""
    for option in options:
        line = line.replace(option, f" \\\n   {option}", 1)
    return line


def habit(here: Site | None = None) -> Report:
    """Where to profile and where to produce, as the site file has it; where it says nothing, an example."""
    try:
        here = here or place.site()
    except SiteError as error:
        return Report(TITLE, Origin("claimed by", "no site file"), (Finding("unknown", str(error)),))
    if here.habit.says:
        return _known(here, ())
    unknown = Finding("unknown", f"{here.name}: nobody stated where to profile")
    return _known(site.load(place.HOME), (unknown,))


def _known(here: Site, before: tuple[Finding, ...]) -> Report:
    habit = here.habit
    example = "An example, from " if before else ""
    found = Finding("notice", f"{example}{here.name}: {habit.says}")
    steps = [(str(number), "devel", step) for number, step in enumerate(habit.devel, 1)]
    steps += [(str(number), "batch", step) for number, step in enumerate(habit.batch, len(steps) + 1)]
    tables = (Table(("", "where", "what"), tuple(steps)),) if steps else ()
    return Report(TITLE, Origin("claimed by", here.source_of(habit)), (*before, found), tables)
