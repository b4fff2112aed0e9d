"""The ten items of the list before batch: how each stands for one script, and the number or the line that says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from gpuworkshop.cluster.jobscript import launch, script
from gpuworkshop.cluster.jobscript.check import Checked
from gpuworkshop.cluster.jobscript.launch import Launch
from gpuworkshop.cluster.jobscript.rule import Fault
from gpuworkshop.cluster.site import Site
from gpuworkshop.instruments import verify
from gpuworkshop.instruments.precision_result import PrecisionResult
from gpuworkshop.instruments.profile_result import ProfileResult
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.instruments.watch_result import WatchResult
from gpuworkshop.loop.climb_result import LoopResult
from gpuworkshop.loop.evidence import Evidence, one_line
from gpuworkshop.numbers import counted, gib, number, percent

State = Literal["green", "red", "unknown"]
UTILIZATION, MEMORY, CPUS, STEPS = 0.70, 0.60, 4, 20
"""The course's numbers: shares of the time and of the card's memory, CPUs of a task, profiled steps."""
_PLACE = (
    "near-partition",
    "no-such-partition",
    "unknown-partition",
    "no-partition",
    "wrong-family",
    "time-limit",
    "partition-options",
)


class Said(msgspec.Struct, frozen=True):
    """How an item stands, and why."""

    state: State
    why: str
    source: str = ""


class Count(msgspec.Struct, frozen=True):
    """A whole number, and where it is from."""

    value: int
    source: str


class Looked:
    """What the items look at: the script, its first training, its site, and what was measured."""

    def __init__(
        self,
        data: bytes,
        checked: Checked,
        site: Site,
        evidence: Evidence,
        settings: Mapping[str, tuple[str, ...]],
    ):
        self.settings = settings
        self.script, self.checked, self.site, self.evidence = script.read(data), checked, site, evidence
        self.request = checked.request
        self.start: Launch | None = next(launch.commands_that_train(self.script), None)
        self.run = evidence.run()
        self.config = self.run.config if self.run else None

    @property
    def ranks(self) -> int:
        """Ranks on one node: what a starter makes, else one."""
        cards = self.request.cards_on_node
        if not (self.start and self.start.starter):
            return self.request.tasks_on_node
        made = launch.processes(self.start, self.script, cards) or cards or 1
        return made * (self.request.tasks_on_node if self.start.srun is not None else 1)

    def workers(self) -> Count | None:
        """Loader workers of a rank: as the script says, else as measured."""
        line = f"line {self.start.line} of the script" if self.start else ""
        found = launch.workers(self.start, self.script) if self.start else None
        if found:
            return Count(found[0], line)
        if self.start and (rule := _by_cpus(" ".join(self.start.words))) and self.request.cpus_on_node:
            each = self.request.cpus_on_node // (self.ranks if rule == "of a rank" else 1)
            return Count(max(0, each - 1), line)
        measured = self.evidence.workers()
        return Count(int(measured.value), measured.source) if measured else None

    def option(self, name: str) -> tuple[str, str] | None:
        """The value that the training's command gives a setting ("" for a bare flag), and where."""
        for word in self.start.words[1:] if self.start else ():
            flag, equals, value = word.partition("=")
            if flag in self.settings[name]:
                value = value if equals else self.start.option(flag) or ""
                return "" if value.startswith("-") else value, f"line {self.start.line} of the script"
        return None

    def fault(self, *rules: str) -> Fault | None:
        """The first fault of these rules that job check found."""
        return next((one for one in self.checked.faults if one.rule in rules), None)


def _by_cpus(words: str) -> str:
    """Whether a command computes its workers from the CPUs: "of a task", "of a rank", or ""."""
    found = re.search(r"workers[= ]+\S*\$\(\(\s*\$?\{?SLURM_CPUS_(?:PER_TASK|ON_NODE)\}?\s*(/?)", words)
    return "" if not found else "of a rank" if found[1] else "of a task"


