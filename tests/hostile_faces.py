"""Every face of the kit, filled with hostile text: results of any kind are made from their types, words by words.

:func:`faces` finds what gives a report, a figure or a page, by introspection; :func:`html` renders one. A text that is
free is hostile; a text from a vocabulary of the kit stands in `WORDS`, what cannot be made from types in `MADE`.
"""

from __future__ import annotations

import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import gpuworkshop
from gpuworkshop.cluster import discover, site, site_draft
from gpuworkshop.course import domains
from gpuworkshop.course.material import ExerciseData, QuestionData
from gpuworkshop.instruments.memory_result import Attempt, BatchPoint, Moment, Probe
from gpuworkshop.instruments.scaling_by_hand import WEIGHTS
from gpuworkshop.instruments.scaling_result import World
from gpuworkshop.instruments.starve_result import SweepPoint
from gpuworkshop.instruments.trace_timeline import Timeline
from gpuworkshop.timing import Rate

HOSTILE = "</b></text></style>\"'`><script>hit(1)</script><img src=x onerror=hit(2)><svg onload=hit(3)>&lt; \x1b[2J"
"""Ends what it may stand in, then runs code in three ways."""
HIDDEN = ("hooks",)
"""Words in the names of modules that show nothing."""

WORDS: dict[str, Any] = {
    "Bar.kind": "compute",
    "Bar.lane": "host",
    "ByHand.averaged": (0.5,) * WEIGHTS,
    "ByHand.ddp": ((0.5,) * WEIGHTS,) * 2,
    "ByHand.own": ((0.5,) * WEIGHTS,) * 2,
    "ByHand.together": (0.5,) * WEIGHTS,
    "ExerciseData.check": "workers",
    "Figure.svg": "<svg></svg>",
    "Job.preset": "tiny",
    "Line.kind": "compute",
    "Missing.what": "gpu",
    "Moment.name": "forward",
    "Moment.step": 1,
    "Record.changed": ("workers",),
    "Seen.changed": ("workers",),
    "Total.kind": "compute",
    "Total.lane": "host",
    "Track.path": (),
    "batch_ceiling.line": None,
    "step_strip.parts": ((HOSTILE, 0.5, "loader"), (HOSTILE, None, "wait")),
}
"""Fields and arguments that hold a word of the kit or a number of its own, and what fits."""

TYPES: dict[str, Any] = {
    "Bar.rate": Rate,
    "RateBar.rate": Rate,
    "batch_ceiling.probes": tuple[Probe, ...],
    "batch_sweep.points": tuple[BatchPoint, ...],
    "cure.attempts": tuple[Attempt, ...],
    "memory_stack.moments": tuple[Moment, ...],
    "predicted_and_measured.measured": Rate,
    "scaling_figure.worlds": tuple[World, ...],
    "step_timeline.timeline": Timeline,
    "workers_sweep.ceiling": Rate,
    "workers_sweep.points": tuple[SweepPoint, ...],
}
"""What a field or an argument is that takes anything of the right shape."""


def made(kind: Any, place: str = "", several: int = 2) -> Any:
    """A value of this type with hostile text wherever text is free; ``place`` names it, as in :data:`WORDS`."""
    if place in WORDS:
        return WORDS[place]
    kind = TYPES.get(place, kind)
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind in (str, Any):
        return HOSTILE
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is typing.Literal:
        return inside[0]
    if origin in (typing.Union, types.UnionType):
        return made(next((one for one in inside if one is not type(None)), type(None)), place)
    if origin is tuple and not (len(inside) == 2 and inside[1] is Ellipsis):
        return tuple(made(one) for one in inside)
    if origin in (tuple, list, Sequence, Iterable, frozenset, set):
        return (tuple if origin is tuple else list)(made(inside[0]) for _ in range(several))
    if origin in (dict, Mapping):
        return {made(inside[0]): made(inside[1])}
    if inspect.isclass(kind) and issubclass(kind, site.Site):
        return a_site()
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        fields = msgspec.structs.fields(kind)
        return kind(**{one.name: made(hints[one.name], f"{kind.__name__}.{one.name}") for one in fields})
    raise TypeError(f"a {kind} cannot be made from its type")


