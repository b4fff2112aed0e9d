"""Jobs with one bottleneck planted by real means: nothing is pretended, each does what slow jobs really do.

A diagnosis must name what was planted. ``shows_on`` says where it can be seen: what makes a card idle cannot be seen
without one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpuworkshop.workloads.config import Job, TrainConfig

Limit = Literal["data", "launches", "synchronizing", "copies", "compute", "memory", "unknown"]
"""What can limit a run."""

BOTH, CARD = ("cpu", "card"), ("card",)


class Planted(msgspec.Struct, frozen=True):
    """A job and its start, what limits it, and what was planted, in words."""

    name: str
    limit: Limit
    job: Job
    start: TrainConfig
    says: str
    shows_on: tuple[Literal["cpu", "card"], ...] = BOTH


def _text(preset: str, **settings) -> tuple[Job, TrainConfig]:
    job = Job(preset)
    return job, job.sizes.start.with_(**{"reads_loss": "rarely", **settings})


DECODED = TrainConfig("pre-decoded")

PLANTED = (
    Planted("decoding in one process", "data", Job(), TrainConfig(), "one process decodes every JPEG, and trains"),
    Planted(
        "one worker",
        "data",
        Job(),
        TrainConfig(workers=1, persistent_workers=True),
        "one worker decodes every JPEG, and the training process waits for it",
    ),
    Planted(
        "slow storage",
        "data",
        Job(storage_wait_ms=60),
        DECODED,
        "every read of a batch really waits 60 ms",
    ),
    Planted(
        "many small files on slow storage",
        "data",
        Job(storage_wait_ms=4),
        TrainConfig(batch_size=16),
        "every file read really waits 4 ms, one after the other",
    ),
    Planted(
        "pictures cropped on the host",
        "data",
        Job(),
        DECODED.with_(transform="host", batch_size=64),
        "the training process crops one picture after the other before each step",
    ),
    Planted("a GPT too small", "launches", *_text("gpt-tiny", batch_size=2), "every operation is tiny"),
    Planted("a batch of one", "launches", *_text("gpt-tiny", batch_size=1), "a batch holds one sequence"),
    Planted(
        "one call a sample",
        "launches",
        *_text("gpt-tiny", batch_size=16, calls="a sample"),
        "the model is called once for each sequence of a batch",
    ),
    Planted("FP32 on a wide GPT", "compute", *_text("gpt-small"), "large products in FP32", ("cpu",)),
    Planted("FP32 on a large batch", "compute", *_text("gpt-small", batch_size=32), "large products in FP32", ("cpu",)),
    Planted("FP32 on a GPT", "compute", *_text("gpt"), "large products in FP32, and nothing else in the way", CARD),
    Planted(
        "every sample read in each step",
        "synchronizing",
        *_text("gpt-tiny", batch_size=256, reads_loss="with samples"),
        "in each step the host reads the largest output of every sample, one by one, as a script does that counts hits",
        CARD,
    ),
    Planted(
        "outputs copied in each step",
        "copies",
        *_text("gpt", precision="bf16", reads_loss="with outputs"),
        "in each step all outputs are copied to the host, as a script does that counts hits there",
        CARD,
    ),
    Planted(
        "large pageable batches",
        "copies",
        Job("card-small"),
        DECODED.with_(workers=8, persistent_workers=True, batch_size=512, precision="bf16"),
        "large batches go to the card from memory that is not pinned, and the step waits for them",
        CARD,
    ),
    Planted(
        "no room for a larger batch",
        "memory",
        Job("gpt", memory_gib=5.5),
        Job("gpt").sizes.start.with_(precision="bf16", batch_size=3),
        "PyTorch may use 5.5 GiB of the card's memory, so the batch cannot grow",
        CARD,
    ),
)
"""All of them, those that a CPU shows first."""


def by_name(name: str) -> Planted:
    """The planted job with this name; KeyError if there is none."""
    for one in PLANTED:
        if one.name == name:
            return one
    raise KeyError(f"no planted job {name!r}: there are {', '.join(one.name for one in PLANTED)}")


def that_show_on(device: str) -> tuple[Planted, ...]:
    """The planted jobs that can be seen on ``"cpu"`` or on a card."""
    kind = "cpu" if device == "cpu" else "card"
    return tuple(one for one in PLANTED if kind in one.shows_on)
