"""Reports of made-up jobs as jobstats prints them: what a test says, and the rest is usual."""

from __future__ import annotations

import base64
import gzip
import json

RULE = "=" * 80
GIB = 2**30


def meter(percent: float | str) -> str:
    """A meter of the overall section, or words in its place."""
    if isinstance(percent, str):
        return percent
    bars = "|" * min(48, int(percent) // 2)
    return "[" + bars + f"{percent:g}%".rjust(50 - len(bars)) + "]"


def text(
    meters: dict[str, float | str],
    details: dict[str, list[str]] | None = None,
    notes: tuple[str, ...] = (),
    **head: str,
) -> str:
    """A report: `meters` by their names, `details` by their headings, `notes`, and lines of the head by name."""
    usual = {
        "Job ID": "70000001",
        "User/Account": "someone/lab",
        "Job Name": "train",
        "State": "COMPLETED",
        "Nodes": "1",
        "CPU Cores": "8",
        "CPU Memory": "64GB (8GB per CPU-core)",
        "GPUs": "1",
        "QOS/Partition": "normal/rtx-batch",
        "Cluster": "here",
        "Start Time": "Tue Dec 1, 2026 at 9:05 AM",
        "Run Time": "01:10:00",
        "Time Limit": "01:30:00",
    } | {name.replace("_", " "): value for name, value in head.items()}
    lines = ["", RULE, "Slurm Job Statistics".center(80), RULE]
    lines += [f"{name:>15}: {value}" for name, value in usual.items() if value]
    lines += ["", "Overall Utilization".center(80), RULE]
    lines += [f"  {name:<16} {meter(value)}" for name, value in meters.items()]
    lines += ["", "Detailed Utilization".center(80), RULE]
    for heading, rows in (details or {}).items():
        lines += [f"  {heading}", *(f"      {row}" for row in rows), ""]
    lines += ["Notes".center(80), RULE, *(f"  * {note}" for note in notes)] if notes else []
    return "\n".join([*lines, ""])


CPU = "CPU utilization per node (CPU time used/run time)"
MEMORY = "CPU memory usage per node - used/allocated"
GPU = "GPU utilization per node"
GPU_MEMORY = "GPU memory usage per node - maximum used/total"
METERS = {"CPU utilization": 70, "CPU memory usage": 50, "GPU utilization": 85, "GPU memory usage": 75}


def data(
    *cards: tuple[float | None, float],
    cpus: int = 8,
    cpu: float = 0.7,
    memory: float = 0.5,
    seconds: int = 4200,
    node: str = "g1",
) -> dict:
    """jobstats' data of one node. Each card: utilization in percent (None: MIG), and memory as a share of 80 GiB."""
    held: dict = {"cpus": cpus, "total_time": cpu * cpus * seconds, "total_memory": 64 * GIB}
    held["used_memory"] = int(memory * 64 * GIB)
    if cards:
        held["gpu_total_memory"] = {str(place): 80 * GIB for place in range(len(cards))}
        held["gpu_used_memory"] = {str(place): int(share * 80 * GIB) for place, (_, share) in enumerate(cards)}
        held["gpu_utilization"] = {str(place): busy for place, (busy, _) in enumerate(cards) if busy is not None}
    if not held.get("gpu_utilization"):
        held.pop("gpu_utilization", None)
    return {"gpus": len(cards), "nodes": {node: held}, "total_time": seconds}


def payload(of: dict) -> str:
    """The same as Slurm keeps it in AdminComment."""
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps(of, separators=(",", ":")).encode())).decode()
