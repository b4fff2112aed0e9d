"""The data set's own code: where its __getitem__ is, and what can be done with its items."""

from __future__ import annotations

import ast
import re

from gpuworkshop.own.frame import names
from gpuworkshop.own.result import OwnResult
from gpuworkshop.own.source import Source, Sources, last_name


def item_code(result: OwnResult, dataset: str, sources: Sources) -> tuple[Source, ast.FunctionDef] | None:
    """What makes an item of a data set of the script's own: __getitem__, or __iter__ of a stream; None if not known."""
    files = dict.fromkeys(
        [result.script, *(place.file for hot in result.hot for place in hot.places)]
        + [one.place.file for one in result.settings.loaders if one.place]
    )
    for source in filter(None, map(sources.get, files)):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name == dataset:
                for statement in node.body:
                    if isinstance(statement, ast.FunctionDef) and statement.name in ("__getitem__", "__iter__"):
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
