"""Which loop of a script is the training loop, what is a validation, and what the other loops go through."""

from __future__ import annotations

import ast
import re

from gpuworkshop.own.frame import COMPREHENSIONS, Frame, Kind, names
from gpuworkshop.own.result import Place, Settings
from gpuworkshop.own.source import last_name, name_of


def same(frame: Frame, place: Place | None) -> bool:
    return place is not None and (frame.place.file, frame.place.line) == (place.file, place.line)


def asks_for_batch(frame: Frame) -> bool:
    """Whether this line takes the next batch: the head of a loop, or next()."""
    head = isinstance(frame.statement, ast.For) and frame.place.line <= frame.statement.iter.end_lineno
    return head or "next" in frame.calls


def trains(frame: Frame, settings: Settings) -> bool:
    """Whether the step is made in this frame's function."""
    return any(within(frame, frame.function, place) for place in (settings.step_place, settings.backward_place))


def within(frame: Frame, node: ast.AST | None, place: Place | None) -> bool:
    if place is None or frame.source is None or place.file != frame.place.file:
        return False
    if node is None:
        statement = frame.source.statement(place.line)
        return statement is not None and frame.source.function(statement) is None
    return node.lineno <= place.line <= node.end_lineno


def in_training_loop(frames: list[Frame], settings: Settings) -> Frame:
    """The frame of the training loop; the innermost where it is not known."""
    return next((frame for frame in frames if trains(frame, settings)), frames[0])


def validation(frames: list[Frame]) -> Place | None:
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


def other_loop(frames: list[Frame], settings: Settings) -> tuple[Kind, Place] | None:
    for frame in frames:
        inner = [loop for loop in frame.loops() if not _training_loop(frame, loop, settings)]
        if inner and (frame.function_name != "forward" or _over_samples(inner[-1])):
            return _kind_of_loop(frame, inner[-1], settings), frame.at(inner[-1].lineno)
        if trains(frame, settings):
            return None
    return None


def _training_loop(frame: Frame, loop: ast.AST, settings: Settings) -> bool:
    """Whether steps or backward passes are made in the loop."""
    made = (settings.step_place, settings.backward_place)
    if any(within(frame, loop, place) for place in made):
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
        or within(frame, loop, settings.model_place)
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
    return {last_name(call) for call in calls} & frame.source.stored


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
