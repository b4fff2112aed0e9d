"""Where a value in a script comes from: the literal that decides it, or words for the reader where none does."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from gpuworkshop.own.edit import NotCertain
from gpuworkshop.own.source import Source, last_name, name_of

DEEPEST = 6
"""Names that are followed, one after the other."""


def literal(source: Source, value: ast.expr, command: Sequence[str] = (), deep: int = 0) -> ast.Constant:
    """The literal in this file that decides ``value``; raises NotCertain with where the value comes from."""
    if isinstance(value, ast.Constant):
        return value
    if deep < DEEPEST:
        if isinstance(value, ast.Name):
            return _of_name(source, value, command, deep + 1)
        if isinstance(value, ast.Attribute):
            return _of_attribute(source, value, command, deep + 1)
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            return _of_key(source, value)
    raise NotCertain(_words(source, value))


def _words(source: Source, value: ast.expr, more: str = "") -> str:
    where = f"{Path(source.file).name}:{value.lineno}"
    return f"the value comes from `{source.written(value)}` ({where}{', ' + more if more else ''})"


def _of_name(source: Source, name: ast.Name, command: Sequence[str], deep: int) -> ast.Constant:
    function = source.function(name)
    while function is not None:
        given = _assigned(source, function, name.id)
        if not given and name.id in _parameters(function):
            return _of_parameter(source, function, name, command, deep)
        if given:
            return _only(source, name, given, command, deep)
        function = source.function(function)
    return _only(source, name, _assigned(source, source.tree, name.id), command, deep)


def _only(source: Source, name: ast.expr, given: list[ast.expr], command, deep: int) -> ast.Constant:
    if len(given) != 1:
        raise NotCertain(_words(source, name, f"set in {len(given)} places" if given else "set elsewhere"))
    return literal(source, given[0], command, deep)


def _assigned(source: Source, scope: ast.AST, name: str) -> list[ast.expr]:
    """What a name is set to in a scope; where it is set by a loop or a calculation, the name itself."""
    found, left = [], list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            parent = source.parents[node]
            plain = isinstance(parent, ast.Assign | ast.AnnAssign) and parent.value is not None
            found.append(parent.value if plain else node)
    return found


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    every = function.args
    return [one.arg for one in (*every.posonlyargs, *every.args, *every.kwonlyargs)]


def _of_parameter(source: Source, function, name: ast.Name, command, deep: int) -> ast.Constant:
    """By the only call of the function in this file; by the parameter's default where that call gives none."""
    owner = source.parents.get(function)
    called = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
    calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and last_name(n) == called]
    words = f"a parameter of {called}()"
    if len(calls) != 1 or any(isinstance(one, ast.Starred) for one in calls[0].args):
        raise NotCertain(_words(source, name, words))
    order = _parameters(function)
    if order and order[0] in ("self", "cls"):
        order = order[1:]
    call, at = calls[0], order.index(name.id)
    given = next((k.value for k in call.keywords if k.arg == name.id), call.args[at] if at < len(call.args) else None)
    if given is None and not any(k.arg is None for k in call.keywords):
        given = _default(function, name.id)
    if given is None:
        raise NotCertain(_words(source, name, words))
    return literal(source, given, command, deep)


def _default(function, name: str) -> ast.expr | None:
    every = function.args
    plain = [*every.posonlyargs, *every.args]
    pairs = list(zip(plain[len(plain) - len(every.defaults) :], every.defaults, strict=True))
    pairs += zip(every.kwonlyargs, every.kw_defaults, strict=True)
    return next((default for one, default in pairs if one.arg == name), None)


# Attributes: of parsed arguments, of a class, of self


def _of_attribute(source: Source, value: ast.Attribute, command, deep: int) -> ast.Constant:
    option = _option(source, value.attr)
    if option is not None and name_of(value.value) not in ("self", "torch"):
        return _of_option(source, value, option, command)
    own = [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and any(name_of(t) == name_of(value) for t in node.targets)
    ]
    fields = [
        statement.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if _field(statement) == value.attr and statement.value is not None
    ]
    if value.attr in _overridden(source):
        raise NotCertain(_words(source, value, "given where the settings are made"))
    return _only(source, value, own or fields, command, deep)


def _overridden(source: Source) -> set[str]:
    """Fields that some call of a class of this file gives by name."""
    classes = {node.name for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef) and _is_data(node)}
    calls = (n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and last_name(n) in classes)
    return {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}


def _is_data(node: ast.ClassDef) -> bool:
    return not any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body)


def _field(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign):
        return name_of(statement.target)
    return name_of(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


def _option(source: Source, name: str) -> ast.Call | None:
    """The add_argument call that defines an attribute of the parsed arguments."""
    for call in ast.walk(source.tree):
        if isinstance(call, ast.Call) and last_name(call) == "add_argument" and name == _destination(call):
            return call
    return None


def _flags(call: ast.Call) -> list[str]:
    return [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _destination(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    flags = _flags(call)
    long = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    return long.lstrip("-").replace("-", "_")


def _of_option(source: Source, value: ast.expr, call: ast.Call, command: Sequence[str]) -> ast.Constant:
    flags = _flags(call)
    given = next((word for word in command for flag in flags if word == flag or word.startswith(f"{flag}=")), None)
    if given:
        raise NotCertain(f"the command gives {given.partition('=')[0]}: change its value there")
    default = next((k.value for k in call.keywords if k.arg == "default"), None)
    if isinstance(default, ast.Constant) and default.value is not None:
        return default
    raise NotCertain(f"give {flags[-1] if flags else value.attr} on the command line")


def _of_key(source: Source, value: ast.Subscript) -> ast.Constant:
    """By the only dict of this file with this key."""
    key = value.slice.value
    found = [
        entry
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Dict)
        for name, entry in zip(node.keys, node.values, strict=True)
        if isinstance(name, ast.Constant) and name.value == key
    ]
    stored = [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Constant) and t.slice.value == key
            for t in node.targets
        )
    ]
    if len(found) == 1 and not stored and isinstance(found[0], ast.Constant):
        return found[0]
    raise NotCertain(_words(source, value))
