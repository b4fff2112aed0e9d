"""What the course means for other kinds of work, one page each, with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster.site import Site
from gpuworkshop.course import place
from gpuworkshop.machine.allocation import workers_rule
from gpuworkshop.report import Finding, Origin, Report, Table


class Domain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of work: what is stated of it, what to do and how, and who states it."""

    title: str
    source: str
    says: str
    rows: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...] = ()
    """Names of ``transformers.TrainingArguments`` that the page gives."""


@cache
def _file() -> dict[str, dict]:
    return msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())


def known() -> dict[str, Domain]:
    """All of them, by name."""
    return {name: msgspec.convert(one, Domain) for name, one in _file().items() if name != "sources"}


def page(name: str, site: Site | None = None) -> Report:
    """One page. KeyError names the ones there are."""
    pages = known()
    if name not in pages:
        raise KeyError(f"no page is called {name!r}, but: {', '.join(pages)}")
    cpus = (site or place.site()).conventions.cpus_per_card
    filled = {"{workers}": str(workers_rule(cpus)), "{cpus}": str(cpus)}
    one = pages[name]
    rows = tuple(tuple(_filled(cell, filled) for cell in row) for row in one.rows)
    origin = Origin("claimed by", _file()["sources"][one.source])
    return Report(one.title, origin, (Finding("notice", _filled(one.says, filled)),), (Table(("what", "how"), rows),))


def _filled(text: str, values: dict[str, str]) -> str:
    """A text with its slots filled, and without the marks for code, which a report does not know."""
    for slot, value in values.items():
        text = text.replace(slot, value)
    return text.replace("`", "")
