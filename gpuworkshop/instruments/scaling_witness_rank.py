"""One rank of a watched script: runs it as ``__main__`` and writes down what it does with the others."""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gpuworkshop.child import Tell
from gpuworkshop.instruments.scaling_witness import Seen, Watched, WitnessResult
from gpuworkshop.machine.conditions import conditions
from gpuworkshop.workloads.ranks import own_device

SLACK = timedelta(seconds=60)
"""How long rank 0 waits for what the others saw, after its own script has ended."""

LONGEST_LINE = 100


class Aloud(io.TextIOBase):
    """What a script prints: kept with the log, and its newest line told as progress."""

    def __init__(self, tell: Tell, seconds: float):
        self._tell, self._seconds, self._began, self._line = tell, seconds, time.monotonic(), ""

    def write(self, words: str) -> int:
        """Take what is printed."""
        sys.stderr.write(words)
        *whole, self._line = (self._line + words).split("\n")
        if lines := [line for line in whole if line.strip()]:
            share = min(0.9, 0.1 + (time.monotonic() - self._began) / self._seconds)
            self._tell.progress(share, lines[-1].strip()[:LONGEST_LINE])
        return len(words)


class _Enough(BaseException):
    """The script went on long enough."""


def in_rank(request: Any, tell: Tell) -> WitnessResult:
    """Run the script in this rank; rank 0 collects what all of them saw, the others wait until they are ended."""
    asked, rank, size = msgspec.convert(request, Watched), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    tell.progress(0.1, f"running {Path(asked.script).name}")
    with redirect_stdout(Aloud(tell if rank == 0 else Tell(), asked.seconds)):
        seen = watch(asked, rank)
    store = dist.TCPStore(*address, is_master=False, timeout=SLACK)
    store.set(f"gpuworkshop/{rank}", msgspec.json.encode(seen).decode())
    while rank:
        signal.pause()
    here = conditions(own_device())
    return WitnessResult(asked.script, size, tuple(_of_rank(store, n) for n in range(size)), here, here.origin)


def watch(asked: Watched, rank: int) -> Seen:
    """Run a script to its end, or until enough was seen, and say what it did."""
    notes = Notes()
    stopped, error = False, ""
    sys.argv = [asked.script, *asked.arguments]
    sys.path[0] = str(Path(asked.script).resolve().parent)
    with notes.taken(), _limited(asked.seconds):
        try:
            runpy.run_path(asked.script, run_name="__main__")
        except _Enough:
            stopped = True
        except SystemExit as end:
            error = "" if end.code in (None, 0) else f"exit status {end.code}"
        except Exception as fault:
            error = f"{type(fault).__name__}: {' '.join(str(fault).split())[:200]}"
    return notes.seen(rank, stopped, error)


class Notes:
    """What a script does: the groups it joins, and what it wraps. Taken where PyTorch does it, however it is called."""

    def __init__(self):
        self.counts = {DistributedDataParallel: 0, DataParallel: 0, "sharded": 0}
        self.joined: Any = None
        self._before = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take notes while the enclosed lines run."""
        import torch.distributed.fsdp as fsdp

        undo = [_replace(kind, "__init__", self._counting(kind)) for kind in (DistributedDataParallel, DataParallel)]
        undo.append(_replace(fsdp.FullyShardedDataParallel, "__init__", self._counting("sharded")))
        undo.append(_replace(fsdp, "fully_shard", self._counting("sharded")))
        undo += [_replace(module, "init_process_group", self._joining()) for module in (dist, distributed_c10d)]
        try:
            yield
        finally:
            for put_back in undo:
                put_back()

    def seen(self, rank: int, stopped: bool, error: str) -> Seen:
        """The notes of one rank."""
        counts, world = self.counts, None
        if self.joined is not None:
            with suppress(Exception):
                world = self.joined.size()
        return Seen(
            rank=rank,
            world=world,
            ddp=counts[DistributedDataParallel],
            sharded=counts["sharded"],
            dataparallel=counts[DataParallel],
            exchanges=max(0, self._collectives() - self._before),
            stopped=stopped,
            error=error,
        )

    def _counting(self, key: Any) -> Callable:
        def around(original: Callable) -> Callable:
            def call(*arguments, **named):
                done = original(*arguments, **named)
                self.counts[key] += 1
                self._before = self._collectives()  # wrapping compares and copies weights: no training yet
                return done

            return call

        return around

    def _joining(self) -> Callable:
        def around(original: Callable) -> Callable:
            def call(*arguments, **named):
                done = original(*arguments, **named)
                self.joined = dist.group.WORLD
                self._before = self._collectives()
                return done

            return call

        return around

    def _collectives(self) -> int:
        """How many collectives this rank has begun in its world, by PyTorch's own count."""
        try:
            return self.joined._get_sequence_number_for_group() if self.joined is not None else 0
        except Exception:  # a group that was aborted, a backend that does not count
            return 0


def _replace(owner: Any, name: str, around: Callable[[Callable], Callable]) -> Callable[[], None]:
    original = getattr(owner, name)
    setattr(owner, name, around(original))
    return lambda: setattr(owner, name, original)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise :class:`_Enough` in the enclosed lines after so long."""

    def stop(*_: object) -> None:
        raise _Enough

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _of_rank(store: dist.TCPStore, rank: int) -> Seen:
    try:
        return msgspec.json.decode(store.get(f"gpuworkshop/{rank}"), type=Seen)
    except Exception:  # the others are told of it all the same
        return Seen(rank, error=f"it said nothing for {SLACK.seconds} s after rank 0 had ended")
