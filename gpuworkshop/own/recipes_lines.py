"""Lines that are put in or taken out: a switch after the imports, a call after the model, autocast around the loss."""

from __future__ import annotations

import ast

from gpuworkshop.own import edit
from gpuworkshop.own.edit import Edit, NotCertain
from gpuworkshop.own.recipes_calls import framework
from gpuworkshop.own.remedies import in_framework
from gpuworkshop.own.source import Source, last_name, name_of
from gpuworkshop.own.task import Task


def after_import(task: Task) -> list[Edit]:
    """A line after the last import at the top of the file."""
    if task.result.settings.framework and in_framework(task.result.settings.framework, task.remedy)[0]:
        return framework(task)
    _torch_is_imported(task.source)
    body = task.source.tree.body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    edit.alone(task.source, imports[-1], imports[-1])
    word = "precision" if task.remedy == "tf32" else "benchmark"
    inside = next((n for n in body if isinstance(n, ast.Assign) and word in ast.dump(n)), None)
    if inside is not None:
        raise NotCertain(f"line {inside.lineno} sets a {word} too")
    return [edit.after_line(task.source, imports[-1].end_lineno, ["", _LINES[task.remedy]])]


_LINES = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn-benchmark": "torch.backends.cudnn.benchmark = True",
}


def _torch_is_imported(source: Source) -> None:
    for node in source.tree.body:
        if isinstance(node, ast.Import) and any(one.name == "torch" and not one.asname for one in node.names):
            return
    raise NotCertain("the file does not import torch at its top")


def after_model(task: Task) -> list[Edit]:
    """A line after the one that makes the model."""
    if task.result.settings.framework and in_framework(task.result.settings.framework, task.remedy)[0]:
        return framework(task)
    source = task.source
    name = _model_name(task)
    made = [
        node for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and name_of(node.targets[0]) == name
    ]  # fmt: skip
    if not made:
        raise NotCertain(f"where {name} is made is not in this file")
    first = min(made, key=lambda node: node.lineno)
    blocks = [block for block in edit.blocks(source.parents[first]) if first in block]
    if len(made) > 1 and any(node not in blocks[0] for node in made):
        raise NotCertain(f"{name} is made in {len(made)} places")
    last = max(made, key=lambda node: node.lineno)
    wrapped = last_name(last.value) in ("DistributedDataParallel", "DDP", "DataParallel", "FullyShardedDataParallel")
    at = made[made.index(last) - 1] if wrapped and len(made) > 1 else last
    if wrapped and len(made) == 1:
        raise NotCertain(f"it belongs before the line that wraps {name}")
    edit.alone(source, at, at)
    line = {"compile": f"{name}.compile()", "channels-last": f"{name}.to(memory_format=torch.channels_last)"}
    if task.remedy == "channels-last":
        _torch_is_imported(source)
    return [edit.after_line(source, at.end_lineno, [line[task.remedy]])]


def _model_name(task: Task) -> str:
    """What the model is called where it is called first."""
    place = task.result.settings.model_place
    source = task.source
    if place is None or place.file != source.file:
        raise NotCertain("the model is called in another file")
    names = {name_of(call) for call in source.calls(place.line)}
    assigned = {name_of(t) for n in ast.walk(source.tree) if isinstance(n, ast.Assign) for t in n.targets} - {""}
    found = names & assigned
    if len(found) != 1:
        raise NotCertain("the name of the model could not be told for sure")
    return found.pop()


def autocast(task: Task) -> list[Edit]:
    """The call of the model and what follows it up to backward(), under autocast."""
    settings, source = task.result.settings, task.source
    if settings.framework and in_framework(settings.framework, task.remedy)[0]:
        return framework(task)
    _torch_is_imported(source)
    ahead, back = settings.model_place, settings.backward_place
    if not ahead or not back or ahead.file != source.file or back.file != source.file:
        raise NotCertain("")
    first, last = source.statement(ahead.line), source.statement(back.line)
    if first is None or last is None or first is last:
        raise NotCertain("the loss and backward() are one line: take them apart first")
    block = next((b for b in edit.blocks(source.parents[first]) if first in b), [])
    if last not in block:
        raise NotCertain("the model and backward() are not called side by side")
    inside = block[block.index(first) : block.index(last)]
    while inside and _is_zero_grad(inside[-1]):
        inside.pop()
    if any(isinstance(node, ast.Return | ast.FunctionDef | ast.ClassDef) for one in inside for node in ast.walk(one)):
        raise NotCertain("")
    head = f'with torch.autocast("{task.values["device"]}", dtype=torch.bfloat16):'
    return edit.under(source, inside[0], inside[-1], head)


def _is_zero_grad(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and last_name(statement.value) == "zero_grad"


def taken_out(task: Task) -> list[Edit]:
    """The statement is removed."""
    statement = edit.simple(task.source, task.place.line)
    if not isinstance(statement, ast.Expr):
        raise NotCertain("")
    return [edit.remove(task.source, statement)]
