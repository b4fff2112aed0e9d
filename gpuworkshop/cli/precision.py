"""The verb that compares number formats: precision."""

from gpuworkshop.cli.base import Switch, app, bad_input, show
from gpuworkshop.cli.measure import Settings, Where

START, HERE = Settings(), Where()


@app.command
def precision(
    *,
    fp16: Switch = False,
    learn: Switch = False,
    settings: Settings = START,
    where: Where = HERE,
) -> int:
    """How much faster is a step in BF16 than in FP32, and than in TF32; how much memory does it need?

    With --compiled it measures BF16 with torch.compile as well.

    Parameters
    ----------
    fp16
        Measure FP16 with a gradient scaler as well.
    learn
        Train in every format as well, and say whether it still learns.
    """
    from gpuworkshop.instruments import precision as instrument

    job = where.job()
    config, how = settings.config(job), where.how("precision")
    more = [name for name, wanted in (("fp16", fp16), ("bf16-compiled", config.compiled)) if wanted]
    arms = (*instrument.USUAL, *more) if more else None
    config = config.with_(compiled=False)
    with bad_input():
        instrument.only_its_own(config)
    return show(instrument, instrument.run(config, job, arms=arms, learn=learn, **how), where.as_json)
