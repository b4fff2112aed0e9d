"""What verify found: facts only. What they mean is said by `verify_findings`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpuworkshop.cluster.facts import Help, Idle, card_words
from gpuworkshop.instruments.verify_first import First, State
from gpuworkshop.instruments.verify_probe import TorchSays
from gpuworkshop.machine import specs
from gpuworkshop.machine.disk import Disk
from gpuworkshop.machine.frontend import FrontEnd
from gpuworkshop.machine.gpus import Card
from gpuworkshop.machine.interpreter import Interpreter
from gpuworkshop.numbers import several, shortened
from gpuworkshop.report import Origin

SHOWN = 4
"""Cards of the table that are named beside the sites' own, to somebody who misspelled one."""


class Expected(msgspec.Struct, frozen=True):
    """A kind of card that was asked for: the name given, what it is called, and how the driver's names for it read."""

    name: str
    title: str
    names: tuple[str, ...]
    """Words of which one is in the driver's name of such a card."""
    whole: bool = False
    """Whether such a name is all of it: an L40S is no L4."""

    def fits(self, card: str) -> bool:
        """Whether a card with this name, as the driver prints it, is of the kind."""
        found = card_words(card.partition(" MIG ")[0])
        wanted = [card_words(name) for name in self.names]
        if self.whole:
            return found in wanted
        return any(found[at : at + len(one)] == one for one in wanted for at in range(len(found)))


class Stopped(msgspec.Struct, frozen=True):
    """The probe ended in the middle of a step: it hung and was given up, or the step took the process with it."""

    step: str
    """As the probe told it, such as "allocation on cuda:0"."""
    hung: bool
    words: str
    """How it ended."""
    seconds: float
    """How long the step was waited for."""


class Caller(msgspec.Struct, frozen=True):
    """The process that asked: which Python, which front end, and how many cards it sees if it has woken CUDA itself."""

    python: Interpreter
    front: FrontEnd | None = None
    bindings: dict[str, str] = {}
    """Installed packages that bring, or claim to bring, the module pynvml, with their versions."""
    awake: int | None = None


class Place(msgspec.Struct, frozen=True):
    """What the site file says that matters here. ``problem``: why it could not be read."""

    name: str = ""
    source: str = ""
    help: Help = Help()
    idle: Idle = Idle()
    request: str = ""
    """The line that asks for an interactive session with a card."""
    problem: str = ""


class VerifyResult(msgspec.Struct, frozen=True):
    """Everything that is known; ``first.cards`` as PyTorch sees them where it sees any.

    ``partial``: PyTorch has not answered yet.
    """

    first: First
    torch: TorchSays
    caller: Caller
    place: Place
    origin: Origin
    expect: Expected | None = None
    stopped: Stopped | None = None
    launcher: tuple[str, ...] = ()
    disk: Disk | None = None
    partial: bool = False

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards of this job."""
        return self.first.cards.mine

    @property
    def usable(self) -> bool:
        """Whether at least one card was used, and came back right."""
        return any(trip.same and trip.bf16 is not False and not trip.fault for trip in self.torch.trips)

    @property
    def split(self) -> bool:
        """Whether all there is are cards in MIG mode of which this job has no slice."""
        return bool(self.first.cards.split_without_slice) and not self.usable

    @property
    def there_is_a_card(self) -> bool:
        """Whether anything, the driver or the system, shows a card, whoever's it is."""
        seen = self.first.cards
        shown = seen.mine or seen.lost or seen.others or seen.split_without_slice
        return bool(shown or self.torch.seen or self.first.device_files)

    def state(self, card: Card) -> State:
        """How a card is now; nothing known where NVML does not know it."""
        return self.first.states.get(card.uuid, State())


def expected(name: str, families: Iterable[tuple[str, str, str]]) -> Expected | None:
    """The kind of card that ``name`` stands for; None for "". ValueError for an unknown one, with some that are known.

    ``families`` are those of the sites: site, name, and the words that are in the driver's name.
    """
    asked = name.strip().lower()
    if not asked:
        return None
    groups = [(family, f"{words} ({site})", words) for site, family, words in families if words]
    for family, title, words in groups:
        if family.lower() == asked:
            return Expected(family, title, (words,))
    found = [spec for spec in specs.known() if f"{spec.id}-".startswith(f"{asked}-")]
    if found:
        title = found[0].title if len(found) == 1 else asked.upper()
        return Expected(asked, title, tuple(dict.fromkeys(name for spec in found for name in spec.names)), whole=True)
    here = list(dict.fromkeys(family for family, _, _ in groups))
    known = [*here, *(spec.id for spec in specs.known() if spec.id not in here)]
    listed = several(known, len(here) + SHOWN)
    raise ValueError(f'no card is known as "{shortened(name)}"; known: {listed}; the first part of one will do: a100')
