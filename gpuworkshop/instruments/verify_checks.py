"""The five checks of the course: is CUDA reachable; which cards; what the variable says; does NVML agree; round trip.

Each gives at least one finding, always in this order. Pure functions of the result.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.instruments.verify_card import cannot_use
from gpuworkshop.instruments.verify_cause import gave_up, leave, level, quoted, why_not
from gpuworkshop.instruments.verify_probe import ELEMENTS, SIDE, Trip
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.machine.gpus import Card
from gpuworkshop.machine.visible import VARIABLE
from gpuworkshop.numbers import counted, gib, several
from gpuworkshop.report import Finding


def five(result: VerifyResult) -> Iterator[Finding]:
    """All five, in order."""
    yield why_not(result) or _reachable(result)
    yield _cards(result)
    yield from _variable(result)
    yield _nvml(result)
    yield from _round_trip(result)


# 1


def _reachable(result: VerifyResult) -> Finding:
    build, first = result.torch.build, result.first
    if build.hip:
        title = f"An AMD GPU is reachable through ROCm {'.'.join(build.hip.split('.')[:2])}"
        return Finding("ok", title, f"PyTorch {build.version}, torch.cuda.is_available() is True")
    driver = f"driver {first.driver} serves CUDA {level(first.serves)}" if first.driver else "NVML names no driver"
    built = f"PyTorch {build.version}, built with CUDA {build.cuda or 'n/a'}"
    return Finding("ok", "CUDA is reachable: torch.cuda.is_available() is True", f"{built}; {driver}")


# 2


def names(cards: tuple[Card, ...]) -> str:
    """Cards as one phrase: "2 cards: NVIDIA A100-SXM4-80GB, 80 GiB each"."""
    groups: dict[tuple[str, int | None, bool], int] = {}
    for card in cards:
        key = (card.name, card.memory_bytes, card.mig)
        groups[key] = groups.get(key, 0) + 1
    said = [f"{name}, {gib(memory)}{' each' if count > 1 else ''}" for (name, memory, _), count in groups.items()]
    thing = "MIG slice" if cards and all(card.mig for card in cards) else "card"
    return f"{counted(len(cards), thing)}: {'; '.join(said)}" if cards else "no card"


def _cards(result: VerifyResult) -> Finding:
    cards, first = result.cards, result.first
    if result.split:
        return Finding("notice", "No slice for this process", f"split: {names(first.cards.split_without_slice)}")
    if result.torch.available and cards:
        evidence = "; ".join(_named(card) for card in cards)
        title = names(cards)
        return Finding("ok", title[0].upper() + title[1:], evidence)
    if cards:
        title = f"NVML shows {names(cards)}; PyTorch uses none of it"
        return Finding("notice", title, "; ".join(_named(card) for card in cards))
    shown = first.cards.others
    if shown:
        return Finding("notice", "No card for this process", f"NVML shows {counted(shown, 'card')} that it may not use")
    return Finding("notice", "No card", f"NVML shows none, on {first.host}")


def _named(card: Card) -> str:
    part = f", a slice of {card.parent}" if card.mig and card.parent else ""
    return f"{card.place}, {card.uuid or 'UUID n/a'}{part}"


# 3


def _variable(result: VerifyResult) -> Iterator[Finding]:
    says, job = result.first.cards.visible, result.first.job
    if says.kind == "unset":
        yield _unset(result)
        return
    if says.kind == "hidden":
        yield Finding("notice", f"{VARIABLE} is {quoted(result)}: it hides every card", says.why)
        return
    evidence = []
    if job and job.gpu_numbers:
        evidence.append(f"Slurm's numbers on the node are {job.gpu_numbers}: another count, never CUDA's")
    entries, sees = len(says.entries), len(result.torch.seen)
    listed = entries + len(says.ignored)
    if says.ignored:
        title = f"{VARIABLE} lists {listed}, and CUDA takes {entries}"
        yield Finding(
            "notice" if says.kind == "slices" else "warning",
            title,
            "; ".join([f"{quoted(result)}: {says.why}", *evidence]),
        )
    elif result.torch.available and sees < entries:
        title = f"{VARIABLE} lists {entries}, and CUDA sees {sees}"
        evidence += [f"not known here: {several(result.first.cards.unknown)}"] if result.first.cards.unknown else []
        yield Finding("warning", title, "; ".join(evidence), _unset_fix(result))
    else:
        yield _names(result, evidence)


def _names(result: VerifyResult, evidence: list[str]) -> Finding:
    """A variable of which every entry counts."""
    says, job = result.first.cards.visible, result.first.job
    entries = len(says.entries)
    thing = {"slices": "MIG slice"}.get(says.kind, "card")
    title = f"{VARIABLE} is {quoted(result)}: {counted(entries, thing)}"
    if job:
        if job.gpus_on_node and entries < job.gpus_on_node:
            evidence.append("a subset: right if you meant it")
            return Finding("notice", f"{title} of the {job.gpus_on_node} of this job", "; ".join(evidence))
        return Finding("ok", title, "; ".join(evidence))
    if result.first.cards.others and says.kind == "numbers":  # a scheduler that is not Slurm writes UUIDs
        evidence.append(f"it hides {counted(result.first.cards.others, 'more card')}")
        title += ", set outside a job: left over from an earlier shell?"
        return Finding("notice", title, "; ".join(evidence), _unset_fix(result))
    return Finding("ok", title, "; ".join(evidence))


def _unset_fix(result: VerifyResult) -> str:
    if result.first.job:
        return f"# take the line that sets {VARIABLE} out of the job script: Slurm sets it"
    return f"unset {VARIABLE}"


def _unset(result: VerifyResult) -> Finding:
    job = result.first.job
    if not job:
        return Finding("ok", f"{VARIABLE} is unset: normal outside Slurm", "CUDA then sees every card")
    title = f"{VARIABLE} is unset inside job {job.id}: no GPU was asked for"
    evidence = f"SLURM_GPUS_ON_NODE is {job.gpus_on_node or 'unset'}"
    if not result.cards:
        return Finding("notice", title, evidence)
    evidence += f"; this process sees {counted(len(result.cards), 'card')}, which may be other people's"
    return Finding("warning", title, evidence, result.place.request or "srun --gres=gpu:1 ...")


# 4


def _nvml(result: VerifyResult) -> Finding:
    first, build = result.first, result.torch.build
    if first.refusal:
        return _silent(result)
    if build and build.hip:
        return Finding("ok", "NVML is NVIDIA's: not applicable to an AMD GPU")
    counted_by_nvml = f"driver {first.driver or 'n/a'}; NVML shows {counted(len(result.cards), 'card')} of this process"
    if first.cards.others:
        counted_by_nvml += f" and {first.cards.others} more"
    if result.split:
        return Finding("ok", "NVML agrees: the card is split, and no slice is this process's", f"driver {first.driver}")
    if not result.torch.available:
        if not result.cards:
            return Finding("ok", "NVML agrees: no card for this process", counted_by_nvml)
        return Finding("notice", "NVML sees what PyTorch does not", counted_by_nvml)
    if first.cards.unknown:
        title = f"NVML and PyTorch do not agree on {several(first.cards.unknown)}"
        return Finding("warning", title, counted_by_nvml, "nvidia-smi -L   # compare the UUIDs")
    pairs = ", ".join(f"cuda:{card.cuda} is physical card {card.physical}" for card in result.cards)
    slices = [f"cuda:{card.cuda} is slice {card.uuid} of {card.parent}" for card in result.cards if card.mig]
    return Finding("ok", "NVML agrees: the same cards, by UUID", f"{counted_by_nvml}; {', '.join(slices) or pairs}")


def _silent(result: VerifyResult) -> Finding:
    """NVML does not answer at all: what that means depends on whether CUDA works."""
    refusal, build, works = result.first.refusal, result.torch.build, result.usable
    evidence = f"NVML says: {refusal.words}"
    if build and build.hip:
        return Finding("ok", "NVML is NVIDIA's: not applicable to an AMD GPU", evidence)
    if result.first.system == "Darwin":
        return Finding("ok", "NVML: not applicable on a Mac", evidence)
    if "nvidia-ml-py" in refusal.words:
        return Finding(
            "warning", "NVML cannot be asked: its Python package is missing", evidence, "pip install nvidia-ml-py"
        )
    prefix = "CUDA works, monitoring does not" if works else "NVML does not answer"
    if refusal.cause == "version mismatch":
        why = "the driver was updated and the node not restarted: only its staff can"
        return Finding("warning", f"{prefix}: {why}", evidence, leave(result))
    if refusal.cause == "did not answer":
        return Finding("warning" if works else "fail", f"{prefix}: the driver hangs", evidence, leave(result))
    if refusal.cause in ("no library", "no driver"):
        if not works:
            return Finding("ok", "NVML agrees: no driver, no card", evidence)
        fix = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...   # or: apptainer run --nv ..."
        return Finding("warning", "CUDA works, monitoring is not available in this container", evidence, fix)
    fix = "# end this container or job and start it again; it does not come back by itself"
    return Finding("warning", f"{prefix}: NVML lost its access to the cards", evidence, fix)


# 5


def _round_trip(result: VerifyResult) -> Iterator[Finding]:
    trips, stopped = result.torch.trips, result.stopped
    if result.split:
        yield Finding(
            "unknown", "Round trip not possible without a slice", "; ".join(str(t.fault) for t in trips if t.fault)
        )
        return
    if not trips:
        why = "PyTorch did not get that far" if result.there_is_a_card else "there is no card"
        yield Finding("unknown" if result.there_is_a_card else "notice", f"Round trip not tried: {why}")
        return
    good = [trip for trip in trips if trip.same and trip.bf16 is not False and not trip.fault]
    for trip in trips:
        card = next((card for card in result.cards if card.cuda == trip.cuda), None)
        if stopped and stopped.step.endswith(f" on cuda:{trip.cuda}"):
            yield gave_up(result)
        elif trip.fault:
            yield cannot_use(result, trip, card)
        elif trip not in good:
            yield _wrong(result, trip, card)
    if good:
        yield _came_back(result, good)


def _came_back(result: VerifyResult, good: list[Trip]) -> Finding:
    where = ", ".join(f"cuda:{trip.cuda}" for trip in good)
    product = all(trip.bf16 for trip in good)
    title = f"Round trip CPU -> {where} -> CPU: every bit came back"
    evidence = f"{ELEMENTS:,} 32-bit patterns"
    evidence += f"; a BF16 product of {SIDE} x {SIDE} equals the CPU's" if product else "; no BF16 unit on this card"
    taken = sum(seconds for step, seconds in result.torch.seconds.items() if step != "import torch")
    imports = result.torch.seconds.get("import torch")
    if imports is not None:
        evidence += f"; import torch {imports:.1f} s, all steps on the card {taken:.1f} s"
    return Finding("ok", title, evidence)


def _wrong(result: VerifyResult, trip: Trip, card: Card | None) -> Finding:
    """The card answered, and wrongly."""
    what = "a tensor came back changed" if trip.same is False else "a BF16 product differs from the CPU's"
    if trip.same and trip.bf16 is None or trip.same is None:
        return Finding("unknown", f"cuda:{trip.cuda}: the round trip did not end")
    evidence = f"{card.name}, {card.uuid}" if card else "the card could not be named"
    return Finding("fail", f"cuda:{trip.cuda} computes wrongly: {what}", evidence, leave(result, card))
