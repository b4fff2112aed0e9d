"""jobstats' data as JSON, or as the payload that Slurm keeps in AdminComment: JS1: and base64 of the gzipped JSON."""

from __future__ import annotations

import base64
import binascii
import math
import re
import zlib
from typing import Any

import msgspec

from gpuworkshop.cluster.jobstats_result import IMPOSSIBLE, Card, JobUse, Missing, Node, NoReport, overall
from gpuworkshop.numbers import percent as percent_text
from gpuworkshop.numbers import shortened

PAYLOAD = re.compile(r"\bJS1:(Short|None|[A-Za-z0-9+/]{16,}={0,2})")
_MOST = 2**22
_MIG = "MIG: jobstats has no utilization for a slice"


def payload(text: str) -> JobUse:
    """The job of a payload that stands somewhere in this text. Raises NoReport."""
    found = PAYLOAD.search(text)
    if not found:
        raise NoReport("JS1: is not followed by base64; a payload that went through sacctmgr may be in lower case")
    if found[1] in ("Short", "None"):
        why = "the job was too short for a sample" if found[1] == "Short" else "jobstats has none for it"
        return JobUse("payload", missing=(Missing("all", why),))
    try:
        unpacker = zlib.decompressobj(wbits=31)
        data = unpacker.decompress(base64.b64decode(found[1], validate=True), _MOST)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise NoReport(f"the JS1: payload is damaged: {error}") from error
    if not unpacker.eof:
        raise NoReport("the JS1: payload is damaged: it is cut off, or far too large")
    return read_json(data, "payload")


def read_json(data: bytes | str, form: str = "JSON") -> JobUse:
    """The job of what `jobstats -j` prints. Raises NoReport."""
    try:
        whole = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoReport(f"the {form} is no JSON: {error}") from error
    if not isinstance(whole, dict) or not isinstance(whole.get("nodes"), dict) or "total_time" not in whole:
        raise NoReport("JSON, but not of jobstats -j: it must have nodes and total_time")
    missing: list[Missing] = []
    seconds, gpus = _number(whole["total_time"]), _whole(whole.get("gpus"))
    nodes = tuple(_node(name, data, seconds, missing) for name, data in whole["nodes"].items())
    cards = [card for node in nodes for card in node.cards]
    if gpus and not any(card.utilization is not None for card in cards) and cards:
        missing.append(Missing("gpu", _MIG))
    if not nodes:
        missing.append(Missing("all", "the data has no node: the job was too short for a sample, or is too old"))
    known = [node.cpus for node in nodes]
    cpus = sum(known) if known and None not in known else None
    figures = overall(nodes)
    return JobUse(
        form, node_count=len(nodes) or None, cpus=cpus, gpus=gpus, seconds=seconds, nodes=nodes, **figures,
        missing=tuple(dict.fromkeys(missing)),
    )  # fmt: skip


def _node(name: str, data: Any, seconds: float | None, missing: list[Missing]) -> Node:
    if not isinstance(data, dict):
        missing.append(Missing("all", f"node {shortened(name, 40)}: no figures"))
        return Node(name[:80])
    cpus, used = _whole(data.get("cpus")), _number(data.get("total_time"))
    cpu = used / (cpus * seconds) if used is not None and cpus and seconds else None
    memory_used, memory_total = _bytes(data.get("used_memory")), _bytes(data.get("total_memory"))
    memory = memory_used / memory_total if memory_used is not None and memory_total else None
    cpu = _at_most_all(cpu, "cpu", f"node {shortened(name, 40)}", missing)
    return Node(name[:80], cpus, cpu, memory_used, memory_total, memory, _cards(data, missing))


def _cards(data: dict[str, Any], missing: list[Missing]) -> tuple[Card, ...]:
    tables = [data.get(key) for key in ("gpu_utilization", "gpu_used_memory", "gpu_total_memory")]
    busy, used, total = (table if isinstance(table, dict) else {} for table in tables)
    cards = []
    for index in sorted({*busy, *used, *total}, key=lambda one: (len(one), one)):
        percent = _number(busy.get(index))
        share = _at_most_all(None if percent is None else percent / 100, "gpu", f"GPU {index[:20]}", missing)
        of, whole = _bytes(used.get(index)), _bytes(total.get(index))
        memory = of / whole if of is not None and whole else None
        if memory is not None and memory > IMPOSSIBLE:
            missing.append(Missing("gpu_memory", f"GPU {index[:20]}: {percent_text(memory)} of the card's"))
            memory = None
        cards.append(Card(index[:20], share, of, whole, memory))
    return tuple(cards)


def _at_most_all(share: float | None, what: str, where: str, missing: list[Missing]) -> float | None:
    """A share of time; one above 1 by more than rounding is an error of the data, and not known."""
    if share is None or share <= 1.005:
        return None if share is None else min(share, 1.0)
    missing.append(Missing(what, f"{where}: more than 100%"))
    return None


def _number(value: Any) -> float | None:
    """A number from 0 on; None for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e18
    return value if good and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**7 else None


def _bytes(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
