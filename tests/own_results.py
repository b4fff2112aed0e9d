"""Runs of a script of one's own, made by hand: what the hooks would have seen."""

import math
import re

import msgspec

from gpuworkshop.instruments.starve_result import StarveResult
from gpuworkshop.instruments.starve_result import which_limit as by_headroom
from gpuworkshop.loop.look_result import Traced
from gpuworkshop.machine.conditions import Conditions
from gpuworkshop.own.result import Hot, Loader, Optimizer, OwnResult, Place, Settings
from gpuworkshop.report import Origin
from gpuworkshop.timing import Rate, compare

FILE = "/made/up/train.py"
ORIGIN = Origin("measured here", "a test", "2026-12-01", "0.1.0")
MS = 10.0
"""Milliseconds of a plain step."""


def conditions(device: str = "cpu", cpus: int = 2, **changes) -> Conditions:
    made = Conditions(
        device=device, machine="a test", uuid="", driver="", cpus=cpus, cpus_said_by="affinity", threads=1,
        python="3.11.2", torch="2.14.1", kit="0.1.0", date="2026-12-01",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def rate(value: float, unit: str = "samples/s") -> Rate:
    return Rate(value, 0.99 * value, 1.01 * value, 8, unit)


def starved(wait: float = 0.0, work: float = 0.0, here: Conditions | None = None, headroom: float | None = None,
            workers: int = 0) -> StarveResult:  # fmt: skip
    """A run of 10 ms a step and 32 samples that waits, and works on its batch, for these shares of the time."""
    here = here or conditions()
    ratio = headroom or 1 / (1 - wait - work)
    comparison = compare([math.log(ratio) + 0.001 * (-1) ** n for n in range(8)])
    now = rate(32_000 / MS)
    return StarveResult(
        workload="a test", real=now, ceiling=rate(now.value * ratio), loader=rate(1.3 * now.value), headroom=comparison,
        wait_name="loader wait" if here.device == "cpu" else "stall", wait_share=wait, data_work_share=work,
        slowed_share=0.0, agrees=True, limit=by_headroom(comparison, True, wait + work), startup_seconds=0.0,
        workers=workers, batch_size=32, config=None, planted="", conditions=here, origin=ORIGIN,
    )  # fmt: skip


def on_host(heavy: float, mean: float = 8.0) -> Traced:
    """A profile on a CPU: the share of a step in large operators, and the mean operator."""
    return Traced(steps=20, step=1e3 * MS, calls=900, median=4.0, heavy=1e3 * MS * heavy, mean=mean)


def on_card(busy: float = 1.0, copying: float = 0.0, late: float = 0.0, waited: float = 0.0, up: float = 0.0) -> Traced:
    """A profile of a card: shares of a step that it was busy, and why it was idle in the profiled time."""
    return Traced(
        steps=20, step=3e3 * MS, calls=900, median=4.0, busy=1e3 * MS * busy, copying=1e3 * MS * copying, to_card=up,
        idle_launching=late, idle_synchronizing=waited,
    )  # fmt: skip


def place(text: str, words: str, file: str = FILE) -> Place:
    """The first line of a text with these words in it."""
    lines = re.split(r"\r\n|\r|\n", text)
    line = next(n for n, one in enumerate(lines, 1) if words in one)
    return Place(file, line, lines[line - 1].strip())


def loader(where: Place | None, workers: int = 0, batch_size: int | None = 32, **changes) -> Loader:
    made = Loader(
        place=where, workers=workers, batch_size=batch_size, pin_memory=False, persistent_workers=False,
        prefetch_factor=None, dataset="Rows", iterable=False, batches=200, epochs=2,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def optimizer(where: Place | None, kind: str = "AdamW", **changes) -> Optimizer:
    made = Optimizer(place=where, kind=kind, steps=100, fused=None, foreach=None, weights=100_000)
    return msgspec.structs.replace(made, **changes)


def settings(device: str = "cpu", **changes) -> Settings:
    made = Settings(
        device=device, precision="fp32", autocast=False, scaler=False, channels_last=None, checkpointing=False,
        compiled=False, ddp="", world=1, accumulation=1.0, loaders=(), optimizers=(),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def hot(share: float, *places: Place, in_loader: bool = False) -> Hot:
    return Hot(places, share, in_loader)


def own(seen: StarveResult | None = None, used: Settings | None = None, **changes) -> OwnResult:
    """A run that was stopped when everything was measured."""
    here = seen.conditions if seen else conditions()
    made = OwnResult(
        command=("python", "train.py"), script=FILE, ended="stopped by us", exit_code=0, own_words="", output="",
        steps=100, settings=used or settings(here.device), starve=seen, rate=rate(32_000 / MS), step_seconds=MS / 1e3,
        traced=None, achieved=None, watched=None, memory=None, memory_bytes=None, not_seen=(), losses=None,
        seconds=30.0, conditions=here, origin=ORIGIN,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)
