"""What else there is to say: only what needs a word, each with evidence and fix. Pure functions of the result."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.instruments.verify_card import can_run, kernels
from gpuworkshop.instruments.verify_cause import leave, pip, quoted
from gpuworkshop.instruments.verify_checks import names
from gpuworkshop.instruments.verify_result import VerifyResult
from gpuworkshop.machine import allocation_findings, disk_findings, frontend_findings, interpreter, processes_findings
from gpuworkshop.machine.gpus import Card
from gpuworkshop.machine.visible import VARIABLE
from gpuworkshop.numbers import counted, gib
from gpuworkshop.report import Finding


def more(result: VerifyResult) -> Iterator[Finding]:
    """All of it, what matters most first."""
    yield from _expectation(result)
    yield from _lost(result)
    yield from _awake(result)
    for card in result.cards:
        yield from _card(result, card)
    yield from _order(result)
    yield from _software(result)
    yield from _around(result)


def _expectation(result: VerifyResult) -> Iterator[Finding]:
    wanted = result.expect
    if wanted is None:
        return
    if not result.cards:
        slurm = result.first.job or result.first.slurm
        elsewhere = "" if slurm else "there is no Slurm here: type it on a login node of your cluster"
        yield Finding("fail", f"Expected {wanted.title}, and there is no card", elsewhere, result.place.request)
        return
    wrong = [card for card in result.cards if not wanted.fits(card.name)]
    if wrong:
        job = result.first.job
        where = f"partition {job.partition}, " if job and job.partition else ""
        evidence = f"{where}{result.first.host}: {names(tuple(wrong))}"
        fix = "# look at -p and --gres of the job; `gpuworkshop site show` lists partitions and cards"
        yield Finding("fail", f"Expected {wanted.title}, got {wrong[0].name}", evidence, fix)
    else:
        yield Finding("ok", f"As expected: {wanted.title}", names(result.cards))


def _lost(result: VerifyResult) -> Iterator[Finding]:
    for lost in result.first.cards.lost:
        title = f"Physical card {lost.physical} is lost: tell the staff, exclude the node"
        yield Finding("fail", title, f"on {result.first.host}: {lost.words}", leave(result))


def _awake(result: VerifyResult) -> Iterator[Finding]:
    """The variable says something else than what this process saw when it woke CUDA."""
    awake, says = result.caller.awake, result.first.cards.visible
    if awake is None or result.launcher or says.kind == "unset":
        return
    left = 0 if says.kind == "hidden" else len(says.entries)
    if awake != left:
        title = f"{VARIABLE} was changed after CUDA had started here: no effect until the kernel restarts"
        evidence = f"it is {quoted(result)} now, which leaves {counted(left, 'card')}; this process sees {awake}"
        yield Finding(
            "warning", title, evidence, "# restart the kernel, and set the variable before anything uses CUDA"
        )


def _card(result: VerifyResult, card: Card) -> Iterator[Finding]:
    yield from _processes(result, card)
    yield from _health(result, card)
    yield from _kind(result, card)
    yield from _table(result, card)


def _processes(result: VerifyResult, card: Card) -> Iterator[Finding]:
    found, where = result.state(card).on_card, card.label
    for one in found.processes or ():
        if one.kind != "graphics":
            yield processes_findings.finding(one, where, _elsewhere(result))
    if all(one.role != "not visible" for one in found.processes or ()) and not card.integrated:
        yield from processes_findings.unseen(found, where)


def _elsewhere(result: VerifyResult) -> str:
    if not result.first.job:
        return "nvidia-smi   # then wait, or choose another card with " + VARIABLE
    staff = result.place.help.staff
    return f"# Slurm gives a card to one job: write to {staff} with this report, or start the job again"


def _health(result: VerifyResult, card: Card) -> Iterator[Finding]:
    state, where = result.state(card), card.label
    failed = any(trip.cuda == card.cuda and trip.fault for trip in result.torch.trips)
    if (state.uncorrected or state.rows_failed) and not failed:
        errors = counted(state.uncorrected or 0, "uncorrectable memory error")
        rows = "; a bad row could not be replaced" if state.rows_failed else ""
        title = f"{where}: {errors} since the driver was loaded{rows}"
        yield Finding("warning", title, f"on {result.first.host}, {card.uuid}", leave(result, card))
    if state.mode == "exclusive" and not failed:
        title = f"{where} is in exclusive mode: one process at a time"
        yield Finding("notice", title, "a second kernel or rank on it gets 'busy or unavailable'")


def _kind(result: VerifyResult, card: Card) -> Iterator[Finding]:
    where = card.label
    if card.mig:
        title = f"{where} is a MIG slice: a process gets one slice, so one process has one card here"
        yield Finding("notice", title, f"{card.uuid}, {gib(card.memory_bytes)}, part of {card.parent or 'n/a'}")
    rated = result.state(card).rated
    if card.virtual or (rated is not None and rated.why == "virtual GPU"):
        says = "clocks, power and temperature may not be answered (n/a), and expandable_segments cannot work"
        yield Finding("notice", f"{where} is a virtual GPU: {card.name}", says)
    if card.integrated:
        says = "its total is the machine's memory, and what is free depends on every program"
        yield Finding("notice", f"{where} shares the memory of the machine", says)


def _table(result: VerifyResult, card: Card) -> Iterator[Finding]:
    """What the card reports, held against the table of what such a card has."""
    rated, where = result.state(card).rated, card.label
    if rated is None or rated.spec is None:
        return
    low, high = rated.spec.memory
    for line in rated.disagreements:
        if line.startswith("memory") and card.memory_bytes and card.memory_bytes < low * 2**30:
            title = f"{where} has less memory than it should: {gib(card.memory_bytes)}, not {low:g} to {high:g} GiB"
            yield Finding("warning", title, f"{line}; {', '.join(rated.spec.sources.memory)}", leave(result, card))
        else:
            title = f"{where} does not report what the table has for {rated.spec.title}"
            yield Finding("notice", title, f"{line}; peaks are not shown for it")


def _order(result: VerifyResult) -> Iterator[Finding]:
    if result.first.cards.another_order and result.first.cards.visible.kind == "unset":
        pairs = ", ".join(f"cuda:{card.cuda} is physical card {card.physical}" for card in result.cards)
        title = "The same cards in another order: numbers of nvidia-smi are not those of PyTorch"
        yield Finding("notice", title, pairs, "export CUDA_DEVICE_ORDER=PCI_BUS_ID   # then both count alike")


def _software(result: VerifyResult) -> Iterator[Finding]:
    build, caller = result.torch.build, result.caller
    if "pynvml" in caller.bindings:
        title = "The retired package pynvml is installed beside nvidia-ml-py: PyTorch warns because of it"
        yield Finding(
            "notice",
            title,
            _versions(caller.bindings),
            pip(result, "pynvml").replace(" install ", " uninstall "),
        )
    for card in result.cards:
        exact = tuple(name for name in kernels(result) if name.startswith("sm_"))
        if (
            card.capability
            and exact
            and not can_run(card.capability, exact)
            and can_run(card.capability, kernels(result))
        ):
            title = f"{card.label}: this PyTorch has no kernels for it, the driver compiles them at the first use"
            yield Finding("notice", title, f"sm_{card.capability[0]}{card.capability[1]}; {', '.join(kernels(result))}")
    if build and not build.cuda and not build.hip and result.first.slurm and not result.there_is_a_card:
        title = "This PyTorch is built for the CPU: it would not use a GPU either"
        yield Finding("warning", title, f"PyTorch {build.version}", pip(result, "--force-reinstall torch"))
    if result.torch.available is False and build and not build.mps:
        yield from (one for one in interpreter.findings(caller.python) if one.level == "notice")


def _versions(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())


def _around(result: VerifyResult) -> Iterator[Finding]:
    """The machine, the front end, the disk, the site's policy."""
    first, place = result.first, result.place
    if first.wsl and result.usable:
        says = "the driver is that of Windows; NVML names no processes here, and a driver installed in Linux breaks it"
        yield Finding("notice", "WSL2: CUDA through Windows", says)
    cpus = first.cpus
    yield from allocation_findings.fewer_cpus(cpus.count, cpus.said_by, cpus.limits.get("SLURM_CPUS_PER_TASK"))
    front = result.caller.front
    if front is not None and front.kind != "none":
        yield from frontend_findings.findings(front)
    if result.disk is not None:
        yield from disk_findings.findings(result.disk)
    if place.problem:
        yield Finding("warning", "The site file cannot be used", place.problem, "gpuworkshop site check")
    if first.job and result.cards and place.idle.cancels:
        after = f" after {place.idle.minutes:g} minutes" if place.idle.minutes else ""
        title = f"{place.name} cancels jobs that hold an idle card{after}"
        yield Finding("notice", title, f"{place.idle.says} (claimed by: {place.source})")
