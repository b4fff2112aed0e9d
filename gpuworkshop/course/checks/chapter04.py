"""The checks of chapter 4: the DataLoader call, and one step up the data-path ladder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from gpuworkshop.course.checks import STUB, Found, does_nothing, right, told, wrong
from gpuworkshop.loop.remedies import explaining, remedies

SAMPLES = 10  # with a batch of 4 the last batch is short, so a dropped one shows
BATCH = 4


def knobs(make_loader: Any) -> Found:
    """Judge `make_loader(dataset, batch_size, workers)`, which must return a DataLoader with the
    four settings right for any number of workers, and every sample once, in random order."""
    if not callable(make_loader):
        return wrong("no-function", kind=type(make_loader).__name__)
    for workers in (2, 1, 0):
        try:
            loader = _call(make_loader, workers)
        except (Exception, SystemExit) as error:
            return _raised(error, workers)
        if loader is ... or loader is None:
            return STUB if loader is ... or does_nothing(make_loader) else wrong("returns-nothing")
        if found := _not_a_loader(loader) or _wrong_setting(loader, workers):
            return found
    return _wrong_data(loader) or right()


def _call(make_loader: Callable, workers: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns when there are fewer cores than workers
        return make_loader(list(range(SAMPLES)), BATCH, workers)


def _raised(error: BaseException, workers: int) -> Found:
    """Which settings PyTorch refused, else the learner's own error."""
    mistake = "raised"
    if workers == 0 and isinstance(error, ValueError):
        refused = (name for name in ("prefetch_factor", "persistent_workers") if name in str(error))
        mistake = next(refused, mistake)
    return wrong(mistake, workers=workers, error=told(error))


def _not_a_loader(loader: Any) -> Found | None:
    from torch.utils.data import DataLoader

    return None if isinstance(loader, DataLoader) else wrong("no-loader", kind=type(loader).__name__)


def _wrong_setting(loader: Any, workers: int) -> Found | None:
    """The first setting that is wrong for this number of workers."""
    import torch

    card = torch.cuda.is_available()
    if loader.num_workers != workers:
        return wrong("workers-fixed", workers=workers, got=loader.num_workers)
    if loader.batch_size != BATCH:
        return wrong("batch-fixed", asked=BATCH, got=loader.batch_size)
    if loader.pin_memory != card:
        return wrong("pinning-forgotten" if card else "pinning-without-card")
    if workers and not loader.persistent_workers:
        return wrong("workers-not-kept", workers=workers)
    if workers and loader.prefetch_factor < 2:
        return wrong("prefetch-low", workers=workers, got=loader.prefetch_factor)
    return None


def _wrong_data(loader: Any) -> Found | None:
    """Whether one epoch gives every sample once, in random order."""
    from torch.utils.data import RandomSampler

    if not isinstance(loader.sampler, RandomSampler):
        return wrong("no-shuffle")
    loader.pin_memory = False  # pinning would make this process hold the card
    try:  # of a larger data set only the beginning
        seen = [int(sample) for batch in islice(loader, 2 * SAMPLES) for sample in islice(batch, 2 * SAMPLES)]
    except (Exception, SystemExit) as error:
        return wrong("cannot-read", error=told(error))
    if sorted(seen) != list(range(SAMPLES)):
        return wrong("samples-lost", samples=SAMPLES, got=len(seen), different=len(set(seen)))
    return None


VERDICTS = {"no real difference": "no-difference", "slower": "slower"}


def ladder(trial: Any) -> Found:
    """Judge a `Trial` of `gpuworkshop.loop.climb.try_one`: one remedy of the data path, faster beyond
    noise, and the model still learns."""
    if hasattr(trial, "data_path"):  # a TrainConfig: what to try, not yet tried
        return wrong("not-measured")
    if not hasattr(trial, "comparison"):
        return wrong("no-trial", kind=type(trial).__name__)
    found = _wrong_change(trial) or _wrong_outcome(trial)
    return found or right(
        changed=_named(trial.changed),
        comparison=trial.comparison,
        learning=trial.learning.says + (f" (planted: {trial.planted})" if trial.planted else ""),
    )


def _named(settings: Iterable[str]) -> str:
    return ", ".join(f"`{setting}`" for setting in settings)


def _wrong_change(trial: Any) -> Found | None:
    """Whether the difference is one remedy, and one for the data path."""
    if not trial.changed:
        return wrong("nothing-changed")
    of_the_data_path = {name for remedy in remedies() if not remedy.in_step for name in remedy.touches}
    if others := [name for name in trial.changed if name not in of_the_data_path]:
        return wrong("other-ladder", changed=_named(others))
    return None if explaining(trial.before, trial.after) else wrong("two-changes", changed=_named(trial.changed))


def _wrong_outcome(trial: Any) -> Found | None:
    comparison = trial.comparison
    if comparison is None:
        return wrong("not-possible", why=trial.why)
    facts = {"ratio": comparison.ratio, "smallest": comparison.smallest}
    if comparison.verdict != "faster":
        return wrong(VERDICTS.get(comparison.verdict, "no-verdict"), **facts)
    if trial.learning.ok is False:  # None: it cannot be judged, as its words say
        return wrong("learns-nothing", **facts, learning=trial.learning.says)
    return None


CHECKS: dict[str, Callable[..., Found]] = {"knobs": knobs, "ladder": ladder}