def _verify(seen: Looked) -> Said:
    found = seen.evidence.newest(VerifyResult)
    if found is None:
        runs = any("verify" in line.argv for line in seen.script.shell.commands if line.name == "gpuworkshop")
        return Said("unknown", "no result of verify" + ("; the script runs it first" if runs else ""))
    source, result = found
    failed = [one.title for one in verify.findings(result) if one.level == "fail"]
    if failed or not result.usable:
        return Said("red", failed[0] if failed else "no card was used", source)
    return Said("green", f"{counted(len(result.cards), 'card')} used and checked", source)


def _utilization(seen: Looked) -> Said:
    busy, watched = seen.evidence.busy(), seen.evidence.newest(WatchResult)
    if busy:
        return Said("green" if busy.value > UTILIZATION else "red", f"utilization {percent(busy.value)}", busy.source)
    why = next((card.busy_why for card in watched[1].cards if card.busy_why), "no card was watched") if watched else ""
    return Said("unknown", why or "utilization was not measured", watched[0] if watched else "")


def _workers(seen: Looked) -> Said:
    found, run = seen.workers(), seen.run
    if found is None:
        return Said("unknown", "neither the script nor a measurement says how many")
    waits = f"; the run that was measured is limited by {run.limit}" if run and run.limit else ""
    return Said("green" if found.value else "red", f"{counted(found.value, 'worker')} a rank{waits}", found.source)


def _pinned(seen: Looked) -> Said:
    if said := seen.option("pinned"):
        off = said[0].lower() in ("false", "0", "no", "off")
        return Said("red" if off else "green", "pin_memory is off" if off else "pin_memory is on", said[1])
    if seen.config is None:
        return Said("unknown", "neither the command in the script nor a measurement says")
    if seen.run.conditions and seen.run.conditions.device == "cpu":
        return Said("unknown", "it was measured without a card, where pin_memory does nothing", seen.run.source)
    on = seen.config.pin_memory
    return Said("green" if on else "red", f"pin_memory {on} in the measured run", seen.run.source)


def _batch(seen: Looked) -> Said:
    """60% of the memory or the knee: green if one of them holds, red if both were measured and neither does."""
    share, knee, said = seen.evidence.memory_share(), seen.evidence.knee(), seen.option("batch")
    batch, source = None, ""
    if said and said[0].isdecimal() and len(said[0]) < 8:
        batch, source = int(said[0]), said[1]
    elif seen.run:
        batch, source = seen.run.batch, seen.run.source
    at_knee = batch >= knee.value if batch and knee else None
    if at_knee:
        return Said("green", f"batch {batch}: the knee is at {knee.value:g}", f"{source}; knee: {knee.source}")
    memory = f"{percent(share.value)} of the card's memory" if share else "the card's memory was not measured"
    if share and share.value >= MEMORY:
        return Said("green", memory, share.source)
    if at_knee is None or not share:
        lacking = "the knee was not measured" if not knee else "the batch is not known" if not batch else ""
        below = f"batch {batch}, below the knee at {knee.value:g}" if at_knee is False else ""
        return Said("unknown", "; ".join(filter(None, (memory, lacking, below))), share.source if share else "")
    words = f"{memory}, and batch {batch} is below the knee at {knee.value:g}"
    return Said("red", words, f"{share.source}; knee: {knee.source}")


def _bf16(seen: Looked) -> Said:
    measured, said = seen.evidence.newest(PrecisionResult), seen.option("bf16")
    if said:
        name, on = said[0].lower(), "bf" in said[0].lower() or said[0].lower() in ("", "true", "1", "yes")
        on, source, words = on, said[1], f"precision {name or 'bf16'}"
    elif seen.config:
        on, source, words = seen.config.precision == "bf16", seen.run.source, f"precision {seen.config.precision}"
    else:
        return Said("unknown", "neither the command in the script nor a measurement says")
    pays = measured[1].bf16_over_fp32 if measured else None
    if not on and pays and pays.verdict in ("no real difference", "slower"):
        return Said("green", f"{words}: BF16 was measured and does not pay: {pays}", measured[0])
    gain = f"; measured, BF16 over FP32: {pays}" if pays else ""
    return Said("green" if on else "red", words + gain, source + (f"; {measured[0]}" if pays else ""))


