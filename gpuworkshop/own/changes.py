"""What differs between two runs of a script of one's own: files, arguments, settings; and whether it is one change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpuworkshop.own.remedies import Remedy, remedies
from gpuworkshop.own.result import Loader, Optimizer, Settings

OPTIONS = {
    "workers": ("worker",),
    "pin_memory": ("pin",),
    "persistent_workers": ("persistent",),
    "prefetch_factor": ("prefetch",),
    "batch_size": ("batch",),
    "accumulation": ("accum",),
    "precision": ("precision", "bf16", "fp16", "amp", "tf32", "autocast", "dtype", "half"),
    "memory_format": ("channels", "layout", "memory_format"),
    "fused": ("fused",),
    "compiled": ("compile",),
    "checkpointing": ("checkpointing",),
    "reads_loss": ("log", "print", "every"),
}
"""Parts of an option's name that say which setting it sets. An option of no such name is a change of its own."""

TOWARDS = {
    "pin": ("pin_memory", "on"),
    "bf16": ("precision", "bf16"),
    "tf32": ("precision", "tf32"),
    "channels-last": ("memory_format", "channels_last"),
    "fused": ("fused", "on"),
    "compile": ("compiled", "on"),
    "checkpointing": ("checkpointing", "on"),
    "no-checkpointing": ("checkpointing", "off"),
    "rare-loss": ("reads_loss", "rarely"),
}
"""What a setting begins with after a remedy. The same setting the other way is another change."""

MORE = {"workers": "workers", "batch": "batch_size", "larger-share": "batch_size"}
LESS = {"fewer-workers": "workers"}
"""Remedies that make a number larger, or smaller."""

_WORDS = {True: "on", False: "off", None: "n/a"}


class Differs(msgspec.Struct, frozen=True):
    """A setting or an argument with its value before and after, as words; "" where it was not there."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before or 'not given'} -> {self.after or 'not given'}"


class Changes(msgspec.Struct, frozen=True):
    """Everything that differs between two runs of one script."""

    files: tuple[str, ...]
    """A unified diff for each file that differs."""
    arguments: tuple[Differs, ...]
    settings: tuple[Differs, ...]
    """As the running program had them, by the names of the remedies' ``touches`` where one may change them."""

    @property
    def places(self) -> int:
        """Places of the files that differ."""
        return sum(line.startswith("@@ ") for text in self.files for line in text.splitlines())

    def __bool__(self) -> bool:
        return bool(self.files or self.arguments or self.settings)


class Attribution(msgspec.Struct, frozen=True):
    """Whether all that differs is one change. ``remedy`` is its id, "" for one that is no remedy of the loop."""

    one: bool
    title: str
    remedy: str = ""
    why: str = ""
    """Why it cannot be attributed; for a change of the code alone what is not known of it."""


def in_words(settings: Settings | None) -> dict[str, str]:
    """The settings as seen in the running program, by name, as words. Empty where none were seen.

    With several loaders or optimizers the busiest one counts, which is the one that trains.
    """
    if settings is None:
        return {}
    loader = max(settings.loaders, key=lambda one: one.batches, default=None)
    optimizer = max(settings.optimizers, key=lambda one: one.steps, default=None)
    found = {
        **_of_loader(loader),
        "precision": _precision(settings),
        "memory_format": {None: "n/a", True: "channels_last", False: "contiguous"}[settings.channels_last],
        "checkpointing": _WORDS[settings.checkpointing],
        "compiled": _WORDS[settings.compiled],
        **_of_optimizer(optimizer),
        "reads_loss": _waits(settings),
        "accumulation": _whole(settings.accumulation),
        "device": settings.device.partition(":")[0],
        "ranks": f"{settings.world}{f' {settings.ddp}' if settings.ddp else ''}",
        "model": settings.model,
        "driven by": settings.framework,
    }
    return {name: value for name, value in found.items() if value}


def _of_loader(loader: Loader | None) -> dict[str, str]:
    if loader is None:
        return {}
    prefetch = loader.prefetch_factor if loader.workers else None
    return {
        "workers": str(loader.workers),
        "batch_size": "n/a" if loader.batch_size is None else str(loader.batch_size),
        "pin_memory": _WORDS[loader.pin_memory],
        "persistent_workers": _WORDS[loader.persistent_workers],
        "prefetch_factor": "n/a" if prefetch is None else str(prefetch),
        "data set": loader.dataset,
    }


def _of_optimizer(optimizer: Optimizer | None) -> dict[str, str]:
    if optimizer is None:
        return {}
    return {
        "fused": _WORDS[bool(optimizer.fused)],
        "optimizer": optimizer.kind,
        "weights": f"{optimizer.weights:,}" if optimizer.weights else "",
    }


def _precision(settings: Settings) -> str:
    scaled = " with a scaler" if settings.scaler else ""
    return f"{settings.precision or 'n/a'}{' autocast' if settings.autocast else ''}{scaled}"


