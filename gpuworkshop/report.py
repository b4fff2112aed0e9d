"""One result, three faces: HTML for a notebook, rich for a terminal, plain text for everything else.

A report never measures and never decides. It shows findings that somebody else made, each with
its level in words, and the origin of its numbers beside the title. The module needs only msgspec;
rich is imported when a terminal asks for it.
"""

import datetime
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpuworkshop import __version__

Level = Literal["ok", "notice", "warning", "fail", "unknown"]

WIDTH = 88  # columns of the plain-text face
_SYMBOL = {"ok": "✓", "notice": "i", "warning": "!", "fail": "✗", "unknown": "?"}
_TERMINAL = {"ok": "green", "notice": "blue", "warning": "yellow", "fail": "red", "unknown": "magenta"}
_INDENT = " " * 11


class Origin(msgspec.Struct, frozen=True):
    """The mark that stands with every number: where it comes from.

    `on` is the card or CPU name, or the source of a claim. `date` is an ISO date and `kit` the
    version of the kit that made the number; both may be empty.
    """

    mark: Literal["measured here", "recorded on", "claimed by"]
    on: str
    date: str = ""
    kit: str = ""

    def __str__(self) -> str:
        glue = " · " if self.mark == "measured here" else " "
        parts = (self.mark + glue + self.on, self.date, self.kit and f"kit {self.kit}")
        return " · ".join(part for part in parts if part)


def measured_here(on: str) -> Origin:
    """The mark of what is measured in this process, today; `on` is the card or CPU, or what was asked."""
    return Origin("measured here", on, datetime.date.today().isoformat(), __version__)


class Finding(msgspec.Struct, frozen=True):
    """One thing found: the line read first, the measured numbers behind it, the exact fix."""

    level: Level
    title: str
    evidence: str = ""
    fix: str = ""


class Table(msgspec.Struct, frozen=True):
    """A small table of ready-made strings; every row has one cell a column, the first names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __str__(self) -> str:
        return _table_text(self)


class Figure(msgspec.Struct, frozen=True):
    """A picture as one inline SVG, with alt text and the same content as plain text.

    `svg` is trusted markup: the functions of `gpuworkshop.figures` escape what they put into it.
    """

    svg: str
    alt: str
    text: str

    def __str__(self) -> str:
        return clean(self.text)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": section(self.alt, _figure_html(self)), "text/plain": str(self)}


class Report(msgspec.Struct, frozen=True):
    """What a reader sees of one result: findings first, then tables, then figures."""

    title: str
    origin: Origin
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()

    @property
    def failed(self) -> bool:
        """True if a finding has level "fail"."""
        return any(finding.level == "fail" for finding in self.findings)

    def __str__(self) -> str:
        head = "\n".join([_wrap(self.title), _wrap(str(self.origin))])
        findings = "\n".join(_finding_text(finding) for finding in self.findings)
        blocks = [head, findings, *map(str, self.tables), *map(str, self.figures)]
        return "\n\n".join(block for block in blocks if block)

    def __rich__(self) -> Any:
        return _rich(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": _html(self), "text/plain": str(self)}


def envelope(result: Any, origin: Origin, findings: Iterable[Finding]) -> bytes:
    """The JSON of `--json`: kit version, origin, result, findings.

    `result` is anything msgspec can encode; NaN becomes null, and what is no text, as names of files may be, U+FFFD.
    Raises TypeError for anything else.
    """
    whole = {"kit": __version__, "origin": origin, "result": result, "findings": tuple(findings)}
    try:
        return msgspec.json.encode(whole)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(whole)))


def _as_text(value: Any) -> Any:
    """Plain data with every text such that it can be written as UTF-8."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, dict):
        return {_as_text(key): _as_text(one) for key, one in value.items()}
    return [_as_text(one) for one in value] if isinstance(value, list | tuple) else value


