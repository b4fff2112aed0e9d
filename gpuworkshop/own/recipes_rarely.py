"""What is done in each step, done less often: under a condition on the step, or by the number of one that is there."""

from __future__ import annotations

import ast

from gpuworkshop.own import edit
from gpuworkshop.own.edit import Edit, NotCertain
from gpuworkshop.own.origin import literal
from gpuworkshop.own.source import Source, last_name, name_of
from gpuworkshop.own.task import Task

LONGER = 4
"""An interval that is there becomes at least so many times longer."""

MOST_EPOCHS = 10
"""What is done in each epoch is done again in every so many."""

TELLS = frozenset({
    "print", "info", "debug", "write", "log", "log_dict", "log_metrics", "add_scalar", "add_scalars", "set_postfix",
    "set_postfix_str", "set_description",
})  # fmt: skip
"""Calls that only tell of a number: nothing is lost when they do so rarely."""


def rarely(task: Task) -> list[Edit]:
    """A statement under ``if step % 100 == 0``, or the number of a condition that is there already."""
    source = task.source
    statement = edit.simple(source, task.place.line)
    every = _present_interval(task, statement)
    if every is not None:
        longer = max(int(task.values["every"]), LONGER * every.value)
        return [edit.replace(source, every, str(longer))]
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.For | ast.With):
        raise NotCertain("")
    last, counter = _last_use(source, statement), _counter(source, statement)
    every = min(int(task.values["every"]), MOST_EPOCHS) if "epoch" in counter.lower() else int(task.values["every"])
    return edit.under(source, statement, last, f"if {counter} % {every} == 0:")


def _present_interval(task: Task, statement: ast.stmt) -> ast.Constant | None:
    """The literal of ``step % N == 0`` around a statement."""
    for node in task.source.outwards(statement):
        if isinstance(node, ast.For | ast.FunctionDef):
            return None
        if isinstance(node, ast.If):
            rests = [n for n in ast.walk(node.test) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
            if len(rests) == 1:
                found = literal(task.source, rests[0].right, task.command)
                return found if isinstance(found.value, int) else None
    return None


def _counter(source: Source, statement: ast.stmt) -> str:
    """The name that counts the steps of the loop around a statement."""
    loops = (node for node in source.outwards(statement) if isinstance(node, ast.For))
    around = next(loops, None)
    if around is None:
        raise NotCertain("")
    if last_name(around.iter) == "enumerate" and isinstance(around.target, ast.Tuple):
        first = around.target.elts[0]
        if isinstance(first, ast.Name):
            return first.id
    if last_name(around.iter) == "range" and isinstance(around.target, ast.Name):
        return around.target.id
    counted = [
        name_of(node.target) for node in around.body
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant) and node.value.value == 1
    ]  # fmt: skip
    if len(counted) == 1 and counted[0]:
        return counted[0]
    raise NotCertain("the loop does not count its steps: for step, batch in enumerate(loader):")


def _last_use(source: Source, statement: ast.stmt) -> ast.stmt:
    """The last of the neighboring statements that use what a statement sets."""
    block = next(b for b in edit.blocks(source.parents[statement]) if statement in b)
    made = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    last, at = statement, block.index(statement)
    if isinstance(statement, ast.AugAssign):
        raise NotCertain("what it adds up is used elsewhere")
    for following in block[at + 1 :]:
        if any(isinstance(n, ast.Name) and n.id in made for n in ast.walk(following)):
            last = following
    inside = block[at : block.index(last) + 1]
    names = {last_name(n) for one in inside for n in ast.walk(one) if isinstance(n, ast.Call)}
    if names & {"backward", "step", "zero_grad"}:
        raise NotCertain("what it sets is used in the step")
    if isinstance(source.parents[statement], ast.For):
        _used_outside(source, made, inside)
    return last


def _used_outside(source: Source, names: set[str], inside: list[ast.stmt]) -> None:
    """Raises NotCertain where what is set in these statements is read elsewhere in the same function."""
    around = source.function(inside[0]) or source.tree
    within = {node for one in inside for node in ast.walk(one)}
    for node in ast.walk(around):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load) and node not in within:
            raise NotCertain(f"{node.id} is used again on line {node.lineno}")


def reads(task: Task) -> list[Edit]:
    """``total += loss.item()`` keeps the loss on the device; any other read is done rarely."""
    source = task.source
    statement = edit.simple(source, task.place.line)
    calls = [c for c in ast.walk(statement) if isinstance(c, ast.Call) and last_name(c) in ("item", "cpu", "numpy")]
    if isinstance(statement, ast.AugAssign) and len(calls) == 1 and last_name(calls[0]) == "item":
        if not isinstance(statement.target, ast.Name):
            raise NotCertain("where the sum is used is not known")
        _only_told(source, statement)
        return [edit.replace(source, calls[0].func, f"{source.written(calls[0].func.value)}.detach")]
    if isinstance(statement, ast.Expr) and last_name(statement.value) in TELLS:
        return rarely(task)
    raise NotCertain("what is read is used: keep it on the device, and read it where it is told")


def _only_told(source: Source, statement: ast.AugAssign) -> None:
    """Raises NotCertain where the sum is used for more than telling it: it becomes a tensor, and was a number."""
    around = source.function(statement) or source.tree
    for node in ast.walk(around):
        if not isinstance(node, ast.Name) or node.id != statement.target.id or not isinstance(node.ctx, ast.Load):
            continue
        above = list(source.outwards(node))
        told = any(isinstance(one, ast.JoinedStr) or last_name(one) in TELLS | {"format", "float"} for one in above)
        if not told:
            raise NotCertain(
                f"{node.id} is a number, and is used as one on line {node.lineno}: .item() belongs there then"
            )
