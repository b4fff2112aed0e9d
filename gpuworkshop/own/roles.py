"""What a script's lines do: where the training thread was found, sorted by what the code there is for.

How much time a line takes was measured; the source only tells what it is, and which line to change.
"""

from __future__ import annotations

import ast
import re
from typing import Literal

import msgspec

from gpuworkshop.own.frame import COMPREHENSIONS, Frame, names
from gpuworkshop.own.result import Hot, OwnResult, Place, Settings
from gpuworkshop.own.source import Sources, last_name, name_of

Kind = Literal[
    "decode", "item loop", "item", "collate", "validation", "empty_cache", "collect", "saving", "one call",
    "batch loop", "read loop", "weights loop", "optimizer", "backward", "forward", "copy", "read", "beside",
]  # fmt: skip
"""What a line is for. The first four are in the loader, the others in the training thread outside of it."""

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
    return any(frame.place.line < back.line and _within(frame, frame.function, back) for frame in frames)


def _known(hot: Hot, settings: Settings, sources: Sources) -> tuple[Kind, Place]:
    frames = [Frame(place, sources.get(place.file)) for place in hot.places]
    return _in_loader(frames) if hot.in_loader else _in_step(frames, settings)


# In the loader


def _in_loader(frames: list[Frame]) -> tuple[Kind, Place]:
    inside = frames[: next((n for n, frame in enumerate(frames) if _asks_for_batch(frame)), len(frames))]
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


def _asks_for_batch(frame: Frame) -> bool:
    """Whether this line takes the next batch: the head of a loop, or next()."""
    head = isinstance(frame.statement, ast.For) and frame.place.line <= frame.statement.iter.end_lineno
    return head or "next" in frame.calls


# Outside of it


def _in_step(frames: list[Frame], settings: Settings) -> tuple[Kind, Place]:
    first = frames[0]
    validation = _validation(frames)
    if validation is not None:
        return "validation", validation
    for frame in frames:
        for call, kind in (("empty_cache", "empty_cache"), ("collect", "collect")):
            if call in frame.calls:
                return kind, frame.place
    if first.calls & names().saving:
        return "saving", _in_loop(frames, settings).place
    loop = _loop(frames, settings)
    if loop is not None:
        return loop
    return _plain(frames, settings), first.place


def _plain(frames: list[Frame], settings: Settings) -> Kind:
    for frame in frames:
        if frame.function_name == "forward":
            return "forward"
        if "backward" in frame.calls or _same(frame, settings.backward_place):
            return "backward"
        if {"step", "zero_grad"} & frame.calls or _same(frame, settings.step_place):
            return "optimizer"
        if _same(frame, settings.model_place) or _makes_the_loss(frame, settings.backward_place):
            return "forward"
    if frames[0].calls & names().reading:
        return "read"
    return "copy" if frames[0].calls & {"to", "cuda"} else "beside"


def _makes_the_loss(frame: Frame, back: Place | None) -> bool:
    """Whether the line sets what backward() is called on."""
    if back is None or frame.source is None or back.file != frame.place.file or frame.statement is None:
        return False
    roots = {n.id for call in frame.source.calls(back.line) for n in ast.walk(call) if isinstance(n, ast.Name)}
    targets = getattr(frame.statement, "targets", [getattr(frame.statement, "target", None)])
    return bool(roots & {name_of(target) for target in targets if target is not None} - {""})


def _same(frame: Frame, place: Place | None) -> bool:
    return place is not None and (frame.place.file, frame.place.line) == (place.file, place.line)


def _trains(frame: Frame, settings: Settings) -> bool:
    """Whether the step is made in this frame's function."""
    return any(_within(frame, frame.function, place) for place in (settings.step_place, settings.backward_place))


def _within(frame: Frame, node: ast.AST | None, place: Place | None) -> bool:
    if place is None or frame.source is None or place.file != frame.place.file:
        return False
    if node is None:
        statement = frame.source.statement(place.line)
        return statement is not None and frame.source.function(statement) is None
    return node.lineno <= place.line <= node.end_lineno


def _in_loop(frames: list[Frame], settings: Settings) -> Frame:
    """The frame of the training loop; the innermost where it is not known."""
    return next((frame for frame in frames if _trains(frame, settings)), frames[0])


