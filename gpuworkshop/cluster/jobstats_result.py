"""What a jobstats report says, whatever form it came in: one result for each node and card.

Shares are from 0 to 1, sizes in bytes, times in seconds. What the report does not say, or says in words, is None, and
`missing` has the words; it is never 0. Utilization is an average over the whole job, memory a maximum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from gpuworkshop.report import Origin

Form = Literal["report", "JSON", "payload", "sacct", "seff", "nothing"]

SAMPLING = 30
"""Seconds between two samples of jobstats."""
LEAST = 300
"""Seconds of a run below which its averages say little: ten samples, start-up among them."""


IMPOSSIBLE = 1.5
"""Share of a card's memory from which on it is an error of the data; jobstats rounds, and says a little above 1."""


class NoReport(ValueError):
    """A text that is no report of jobstats; the message is one line."""


class Card(msgspec.Struct, frozen=True):
    """One GPU. `index` is its number on the node, as the driver counts, not from 0 within the job."""

    index: str
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory: float | None = None
    """The maximum in use, as a share of the card's."""


class Node(msgspec.Struct, frozen=True):
    """One node: its CPUs, how much of their time was used, its host memory, and its cards."""

    name: str
    cpus: int | None = None
    cpu: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory: float | None = None
    cards: tuple[Card, ...] = ()


class Missing(msgspec.Struct, frozen=True):
    """A figure that the report has in words only: which, and the words."""

    what: str
    why: str


class JobUse(msgspec.Struct, frozen=True):
    """One job as jobstats and sacct know it."""

    form: Form
    job: str = ""
    name: str = ""
    state: str = ""
    """Slurm's, such as COMPLETED; without what may follow, such as "by 1002"."""
    partition: str = ""
    node_count: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory_asked: str = ""
    """As it was asked for, such as 32G: the whole job, or one node."""
    seconds: float | None = None
    limit: float | None = None
    """The time limit; infinity for none, None where it is not known."""
    started: bool = True
    running: bool = False
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    nodes: tuple[Node, ...] = ()
    missing: tuple[Missing, ...] = ()
    said: str = ""
    """What stood there instead of figures."""

    @property
    def cards(self) -> tuple[tuple[str, Card], ...]:
        """Every card with the name of its node."""
        return tuple((node.name, card) for node in self.nodes for card in node.cards)

    @property
    def has_figures(self) -> bool:
        """Whether there is anything to judge."""
        return any(value is not None for value in (self.cpu, self.memory, self.gpu, self.gpu_memory))

    @property
    def origin(self) -> Origin:
        """The mark of every number in it."""
        what = {"seff": "seff", "sacct": "Slurm"}.get(self.form, "jobstats")
        return Origin("claimed by", f"{what}, for job {self.job}" if self.job else what)

    def why(self, what: str) -> str:
        """Why a figure is not there, in the report's words; "" where nothing was said."""
        return next((one.why for one in self.missing if one.what == what), "")


def overall(nodes: Iterable[Node]) -> dict[str, float | None]:
    """The job's figures from those of its nodes: CPUs by their number, memory by its size, cards by their mean.

    A figure that one node or card lacks is left out of its mean; where all lack it, it is None.
    """
    nodes = tuple(nodes)
    cards = [card for node in nodes for card in node.cards]
    weighed = [(node.cpu, node.cpus) for node in nodes if node.cpu is not None and node.cpus]
    host = [(node.memory, node.memory_total) for node in nodes if node.memory is not None and node.memory_total]
    own = [(card.memory, card.memory_total) for card in cards if card.memory is not None and card.memory_total]
    busy = [card.utilization for card in cards if card.utilization is not None]
    return {
        "cpu": _mean(weighed),
        "memory": _mean(host),
        "gpu": _mean([(share, 1) for share in busy]),
        "gpu_memory": _mean(own),
    }


def _mean(shares: list[tuple[float, float]]) -> float | None:
    """The mean of shares, each with its weight; None without any."""
    whole = sum(weight for _, weight in shares)
    return sum(share * weight for share, weight in shares) / whole if whole else None
