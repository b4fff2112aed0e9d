"""FLOP/s of a large matrix product in the script's own format, measured after its last step, on its own device."""

from __future__ import annotations

from typing import Any

from gpuworkshop_hooks import records

SIDE = {"cpu": 512, "cuda": 8192}
BLOCKS, SECONDS = 8, 0.05


def measure(session: Any, kind: str, tf32: bool) -> None:
    """Write the blocks of products; random numbers, because zeros need less power. No room for them: no record."""
    torch, clock = session.torch, session.clock
    side = SIDE["cuda" if session.device.startswith("cuda") else "cpu"]
    try:
        with torch.no_grad():
            a, b = (torch.randn(side, side, device=session.device).to(getattr(torch, kind)) for _ in range(2))
            if kind == "float32" and session.device.startswith("cuda"):
                torch.set_float32_matmul_precision("high" if tf32 else "highest")
            count = 1
            each = _block(clock, a, b, count)
            count = max(1, int(SECONDS / max(each, 1e-6)))
            _block(clock, a, b, count)
            blocks = [_block(clock, a, b, count) for _ in range(BLOCKS)]
    except (RuntimeError, TypeError) as error:  # out of memory, or a format that this device has no products for
        records.note("no product", words=str(error)[:200])
        return
    records.write("product", dtype=kind, tf32=tf32, seconds=blocks, products=count, flop=2 * side**3)


def _block(clock: Any, a: Any, b: Any, count: int) -> float:
    start = clock.mark()
    for _ in range(count):
        a.mm(b)
    end = clock.mark()
    clock.finish()
    return clock.seconds(start, end)
