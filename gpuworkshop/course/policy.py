"""What the site does with a card that is held and idle, from its typed file, as a learner reads it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.cluster import site
from gpuworkshop.cluster.facts import Idle
from gpuworkshop.cluster.site import Site, SiteError
from gpuworkshop.course import place
from gpuworkshop.report import Finding, Origin, Report, Table

TITLE = "A card that is held and idle"


def idle(here: Site | None = None) -> Report:
    """The idle policy of ``here`` (default: the site of the lessons); what nobody stated is said to be unknown."""
    try:
        here = here or place.site()
    except SiteError as error:
        return Report(TITLE, Origin("claimed by", "no site file"), (Finding("unknown", str(error)),))
    if here.idle.cancels is None:
        return _unknown(here)
    advice = tuple((one,) for one in here.idle.advice)
    table = (Table((f"what {here.name} advises",), advice),) if advice else ()
    origin = Origin("claimed by", here.source_of(here.idle))
    return Report(TITLE, origin, (*_known(here.idle, here), _never_busy()), table)


def _unknown(here: Site) -> Report:
    """Nobody stated what happens here; so what is stated of the site for which the course is made, as an example."""
    nobody = Finding(
        "unknown", f"Idle jobs on {here.name}: nobody stated what happens to them", f"ask {here.help.staff}"
    )
    other = site.load(place.HOME)
    example = Finding("notice", f"An example, from {other.name}: {other.idle.says}")
    return Report(TITLE, Origin("claimed by", other.source_of(other.idle)), (nobody, example, _never_busy()))


def _known(policy: Idle, here: Site) -> Iterator[Finding]:
    """What happens, and what is not known of it."""
    does = policy.says or ("Idle jobs are canceled." if policy.cancels else "Idle jobs are not canceled.")
    yield Finding("warning" if policy.cancels else "ok", f"{here.name}: {does}", _when(policy))
    if policy.cancels and policy.ask:
        yield Finding("unknown", policy.ask, f"ask {here.help.staff}")


def _when(policy: Idle) -> str:
    """The published numbers; "" where there is none."""
    after = f"after {policy.minutes:g} minutes" if policy.minutes else ""
    below = f"below {policy.below_percent:g}% utilization" if policy.below_percent is not None else ""
    return " ".join(filter(None, (after, below)))


def _never_busy() -> Finding:
    says = "it shows how long a card has been idle; a card without work is given back, not occupied"
    return Finding("notice", "This kit never keeps a card busy to look busy", says)
