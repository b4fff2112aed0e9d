"""Why one card cannot be used though CUDA is reachable: the error it gave, held against what is known of the card."""

from __future__ import annotations

import re

from gpuworkshop.instruments.verify_cause import leave, pip
from gpuworkshop.instruments.verify_probe import Fault, Trip
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.machine.gpus import Card
from gpuworkshop.machine.processes_findings import end
from gpuworkshop.numbers import counted, gib
from gpuworkshop.report import Finding

_KERNELS_SINCE = {
    (12, 1): "12.9",
    (12, 0): "12.8",
    (11, 0): "13.0",
    (10, 3): "12.9",
    (10, 0): "12.8",
    (9, 0): "11.8",
    (8, 9): "11.8",
}
"""The CUDA whose compiler first knew a capability, the newest first; one in between is that of the next lower entry."""
_HARDWARE = ("uncorrectable", "ecc error", "hardware error", "fallen off", "gpu is lost")


def cannot_use(result: VerifyResult, trip: Trip, card: Card | None) -> Finding:
    """Why one card cannot be used, though CUDA is reachable."""
    fault, name = trip.fault, f"cuda:{trip.cuda}"
    words = fault.words.lower()
    if "no kernel image" in words or (card and card.capability and not can_run(card.capability, kernels(result))):
        return _no_kernels(result, fault, card)
    if "busy or unavailable" in words or "is/are busy" in words:
        return _held(result, fault, card)
    if any(sign in words for sign in _HARDWARE):
        errors = result.state(card).uncorrected if card else None
        evidence = str(fault) + (f"; {counted(errors, 'uncorrectable error')} counted by the driver" if errors else "")
        where = f"on host {result.first.host}, card {card.uuid if card else name}"
        return Finding("fail", f"Hardware fault {where}", evidence, leave(result, card))
    if "out of memory" in words:
        return _full(result, fault, card)
    return Finding("fail", f"{name} cannot be used: {fault.step} failed", str(fault), leave(result, card))


def kernels(result: VerifyResult) -> tuple[str, ...]:
    """What this PyTorch has kernels for."""
    return result.torch.build.kernels if result.torch.build else ()


def can_run(capability: tuple[int, int], kernels: tuple[str, ...]) -> bool:
    """Whether a card runs one of these: kernels of its major version up to its own, or code (PTX) up to it.

    True where nothing is known, and for architectures of another maker.
    """
    known = tuple(filter(None, map(_kernel, kernels)))
    return not known or any(_runs(capability, *one) for one in known)


def _kernel(name: str) -> tuple[str, tuple[int, int], str] | None:
    """sm_90a is ("sm", (9, 0), "a"); None for what is no such name."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", name)
    return (found[1], (int(found[2]), int(found[3])), found[4]) if found else None


def _runs(capability: tuple[int, int], kind: str, built_for: tuple[int, int], only: str) -> bool:
    if only == "a":
        return capability == built_for
    return built_for <= capability and (kind == "compute" or built_for[0] == capability[0])


def _no_kernels(result: VerifyResult, fault: Fault, card: Card | None) -> Finding:
    has, build = kernels(result), result.torch.build
    evidence = f"{fault}; PyTorch {build.version} has {', '.join(has) or 'n/a'}"
    again = pip(result, "--force-reinstall torch")
    pinned = "\n# a launcher or lock file that pins torch puts the old one back: change the pin too"
    if not card or not card.capability:
        return Finding("fail", "This PyTorch has no kernels for the card", evidence, again + pinned)
    title = f"No kernels for {card.name}: it is sm_{card.capability[0]}{card.capability[1]}, not in this PyTorch"
    if card.capability < min((one[1] for one in map(_kernel, has) if one), default=(0, 0)):
        return Finding(
            "fail", title, evidence, f"{again}   # an older build, for an older CUDA: selector on pytorch.org"
        )
    since = next((cuda for since, cuda in _KERNELS_SINCE.items() if since <= card.capability), "a newer one")
    wheel = f"   # built for CUDA {since} or later (cu{since.replace('.', '')}+)" if since[0].isdigit() else ""
    return Finding("fail", title, evidence, again + wheel + pinned)


def _held(result: VerifyResult, fault: Fault, card: Card | None) -> Finding:
    """A card in exclusive mode that a process holds."""
    state = result.state(card) if card else None
    if state and state.mode == "prohibited":
        return Finding("fail", "The card is closed to everybody (prohibited mode)", str(fault), leave(result, card))
    holder = next(iter(state.on_card.processes or ()), None) if state else None
    mode = " (exclusive mode)" if state and state.mode == "exclusive" else ""
    if holder is None:
        return Finding("fail", f"The card is taken{mode}", f"{fault}; NVML names no process", leave(result, card))
    whose = {
        "mine": ("this one or belongs to it", "# give it up: restart this kernel, then ask again"),
        "this step's": ("of this step", end(holder)),
        "this job's": ("of this job", end(holder)),
        "my other work": ("your own", end(holder)),
        "another's": ("another user's: the wrong card, or not yours alone", leave(result, card)),
        "not visible": ("not to be seen from here: another user's, or outside this container", leave(result, card)),
    }
    words, fix = whose[holder.whose]
    evidence = f"{fault}; process {holder.pid} is {words}" + (f": {holder.command[:100]}" if holder.command else "")
    return Finding("fail", f"The card is held by process {holder.pid}{mode}", evidence, fix)


def _full(result: VerifyResult, fault: Fault, card: Card | None) -> Finding:
    state = result.state(card) if card else None
    evidence = str(fault)
    own = []
    if state:
        evidence += f"; {gib(state.used)} of {gib(state.total)} in use"
        own = [one for one in state.on_card.visible if one.whose not in ("mine", "another's")]
    fix = end(own[0]) if own else leave(result, card)
    return Finding("fail", "The card has no memory left", evidence, fix)
