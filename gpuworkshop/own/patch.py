"""The exact change in the script's own code: a unified diff where it is certain, else instructions with the line."""

from __future__ import annotations

from pathlib import Path

from gpuworkshop.own import recipes
from gpuworkshop.own.edit import NotCertain, edited, unified
from gpuworkshop.own.pick import Change
from gpuworkshop.own.remedies import Remedy
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
        return Change(_instructions(remedy, place, values, str(fault)), False, values=values)


def _instructions(remedy: Remedy, place: Place | None, values: dict[str, str], why: str) -> str:
    lines = []
    if place is not None:
        lines.append(f"# {Path(place.file).name}:{place.line}" + (f"   {place.code}" if place.code else ""))
    if why:
        lines.append(f"# {why}")
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    return "\n".join([*lines, _filled(remedy.code, values | {"values": settings})])


def _filled(code: str, values: dict[str, str]) -> str:
    """The template with the values in it; braces that are not a value's name stay."""
    for name, value in values.items():
        code = code.replace("{" + name + "}", value)
    return code
