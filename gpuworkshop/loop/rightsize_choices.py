"""The numbers of a job script, each chosen once, with its reason: from what was measured, or by convention."""

from __future__ import annotations

import math

from gpuworkshop.cluster import scripts, slurm_time
from gpuworkshop.cluster.explain import unknown
from gpuworkshop.cluster.facts import Family, Partition, card_words
from gpuworkshop.cluster.jobscript import launch
from gpuworkshop.cluster.site import Site
from gpuworkshop.instruments.scaling_result import PAYS, ScalingResult, World, band
from gpuworkshop.loop.evidence import Evidence
from gpuworkshop.loop.rightsize_result import Asked, Choice
from gpuworkshop.numbers import counted, gib, number, percent
from gpuworkshop.workloads.config import MOST

MARGIN = 1.2
"""Of what was measured: time and host memory."""
FULL = 0.90
"""Share of a card's advertised memory that a job may need; the device reports less than is advertised."""
LEAST_SECONDS = 300
"""Of --time: modules, imports and the first batch take a while however short the training is."""
LONGEST_SECONDS = 365 * 86_400
GIB = 2**30


class Chosen:
    """Every number of one script, each chosen once, in the order in which they depend on each other."""

    def __init__(self, evidence: Evidence, site: Site, asked: Asked):
        self.evidence, self.site, self.asked = evidence, site, asked
        self.run = evidence.run()
        self.world: World | None = None
        self.step_source = ""
        self.family, because = self._family()
        self.cards = self._cards()
        self.count = int(self.cards.value)
        self.workers, self.cpus = self._cpus()
        self.memory = self._memory()
        wanted, time = self._time()
        self.partition = self._partition(wanted)
        self.where = self._where(because)
        self.time = self._within_limit(wanted, time)
        self.staging = self._staging()

    def by_convention(self, what: str) -> str:
        """The words for a value that nobody measured."""
        return f"{what}: the convention of {self.site.name}"

    def _family(self) -> tuple[Family | None, Choice]:
        """The kind of card, and why."""
        need, said = self._need()
        if self.asked.family or self.asked.partition:
            found, flag = self._family_asked()
            return found, _for(found, need, f"asked for with {flag}")
        sized = sorted((one for one in self.site.families if one.memory_gb), key=lambda one: one.memory_gb)
        if need and sized:
            found = next((one for one in sized if not _too_small(one, need)), sized[-1])
            whole, title = (
                f"the {found.memory_gb:g} GB of {found.card or found.name}",
                "the smallest card that has room",
            )
            words = f"{gib(int(need))} of a card's memory at the peak ({said}) is {_share(found, need)} of {whole}"
            return found, _for(
                found, need, f"{words}: {'no card here is larger' if _too_small(found, need) else title}"
            )
        if found := self._family_measured_on():
            words = f"the card that it was measured on ({self.run.source}); how much of its memory it needs was not"
            return found, Choice(found.name, words)
        usual = self.site.partition(self.site.request.partition)
        found = self.site.family(usual.families[0]) if usual and usual.families else None
        words = self.by_convention("how much of a card's memory it needs was not measured")
        how = "gpuworkshop watch --json -- python train.py > watch.json"
        return found or next(iter(self.site.families), None), Choice("", words, False, how=how)

    def _family_asked(self) -> tuple[Family | None, str]:
        site, asked = self.site, self.asked
        if asked.partition:
            place = site.partition(asked.partition)
            if site.partitions and not (place and place.families):
                known = (one.name for one in site.partitions if one.families)
                raise ValueError("--partition: " + unknown("partition with cards", asked.partition, known))
            if place and asked.family and asked.family not in place.families:
                raise ValueError("--family: " + unknown(f"family in {place.name}", asked.family, place.families))
            if place:
                return site.family(asked.family or place.families[0]), "--partition"
        if asked.family and not site.family(asked.family):
            raise ValueError("--family: " + unknown("family", asked.family, (one.name for one in site.families)))
        return site.family(asked.family), "--family" if asked.family else "--partition"

    def _family_measured_on(self) -> Family | None:
        """The family of the card that the run was measured on, if the site has it."""
        machine = set(card_words(self.run.conditions.machine)) if self.run and self.run.conditions else set()
        return next((one for one in self.site.families if one.card and set(card_words(one.card)) <= machine), None)

    def _need(self) -> tuple[float | None, str]:
        """Bytes of a card's memory, and where that is from."""
        if self.asked.card_memory:
            return self.asked.card_memory, "--card-memory"
        found = self.evidence.card_memory()
        return (found.value, found.source) if found else (None, "")

    def _cards(self) -> Choice:
        if self.asked.cards:
            self.world = _world(self.evidence, self.asked.cards)
            return Choice(str(self.asked.cards), "asked for with --cards")
        found = self.evidence.newest(ScalingResult)
        if found is None:
            return _one_card("whether more of them pay was not measured", self.asked.own)
        said, scale = found
        if scale.conditions.device == "cpu":
            return _one_card(f"the ranks of {said} were CPU cores, which says nothing of cards")
        if scale.planted:
            return _one_card(f"in {said} a straggler was planted")
        most = self.family.cards_per_node if self.family else None
        worlds = [one for one in scale.worlds if one.mode == "weak" and 1 < one.size <= (most or one.size)]
        if not worlds:
            return _one_card(f"{said} measured no more than one")
        if not (pays := list(filter(_pays, worlds))):
            least = min(worlds, key=lambda one: one.size)
            words = f"{least.size} are {_efficient(least)} efficient ({said}), not surely above {PAYS:.0%}"
            return Choice("1", f"one card: {words}")
        self.world = max(pays, key=lambda one: one.size)
        words = f"{self.world.size} cards are {_efficient(self.world)} efficient ({said})"
        return Choice(str(self.world.size), f"{words}: above {PAYS:.0%} they pay")

    def _cpus(self) -> tuple[int | None, Choice]:
        """The loader workers of a rank, None where nobody knows, and the CPUs of the task."""
        found, workers, said = self.evidence.workers(), self.asked.workers, "--workers"
        own = launch.workers_of(self.asked.script)
        if workers is None and own and own[0] <= MOST["workers"]:
            workers, said = own
        if workers is None and found:
            workers, said = int(found.value), found.source
        if workers is None:
            share = self.site.conventions.share(self.count)[0]
            words = self.by_convention("how many loader workers pay was not measured")
            how = "gpuworkshop starve --sweep --json > sweep.json"
            if self.asked.own:
                how = f"--workers N   # as many as {self.asked.own} starts"
            return None, Choice(str(share), f"{words}, {share // self.count} a card", False, how=how)
        ranks = f" for each of {self.count} ranks" if self.count > 1 else ""
        words = f"{counted(workers, 'loader worker')} + 1 for the main process{ranks} ({said})"
        return workers, Choice(str((workers + 1) * self.count), words)

    def _memory(self) -> Choice:
        """Host memory of the node."""
        found, many = self.evidence.host_memory(), f" x {counted(self.count, 'card')}" if self.count > 1 else ""
        if self.asked.host_memory:
            each, all_of_it, said, many = self.asked.host_memory, self.asked.host_memory, "--host-memory", ""
        elif found:
            each, all_of_it, said = found.value, found.value * self.count, found.source
        else:
            share = self.site.conventions.share(self.count)[1]
            words = self.by_convention("how much host memory it needs was not measured")
            how = "gpuworkshop job stats JOBID --json > stats.json   # after a first job"
            return Choice(share, f"{words}{many}", False, how=how)
        size = max(1, math.ceil(MARGIN * all_of_it / GIB))
        if self.family and self.family.memory_gb and size == self.family.memory_gb * self.count:
            size += 1  # else it looks like the memory of the cards, to job check too
        words = f"host memory: {MARGIN:g} x the peak of {gib(int(each))}{many} ({said}), in full GiB"
        return Choice(f"{size}G", words)

    def _step(self) -> tuple[float | None, str]:
        """Seconds of a step as this job takes it, and where that is from."""
        if self.asked.step_ms:
            return self.asked.step_ms / 1e3, "--step-ms"
        if self.world:
            scale = self.evidence.newest(ScalingResult)
            return self.world.size * self.world.batch / self.world.rate.value, scale[0] if scale else ""
        return (self.run.step_seconds, self.run.source) if self.run and self.count == 1 else (None, "")

    def _time(self) -> tuple[float, Choice]:
        """What is wanted in seconds, before any limit, and the words for it."""
        (step, self.step_source), steps = self._step(), self.asked.steps
        if not (step and steps):
            usual, on = scripts.usual_time(self.site), f" on {self.count} cards" if self.count > 1 else ""
            what = "the number of steps was not given (--steps)" if step else f"the time of a step{on} was not measured"
            how = "" if step else "gpuworkshop starve --json > starve.json"
            if how and self.asked.own:
                how = f"--step-ms MS   # of 50 steps of {self.asked.own} on such a card"
            return slurm_time.seconds(usual), Choice(usual, self.by_convention(what), False, how=how)
        seconds = MARGIN * steps * step
        if seconds > LONGEST_SECONDS:
            raise ValueError(f"--steps: {steps:,} steps of {number(1e3 * step)} ms take longer than a year")
        wanted = max(LEAST_SECONDS, 60 * math.ceil(seconds / 60 - 1e-9))
        least = f"; at least {LEAST_SECONDS // 60} minutes, for the start" if wanted == LEAST_SECONDS else ""
        words = f"{MARGIN:g} x {steps:,} steps x {number(1e3 * step)} ms a step ({self.step_source})"
        return wanted, Choice(slurm_time.text(wanted), f"{words}, in full minutes{least}")

    def _partition(self, wanted: float) -> Partition | None:
        """Batch, and of several the first in which the job may run long enough."""
        if self.asked.partition:
            return self.site.partition(self.asked.partition)
        fitting = [one for one in self.site.partitions if self.family and self.family.name in one.families]
        fitting.sort(key=lambda one: (one.purpose != "batch", one.seconds is not None and one.seconds < wanted))
        return next(iter(fitting), None)

    def _where(self, because: Choice) -> Choice:
        name = self.partition.name if self.partition else self.asked.partition
        if not name:
            how = (
                "sinfo -s   # which there are; then --partition NAME\ngpuworkshop site init my-site.toml   # all, once"
            )
            return Choice("", f"the site file of {self.site.name} names no partition", False, how=how)
        purpose = f"; for {self.partition.purpose}" if self.partition else ""
        return Choice(name, f"{because.reason}{purpose}", because.measured, because.warns, because.how)

    def _within_limit(self, wanted: float, time: Choice) -> Choice:
        limit = self.partition.seconds if self.partition else None
        if limit is None or wanted <= limit:
            return time
        most = self.partition.time_limit
        words = f"{time.reason}: that is {time.value}, and {self.partition.name} allows {most}"
        warns = f"it needs {time.value}: save a checkpoint and go on in a second job" if time.measured else ""
        return Choice(most, words, time.measured, warns)

    def _staging(self) -> Choice:
        local = next((place for place in self.site.storage if place.purpose == "node"), None)
        limit = self.run.limit if self.run else ""
        if limit == "compute" and not self.asked.data:
            return Choice("no", f"data do not limit the run ({self.run.source})")
        if not (self.asked.data or self.asked.script):
            return Choice("no", "no folder was given (--data)", False)
        if local is None:
            return Choice("no", f"the site file of {self.site.name} names no disk of the node", False)
        waits = f"the run waits for data ({self.run.source})" if limit == "data" else ""
        doubt = ", unverified" if local.unverified else ""
        disk = f"{local.path} is the node's own disk by the site file{doubt}; used where it is there and has room"
        return Choice("yes", f"{waits or 'whether it waits for data was not measured'}; {disk}", bool(waits))