def _whole(count: float) -> str:
    """A count for each step, whole where only the last steps of an epoch were cut short."""
    return str(round(count)) if abs(count - round(count)) < 0.2 else f"{count:.2g}"


def _waits(settings: Settings) -> str:
    """What the host waits for in the steps: each call that comes in half of them or more."""
    often = sorted({one.call for one in settings.waits if one.a_step >= 0.5})
    return f"{', '.join(often)} in each step" if often else "rarely"


def settings_differ(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Differs, ...]:
    """The settings that differ, of those that were seen in both runs."""
    return tuple(
        Differs(name, before[name], after[name]) for name in before if name in after and before[name] != after[name]
    )


def arguments_differ(before: Sequence[str], after: Sequence[str]) -> tuple[Differs, ...]:
    """The arguments that differ, by option; what belongs to no option is called by its place."""
    old, new = dict(_options(before)), dict(_options(after))
    names = [*old, *(name for name in new if name not in old)]
    return tuple(
        Differs(name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name)
    )


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value ("given" for a switch), and each other word with its place."""
    place, rest, seen = 0, list(words), {}
    while rest:
        word = rest.pop(0)
        if not re.match(r"--?[A-Za-z]", word):
            place += 1
            yield f"argument {place}", word
            continue
        name, equals, value = word.partition("=")
        if not equals:
            values = []
            while rest and not re.match(r"--?[A-Za-z]", rest[0]):
                values.append(rest.pop(0))
            value = " ".join(values) or "given"
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})", value


def files_differ(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """A unified diff for each file that differs, by its name; a file of one side only is all new, or all gone."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{name}", f"b/{name}", "", "", 3, "")
            found.append("\n".join(lines))
    return tuple(text for text in found if text)


def attribute(changes: Changes) -> Attribution:
    """Whether what differs is one change: within what one remedy touches, or one thing that no setting shows."""
    touched = {one.name for one in changes.settings}
    _drop_defaults(touched, changes)
    remedy = _covering(touched, changes)
    beside = [one.name for one in changes.arguments if not _explained(one.name, remedy, touched)]
    if len(touched) > 1 and remedy is None:
        return Attribution(False, _listed(sorted(touched)), why=f"{_listed(sorted(touched))} changed at once")
    if touched and beside:
        name = remedy.title if remedy else next(iter(touched))
        return Attribution(False, name, why=f"{_listed(sorted(touched))} and {_listed(beside)} changed at once")
    if remedy:
        return Attribution(True, remedy.title, remedy.id)
    if touched:
        return Attribution(True, next(iter(touched)))
    if len(beside) > 1 or (beside and changes.files):
        what = _listed(beside) + (" and the code" if changes.files else "")
        return Attribution(False, what, why=f"{what} changed at once")
    if beside:
        return Attribution(True, beside[0], why="no setting that can be seen differs")
    return Attribution(True, "a change of the code", why=_code(changes))


def _code(changes: Changes) -> str:
    if changes.places > 1:
        return f"no setting that can be seen differs; the {changes.places} places of the code are taken as one change"
    return "no setting that can be seen differs"


def _drop_defaults(touched: set[str], changes: Changes) -> None:
    """Without what only follows from something else: the prefetch factor that workers bring along, a wrapped class."""
    by_name = {one.name: one for one in changes.settings}
    if (
        "workers" in touched
        and "prefetch_factor" in touched
        and "n/a"
        in (
            by_name["prefetch_factor"].before,
            by_name["prefetch_factor"].after,
        )
    ):
        touched.discard("prefetch_factor")
    if "compiled" in touched:
        touched.discard("model")
    if "batch_size" in touched:  # what is read once an epoch is read more often in steps of more samples
        touched.discard("reads_loss")
    if "ranks" in touched:
        touched -= {"model", "device"}


def _covering(touched: set[str], changes: Changes) -> Remedy | None:
    """The remedy that may change all of these in this direction, the one with the fewest settings."""
    values = {one.name: one for one in changes.settings}
    fitting = [one for one in remedies().values() if touched and touched <= set(one.touches)]
    return min((one for one in fitting if _towards(one.id, values)), key=lambda one: len(one.touches), default=None)


def _towards(remedy: str, values: Mapping[str, Differs]) -> bool:
    """Whether the settings that differ went the way that a remedy goes."""
    if remedy in TOWARDS:
        name, wanted = TOWARDS[remedy]
        return name not in values or values[name].after.startswith(wanted)
    larger, smaller = values.get(MORE.get(remedy, "")), values.get(LESS.get(remedy, ""))
    return not (larger and not _grew(larger)) and not (smaller and _grew(smaller))


def _grew(one: Differs) -> bool:
    return one.before.isdecimal() and one.after.isdecimal() and int(one.after) > int(one.before)


def _explained(option: str, remedy: Remedy | None, touched: set[str]) -> bool:
    """Whether an argument is only how a setting that differs was set."""
    names = set(remedy.touches) if remedy else touched
    plain = option.lower().replace("-", "_")
    return any(part in plain for name in names for part in OPTIONS.get(name, (name,)))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
