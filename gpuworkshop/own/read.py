"""From the hooks' records to a result: rates and intervals by the kit's own clock, settings, and what was not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gpuworkshop.instruments import trace
from gpuworkshop.instruments.starve_result import CEILING, REAL, StarveResult, tells_same_story, which_limit
from gpuworkshop.instruments.trace_sums import TraceSums, sums
from gpuworkshop.loop.look_result import Watched, traced
from gpuworkshop.machine import allocation, conditions
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.own import flops_read
from gpuworkshop.own.command import Understood
from gpuworkshop.own.not_seen import not_seen
from gpuworkshop.own.records import Process, Records
from gpuworkshop.own.result import Ended, Hot, Losses, OwnResult, Settings
from gpuworkshop.report import Origin
from gpuworkshop.timing import Block, Rate, Rounds

TAIL_LINES = 40
TAIL_BYTES = 16_384


class Run(msgspec.Struct, frozen=True):
    """A run that is over, as the launcher saw it. ``status``: of the command; None where it was given up."""

    command: tuple[str, ...]
    understood: Understood
    folder: Path
    status: int | None
    timed_out: bool
    seconds: float
    budget: float | None
    watched: Watched | None = None


def read(run: Run, records: Records) -> OwnResult:
    """The result of a run from its records."""
    main = records.main
    here = _conditions(main or next((one for one in records.processes.values() if one.of("torch")), None))
    settings = _settings(main, records) if main else None
    baseline = _rounds(main, "baseline", (REAL,)) if main else None
    starve = _starve(main, settings, here) if main and settings else None
    rate = baseline.rate(REAL) if baseline else None
    memory, profile = main.one("memory") if main else {}, _profile(main)
    found = OwnResult(
        command=run.command,
        script=_script(run, main),
        ended=_ended(run, main),
        exit_code=run.status,
        own_words=tail(run.folder / "output.txt"),
        output=str(run.folder / "output.txt"),
        steps=_steps(main) if main else 0,
        settings=settings,
        starve=starve,
        rate=rate,
        step_seconds=_step_seconds(baseline),
        traced=traced(profile) if profile else None,
        achieved=flops_read.achieved_by(main, rate) if main else None,
        watched=run.watched,
        memory=_memory_share(memory),
        memory_bytes=memory.get("reserved"),
        not_seen=(),
        losses=_losses(main),
        seconds=run.seconds,
        conditions=here,
        origin=here.origin if here else Origin("measured here", conditions.host()),
        communication=_communication(profile, settings),
        beside=float(main.one("beside").get("share", 0.0)) if main else 0.0,
        hot=_hot(main),
        world_rates=_world_rates(records) if settings and settings.world > 1 else (),
    )
    return msgspec.structs.replace(found, not_seen=not_seen(found, run.understood, records, run.budget))


def tail(file: Path) -> str:
    """The last lines of what a script printed."""
    try:
        with file.open("rb") as output:
            output.seek(max(0, file.stat().st_size - TAIL_BYTES))
            text = output.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.rstrip("\n").split("\n")]
    return "\n".join(lines[-TAIL_LINES:])


def _script(run: Run, main: Process | None) -> str:
    said = main.one("first step").get("script", "") if main else ""
    return said or run.understood.script


def _ended(run: Run, main: Process | None) -> Ended:
    if main and (main.one("end") or _counting(main) or main.one("fault").get("fatal")):
        return "stopped by us"
    if run.timed_out:
        return "timed out"
    if run.status == 0:
        return "by itself"
    return "signal" if run.status is None or run.status < 0 or run.status > 128 else "error"


def _counting(main: Process) -> bool:
    """Whether it ended in the last step of all, under the flop counter, when everything else was measured."""
    return main.one("phase").get("name") == "count"


def _steps(main: Process) -> int:
    """Steps that were seen; of a process that was ended from outside, until its last record."""
    if main.sums:
        return int(main.sums["steps"])
    return max((int(one.get("n") or 0) for one in main.records), default=0)


# What it uses


def _settings(main: Process, records: Records) -> Settings | None:
    said = main.one("settings")
    if not said:
        return None
    device = said["device"]
    on_cpu = device.startswith("cpu")  # there a library's own calls wait for nothing
    ended = main.sums.get("loaders")
    seen = (one for one in said["waits"] if (one["direct"] if on_cpu else one["device"] != "cpu"))
    waits = sorted(seen, key=lambda one: -one["a_step"])
    made = {
        **{name: said[name] for name in Settings.__struct_fields__ if name in said},
        "precision": _precision(said),
        "autocast": bool(said["autocast"]),
        "loaders": ended or said["loaders"],
        "waits": [one for one in waits if one["a_step"] > 0],
        "forks": len({one.rank for one in records.trained}) < len(records.trained),
    }
    return msgspec.convert(made, Settings, strict=False)


def _precision(said: dict[str, Any]) -> str | None:
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    kind = names.get(said["autocast"] or said["weights_kind"])
    on_card = said["device"].startswith("cuda")
    return "tf32" if kind == "fp32" and said["tf32"] and on_card else kind


def _conditions(process: Process | None) -> Conditions | None:
    if process is None:
        return None
    said, hello = process.one("settings"), process.one("hello")
    device = str(said.get("device") or "cpu")
    cards = [flops_read.cards(said)[0]] if device.startswith("cuda") else []
    known = conditions.known(device, cards, allocation.cpus(), "")
    version = str(process.one("torch").get("version", ""))
    return msgspec.structs.replace(known, python=hello.get("python", ""), torch=version, threads=said.get("threads"))


# What was measured


def _rounds(main: Process, phase: str, arms: tuple[str, ...]) -> Rounds | None:
    """The blocks of a phase; None with fewer than two of each arm. Steps count where batches have no size."""
    blocks = [one for one in main.of("block") if one["phase"] == phase and one["arm"] in arms]
    sized = all(one["samples"] for one in blocks)
    rounds = Rounds(arms, "samples/s" if sized else "steps/s")
    for one in blocks:
        samples = one["samples"] if sized else one["steps"]
        rounds.blocks[one["arm"]].append(Block(one["seconds"], one["steps"], samples, one["spans"]))
    fewest = len(rounds)
    for arm in arms:  # a run that ended between the two blocks of a pair
        del rounds.blocks[arm][fewest:]
    return rounds if fewest >= 2 else None


def _step_seconds(rounds: Rounds | None) -> float | None:
    if rounds is None:
        return None
    return rounds.seconds(REAL) / sum(block.steps for block in rounds.blocks[REAL])


def _starve(main: Process, settings: Settings, here: Conditions) -> StarveResult | None:
    rounds = _rounds(main, "pairs", (REAL, CEILING))
    if rounds is None or not settings.loaders:
        return None
    workers = sum(loader.workers for loader in settings.loaders)
    headroom, wait = rounds.compare(REAL, CEILING), rounds.share(REAL, "wait")
    agrees = None if workers else tells_same_story(wait, headroom)
    block = rounds.blocks[REAL][0]
    return StarveResult(
        workload="your script",
        real=rounds.rate(REAL),
        ceiling=rounds.rate(CEILING),
        loader=None,
        headroom=headroom,
        wait_name="loader wait" if here.device == "cpu" else "stall",
        wait_share=wait,
        data_work_share=0.0,
        slowed_share=1 - wait - 1 / headroom.ratio,
        agrees=agrees,
        limit=which_limit(headroom, agrees, wait),
        startup_seconds=max((float(one) for one in main.sums.get("startups", ())), default=0.0),
        workers=workers,
        batch_size=round(block.samples / block.steps),
        config=None,
        planted="",
        conditions=here,
        origin=here.origin,
        wait_interval=rounds.share_interval(REAL, "wait"),
    )


def _profile(main: Process | None) -> TraceSums | None:
    file = main.one("trace").get("file") if main else None
    if not file:
        return None
    try:
        return sums(trace.read(file))
    except trace.NoTrace:
        return None


def _memory_share(said: dict[str, Any]) -> float | None:
    if not said:
        return None
    room = said["free"] + said["now"]
    return min(1.0, said["reserved"] / room) if room else None


def _losses(main: Process | None) -> Losses | None:
    said = main.one("losses") if main else {}
    return Losses(tuple(said["samples"]), tuple(said["values"])) if said.get("values") else None


def _communication(profile: TraceSums | None, settings: Settings | None) -> float | None:
    several = settings is not None and settings.world > 1
    return profile.main.only_communicating if several and profile and profile.main else None


def _hot(main: Process | None) -> tuple[Hot, ...]:
    said = main.one("stacks").get("hot", ()) if main else ()
    return msgspec.convert(said, tuple[Hot, ...])


def _world_rates(records: Records) -> tuple[Rate, ...]:
    found = (_rounds(one, "baseline", (REAL,)) for one in records.trained)
    return tuple(rounds.rate(REAL) for rounds in found if rounds)
