"""The verb memory: what lies in the memory and when, which batch is worth taking, and which is the largest."""

import re
from typing import Annotated

from cyclopts import Parameter

from gpuworkshop.cli.base import BadInput, Switch, app, bad_input, show
from gpuworkshop.cli.measure import Settings, Where

START, HERE = Settings(), Where()
_UNITS = {"m": 2**20, "g": 2**30}


@app.command
def memory(
    *,
    sweep: Switch = False,
    ceiling: Switch = False,
    oom: Switch = False,
    isolate: Switch = False,
    anyway: Switch = False,
    limit: Annotated[str | None, Parameter(show_default=False)] = None,
    settings: Settings = START,
    where: Where = HERE,
) -> int:
    """What lies in the GPU's memory, and when? Weights, gradients, optimizer, activations, over two training steps.

    Parameters
    ----------
    sweep
        Instead: measure several batch sizes in turn and find the knee, the smallest that is about as fast as any.
    ceiling
        Instead: find the largest batch that runs three full steps, and the knee beside it.
    oom
        Instead: let the job run out of memory, safely, and show what makes it run again. On a CPU, of gpt-small.
    isolate
        With --ceiling: try each size in a process of its own, for models whose memory falls to pieces.
    anyway
        With --ceiling: search although somebody else is on the card.
    limit
        With --ceiling or --oom: plant a limit, such as 8GiB, that the job's memory may not pass.
    """
    from gpuworkshop.instruments import memory as instrument
    from gpuworkshop.instruments.memory_room import check_limit

    if sweep + ceiling + oom > 1:
        raise BadInput("--sweep, --ceiling and --oom are three measurements: ask for one of them")
    for name, given in (("--isolate", isolate), ("--anyway", anyway)):
        if given and not ceiling:
            raise BadInput(f"{name} goes with --ceiling")
    if limit is not None and not (ceiling or oom):
        raise BadInput("--limit goes with --ceiling or --oom")
    size = None if limit is None else _bytes(limit)
    with bad_input("--limit: "):
        check_limit(size)
    # a CPU's convolutions end the process where they get no memory
    job = where.job(without_card="gpt-small" if oom and not where.data else "tiny")
    config, how = settings.config(job), where.how("memory")
    if sweep:
        result = instrument.run_sweep(config, job, **how)
    elif ceiling:
        result = instrument.run_ceiling(config, job, isolate=isolate, anyway=anyway, limit_bytes=size, **how)
    elif oom:
        result = instrument.cured(config, job, limit_bytes=size, **how)
    else:
        result = instrument.run(config, job, **how)
    return show(instrument, result, where.as_json)


def _bytes(text: str) -> int:
    """A size such as ``8GiB`` or ``500M`` in bytes; BadInput for anything else."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([mg])(?:i?b)?\s*", text.lower())
    size = int(float(found[1]) * _UNITS[found[2]]) if found and len(found[1]) < 12 else 0
    if not size:
        raise BadInput(f"--limit: {text[:20]!r} is not a size: write 8GiB or 500MiB")
    return size