def clean(text: str) -> str:
    """`text` with control, direction and lone surrogate characters made visible as U+FFFD.

    Names come from jobs, hosts and files; none of them may steer a terminal or break a page.
    Line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\n\t" else char for char in text
    )


# HTML


@cache
def css() -> str:
    """The style sheet of every report."""
    return (Path(__file__).parent / "figures" / "page.css").read_text(encoding="utf-8")


def escaped(text: str) -> str:
    """Text from anywhere as HTML or SVG may hold it, between tags and in an attribute."""
    return escape(clean(text), quote=True)


def section(label: str, body: str) -> str:
    """A region of a page with the style sheet in it; `body` is HTML."""
    return f'<section class="gw-report" aria-label="{escaped(label)}"><style>{css()}</style>{body}</section>'


def _html(report: Report) -> str:
    head = (
        f'<p class="gw-title" role="heading" aria-level="3">{escaped(report.title)}</p>'
        f'<p class="gw-origin">{escaped(str(report.origin))}</p>'
    )
    findings = "".join(map(_finding_html, report.findings))
    listed = f'<ul class="gw-findings">{findings}</ul>' if findings else ""
    tables = "".join(map(_table_html, report.tables))
    figures = "".join(map(_figure_html, report.figures))
    return section(report.title, head + listed + tables + figures)


def _finding_html(finding: Finding) -> str:
    level = (
        f'<span class="gw-level"><span class="gw-symbol" aria-hidden="true">{_SYMBOL[finding.level]}</span>'
        f"{finding.level}</span>"
    )
    evidence = f'<p class="gw-evidence">{escaped(finding.evidence)}</p>' if finding.evidence else ""
    fix = (
        f'<p class="gw-fix-name">Fix</p><pre class="gw-fix"><code>{escaped(finding.fix)}</code></pre>'
        if finding.fix
        else ""
    )
    return (
        f'<li class="gw-finding gw-{finding.level}">{level}'
        f'<div class="gw-body"><p class="gw-line">{escaped(finding.title)}</p>{evidence}{fix}</div></li>'
    )


def _table_html(table: Table) -> str:
    numeric = _numeric(table)
    kind = ['class="gw-number"' if flag else 'class="gw-words"' for flag in numeric]
    names = zip(kind, table.columns, strict=True)
    head = "".join(f'<th scope="col" {k}>{escaped(name)}</th>' for k, name in names)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row" {k}>{escaped(cell)}</th>' if place == 0 else f"<td {k}>{escaped(cell)}</td>"
            for place, (k, cell) in enumerate(zip(kind, row, strict=True))
        )
        + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    return (
        f'<div class="gw-scroll"><table class="gw-table">{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _figure_html(figure: Figure) -> str:
    return (
        f'<figure class="gw-figure"><div role="img" aria-label="{escaped(figure.alt)}">{figure.svg}</div>'
        f"<details><summary>This figure as text</summary><pre>{escaped(figure.text)}</pre></details></figure>"
    )


def _numeric(table: Table) -> list[bool]:
    """Per column: does every cell that says something begin with a digit, after a sign or a bound?"""
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    said = [[cell.lstrip("+-<=> ") for cell in column if cell not in ("", "n/a")] for column in columns]
    return [bool(cells) and all(cell[:1].isdigit() for cell in cells) for cells in said]


# Plain text


def _wrap(text: str, indent: str = "", first: str | None = None) -> str:
    start = indent if first is None else first
    return textwrap.fill(clean(text), WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def _finding_text(finding: Finding) -> str:
    mark = f"{_SYMBOL[finding.level]} {finding.level}".ljust(len(_INDENT))
    lines = [_wrap(finding.title, _INDENT, mark)]
    if finding.evidence:
        lines.append(_wrap(finding.evidence, _INDENT))
    if finding.fix:
        lines.append(f"{_INDENT}fix:")
        lines.append(textwrap.indent(clean(finding.fix), _INDENT + "  "))
    return "\n".join(lines)


def _table_text(table: Table) -> str:
    cells = [tuple(map(clean, row)) for row in (table.columns, *table.rows)]
    numeric = _numeric(table)
    widths = _widths(cells, numeric)
    head, *rows = ["\n".join(_row_lines(row, widths, numeric)) for row in cells]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(([_wrap(table.caption)] if table.caption else []) + [head, rule, *rows])


def _widths(cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[int]:
    """Column widths that fit WIDTH: the widest column of words gives way first, then any, down to 8."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [place for place, flag in enumerate(numeric) if not flag]
    for places, least in ((words, 16), (range(len(widths)), 8)):
        while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
            widest = max(places, key=widths.__getitem__, default=None)
            if widest is None or widths[widest] <= least:
                break
            widths[widest] -= 1
    return widths


def _row_lines(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    wrapped = [textwrap.wrap(cell, max(width, 1)) or [""] for cell, width in zip(row, widths, strict=True)]
    lines = []
    for place in range(max((len(cell) for cell in wrapped), default=0)):
        parts = [cell[place] if place < len(cell) else "" for cell in wrapped]
        aligned = [p.rjust(w) if n else p.ljust(w) for p, w, n in zip(parts, widths, numeric, strict=True)]
        lines.append("  ".join(aligned).rstrip())
    return lines


# Terminal


def _rich(report: Report) -> Any:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(clean(report.title), style="bold"), Text(clean(str(report.origin)), style="dim")]
    if report.findings:
        parts += [Text(), _rich_findings(report.findings)]
    for table in report.tables:
        parts += [Text(), _rich_table(table)]
    for figure in report.figures:
        parts += [Text(), Text(str(figure), no_wrap=True)]
    return Group(*parts)


def _rich_findings(findings: Sequence[Finding]) -> Any:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        mark = Text(f"{_SYMBOL[finding.level]} {finding.level}", style=f"bold {_TERMINAL[finding.level]}")
        grid.add_row(mark, Text(clean(finding.title), style="bold"))
        if finding.evidence:
            grid.add_row(Text(), Text(clean(finding.evidence)))
        if finding.fix:
            grid.add_row(Text("fix", style="dim"), Text(clean(finding.fix), style="cyan", overflow="fold"))
    return grid


def _rich_table(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    caption = Text(clean(table.caption)) if table.caption else None
    grid = Grid(title=caption, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, numeric in zip(table.columns, _numeric(table), strict=True):
        grid.add_column(Text(clean(name)), justify="right" if numeric else "left")
    for row in table.rows:
        grid.add_row(*(Text(clean(cell)) for cell in row))
    return grid
