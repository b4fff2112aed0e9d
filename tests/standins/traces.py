"""Writes traces as PyTorch's profiler does, of a training that was made up for a test. Times in microseconds.

    trace = Traced()
    with trace.step():
        trace.op("aten::mm", 20, launches=[("sgemm_128", 50)])
    trace.write(folder / "trace.json")

The host has one clock that `op`, `wait` and `idle` move on; the card starts a kernel when it was launched and the one
before it has ended.
"""

import gzip
import json
from contextlib import contextmanager
from pathlib import Path

HOST, STREAM, LAUNCH = 100, 7, 5


class Traced:
    """One host thread and one card."""

    def __init__(self, device: int = 0, start: float = 1_000.0):
        self.device, self.now, self.card_free, self.steps, self.links = device, start, start, 0, 0
        self.events: list[dict] = []
        self.head: dict = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Made-up card"}]}

    def event(self, cat, name, start, duration, tid=HOST, pid=HOST, **args):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args}
        )

    def idle(self, microseconds):
        """The host does nothing that the trace would show."""
        self.now += microseconds

    def op(self, name, microseconds, launches=(), cat="cpu_op"):
        """An operator of the host that launches kernels, (name, microseconds) each, at its beginning."""
        begin = self.now
        for kernel, length in launches:
            self.launch(kernel, length)
        self.now = max(self.now, begin + microseconds)
        self.event(cat, name, begin, self.now - begin)

    def launch(self, name, length, cat="kernel", call="cudaLaunchKernel", seen=True, **args):
        """One launch; `seen`: whether the profiler also recorded what ran on the card."""
        self.links += 1
        self.event("cuda_runtime", call, self.now, LAUNCH, correlation=self.links)
        begin = max(self.now + LAUNCH, self.card_free)
        if seen:
            self.event(
                cat, name, begin, length, STREAM, self.device, device=self.device, stream=STREAM,
                correlation=self.links, **args
            )  # fmt: skip
        self.card_free, self.now = begin + length, self.now + LAUNCH

    def copy(self, name, length, size):
        """A copy that the host does not wait for."""
        self.launch(name, length, "gpu_memcpy", "cudaMemcpyAsync", bytes=size)

    def wait(self, call="cudaStreamSynchronize"):
        """The host waits until the card has done everything."""
        begin = self.now
        self.now = max(self.now, self.card_free) + 2
        self.event("cuda_runtime", call, begin, self.now - begin)

    @contextmanager
    def label(self, name, cat="user_annotation"):
        begin = self.now
        yield
        self.event(cat, name, begin, self.now - begin)

    def step(self):
        self.steps += 1
        return self.label(f"ProfilerStep#{self.steps}")

    def loader(self, microseconds):
        with self.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            self.idle(microseconds)

    def text(self, events=None, **dump) -> str:
        return json.dumps({**self.head, "traceEvents": self.events if events is None else events}, **dump)

    def write(self, file: Path, **dump) -> Path:
        data = self.text(**dump).encode()
        file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
        return file
