"""The idle meter: how long a card has been idle, what the site does about it, and the GPU-minutes of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import msgspec

from gpuworkshop.cluster import site as sites
from gpuworkshop.cluster.site import Site, SiteError
from gpuworkshop.figures.live import Meter
from gpuworkshop.instruments.samples import CardSample, Sample, WatchedCard

UNKNOWN = "This site's policy for idle cards is not known: ask."


class Policy(msgspec.Struct, frozen=True):
    """What a site does with a job whose card is idle, in a sentence.

    A card is idle at 0 and below `below`, a share; `seconds` is the limit, None when it is unknown.
    """

    says: str = UNKNOWN
    seconds: float | None = None
    below: float = 0.0


def policy(load: Callable[[], Site] = sites.load) -> Policy:
    """The policy of the chosen site; an unknown one if its file has none, or cannot be used."""
    try:
        site = load()
    except SiteError:
        return Policy()
    idle, below = site.idle, (site.idle.below_percent or 0.0) / 100
    if idle.cancels is None:
        return Policy(_ask(UNKNOWN, site), below=below)
    if not idle.cancels:
        return Policy(f"{site.name} does not cancel jobs with an idle card.", below=below)
    if idle.minutes is None:
        unknown = f"{site.name} cancels jobs with an idle card. After how many minutes is not known: ask."
        return Policy(_ask(unknown, site), below=below)
    under = f", below {idle.below_percent:g}% utilization" if idle.below_percent else ""
    says = f"{site.name} cancels a job after {idle.minutes:g} min with an idle card{under}."
    return Policy(says, 60 * idle.minutes, below)


def _ask(sentence: str, site: Site) -> str:
    """The sentence with the address to ask, where the site has one."""
    return f"{sentence[:-1]} {site.help.email}." if site.help.email else sentence


class _Card:
    """What is kept of one card: when it last was busy, and the mean of its utilization so far."""

    def __init__(self) -> None:
        self.busy_at: float | None = None
        self.covered = self.used = 0.0

    def add(self, at: float, card: CardSample, below: float) -> None:
        if card.busy is None:
            return
        self.covered += card.covered
        self.used += card.covered * card.busy
        if card.busy > 0 and card.busy >= below:
            self.busy_at = at


class IdleMeter:
    """Counts from sample to sample and keeps none, so that it knows the whole watch however long it is."""

    def __init__(self, site_policy: Policy):
        self._policy = site_policy
        self._cards: dict[str, _Card] = {}
        self._last = -1.0

    def add(self, samples: Sequence[Sample]) -> None:
        """Take what is new at the end of `samples`, the oldest first."""
        for sample in [*takewhile(lambda sample: sample.at > self._last, reversed(samples))][::-1]:
            self._last = sample.at
            for card in sample.cards:
                self._cards.setdefault(card.uuid, _Card()).add(sample.at, card, self._policy.below)

    def read(self, cards: Sequence[WatchedCard]) -> Meter | None:
        """The meter of the card that has been idle for longest; None where there is no card."""
        if not cards:
            return None
        counts = {card.uuid: self._cards.get(card.uuid, _Card()) for card in cards}
        longest = max(cards, key=lambda card: self._idle(counts[card.uuid]) or -1.0)
        count, held = counts[longest.uuid], max(self._last, 0.0) / 60
        known = [one for one in counts.values() if one.covered > 0]
        return Meter(
            idle=self._idle(count),
            since_start=count.busy_at is None,
            limit=self._policy.seconds,
            policy=self._policy.says,
            held=held * len(cards),
            used=sum(one.used / one.covered * held for one in known) if len(known) == len(cards) else None,
            card=longest.label if len(cards) > 1 else "",
        )

    def _idle(self, count: _Card) -> float | None:
        """Seconds since the card was last seen busy; None if it never told."""
        if count.covered <= 0:
            return None
        return self._last - (count.busy_at or 0.0)