def _one_card(why: str, own: str = "") -> Choice:
    how = "gpuworkshop scale --json > scale.json"
    if own:
        how = f"--cards 2   # where {own} does above {2 * PAYS:g} times as many samples/s on two as on one"
    return Choice("1", f"one card: {why}", False, how=how)


def _pays(world: World) -> bool:
    """Above 80%, and by its interval not possibly below 70%."""
    return band(world.efficiency.value / 100) == "pays" and "does not pay" not in world.bands


def _efficient(world: World) -> str:
    share = world.efficiency
    return f"{number(share.value)}% ({number(share.low)} to {number(share.high)})"


def _world(evidence: Evidence, size: int) -> World | None:
    """What was measured of so many cards; None where nothing was."""
    found = evidence.newest(ScalingResult)
    usable = found and found[1].conditions.device != "cpu" and not found[1].planted and size > 1
    return found[1].world("weak", size) if usable else None


def _for(family: Family | None, need: float | None, words: str) -> Choice:
    """A choice of card, with a warning where what was measured does not fit."""
    if not _too_small(family, need):
        return Choice(family.name if family else "", words)
    warns = f"{gib(int(need))} is {_share(family, need)} of the {family.memory_gb:g} GB of {family.card or family.name}"
    return Choice(family.name, words, warns=f"{warns}: too little room. First BF16, checkpointing, a smaller batch")


def _share(family: Family, need: float) -> str:
    return percent(need / (family.memory_gb * 1e9))


def _too_small(family: Family | None, need: float | None) -> bool:
    return bool(family and family.memory_gb and need and need > FULL * family.memory_gb * 1e9)
