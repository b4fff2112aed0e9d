"""The exact change in the script's own code: a unified diff where it is certain, else instructions with the line."""

from __future__ import annotations

from pathlib import Path

from gpuworkshop.own import recipes
from gpuworkshop.own.edit import NotCertain, edited, unified
from gpuworkshop.own.pick import Change
from gpuworkshop.own.remedies import Remedy, in_framework
from gpuworkshop.own.result import OwnResult, Place
from gpuworkshop.own.source import Sources
from gpuworkshop.own.task import Task


def change(remedy: Remedy, place: Place | None, values: dict[str, str], result: OwnResult, sources: Sources) -> Change:
    """How to make a change at a place of the script; never writes a file."""
    recipe = recipes.RECIPES.get(remedy.id)
    try:
        if place is None:
            raise NotCertain("")
        source = sources.get(place.file)
        if source is None:
            raise NotCertain("the file could not be read as Python")
        if recipe is None:
            raise NotCertain("")
        edits = recipe(Task(remedy.id, source, place, values, result))
        text = unified(source, edited(source, edits))
        return Change(text, True, source.file, source.encoding, values)
    except (NotCertain, RecursionError) as fault:
        text = _instructions(remedy, place, values, str(fault), _in_framework(remedy, values, result))
        return Change(text, False, values=values)


def _in_framework(remedy: Remedy, values: dict[str, str], result: OwnResult) -> str:
    """The line that a framework takes for it; "" without one, or where it does not."""
    call, known = in_framework(result.settings.framework if result.settings else "", remedy.id)
    given = (name if "=" in name else f"{name}={values.get(setting, 'True')}" for setting, name in known.items())
    return f"{call}(..., {', '.join(given)})" if call else ""


def _instructions(remedy: Remedy, place: Place | None, values: dict[str, str], why: str, instead: str = "") -> str:
    lines = []
    if place is not None:
        lines.append(f"# {Path(place.file).name}:{place.line}" + (f"   {place.code}" if place.code else ""))
    if why:
        lines.append(f"# {why}")
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    return "\n".join([*lines, instead or _filled(remedy.code, values | {"values": settings})])


def _filled(code: str, values: dict[str, str]) -> str:
    """The template with the values in it; braces that are not a value's name stay."""
    for name, value in values.items():
        code = code.replace("{" + name + "}", value)
    return code
