"""What a script's lines do: where the training thread was found, sorted by what the code there is for.

How much time a line takes was measured; the source only tells what it is, and which line to change.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from gpuworkshop.own.result import Hot, OwnResult, Place, Settings
from gpuworkshop.own.source import Source, Sources, last_name, name_of

Kind = Literal[
    "decode", "item loop", "item", "collate", "validation", "empty_cache", "collect", "saving", "one call",
    "batch loop", "read loop", "weights loop", "optimizer", "backward", "forward", "read", "beside",
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


class _Names(msgspec.Struct, frozen=True):
    decode: frozenset[str]
    saving: frozenset[str]
    reading: frozenset[str]
    random: frozenset[str]
    validation: frozenset[str]


@cache
def names() -> _Names:
    """The names of calls by which lines are known."""
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Names)


def roles(result: OwnResult, sources: Sources) -> tuple[Role, ...]:
    """What was found at work, the largest part of the time first."""
    if result.settings is None:
        return ()
    found: dict[tuple[Kind, str, int], Role] = {}
    for hot in result.hot:
        kind, place = _known(hot, result.settings, sources)
        key = kind, place.file, place.line
        share = hot.share + (found[key].share if key in found else 0.0)
        found[key] = Role(kind, share, place)
    return tuple(sorted(found.values(), key=lambda role: -role.share))


def _known(hot: Hot, settings: Settings, sources: Sources) -> tuple[Kind, Place]:
    frames = [Frame(place, sources.get(place.file)) for place in hot.places]
    return _in_loader(frames) if hot.in_loader else _in_step(frames, settings)


class Frame:
    """One own frame of a look, with what its line is part of."""

    def __init__(self, place: Place, source: Source | None):
        self.place, self.source = place, source
        self.statement = source.statement(place.line) if source else None
        self.function = source.function(self.statement) if self.statement else None

    @property
    def calls(self) -> set[str]:
        """Names of what the line calls."""
        if self.source is None:
            return set(re.findall(r"(\w+)\(", self.place.code))
        return {last_name(call) for call in self.source.calls(self.place.line) if self._on_line(call)}

    def _on_line(self, call: ast.Call) -> bool:
        """Whether a call belongs to the line's statement, and is no block around it."""
        start = self.statement.lineno if self.statement else self.place.line
        return call.lineno >= start

    @property
    def function_name(self) -> str:
        """The function's name; "" at the top of the file."""
        return self.function.name if self.function else ""

    def loops(self) -> Iterator[ast.AST]:
        """The loops and comprehensions of the same function around this line, the innermost first."""
        if self.statement is None:
            return
        line = self.place.line
        inside = [n for n in ast.walk(self.statement) if isinstance(n, _COMPREHENSIONS)]
        yield from (n for n in reversed(inside) if n.lineno <= line <= n.end_lineno)
        for node in (self.statement, *self.source.outwards(self.statement)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return
            if isinstance(node, ast.For | ast.While) and (node is not self.statement or line > node.lineno):
                yield node

    def at(self, line: int) -> Place:
        """Another line of the same function."""
        text = self.source.line(line).strip() if self.source else ""
        return Place(self.place.file, line, text, self.place.function)


_COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


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
        if _same(frame, settings.model_place):
            return "forward"
    return "read" if frames[0].calls & names().reading else "beside"


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
    if isinstance(loop, _COMPREHENSIONS):
        over = "".join(ast.dump(one.iter) for one in loop.generators)
    if "param" in over:
        return "weights loop"
    if _within(frame, loop, settings.model_place):
        return "one call"
    calls = {last_name(n) for n in ast.walk(loop) if isinstance(n, ast.Call)}
    return "read loop" if calls & {"item", "float", "int", "tolist"} else "batch loop"


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


# The data set


def item_code(result: OwnResult, dataset: str, sources: Sources) -> tuple[Source, ast.FunctionDef] | None:
    """The __getitem__ of a data set of the script's own, where it is in a file that is known."""
    files = dict.fromkeys(
        [result.script, *(place.file for hot in result.hot for place in hot.places)]
        + [one.place.file for one in result.settings.loaders if one.place]
    )
    for source in filter(None, map(sources.get, files)):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name == dataset:
                for statement in node.body:
                    if isinstance(statement, ast.FunctionDef) and statement.name == "__getitem__":
                        return source, statement
    return None


def is_random(source: Source, function: ast.FunctionDef) -> bool:
    """Whether an item may differ each time that it is asked for: by any name in its code that draws or augments."""
    around = source.parents.get(function)
    methods = {one.name: one for one in getattr(around, "body", []) if isinstance(one, ast.FunctionDef)}
    helpers = {n.name: n for n in source.tree.body if isinstance(n, ast.FunctionDef)}
    left, seen = [function], set()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        for node in ast.walk(one):
            name = last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""
            words = {name.lower(), *re.split(r"_+", name.lower())}
            if name and (words & names().random or "random" in name.lower() or "augment" in name.lower()):
                return True
            left += [known[name] for known in (methods, helpers) if name in known]
    return False


def only_rows(function: ast.FunctionDef) -> bool:
    """Whether __getitem__ only takes rows out of arrays: return self.x[i], self.y[i]."""
    statements = [
        one for one in function.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]
    if len(statements) != 1 or not isinstance(statements[0], ast.Return) or statements[0].value is None:
        return False
    value = statements[0].value
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(isinstance(part, ast.Subscript) and not isinstance(part.slice, ast.Slice) for part in parts)
