"""jobstats' text report. The sections that hold figures are read; Notes and the batch script never are.

A paste may be colored, indented or quoted. A figure that is given in words is missing, with the words; the numbers in
them are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.jobstats_result import IMPOSSIBLE, Card, JobUse, Missing, Node, NoReport, overall
from gpuworkshop.numbers import shortened

HEAD, TOTAL, DETAIL = "Slurm Job Statistics", "Overall Utilization", "Detailed Utilization"
_SECTIONS = (HEAD, TOTAL, DETAIL, "Notes", "Batch Script", "Job Script")
_COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|\[\d{1,2}(?:;\d{1,3})*m")
_QUOTE = re.compile(r"^[ \t]*(?:[>#][ \t]?)+")
_RULE = re.compile(r"={10,}")
_LABEL = re.compile(r"([A-Z][A-Za-z/ -]{2,20}): +(.*)")
_METER = re.compile(r"(CPU utilization|CPU memory usage|GPU utilization|GPU memory usage) +([\[(].*)")
_PERCENT = re.compile(r"\[[|#=*]* *(\d{1,3}(?:\.\d{1,2})?) ?%\]?")
_SIZE = r"\d{1,7}(?:\.\d+)?[KMGTP]?B"
_CLOCK = r"(?:\d{1,6}-)?\d{1,6}:\d\d:\d\d"
_DETAILS = {
    "cpu": re.compile(rf"(\S+): {_CLOCK}/{_CLOCK} \(efficiency=(\d{{1,3}}(?:\.\d+)?)%\)"),
    "memory": re.compile(rf"(\S+): ({_SIZE})/({_SIZE}) \({_SIZE}/{_SIZE} per core of (\d{{1,6}})\)"),
    "gpu": re.compile(r"(\S+) \(GPU ([^)]{1,20})\): (\d{1,3}(?:\.\d+)?)%"),
    "gpu_memory": re.compile(rf"(\S+) \(GPU ([^)]{{1,20}})\): ({_SIZE})/({_SIZE})(?: \((\d{{1,3}}(?:\.\d+)?)%\))?"),
}
_FIGURES = {
    "CPU utilization": "cpu",
    "CPU memory usage": "memory",
    "GPU utilization": "gpu",
    "GPU memory usage": "gpu_memory",
}
_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40, "PB": 2**50}


def plain(text: str) -> list[str]:
    """The lines of a paste without colors, quotes and blanks around."""
    lines = _COLOR.sub("", text).replace("\u00a0", " ").expandtabs().splitlines()
    return [_QUOTE.sub("", line).strip() for line in lines]


def is_report(lines: list[str]) -> bool:
    """Whether this has one of the two sections that hold figures, each with its rule."""
    return any(name in (TOTAL, DETAIL) for name, _ in _sections(lines))


def read(lines: list[str]) -> JobUse:
    """The job of a report. Raises NoReport for two of them.

    An overall figure is that of the details where they have it for every node or card, since the meters are rounded.
    """
    sections = list(_sections(lines))
    if max(sum(name == wanted for name, _ in sections) for wanted in (HEAD, TOTAL, DETAIL)) > 1:
        raise NoReport("more than one report: give one at a time")
    of = dict(sections)
    missing: list[Missing] = []
    total = _total(of.get(TOTAL, []), missing)
    nodes = _nodes(of.get(DETAIL, []), missing)
    job = _head(of.get(HEAD, []))
    detailed = overall(nodes)
    figures = {name: detailed[name] if _complete(nodes, name) else None for name in detailed}
    figures |= {name: total.get(name) for name, value in figures.items() if value is None}
    return msgspec.structs.replace(job, nodes=nodes, **figures, missing=tuple(dict.fromkeys(missing)))


def size(text: str) -> int | None:
    """A size as the details write it, powers of 1024, in bytes; None for anything else."""
    found = re.fullmatch(r"(\d{1,7}(?:\.\d+)?)([KMGTP]?B)", text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def seconds(text: str) -> float | None:
    """A time [days-]hours:minutes:seconds; None for anything else."""
    found = re.match(_CLOCK, text)
    return slurm_time.seconds(found[0]) if found else None


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each section with its lines. Its name stands alone above a rule; after Notes only a new report can begin."""
    name, held = "", []
    for place, line in enumerate(lines):
        follows = lines[place + 1] if place + 1 < len(lines) else ""
        begins = line in _SECTIONS and (_RULE.fullmatch(follows) or (line == HEAD and name in ("", *_SECTIONS[3:])))
        if begins and (name not in _SECTIONS[3:] or line == HEAD or name == "Batch Script"):
            if name:
                yield name, held
            name, held = line, []
        elif not _RULE.fullmatch(line):
            held.append(line)
    if name:
        yield name, held


