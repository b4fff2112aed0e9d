"""What does the job do with its card? Look at it, five times a second, while something runs.

Two doors: ``with Watch() as seen: ...`` around lines in this process, a notebook cell say, and then ``seen.result``;
:func:`run` around a command. Both only look: they keep no card busy and hold no card.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpuworkshop.instruments import launched
from gpuworkshop.instruments.card_reader import CardReader
from gpuworkshop.instruments.command import CannotStart, running
from gpuworkshop.instruments.sampler import INTERVAL, Sampler
from gpuworkshop.instruments.samples import MEANS, CardSample, Sample, WatchedCard, mean, most, path, total
from gpuworkshop.instruments.watch_findings import findings
from gpuworkshop.instruments.watch_report import map, processes_report, report
from gpuworkshop.instruments.watch_result import CardWatch, TorchMemory, WatchResult
from gpuworkshop.machine import conditions
from gpuworkshop.report import Report
from gpuworkshop.timing import Rate, level

__all__ = ["CannotStart", "Watch", "WatchResult", "findings", "map", "processes", "report", "run"]

LONGEST_TITLE = 60
LONGEST_INTERVAL = 3600
"""Seconds."""


class Watch:
    """Watches this job's cards from ``with`` to its end; ``result`` is there at any time and final after it.

    ``interval`` is the time between two looks in seconds, at least 0.2: the driver has nothing new any sooner. With
    ``whole_user`` everything of this user counts as watched, not this process alone. ``env`` names the cards, where
    what is watched has an environment of its own. Raises ValueError for no interval.
    """

    def __init__(
        self,
        interval: float = INTERVAL,
        *,
        what: str = "this process",
        whole_user: bool = False,
        env: Mapping[str, str] = os.environ,
    ):
        if not (isinstance(interval, int | float) and 0 < interval <= LONGEST_INTERVAL):
            raise ValueError(f"the interval must be above 0 and at most {LONGEST_INTERVAL} seconds, not {interval!r}")
        self.what, self.asked = what, interval
        self.sampler = Sampler(interval, env, whole_user=whole_user)
        self._final: WatchResult | None = None

    def __enter__(self) -> Watch:
        if self.sampler.started:
            raise RuntimeError("a Watch watches once: make another one, with Watch() as seen")
        self.sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the watch; may be called twice."""
        if self._final is None:
            self.sampler.stop()
            self._final = self._seen()

    @property
    def result(self) -> WatchResult:
        """What was seen until now."""
        return self._final or self._seen()

    @property
    def over(self) -> bool:
        """Whether it has ended, so that no further sample comes."""
        return self._final is not None

    @property
    def samples(self) -> list[Sample]:
        """All samples until now, the oldest first."""
        return self.sampler.samples

    @property
    def watched(self) -> tuple[WatchedCard, ...]:
        """The cards; empty until the driver has answered, and where there is none."""
        return self.sampler.watched

    def waiting(self):
        """``with seen.waiting(): batch = next(batches)``: report the time of these lines as waiting for data."""
        return self.sampler.waiting()

    def batches(self, loader: Iterable) -> Iterator:
        """The batches of ``loader``, with the time inside its ``next()`` reported as waiting for data."""
        source = iter(loader)
        while True:
            with self.waiting():
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def _seen(self) -> WatchResult:
        return read(self.sampler, self.what, self.asked)


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
        card=WatchedCard(card.uuid, card.name, card.place, card.mig),
        busy=mean((own.busy, own.covered) for own in owns),
        windows=sum(own.windows for own in owns),
        source=reader.busy.source if reader.busy else "",
        busy_why=_busy_why(reader),
        dropped=reader.busy.dropped if reader.busy else 0,
        **means,
        gpm_why=reader.gpm.why if reader.gpm else "",
        gpm_stopped=None if reader.gpm_stopped is None else reader.gpm_stopped - sampler.began,
        memory_used=most(own.memory_used for own in owns),
        memory_total=most(own.memory_total for own in owns),
        power_limit=_last(own.power_limit for own in owns),
        energy=energy,
        seconds=seconds,
        lost_at=None if reader.lost_at is None else reader.lost_at - sampler.began,
        processes=reader.processes,
        torch=_torch_memory(card.cuda, owns) if sampler.own_cards else None,
        path=path(samples, card.uuid),
    )


def _busy_percent(samples: Sequence[Sample]) -> Rate | None:
    """Utilization over the looks that brought a new window; where there is no card, use of the job's CPUs."""
    readings = [own.busy for sample in samples for own in sample.cards]
    if not any(sample.cards for sample in samples):
        readings = [sample.cpu for sample in samples]
    known = [100 * reading for reading in readings if reading is not None]
    return level(known, "%") if len(known) > 1 else None


def _busy_why(reader: CardReader) -> str:
    if reader.card.mig:
        return "MIG"
    return reader.busy.why if reader.busy else "NVML does not know this card"


def _torch_memory(device: int | None, owns: Sequence[CardSample]) -> TorchMemory | None:
    """PyTorch's own figures beside the driver's last; only where PyTorch already has this card open."""
    torch = sys.modules.get("torch")
    used = _last(own.memory_used for own in owns)
    if torch is None or device is None or used is None or not torch.cuda.is_initialized():
        return None
    if device >= torch.cuda.device_count():
        return None
    return TorchMemory(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device), used)


def _notes(sampler: Sampler, asked: float) -> Iterator[str]:
    if sampler.hangs:
        last = f"after {sampler.samples[-1].at:.1f} s" if sampler.samples else "at all"
        yield f"The driver did not answer any more {last}; the numbers are of the time before"
    if sampler.failure:
        yield f"The watch ended early by an error of its own: {sampler.failure}"
    if asked < sampler.interval:
        yield f"Looked every {sampler.interval:g} s, not every {asked:g} s: the driver has nothing new any sooner"
    for lost in sampler.cards.lost if sampler.cards else ():
        yield f"Card {lost.physical} does not answer: {lost.words}"


def _last(values: Iterable):
    """The last value that is known; None when none is."""
    return next((value for value in reversed(list(values)) if value is not None), None)


def run(
    command: Sequence[str], *, interval: float = INTERVAL, stdout_to_stderr: bool = False, adopt: bool = False
) -> WatchResult:
    """Run ``command`` and watch the cards of this job until it ends; its exit status is ``result.status``.

    Streams and signals are the command's own, see :mod:`.command`. Raises CannotStart when it cannot be started, and
    ValueError for no command. ``stdout_to_stderr`` and ``adopt`` are for a process that only watches.
    """
    if not command:
        raise ValueError("no command to run")
    if isinstance(command, str) or not all(isinstance(word, str) for word in command):
        raise ValueError(f'a command is a list of words, such as ["python", "train.py"], not {command!r}')
    begins, env = launched.read(command, os.environ)
    watch = Watch(interval, what=_title(command), env=env)
    with running(command, stdout_to_stderr=stdout_to_stderr, adopt=adopt) as started:
        with watch:
            status = started.wait()
        left = started.left()
    return msgspec.structs.replace(watch.result, status=status, left=left, launched=begins)


def processes() -> Report:
    """Who is on this job's cards now: this process and what it started, leftovers of yours, other people's."""
    with Watch(what="processes") as watch:
        watch.sampler.wait_for_first()
    return processes_report(watch.result)


def _title(command: Sequence[str]) -> str:
    whole = shlex.join(command)
    return whole if len(whole) <= LONGEST_TITLE else whole[: LONGEST_TITLE - 4] + " ..."