_PLAIN = {bool: True, int: 3, float: 0.5, bytes: HOSTILE.encode(), type(None): None, Path: Path("/nowhere")}


def a_site() -> site.Site:
    """The shipped site with hostile words where a site file may have any: names, notes, sources, addresses."""
    whole = msgspec.to_builtins(site.load("aicr"))
    for key in ("source", "name", "user_name", "shared_by"):
        whole[key] = HOSTILE
    whole["sources"] = {HOSTILE: HOSTILE} | dict.fromkeys(whole["sources"], HOSTILE)
    for place in (*whole["partition"], *whole["family"], *whole["module"], *whole["storage"], *whole.values()):
        if isinstance(place, dict):
            for name in {"use", "note", "ask", "purge", "title", "where", "text", "card", "address"} & place.keys():
                place[name] = HOSTILE if isinstance(place[name], str) else place[name]
    return msgspec.convert(whole, site.Site)


def called(function: Callable[..., Any], **given: Any) -> Any:
    """What a function gives for these arguments, and for others that are made."""
    hints = typing.get_type_hints(function)
    needed = [one.name for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    rest = [name for name in needed if name not in given]
    return function(**given, **{name: made(hints[name], f"{function.__name__}.{name}") for name in rest})


def _draft(report: Callable[..., Any]) -> Any:
    """The draft for a Slurm whose partition and cards have hostile names."""
    live = discover.parse(f"{HOSTILE.replace(chr(27), '')}|up|1:00:00|1|idle|8|64000|gpu:<b>:4")
    return report(site_draft.draft(live), live, HOSTILE)


MADE: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "cluster.site_draft.report": _draft,
    "course.domains.page": lambda face: face(next(iter(domains.known())), a_site()),
    "course.exercise.Exercise": lambda face: face(HOSTILE, made(ExerciseData)),
    "course.hidden.HiddenJob": lambda face: None,  # its faces are those of hidden_faces
    "course.predict.Guess": lambda face: face(HOSTILE, HOSTILE, HOSTILE, 0.0, 9.0),
    "course.quiz.Question": lambda face: face(HOSTILE, made(QuestionData)),
    "course.replay.picture": lambda face: face("starve"),
    "course.replay.show": lambda face: face("starve"),
    "course.several.witness": lambda face: None,  # starts ranks; its face is that of scaling_witness
    "instruments.watch_live.Live": lambda face: None,  # watches; its face is figures.live.live_strip
}
"""How a face is made that cannot be made from types; None where it is another one's."""


@cache
def faces() -> dict[str, Callable[..., Any]]:
    """Every public function that gives a report, a figure or a note, and every class with a face, by its full name."""
    found = {}
    for module in _modules():
        for name, one in vars(module).items():
            if name.startswith("_") or getattr(one, "__module__", None) != module.__name__:
                continue
            gives = str(getattr(one, "__annotations__", {}).get("return", "")) if inspect.isfunction(one) else ""
            if any(word in gives for word in ("Report", "Figure")) or "_repr_mimebundle_" in getattr(
                one, "__dict__", ()
            ):
                found[f"{module.__name__.removeprefix('gpuworkshop.')}.{name}"] = one
    return found


def _modules() -> Iterator[types.ModuleType]:
    for one in pkgutil.walk_packages(gpuworkshop.__path__, "gpuworkshop."):
        if not any(word in one.name for word in HIDDEN):
            yield import_module(one.name)


@cache
def html(name: str) -> str:
    """The HTML of a face that was filled with hostile text; "" for one that has none of its own."""
    shown = MADE.get(name, called)(faces()[name])
    return "" if shown is None else shown._repr_mimebundle_()["text/html"]
