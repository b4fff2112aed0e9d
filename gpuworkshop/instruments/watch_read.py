"""From what a sampler has seen to the result of a watch: means over time, the most, and why something is not known."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gpuworkshop.instruments.card_reader import CardReader
from gpuworkshop.instruments.sampler import INTERVAL, Sampler
from gpuworkshop.instruments.samples import MEANS, CardSample, Sample, last, mean, most, path, total
from gpuworkshop.instruments.watch_result import CardWatch, TorchMemory, WatchResult
from gpuworkshop.machine import conditions
from gpuworkshop.timing import Rate, level


def read(sampler: Sampler, what: str, asked: float = INTERVAL) -> WatchResult:
    """The result of what a sampler has seen until now. ``asked`` is the interval that was asked for, in seconds."""
    samples, cards = list(sampler.samples), sampler.cards
    seconds = samples[-1].at if samples else 0.0
    watched = tuple(_card(reader, samples, sampler) for reader in sampler.readers)
    found = [reader.card for reader in sampler.readers]
    device = f"cuda:{found[0].cuda or 0}" if found else "cpu"
    here = conditions.known(device, found, sampler.cpus, sampler.driver)
    return WatchResult(
        what=what,
        seconds=seconds,
        cards=watched,
        interval=sampler.interval,
        samples=len(samples),
        sampler_cpu_seconds=sampler.cpu_seconds,
        conditions=here,
        origin=here.origin,
        busy_percent=_busy_percent(samples),
        cpu=mean((sample.cpu, sample.seconds) for sample in samples),
        wait=min(1.0, sampler.wait_seconds / seconds) if sampler.wait_seconds is not None and seconds else None,
        others=cards.others if cards else 0,
        unknown=cards.unknown if cards else (),
        problem=sampler.problem or ("the driver does not answer" if sampler.hangs and cards is None else ""),
        notes=tuple(_notes(sampler, asked)),
    )


def _card(reader: CardReader, samples: Sequence[Sample], sampler: Sampler) -> CardWatch:
    """One card over all samples."""
    card = reader.card
    seen = [(s, own) for s in samples for own in s.cards if own.uuid == card.uuid]
    answered = [(sample, own) for sample, own in seen if not own.lost]
    owns = [own for _, own in answered]
    seconds = sum(sample.seconds for sample, _ in answered)
    means = {name: mean((getattr(own, name), sample.seconds) for sample, own in answered) for name in MEANS}
    energy = total(own.energy for own in owns)
    metered = sum(own.energy_seconds for own in owns)
    if energy is not None and metered:
        means["power"] = energy / metered
    return CardWatch(
        card=reader.watched,
        busy=mean((own.busy, own.covered) for own in owns),
        windows=sum(own.windows for own in owns),
        source=reader.busy.source if reader.busy else "",
        busy_why=_busy_why(reader, sampler.problem),
        dropped=reader.busy.dropped if reader.busy else 0,
        **means,
        gpm_why=reader.gpm.why if reader.gpm else "",
        gpm_stopped=None if reader.gpm_stopped is None else reader.gpm_stopped - sampler.began,
        memory_used=most(own.memory_used for own in owns),
        memory_total=most(own.memory_total for own in owns),
        power_limit=last(own.power_limit for own in owns),
        energy=energy,
        seconds=seconds,
        lost_at=None if reader.lost_at is None else reader.lost_at - sampler.began,
        processes=reader.processes,
        torch=_torch_memory(card.cuda, owns, bool(sampler.problem)) if sampler.own_cards else None,
        path=path(samples, card.uuid),
    )


def _busy_percent(samples: Sequence[Sample]) -> Rate | None:
    """Utilization over the looks that brought a new window; where there is no card, use of the job's CPUs."""
    readings = [own.busy for sample in samples for own in sample.cards]
    if not any(sample.cards for sample in samples):
        readings = [sample.cpu for sample in samples]
    known = [100 * reading for reading in readings if reading is not None]
    return level(known, "%") if len(known) > 1 else None


def _busy_why(reader: CardReader, problem: str) -> str:
    if reader.card.mig:
        return "MIG"
    if reader.busy:
        return reader.busy.why
    return f"NVML does not answer: {problem}" if problem else "NVML does not know this card"


def _torch_memory(device: int | None, owns: Sequence[CardSample], no_driver: bool) -> TorchMemory | None:
    """PyTorch's own figures beside the driver's last; only where PyTorch already has this card open.

    ``no_driver``: NVML does not answer at all, and CUDA is asked what is in use.
    """
    torch = sys.modules.get("torch")
    if torch is None or device is None or not torch.cuda.is_initialized() or device >= torch.cuda.device_count():
        return None
    used = _used(torch.cuda, device) if no_driver else last(own.memory_used for own in owns)
    if used is None:
        return None
    return TorchMemory(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), used)


def _used(cuda: Any, device: int) -> int | None:
    """Bytes in use on the card by everybody, as CUDA says; None where it fails, as after an error of a kernel."""
    try:
        free, total = cuda.mem_get_info(device)
    except RuntimeError:
        return None
    return total - free


def _notes(sampler: Sampler, asked: float) -> Iterator[str]:
    if sampler.hangs:
        when = f"after {sampler.samples[-1].at:.1f} s" if sampler.samples else "at all"
        yield f"The driver did not answer any more {when}; the numbers are of the time before"
    if sampler.failure:
        yield f"The watch ended early by an error of its own: {sampler.failure}"
    if asked < sampler.interval:
        yield f"Looked every {sampler.interval:g} s, not every {asked:g} s: the driver has nothing new any sooner"
    for lost in sampler.cards.lost if sampler.cards else ():
        yield f"Card {lost.physical} does not answer: {lost.words}"