def _validation(frames: list[Frame]) -> Place | None:
    """The line that calls a validation; None where this is none."""
    for at, frame in reversed(list(enumerate(frames))):
        if _is_validation(frame.function_name) or (frame.function and _without_gradients(frame.function)):
            if at + 1 < len(frames) and _says_eval(frame):
                return frames[at + 1].place
        for node in frame.source.outwards(frame.statement) if frame.statement else ():
            if isinstance(node, ast.With) and _no_grad(item.context_expr for item in node.items) and _over_data(node):
                return frame.at(node.lineno)
    return None


def _is_validation(name: str) -> bool:
    return bool(names().validation & set(re.split(r"_+", name.lower())))


def _without_gradients(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return _no_grad(function.decorator_list)


def _no_grad(nodes) -> bool:
    return any(last_name(node) in ("no_grad", "inference_mode") for node in nodes)


def _says_eval(frame: Frame) -> bool:
    """A function that is named so, or puts a model into evaluation."""
    inside = (n for n in ast.walk(frame.function) if isinstance(n, ast.Call))
    return _is_validation(frame.function_name) or any(last_name(call) == "eval" for call in inside)


def _over_data(node: ast.With) -> bool:
    """Whether a block without gradients goes through data: a loop, or the name of other data in it."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.For) and "param" not in ast.dump(inner.iter):
            return True
        if isinstance(inner, ast.Name) and _is_validation(inner.id):
            return True
    return False


# Loops that are not the training loop


def _loop(frames: list[Frame], settings: Settings) -> tuple[Kind, Place] | None:
    for frame in frames:
        inner = [loop for loop in frame.loops() if not _training_loop(frame, loop, settings)]
        if inner and (frame.function_name != "forward" or _over_samples(inner[-1])):
            return _kind_of_loop(frame, inner[-1], settings), frame.at(inner[-1].lineno)
        if _trains(frame, settings):
            return None
    return None


def _training_loop(frame: Frame, loop: ast.AST, settings: Settings) -> bool:
    """Whether steps or backward passes are made in the loop."""
    made = (settings.step_place, settings.backward_place)
    if any(_within(frame, loop, place) for place in made):
        return True
    calls = {last_name(n) for n in ast.walk(loop) if isinstance(n, ast.Call)}
    return bool({"backward", "train_step", "training_step", "train_one_epoch", "train_epoch", "train"} & calls)


def _kind_of_loop(frame: Frame, loop: ast.AST, settings: Settings) -> Kind:
    over = ast.dump(loop.iter) if isinstance(loop, ast.For) else ""
    if isinstance(loop, COMPREHENSIONS):
        over = "".join(ast.dump(one.iter) for one in loop.generators)
    if "param" in over:
        return "weights loop"
    calls = {last_name(n) for n in ast.walk(loop) if isinstance(n, ast.Call)}
    if (
        frame.function_name == "forward"
        or _within(frame, loop, settings.model_place)
        or calls & _models(frame, settings)
    ):
        return "one call"
    return "read loop" if calls & {"item", "float", "int", "tolist"} else "batch loop"


def _models(frame: Frame, settings: Settings) -> set[str]:
    """What the model is called where it is called first, if that is in the same file."""
    place = settings.model_place
    if place is None or frame.source is None or place.file != frame.place.file:
        return set()
    calls = (call for call in frame.source.calls(place.line) if call.lineno == place.line)
    made = {last_name(n) for n in ast.walk(frame.source.tree) if isinstance(n, ast.Name | ast.Attribute) and _stored(n)}
    return {last_name(call) for call in calls} & made


def _stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def _over_samples(loop: ast.AST) -> bool:
    """Whether a loop within forward() goes through the samples of a batch, and not through layers or time."""
    if not isinstance(loop, ast.For):
        return False
    if any(name_of(node) == "self" for node in ast.walk(loop.iter) if isinstance(node, ast.Name)):
        return False
    if last_name(loop.iter) == "zip" or isinstance(loop.iter, ast.Name):
        return True
    target = loop.target.id if isinstance(loop.target, ast.Name) else ""
    slices = [n.slice for n in ast.walk(loop) if isinstance(n, ast.Subscript)]
    return any(isinstance(one, ast.Name) and one.id == target for one in slices)
