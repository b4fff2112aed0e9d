"""Methods that are replaced for a while, and given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()
_on: list[tuple[Any, str, Any]] = []


def put_on(owner: Any, name: str, made: Callable[[Callable], Callable]) -> None:
    """Replace ``owner.name`` by ``made(original)`` until :func:`take_off`; nothing where there is none."""
    original = getattr(owner, name, None)
    if original is None:
        return
    _on.append((owner, name, vars(owner).get(name, _MISSING)))
    setattr(owner, name, made(original))


def take_off(owner: Any = None, name: str = "") -> None:
    """Give back one method, or all."""
    for entry in reversed(list(_on)):
        if owner is None or (entry[0] is owner and entry[1] == name):
            _on.remove(entry)
            if entry[2] is _MISSING:
                delattr(entry[0], entry[1])
            else:
                setattr(*entry)
