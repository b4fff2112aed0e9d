"""The verb scale: do more ranks pay, and does a script use those it is given?"""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from gpuworkshop.cli.base import BadInput, app, show
from gpuworkshop.cli.measure import Settings, Where

NAIVE, HERE = Settings(), Where()


@app.command
def scale(
    *script: Annotated[str, Parameter(show_default=False)],
    ranks: int = 2,
    straggler_ms: float = 0.0,
    settings: Settings = NAIVE,
    where: Where = HERE,
) -> int:
    """Do more cards pay? One rank alone and worlds of several in turn, with and without their all-reduce.

    Without a card the ranks are CPU cores. On one card: gpuworkshop scale --ranks 1

    With a script, written last, it is run as so many ranks, and the question is: do they work together, or does each
    do the same work? gpuworkshop scale --ranks 2 -- train.py --epochs 1

    Parameters
    ----------
    script
        A training script of yours with its arguments, after --
    ranks
        How many ranks at most; 2, 4, 8, ... below it are measured too.
    straggler_ms
        Planted: milliseconds that the last rank really waits in each step.
    """
    if script:
        from gpuworkshop.instruments import scaling_witness

        if straggler_ms or settings != NAIVE or replace(where, launcher="", as_json=False) != HERE:
            raise BadInput("a script brings its own job: only --ranks, --launcher and --json go with it")
        seen = scaling_witness.run(script[0], script[1:], ranks, **where.how("scale"))
        return show(scaling_witness, seen, where.as_json)
    from gpuworkshop.instruments import scaling

    job = where.job()
    config = settings.config(job)
    result = scaling.run(config, job, ranks, straggler_ms=straggler_ms, **where.how("scale"))
    return show(scaling, result, where.as_json)
