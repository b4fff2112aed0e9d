"""How each remedy is written into a script: the edits of its file, or why they would not be certain."""

from __future__ import annotations

import ast
import platform
from collections.abc import Callable

import msgspec

from gpuworkshop.own import edit
from gpuworkshop.own.edit import Edit, NotCertain
from gpuworkshop.own.origin import literal
from gpuworkshop.own.remedies import in_framework
from gpuworkshop.own.result import OwnResult, Place
from gpuworkshop.own.source import Source, last_name, name_of

LOADER = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
    "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
)  # fmt: skip
"""The parameters of a DataLoader in the order in which they may be given."""

RARELY = 100
"""What is done in each step is done again only in every so many."""


class Task(msgspec.Struct, frozen=True):
    """One change that is wanted at one place of a file."""

    remedy: str
    source: Source
    place: Place
    values: dict[str, str]
    result: OwnResult

    @property
    def command(self) -> tuple[str, ...]:
        """How the script was started."""
        return self.result.command


# Settings of a call


def call_at(source: Source, line: int, name: str) -> ast.Call:
    """The only call of ``name`` at a line, also by the name that it was imported as, or of a class made from it."""
    names = {name, "__init__"}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom):
            names |= {one.asname for one in node.names if one.name == name and one.asname}
        if isinstance(node, ast.ClassDef) and any(last_name(base) == name for base in node.bases):
            names.add(node.name)
    found = [call for call in source.calls(line) if last_name(call) in names]
    begun = [call for call in found if call.lineno == line or call.func.end_lineno == line]
    if len(begun) != 1:
        raise NotCertain(f"{name} is not called by itself on this line")
    return begun[0]


def set_values(task: Task, call: ast.Call, values: dict[str, str], order=()) -> list[Edit]:
    """Edits that give a call these values: where a literal decides them, or as new keywords where none is given."""
    edits, new = [], {}
    for name, value in values.items():
        given = edit.argument(call, name, order)
        if given is None:
            new[name] = value
        else:
            decides = literal(task.source, given, task.command)
            edits += [] if repr(decides.value) == value else [edit.replace(task.source, decides, value)]
    return edits + (edit.add_keywords(task.source, call, new) if new else [])


def loader(task: Task) -> list[Edit]:
    """Settings of the DataLoader that is made at the place."""
    if task.result.settings.framework and in_framework(task.result.settings.framework, task.remedy)[0]:
        return framework(task)
    values = dict(task.values)
    call = call_at(task.source, task.place.line, "DataLoader")
    if "num_workers" in values and values["num_workers"] == "0":
        for name in ("persistent_workers", "prefetch_factor"):
            if edit.argument(call, name) is None:
                values.pop(name, None)
    if values.get("num_workers", "0") != "0":
        _can_start_workers(task)
    return set_values(task, call, values, LOADER)


def _can_start_workers(task: Task) -> None:
    """Where processes are not forked, each worker imports the script again: it must not train then."""
    conditions = task.result.conditions
    version = tuple(int(part) for part in (conditions.python if conditions else "3").split(".")[:2] if part.isdigit())
    if platform.system() == "Linux" and version < (3, 14):
        return
    tests = (node.test for node in task.source.tree.body if isinstance(node, ast.If))
    if not any("__name__" in ast.dump(test) for test in tests):
        raise NotCertain('workers import this file: put what trains under if __name__ == "__main__":')


def framework(task: Task) -> list[Edit]:
    """The same settings where a framework takes them."""
    name, known = in_framework(task.result.settings.framework, task.remedy)
    calls = [n for n in ast.walk(task.source.tree) if isinstance(n, ast.Call) and last_name(n) == name]
    if len(calls) != 1:
        raise NotCertain(f"the settings are those of {name}(...)")
    values = {}
    for setting, there in known.items():
        key, _, fixed = there.partition("=")
        values[key] = fixed or task.values.get(setting, "True")
    return set_values(task, calls[0], values)


