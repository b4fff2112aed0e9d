"""How a Python file trains on several cards, as its code says it: the file is parsed, never run or imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

Use = Literal["ddp", "sharded", "framework", "exchanges", "dataparallel", "imported", "no", "unknown"]
"""``exchanges``: it joins the other ranks and wraps no model; ``imported``: the names are there and nothing calls them;
``unknown``: nothing in the file, and it imports code that is not known here, or shares the work out by rank itself."""
SHARES = {"RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"}
"""Variables by which a process finds its share of the work; LOCAL_RANK only tells it a card."""


class Training(msgspec.Struct, frozen=True):
    """What the code of a training script does about other ranks. Lines are those of the file; 0 for none."""

    use: Use
    line: int = 0
    same_order: int = 0
    """Where a sampler is made that shuffles every epoch alike, because nothing tells it the epoch."""


class _Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ddp: tuple[str, ...]
    sharded: tuple[str, ...]
    framework: tuple[str, ...]
    exchanges: tuple[str, ...]
    dataparallel: tuple[str, ...]
    frameworks: tuple[str, ...]
    known: tuple[str, ...]


def read(text: str) -> Training | None:
    """What this code does; None for what is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree))
    names = _imported(nodes)
    called = list(_called(nodes, names))
    use, line = _use(nodes, names, called)
    return Training(use, line, 0 if use == "framework" else _same_order(nodes, called))


def _use(nodes: list[ast.AST], names: dict[str, str], called: list[tuple[str, ast.Call]]) -> tuple[Use, int]:
    known = _names()
    for use in ("ddp", "sharded", "framework", "exchanges", "dataparallel"):
        for name, call in called:
            first, last = name.partition(".")[0], name.rpartition(".")[2]
            if last in getattr(known, use) or (use == "framework" and first in known.frameworks):
                return use, call.lineno
    wanted = {*known.ddp, *known.sharded, *known.exchanges}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and any(one.name in wanted for one in node.names):
            return "imported", node.lineno
    shares = any(isinstance(node, ast.Constant) and node.value in SHARES for node in nodes)
    return ("unknown" if shares or _foreign(nodes) else "no"), 0


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """The names of the file that stand for something imported: by `import`, `from` or a plain assignment of one."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name: f"{node.module or ''}.{one.name}" for one in node.names}
    for node in nodes:
        if isinstance(node, ast.Assign) and (whole := _dotted(node.value, names)):
            names |= {one.id: whole for one in node.targets if isinstance(one, ast.Name) and one.id not in names}
    return names


def _called(nodes: list[ast.AST], names: dict[str, str]) -> Iterator[tuple[str, ast.Call]]:
    """Each call with the whole name of what it calls; also `partial(wrapper, ...)`, which is one."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = _dotted(node.func, names) or getattr(node.func, "attr", "")
            yield name, node
            if name.rpartition(".")[2] == "partial" and node.args:
                yield _dotted(node.args[0], names), node


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """`a.b.c` with its first word as it was imported; "" for what is no such name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _same_order(nodes: list[ast.AST], called: list[tuple[str, ast.Call]]) -> int:
    """The line of a `DistributedSampler` that shuffles, where nothing sets its epoch."""
    if any(isinstance(node, ast.Attribute) and node.attr == "set_epoch" for node in nodes):
        return 0
    for name, call in called:
        shuffle = next((one.value for one in call.keywords if one.arg == "shuffle"), None)
        fixed = isinstance(shuffle, ast.Constant) and not shuffle.value
        if name.rpartition(".")[2] == "DistributedSampler" and not fixed:
            return call.lineno
    return 0


def _foreign(nodes: list[ast.AST]) -> bool:
    """Whether the file imports code that may do for it what it does not do itself."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            return True
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            first = module.partition(".")[0]
            if first not in sys.stdlib_module_names and first not in _names().known:
                return True
    return False


@cache
def _names() -> _Names:
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Names)