def _head(lines: list[str]) -> JobUse:
    said: dict[str, str] = {}
    for line in lines:
        if found := _LABEL.fullmatch(line):
            said.setdefault(found[1], found[2].strip())
    state = said.get("State", "").split(" ")[0]
    run, limit = said.get("Run Time", ""), said.get("Time Limit", "")
    return JobUse(
        "report",
        job=said.get("Job ID", "")[:40],
        name=said.get("Job Name", "")[:80],
        state=state[:40],
        partition=said.get("QOS/Partition", "").rpartition("/")[2][:80],
        node_count=_whole(said.get("Nodes", "")),
        cpus=_whole(said.get("CPU Cores", "")),
        gpus=_whole(said.get("GPUs", "")),
        memory_asked=said.get("CPU Memory", "").split(" ")[0][:20],
        seconds=seconds(run),
        limit=float("inf") if limit.upper() == "UNLIMITED" else seconds(limit),
        running=state == "RUNNING" or "(" in run,
    )


def _total(lines: list[str], missing: list[Missing]) -> dict[str, float]:
    """The meters. A figure in words is missing."""
    found: dict[str, float] = {}
    for line in lines:
        meter = _METER.fullmatch(line)
        if not meter or _FIGURES[meter[1]] in found:
            continue
        what = _FIGURES[meter[1]]
        percent = _PERCENT.fullmatch(meter[2])
        if percent is None:
            missing.append(Missing(what, _words(meter[2])))
        elif float(percent[1]) > {"gpu_memory": 100 * IMPOSSIBLE, "memory": float("inf")}.get(what, 100):
            missing.append(Missing(what, "the report says more than 100%"))
        else:
            found[what] = float(percent[1]) / 100
    return found


def _nodes(lines: list[str], missing: list[Missing]) -> tuple[Node, ...]:
    """The details, put together by node and card."""
    nodes: dict[str, dict] = {}
    cards: dict[tuple[str, str], dict] = {}
    what, ended = "", False
    for line in lines:
        heading = next((figure for words, figure in _FIGURES.items() if line.startswith(f"{words} per node")), "")
        if heading or not line:
            what, ended = heading or what, not heading
        elif what and (found := _DETAILS[what].match(line)):
            _detail(what, found, nodes, cards, missing)
        elif what and not ended and not line.startswith("Total "):  # after a blank line it may be anybody's
            missing.append(Missing(what, _words(line.rpartition("): ")[2] or line)))
    for name, index in cards:
        nodes.setdefault(name, {}).setdefault("cards", []).append(Card(index, **cards[name, index]))
    return tuple(Node(name, **{**held, "cards": tuple(held.get("cards", ()))}) for name, held in nodes.items())


def _detail(what: str, found: re.Match, nodes: dict, cards: dict, missing: list[Missing]) -> None:
    name = found[1][:80]
    if what == "cpu":
        _set(nodes.setdefault(name, {}), {"cpu": _share(found[2], what, missing)})
    elif what == "memory":
        used, whole = size(found[2]), size(found[3])
        share = used / whole if used is not None and whole else None
        _set(
            nodes.setdefault(name, {}),
            {"memory_used": used, "memory_total": whole, "memory": share, "cpus": int(found[4]) or None},
        )
    elif what == "gpu":
        _set(cards.setdefault((name, found[2]), {}), {"utilization": _share(found[3], what, missing)})
    else:
        used, whole = size(found[3]), size(found[4])
        share = float(found[5]) / 100 if found[5] else used / whole if used is not None and whole else None
        if share is not None and share > IMPOSSIBLE:
            missing.append(Missing(what, "the report says more than 100%"))
            share = None
        values = {"memory_used": used, "memory_total": whole, "memory": share}
        _set(cards.setdefault((name, found[2]), {}), values)


def _set(held: dict, values: dict) -> None:
    """The first that is said about a node or card counts."""
    for key, value in values.items():
        held.setdefault(key, value)


def _share(percent: str, what: str, missing: list[Missing]) -> float | None:
    if float(percent) > 100.5:
        missing.append(Missing(what, "the report says more than 100%"))
        return None
    return min(1.0, float(percent) / 100)


def _complete(nodes: tuple[Node, ...], what: str) -> bool:
    """Whether every node or card has this figure in the details."""
    if what in ("cpu", "memory"):
        return bool(nodes) and all(getattr(node, what) is not None for node in nodes)
    cards = [card for node in nodes for card in node.cards]
    name = "utilization" if what == "gpu" else "memory"
    return bool(cards) and all(getattr(card, name) is not None for card in cards)


def _words(text: str) -> str:
    """What stands in place of a figure, without its brackets."""
    inner = text.strip().strip("[]").strip()
    inner = inner[1:-1].strip() if inner.startswith("(") and inner.endswith(")") else inner
    return shortened(inner, 120) or "nothing"


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else None
