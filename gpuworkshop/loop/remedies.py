"""The remedies: one change each, with the settings it touches, when it can help, and the code to write.

What a remedy says is data (``remedies.toml``); which value it proposes follows from the config and the facts of the
machine, by the small functions below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from gpuworkshop.instruments.learning import Numerics
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.workloads.config import TrainConfig, changed


class Remedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change: ``touches`` names every setting it may change, ``limits`` what it helps against."""

    id: str
    title: str
    limits: tuple[Literal["data", "launches", "synchronizing", "copies", "compute", "memory", "any"], ...]
    """What it helps against. What helps against memory alone is only tried where memory is the limit."""
    touches: tuple[str, ...]
    numerics: Numerics
    reason: str
    code: str
    makes: dict[str, str | int | bool] = {}
    """The value of a setting that tells this change from its undoing and from another remedy's."""
    needs_card: bool = False
    task: Literal["any", "pictures"] = "any"
    aside: str = ""
    """What it does besides, that neither speed nor loss shows."""

    @property
    def in_step(self) -> bool:
        """Whether it changes the step, and not the way to it."""
        return not {"data", "any"} & set(self.limits)

    def code_for(self, config: TrainConfig) -> str:
        """The line to write in a script of your own to get the settings of ``config``."""
        return self.code.format(**msgspec.structs.asdict(config))


class Facts(msgspec.Struct, frozen=True):
    """What a proposal may depend on: the CPUs of the allocation, whether there is a card, the batch at the knee."""

    cpus: int
    card: bool
    knee: Callable[[TrainConfig], int]
    """Measures when called."""
    pictures: bool = True
    """Whether the job trains on pictures."""


class _File(msgspec.Struct, frozen=True):
    remedy: tuple[Remedy, ...]


@cache
def remedies() -> tuple[Remedy, ...]:
    """All remedies, in the order in which they are tried."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_File).remedy


def by_id(name: str) -> Remedy:
    """The remedy with this id."""
    return next(remedy for remedy in remedies() if remedy.id == name)


def explaining(before: TrainConfig, after: TrainConfig) -> Remedy | None:
    """The one remedy whose settings cover all differences; None if it takes more than one, or nothing differs."""
    names = set(changed(before, after))
    return next((r for r in remedies() if names and names <= set(r.touches)), None)


class Parts(msgspec.Struct, frozen=True):
    """What a difference between two configs is made of: changes by name, and the strictest numerics among them."""

    names: tuple[str, ...]
    numerics: Numerics

    def __str__(self) -> str:
        return " and ".join((", ".join(self.names[:-1]), self.names[-1])) if len(self.names) > 1 else self.names[0]


def parts(before: TrainConfig, after: TrainConfig) -> Parts:
    """The remedies that make up a difference, the one with most of its settings first.

    What undoes a remedy, or is none's, goes by the names of its settings. ValueError where nothing differs.
    """
    left, names, numerics = set(changed(before, after)), [], []
    if not left:
        raise ValueError("nothing differs between the two configs")

    def fits(remedy: Remedy) -> tuple[int, int]:
        share = left & set(remedy.touches)
        made = [getattr(after, name) == value for name, value in remedy.makes.items() if name in share]
        return len(share), (1 if all(made) else -1) if made else -1 if remedy.makes else 0

    while left:
        best = max(remedies(), key=fits)
        own = left & set(best.touches)
        as_meant = fits(best)[1] >= 0
        names += [best.title] if as_meant else sorted(own)
        numerics.append(best.numerics)
        left -= own
    return Parts(tuple(names), max(numerics, key=get_args(Numerics).index))


def proposals(remedy: Remedy, now: TrainConfig, facts: Facts) -> tuple[TrainConfig, ...]:
    """The configs that a remedy proposes from here, best guess first; empty when it does not apply."""
    if (remedy.needs_card and not facts.card) or (remedy.task == "pictures" and not facts.pictures):
        return ()
    return tuple(config for config in _PROPOSE[remedy.id](now, facts) if config != now)


def _workers(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    """The rule, CPUs - 1; on two CPUs also 2, because one worker only moves the work to another process.

    The workshop counts the loader's settings as one pick: with a card, memory is pinned along with it.
    """
    counts = [workers_rule(facts.cpus)] if facts.cpus > 2 else [1, 2]
    return [now.with_(workers=n, persistent_workers=True, pin_memory=facts.card) for n in counts if n > now.workers]


def _pre_decode(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(data_path="pre-decoded")]


def _card_decode(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(data_path="card-decode")] if now.data_path == "cpu-decode" else []


def _fewer_workers(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    if now.data_path == "cpu-decode":
        return []
    return [now.with_(workers=0, persistent_workers=False, prefetch_factor=None)]


def _pin(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(pin_memory=True)]


def _bf16(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(precision="bf16")]


def _channels_last(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(memory_format="channels_last")]


def _batch(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(batch_size=max(now.batch_size, facts.knee(now)))]


def _device_transform(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(transform="device")] if now.data_path == "pre-decoded" else []


def _one_call(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(calls="a batch")]


def _rare_loss(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    """On a CPU reading costs nothing, for the loss is there when it is asked for; a look at each sample is work."""
    return [now.with_(reads_loss="rarely")] if facts.card or now.reads_loss == "with samples" else []


def _fused(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(fused=True)]


def _tf32(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(precision="tf32")] if now.precision == "fp32" else []


def _checkpointing(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    """With a batch that needs the room: by itself it only costs time."""
    if now.checkpointing:
        return []
    saving = now.with_(checkpointing=True)
    larger = facts.knee(saving)
    return [saving.with_(batch_size=larger)] if larger > now.batch_size else []


def _compile(now: TrainConfig, facts: Facts) -> list[TrainConfig]:
    return [now.with_(compiled=True)]


_PROPOSE: dict[str, Callable[[TrainConfig, Facts], list[TrainConfig]]] = {
    "workers": _workers,
    "pre-decode": _pre_decode,
    "card-decode": _card_decode,
    "fewer-workers": _fewer_workers,
    "pin": _pin,
    "bf16": _bf16,
    "channels-last": _channels_last,
    "batch": _batch,
    "device-transform": _device_transform,
    "one-call": _one_call,
    "rare-loss": _rare_loss,
    "fused": _fused,
    "tf32": _tf32,
    "compile": _compile,
    "checkpointing": _checkpointing,
}
