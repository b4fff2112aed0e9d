"""What a script's lines do: where the training thread was found, sorted by what the code there is for.

How much time a line takes was measured; the source only tells what it is, and which line to change.
"""

from __future__ import annotations

import ast

import msgspec

from gpuworkshop.own.frame import Frame, Kind, names
from gpuworkshop.own.loops import asks_for_batch, in_training_loop, other_loop, same, trains, validation, within
from gpuworkshop.own.result import Hot, OwnResult, Place, Settings
from gpuworkshop.own.source import Sources, name_of

IN_LOADER = ("decode", "item loop", "item", "collate")


class Role(msgspec.Struct, frozen=True):
    """Something that a script does, and its part of the time."""

    kind: Kind
    share: float
    """Of the looks at the training thread, 0 to 1."""
    place: Place
    """The line to change: of a loop its head, of a validation its call."""
    steps: int = 0
    """In how many of the steps it was found; 0 where that is not known."""
    ahead: bool = False
    """Whether it lies before backward(), so that part of the backward pass may belong to it."""


def roles(result: OwnResult, sources: Sources) -> tuple[Role, ...]:
    """What was found at work, the largest part of the time first."""
    if result.settings is None:
        return ()
    found: dict[tuple[Kind, str, int], Role] = {}
    for hot in result.hot:
        kind, place = _known(hot, result.settings, sources)
        key = kind, place.file, place.line
        before = found.get(key, Role(kind, 0.0, place))
        ahead = before.ahead or (not hot.in_loader and _ahead(hot, result.settings, sources))
        found[key] = Role(kind, before.share + hot.share, place, max(before.steps, hot.steps), ahead)
    return tuple(sorted(found.values(), key=lambda role: -role.share))


def _ahead(hot: Hot, settings: Settings, sources: Sources) -> bool:
    """Whether one of the frames is in the function that calls backward(), and above that call."""
    back = settings.backward_place
    if back is None:
        return False
    frames = (Frame(place, sources.get(place.file)) for place in hot.places if place.file == back.file)
    return any(frame.place.line < back.line and within(frame, frame.function, back) for frame in frames)


def _known(hot: Hot, settings: Settings, sources: Sources) -> tuple[Kind, Place]:
    frames = [Frame(place, sources.get(place.file)) for place in hot.places]
    checked = validation(frames)
    if checked is not None:
        return "validation", checked
    return _in_loader(frames, settings) if hot.in_loader else _in_step(frames, settings)


# In the loader


def _in_loader(frames: list[Frame], settings: Settings) -> tuple[Kind, Place]:
    outside = (n for n, frame in enumerate(frames) if asks_for_batch(frame) or trains(frame, settings))
    inside = frames[: next(outside, len(frames))]
    if not inside:
        return "collate", frames[0].place
    for frame in inside:
        if frame.calls & names().decode:
            return "decode", frame.place
    for frame in inside:
        *_, loop = [None, *frame.loops()]
        if loop is not None:
            return "item loop", frame.at(loop.lineno)
    return "item", inside[0].place


# Outside of it


def _in_step(frames: list[Frame], settings: Settings) -> tuple[Kind, Place]:
    first = frames[0]
    for frame in frames:
        for call, kind in (("empty_cache", "empty_cache"), ("collect", "collect")):
            if call in frame.calls:
                return kind, frame.place
    if first.calls & names().saving:
        return "saving", in_training_loop(frames, settings).place
    loop = other_loop(frames, settings)
    if loop is not None:
        return loop
    return _plain(frames, settings), first.place


IN_EVERY_STEP = frozenset({
    "step", "zero_grad", "clip_grad_norm_", "clip_grad_value_", "unscale_", "update", "train", "fit", "train_batch",
})  # fmt: skip
"""Calls of a step that nothing is done about: of a scheduler, a scaler, a framework."""


def _plain(frames: list[Frame], settings: Settings) -> Kind:
    for frame in frames:
        if frame.function_name == "forward":
            return "forward"
        if same(frame, settings.step_place):
            elsewhere = same(frame, settings.backward_place) or same(frame, settings.model_place)
            return "step" if elsewhere else "optimizer"
        if "backward" in frame.calls or same(frame, settings.backward_place):
            return "backward"
        if same(frame, settings.model_place) or _makes_the_loss(frame, settings.backward_place):
            return "forward"
    first = frames[0]
    if first.calls & IN_EVERY_STEP or (asks_for_batch(first) and trains(first, settings)):
        return "step"
    if first.calls & names().reading:
        return "read"
    return "copy" if first.calls & {"to", "cuda"} else "beside"


def _makes_the_loss(frame: Frame, back: Place | None) -> bool:
    """Whether the line sets what backward() is called on."""
    if back is None or frame.source is None or back.file != frame.place.file or frame.statement is None:
        return False
    roots = {n.id for call in frame.source.calls(back.line) for n in ast.walk(call) if isinstance(n, ast.Name)}
    targets = getattr(frame.statement, "targets", [getattr(frame.statement, "target", None)])
    return bool(roots & {name_of(target) for target in targets if target is not None} - {""})