def micro_batch(task: Task) -> list[Edit]:
    """A larger batch, and so many fewer backward passes for each step."""
    if task.result.settings.framework:
        return framework(task)
    call = call_at(task.source, task.place.line, "DataLoader")
    edits = set_values(task, call, {"batch_size": task.values["batch_size"]}, LOADER)
    now = task.values["accumulation_now"]
    found = set()
    for node in ast.walk(task.source.tree):
        if isinstance(node, ast.Name | ast.Attribute) and "accum" in last_name(node).lower():
            if isinstance(node.ctx, ast.Load) and not isinstance(task.source.parents.get(node), ast.Call):
                found.add(literal(task.source, node, task.command))
    if len(found) != 1 or repr(next(iter(found)).value) != now:
        raise NotCertain(f"where the {now} passes of a step are counted could not be found for sure")
    return [*edits, edit.replace(task.source, found.pop(), task.values["accumulation"])]


def optimizer(task: Task) -> list[Edit]:
    """fused=True where the optimizer is made."""
    if task.result.settings.framework:
        return framework(task)
    call = call_at(task.source, task.place.line, task.values["optimizer"])
    for other in ("foreach", "capturable", "differentiable"):
        if edit.argument(call, other) is not None:
            raise NotCertain(f"fused=True does not go with {other}")
    return set_values(task, call, {"fused": "True"})


# Lines put in


def after_import(task: Task) -> list[Edit]:
    """A line after the last import at the top of the file."""
    if task.result.settings.framework and in_framework(task.result.settings.framework, task.remedy)[0]:
        return framework(task)
    _torch_is_imported(task.source)
    body = task.source.tree.body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    edit.alone(task.source, imports[-1], imports[-1])
    inside = next((n for n in body if isinstance(n, ast.Assign) and "precision" in ast.dump(n)), None)
    if inside is not None:
        raise NotCertain(f"line {inside.lineno} sets a precision too")
    return [edit.after_line(task.source, imports[-1].end_lineno, ["", _LINES[task.remedy]])]


_LINES = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
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


# Less often


def rarely(task: Task) -> list[Edit]:
    """A statement under ``if step % 100 == 0``, or the number of a condition that is there already."""
    source = task.source
    statement = edit.simple(source, task.place.line)
    every = _present_interval(task, statement)
    if every is not None:
        return [edit.replace(source, every, task.values["every"])]
    if not isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.For | ast.With):
        raise NotCertain("")
    last = _last_use(source, statement)
    return edit.under(source, statement, last, f"if {_counter(source, statement)} % {task.values['every']} == 0:")


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
        return [edit.replace(source, calls[0].func, f"{source.written(calls[0].func.value)}.detach")]
    if isinstance(statement, ast.Expr | ast.Assign):
        return rarely(task)
    raise NotCertain("")


def taken_out(task: Task) -> list[Edit]:
    """The statement is removed."""
    statement = edit.simple(task.source, task.place.line)
    if not isinstance(statement, ast.Expr):
        raise NotCertain("")
    return [edit.remove(task.source, statement)]


def cached(task: Task) -> list[Edit]:
    """Never certain: whether all items fit the memory is not known."""
    call = call_at(task.source, task.place.line, "DataLoader")
    given = edit.argument(call, "dataset", LOADER)
    if given is None:
        raise NotCertain("")
    text = task.source.written(given)
    raise NotCertain(f"here: DataLoader([{text}[i] for i in range(len({text}))], ...), if all items fit the memory")


RECIPES: dict[str, Callable[[Task], list[Edit]]] = {
    "workers": loader,
    "fewer-workers": loader,
    "pin": loader,
    "batch": loader,
    "larger-share": loader,
    "micro-batch": micro_batch,
    "fused": optimizer,
    "tf32": after_import,
    "compile": after_model,
    "channels-last": after_model,
    "bf16": autocast,
    "rare-loss": reads,
    "rare-validation": rarely,
    "rare-saving": rarely,
    "empty-cache": taken_out,
    "collect": taken_out,
    "cache-items": cached,
}
"""By the remedy's id; a remedy that is not here is told in words."""
