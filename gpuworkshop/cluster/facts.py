"""The kinds of facts that a site file holds: one type a table.

A fact that nobody stated is absent (None, "" or an empty list) and is shown as unknown; it is never guessed. Every
table carries the key of its source, or inherits the file's. What must be asked of the site before anybody relies on
it is `unverified`, and `ask` is the question. Text that goes into a job script is checked for its form; the
description beside each form is what an error says was expected.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpuworkshop.cluster import slurm_time

Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z", description="a name of letters, digits, . _ + -")
]
GresName = Annotated[
    str, Meta(pattern=r"^gpu(:[A-Za-z0-9_][A-Za-z0-9_.+-]*)?\Z", description="gpu or gpu:TYPE, as GRES writes it")
]
Time = Annotated[
    str,
    Meta(
        pattern=r"^(unlimited|([0-9]{1,12}-)?[0-9]{1,4}:[0-5][0-9]:[0-5][0-9])\Z",
        description="hours:minutes:seconds such as 04:00:00, or unlimited",
    ),
]
Size = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8}[KMGT]\Z", description="a size such as 32G")]
ModuleName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]*\Z", description="what `module load` takes, such as cuda/12.4")
]
Option = Annotated[
    str, Meta(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_.,:/+-]+)?\Z", description="one long option such as --qos=gpu")
]
Place = Annotated[
    str, Meta(pattern=r"^[/$~][A-Za-z0-9_./${}-]*\Z", description="an absolute path, such as /data/$USER")
]
LogFile = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_./%][A-Za-z0-9_./%-]*\Z", description="a path such as logs/%x_%j.out")
]
Url = Annotated[str, Meta(pattern=r"^https://[^\s\"'<>`\\]+\Z", description="an address that begins with https://")]
Mail = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.+-]+@[A-Za-z0-9.-]+\Z", description="a mail address")]
Positive = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]
MOST = 10**6
Count = Annotated[int, Meta(ge=1, le=MOST, description="a whole number, 1 or more")]
Percent = Annotated[float, Meta(ge=0, le=100, description="a number from 0 to 100")]
Purpose = Literal["devel", "batch"]


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Facts that belong together: `source` is a key of the file's sources, "" for the file's own source.

    Raises ValueError when something is unverified and nobody says what to ask.
    """

    source: str = ""
    unverified: bool = False
    ask: str = ""

    def __post_init__(self) -> None:
        if self.unverified and not self.ask:
            raise ValueError("unverified needs ask, the question that the site must answer")


class Family(Fact, frozen=True):
    """One kind of card. `name` is what `verify --expect` takes, `gres` how the scheduler asks for it.

    `card` is the part of the driver's name for it that is always there; `memory_gb` is as advertised, the device
    reports less; `cards_per_node` is the most that one node has. `claims` are sentences of the source, not measured.
    """

    name: Name
    card: str = ""
    gres: GresName = "gpu"
    memory_gb: Positive | None = None
    power_watts: Positive | None = None
    cards_per_node: Count | None = None
    use: str = ""
    claims: tuple[str, ...] = ()


class Partition(Fact, frozen=True):
    """One partition: the families of cards in it (none: CPUs only), what it is for, and its limits.

    `running_jobs` counts one user's running jobs. `options` are what each job there must also say.
    """

    name: Name
    purpose: Purpose
    families: tuple[Name, ...] = ()
    time_limit: Time | None = None
    running_jobs: Count | None = None
    options: tuple[Option, ...] = ()
    use: str = ""
    note: str = ""

    @property
    def seconds(self) -> float | None:
        """The time limit in seconds, math.inf for unlimited; None when it is unknown."""
        return slurm_time.seconds(self.time_limit) if self.time_limit else None


class Module(Fact, frozen=True):
    """One environment module: what `module load` takes, and what it brings."""

    name: ModuleName
    brings: str = ""
    note: str = ""


class Storage(Fact, frozen=True):
    """One place for files; variables in `path` stay. `quota_gb` counts 10^9 bytes; `purge`: when files go."""

    path: Place
    purpose: Literal["home", "scratch", "project", "node"]
    quota_gb: Positive | None = None
    purge: str = ""
    filesystem: str = ""
    note: str = ""


class Idle(Fact, frozen=True):
    """What the site does with a job whose card is idle. Numbers that the site does not publish stay None."""

    cancels: bool | None = None
    says: str = ""
    minutes: Positive | None = None
    below_percent: Percent | None = None
    advice: tuple[str, ...] = ()


class Request(Fact, frozen=True):
    """How an interactive session is asked for; without a partition the scheduler takes its default."""

    time: Time
    shell: Name = "bash"
    partition: str = ""


class Conventions(Fact, frozen=True):
    """What a job asks for when nothing was measured yet, per card (`time` for the whole); where its logs go."""

    cpus_per_card: Count
    memory: Size
    time: Time
    output: LogFile
    error: LogFile
    cards: str = ""

    def share(self, cards: int) -> tuple[int, str]:
        """CPUs and host memory, as `--mem` takes it, for this many cards."""
        return self.cpus_per_card * cards, f"{int(self.memory[:-1]) * cards}{self.memory[-1]}"

    @property
    def memory_mb(self) -> float:
        """Host memory a card, in MiB."""
        return int(self.memory[:-1]) * {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}[self.memory[-1]]


class Habit(Fact, frozen=True):
    """The order of work that the site asks for: steps in a devel session, then in batch."""

    says: str = ""
    devel: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()


class Jobstats(Fact, frozen=True):
    """Whether the site has jobstats; None: unknown."""

    available: bool | None = None
    note: str = ""


class Portal(Fact, frozen=True):
    """The site's web portal."""

    url: Url | None = None
    name: str = ""


class Help(Fact, frozen=True):
    """Whom to ask, and what is offered."""

    email: Mail | None = None
    page: Url | None = None
    docs: Url | None = None
    offers: str = ""

    @property
    def staff(self) -> str:
        """Whom to write to."""
        return self.email or "the people who run the cluster"


class Training(Fact, frozen=True):
    """The site's own training material, and where it is cloned to."""

    repository: Url | None = None
    folder: Place | None = None


def card_words(name: str) -> list[str]:
    """The words of a card's name in lower case, without the maker's: "NVIDIA A100-SXM4-80GB" is a100, sxm4, 80gb."""
    return [word for word in re.findall(r"[a-z0-9.]+", name.lower()) if word not in ("nvidia", "tesla")]


def is_name(text: str) -> bool:
    """Whether a file, and so a job script, can hold this as a name."""
    try:
        return bool(msgspec.convert(text, Name))
    except msgspec.ValidationError:
        return False