def _partition(seen: Looked) -> Said:
    if fault := seen.fault(*_PLACE):
        state = "unknown" if fault.rule in ("unknown-partition", "no-partition") else "red"
        return Said(state, fault.title, f"line {fault.line} of the script" if fault.line else "")
    places = [place for name in seen.request.partitions if (place := seen.site.partition(name))]
    if not places:
        return Said("unknown", f"the site file of {seen.site.name} names no partitions")
    if devel := [place.name for place in places if place.purpose != "batch"]:
        return Said("red", f"{devel[0]} is for interactive work", f"site file {seen.site.name}")
    need = seen.evidence.card_memory()
    for family in (seen.site.family(name) for place in places for name in place.families):
        if need and family.memory_gb and need.value > family.memory_gb * 1e9:
            words = f"{gib(int(need.value))} at the peak, and a card of {places[0].name} has {family.memory_gb:g} GB"
            return Said("red", words, need.source)
    fits = f"; {gib(int(need.value))} of the card's memory are needed ({need.source})" if need else ""
    return Said("green", f"{places[0].name}, for batch{fits}", f"site file {seen.site.name}")


def _cpus(seen: Looked) -> Said:
    asked, found, ranks = seen.request.cpus_on_node, seen.workers(), seen.ranks
    if asked is None:
        return Said("red", "there is no --cpus-per-task: one CPU")
    if found is None:
        return Said(
            "red" if asked < CPUS else "unknown", f"{counted(asked, 'CPU')}; the number of workers is not known"
        )
    need = (found.value + 1) * ranks
    words = f"{counted(asked, 'CPU')} for ({counted(found.value, 'worker')} + 1) x {counted(ranks, 'rank')}"
    if asked < need:
        return Said("red", f"{words} = {need}", found.source)
    enough = seen.run is not None and seen.run.limit == "compute" and seen.run.workers == found.value
    if asked < CPUS and not enough:
        return Said("red", f"{words}; the list asks for at least {CPUS}", found.source)
    return Said("green", words + (", measured: it does not wait for data" if asked < CPUS else ""), found.source)


def _logs(seen: Looked) -> Said:
    if fault := seen.fault("log-folder", "log-folder-unknown"):
        return Said("red" if fault.rule == "log-folder" else "unknown", fault.title, f"line {fault.line} of the script")
    return Said("green", "it is there, or the logs need none")


def _profile(seen: Looked) -> Said:
    found, loop = seen.evidence.newest(ProfileResult), seen.evidence.newest(LoopResult)
    if found:
        source, result = found
        if not result.sums.cards:
            return Said("unknown", "the profile has no CUDA column: no card was recorded", source)
        top, busy = result.sums.operators[:1], result.sums.main.busy
        row = f", top row {one_line(top[0].name)[:60]}" if top else ""
        steps = counted(result.sums.steps, "step")
        words = f"{steps} profiled, the card at work {percent(busy)} of them{row}"
        return Said("green" if result.sums.steps >= STEPS else "red", words, source)
    traced = loop[1].looks[-1].traced if loop and loop[1].looks else None
    if traced and traced.busy is not None:
        words = f"the loop profiled {counted(traced.steps, 'step')}: {number(traced.calls)} kernels a step"
        return Said("green" if traced.steps >= STEPS else "red", words, loop[0])
    return Said("unknown", "no profile")


LOOKS: dict[str, Callable[[Looked], Said]] = {
    "verify": _verify,
    "utilization": _utilization,
    "workers": _workers,
    "pinned": _pinned,
    "batch": _batch,
    "bf16": _bf16,
    "partition": _partition,
    "cpus": _cpus,
    "logs": _logs,
    "profile": _profile,
}
"""Each item by its id in checklist.toml."""
