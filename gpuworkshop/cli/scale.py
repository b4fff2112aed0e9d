"""The verb scale: do more ranks pay?"""

from gpuworkshop.cli.base import BadInput, app, show
from gpuworkshop.cli.measure import Settings, Where

NAIVE, HERE = Settings(), Where()


@app.command
def scale(*, ranks: int = 2, straggler_ms: float = 0.0, settings: Settings = NAIVE, where: Where = HERE) -> int:
    """Do more cards pay? One rank alone and worlds of several in turn, with and without their all-reduce.

    Without a card the ranks are CPU cores. On one card: gpuworkshop scale --ranks 1

    Parameters
    ----------
    ranks
        How many ranks at most; 2, 4, 8, ... below it are measured too.
    straggler_ms
        Planted: milliseconds that the last rank really waits in each step.
    """
    from gpuworkshop.instruments import scaling

    if not 0 <= straggler_ms <= 10_000:
        raise BadInput(f"--straggler-ms is {straggler_ms:g}: between 0 and 10000")
    job = where.job()
    config = settings.config(job)
    result = scaling.run(config, job, ranks, straggler_ms=straggler_ms, **where.how("scale"))
    return show(scaling, result, where.as_json)
