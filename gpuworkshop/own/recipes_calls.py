"""Settings that a call takes: those of a loader, an optimizer, a framework; and where no literal decides them."""

from __future__ import annotations

import ast
import platform

from gpuworkshop.own import edit
from gpuworkshop.own.edit import Edit, NotCertain
from gpuworkshop.own.origin import literal
from gpuworkshop.own.remedies import in_framework
from gpuworkshop.own.source import Source, last_name
from gpuworkshop.own.task import Task

LOADER = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
    "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
)  # fmt: skip
"""The parameters of a DataLoader in the order in which they may be given."""


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


def cached(task: Task) -> list[Edit]:
    """Never certain: whether all items fit the memory is not known."""
    call = call_at(task.source, task.place.line, "DataLoader")
    given = edit.argument(call, "dataset", LOADER)
    if given is None:
        raise NotCertain("")
    text = task.source.written(given)
    raise NotCertain(f"here: DataLoader([{text}[i] for i in range(len({text}))], ...), if all items fit the memory")
