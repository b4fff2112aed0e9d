"""The batch ceiling against an exhaustive search in the same run. Needs a GPU; no pictures are read.

python tests/bench_memory.py [resnet50] [gpt] [contrastive]

Each model is searched by ``memory.ceiling``, then by doubling from 2 and bisection with the same three full steps, as
by hand, then by ``memory.ceiling`` again. ``contrastive`` compares all samples with all others: its memory is no line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from gpuworkshop.instruments import memory
from gpuworkshop.instruments.memory_ceiling import probe_in
from gpuworkshop.instruments.memory_room import CardRoom
from gpuworkshop.numbers import amount
from gpuworkshop.workloads import images, language
from gpuworkshop.workloads.config import PRESETS

DEVICE = "cuda:0"
FINE = 400
"""Bisection ends where the two sizes are one 400th apart."""


def trained(model: torch.nn.Module, loss: Callable[[int], torch.Tensor]) -> Callable[[int], None]:
    """One whole step over a batch of any size: BF16 forward, backward, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(batch)
        value.backward()
        optimizer.step()

    return step


def resnet50() -> Callable[[int], None]:
    """The network of the preset card, channels last, on noise."""
    px = PRESETS["card"].pictures.px
    model = images.network("resnet50", 8).to(DEVICE, memory_format=torch.channels_last)

    def loss(batch: int) -> torch.Tensor:
        x = torch.randn(batch, 3, px, px, device=DEVICE).contiguous(memory_format=torch.channels_last)
        return torch.nn.functional.cross_entropy(model(x), torch.randint(0, 8, (batch,), device=DEVICE))

    return trained(model, loss)


def gpt() -> Callable[[int], None]:
    """The GPT of the preset gpt."""
    sizes = PRESETS["gpt"].text
    model = language.GPT(sizes).to(DEVICE)

    def loss(batch: int) -> torch.Tensor:
        tokens = torch.randint(0, language.ALPHABET, (batch, sizes.context + 1), device=DEVICE)
        return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return trained(model, loss)


def contrastive() -> Callable[[int], None]:
    """Every sample against every other: memory grows with the square of the batch."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 128)).to(DEVICE)

    def loss(batch: int) -> torch.Tensor:
        features = torch.nn.functional.normalize(model(torch.randn(batch, 256, device=DEVICE)), dim=1)
        return torch.nn.functional.cross_entropy(features @ features.T, torch.arange(batch, device=DEVICE))

    return trained(model, loss)


def by_hand(step: Callable[[int], None]) -> tuple[int, int, float]:
    """The largest size that fits, the number of sizes tried, and the seconds: doubling, then bisection."""
    room, began, tried = CardRoom(DEVICE), time.perf_counter(), 0
    low, high = 1, 2
    while probe_in(step, high, room).fits:
        low, high, tried = high, 2 * high, tried + 1
    while high - low > max(1, low // FINE):
        middle = (low + high) // 2
        fits = probe_in(step, middle, room).fits
        low, high, tried = (middle, high, tried + 1) if fits else (low, middle, tried + 1)
    return low, tried + 1, time.perf_counter() - began


def line(name: str, found: memory.CeilingResult, true: int, seconds: float) -> str:
    """One search against the truth."""
    share = (found.ceiling or 0) / true
    words = "above the true one" if share > 1 else ""
    return (
        f"{name:12} ceiling {found.ceiling} ({found.above} does not fit), {share:.3f} of the true one {words}; "
        f"{len(found.probes)} probes, {found.seconds:.1f} s: {seconds / found.seconds:.1f}x as fast as by hand"
    )


def main() -> None:
    """Search each model three times and print."""
    if not torch.cuda.is_available():
        sys.exit("a GPU is needed: the ceiling of a CPU is the whole machine's memory")
    models = {"resnet50": resnet50, "gpt": gpt, "contrastive": contrastive}
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(DEVICE)}")
    for name in sys.argv[1:] or ("resnet50", "gpt"):
        step = models[name]()
        first = memory.ceiling(step, device=DEVICE, workload=name)
        true, tried, seconds = by_hand(step)
        again = memory.ceiling(step, device=DEVICE, workload=name)
        print(f"{name:12} by hand {true}, {tried} probes, {seconds:.1f} s; {amount(first.room)} free at the start")
        for found in (first, again):
            print(line(name, found, true, seconds))
            print("   ", ", ".join(f"{p.batch}{'' if p.fits else ' x'} {p.seconds:.1f} s" for p in found.probes))
        last = max((p for p in first.probes if p.fits), key=lambda p: p.batch)
        print(f"    at {last.batch}: {amount(last.allocated)} in tensors, {amount(last.reserved)} reserved", flush=True)
        del step
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
