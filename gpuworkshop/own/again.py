"""Once more after a change: the script as it was and as it is now, in pairs, in turn; and what that says.

Each launch is a short watched run of its own, so what differs from launch to launch is in the interval. Both arms run
on this machine today: the numbers of the snapshot itself are never compared with new ones.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments.learning import Judgement
from gpuworkshop.loop import ledger
from gpuworkshop.loop.ledger import Own, Record
from gpuworkshop.own import changes as differing
from gpuworkshop.own import code as code_of
from gpuworkshop.own import snapshot
from gpuworkshop.own.again_result import AgainResult, findings, report
from gpuworkshop.own.changes import Attribution, Changes, Differs
from gpuworkshop.own.code import Code
from gpuworkshop.own.learned import learned
from gpuworkshop.own.pairs import MOST, Pairs
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import OwnResult
from gpuworkshop.own.snapshot import CannotCompare, NoSnapshot, Snapshot
from gpuworkshop.own.staged import staged

__all__ = [
    "AgainResult",
    "CannotCompare",
    "NoSnapshot",
    "NothingChanged",
    "ScriptGone",
    "begin",
    "findings",
    "report",
    "run",
]

Launch = Callable[..., OwnResult]
ALTERS = ("batch_size", "accumulation", "optimizer")
"""A difference here alters the training itself."""


class NothingChanged(CannotCompare):
    """Script, files and arguments are as they were."""


class ScriptGone(CannotCompare):
    """The script is not there any more."""


def begin(result: OwnResult, code: Code, cwd: Path | None = None) -> Snapshot | None:
    """Keep a first run: its snapshot, and the baseline in the ledger. None where nothing of it can be compared."""
    if result.rate is None or result.conditions is None:
        return None
    when = ledger.now()
    made = snapshot.of(result, when, code, run=f"own-{when}", cwd=cwd)
    if not made.script:
        return None
    snapshot.keep(made)
    ledger.add(_record(made, "baseline", result, kept=True))
    return made


def run(
    command: Sequence[str] = (),
    *,
    budget_seconds: float | None = None,
    least: int | None = None,
    most: int = MOST,
    tell: Tell | None = None,
    cwd: Path | None = None,
    start: Launch | None = None,
) -> AgainResult:
    """Compare the newest snapshot that counts with the script as it is now.

    ``command``: how it is started now; not given: as then. ``least`` and ``most``: pairs. ``start`` stands for
    ``launch.run``. Raises CannotCompare.
    """
    here = cwd or Path.cwd()
    before = snapshot.newest(code_of.look(command, here).script if command else "")
    words, here = (tuple(command), here) if command else (before.command, Path(before.cwd))
    code = code_of.look(words, here, before.script)
    if not code.files:
        raise ScriptGone(f"{code.script or before.script} is not there any more: it was measured {_day(before)}")
    seen = _changed(before, words, code, here)
    if not seen:
        what = f"{Path(before.script).name}, what it imports from its folder, and its arguments are as they were"
        raise NothingChanged(f"nothing changed: {what} {_day(before)}. Make one change first")
    with tempfile.TemporaryDirectory(prefix="gpuworkshop-") as folder:
        old_words, old_cwd = staged(before, Path(folder, "before"))
        pairs = Pairs(budget_seconds, least, start or _launch(), tell or Tell(), most)
        pairs.measure((old_words, old_cwd), (words, here))
    return _told(before, words, code, here, seen, pairs)


def _launch() -> Launch:
    from gpuworkshop.own import launch

    return launch.run


def _changed(before: Snapshot, words: Sequence[str], code: Code, cwd: Path) -> Changes:
    old_head, old = code_of.split(before.command, before.script, Path(before.cwd))
    head, new = code_of.split(words, code.script, cwd)
    started = (Differs("started by", " ".join(old_head), " ".join(head)),) if old_head != head else ()
    arguments = (*started, *differing.arguments_differ(old, new))
    return Changes(differing.files_differ(before.texts, code_of.texts(code.files)), arguments, ())


def _told(before: Snapshot, words: Sequence[str], code: Code, cwd: Path, seen: Changes, pairs: Pairs) -> AgainResult:
    """What the launches say, kept in the ledger and as the newest snapshot."""
    after = pairs.after[-1] if pairs.after else None
    old, new = (differing.in_words(one.settings) if one else {} for one in (pairs.before_one, after))
    seen = Changes(seen.files, seen.arguments, differing.settings_differ(old, new))
    what = differing.attribute(seen)
    why_not = pairs.failed or pairs.not_comparable
    comparison = None if why_not else pairs.comparison
    learning = None if why_not else learned(pairs.losses_before, pairs.losses_after, _numerics(what, seen))
    kept, why = _kept(comparison, what, learning) if comparison else (False, why_not)
    where = (after or before.result).conditions or before.result.conditions
    result = AgainResult(
        when=ledger.now(),
        measured=before.when,
        command=tuple(words),
        script=code.script,
        changes=seen,
        attribution=what,
        comparison=comparison,
        rate_before=pairs.rate("before"),
        rate_after=pairs.rate("after"),
        learning=learning,
        kept=kept,
        why=why,
        failed=pairs.failed_arm,
        own_words=pairs.own_words,
        output=pairs.output,
        elsewhere=_elsewhere(before, where),
        launches=pairs.launches,
        seconds=pairs.seconds,
        conditions=where,
        origin=where.origin,
    )
    return _keep(result, before, after, code, cwd)


def _keep(result: AgainResult, before: Snapshot, after: OwnResult | None, code: Code, cwd: Path) -> AgainResult:
    """Into the ledger, and as a snapshot; with the records of all changes until now."""
    if after is None or result.comparison is None:
        return result
    made = snapshot.of(after, result.when, code, run=before.run, cwd=cwd, counts=result.kept)
    snapshot.keep(made)
    record = _record(
        made,
        "change",
        after,
        before=differing.in_words(before.result.settings),
        rate=result.rate_after,
        rate_before=result.rate_before,
        remedy=result.attribution.title,
        changed=tuple(one.name for one in result.changes.settings),
        comparison=result.comparison,
        learning=result.learning,
        kept=result.kept,
        why=result.why,
    )
    ledger.add(record)
    chain = [one for one in ledger.of_run(ledger.read()[0], before.run) if one.conditions.comparable(result.conditions)]
    return msgspec.structs.replace(result, records=tuple(chain or (record,)))


def _record(made: Snapshot, kind: str, result: OwnResult, before: dict[str, str] | None = None, **known) -> Record:
    settings = differing.in_words(result.settings)
    counts = {name: int(settings[name]) for name in ("workers", "batch_size") if settings.get(name, "").isdecimal()}
    own = Own(made.script, settings, before or {}, **counts)
    name = Path(made.script).name
    known = {"rate": result.rate, **known}
    return Record(made.when, made.run, name, kind, None, conditions=result.conditions, own=own, **known)


def _numerics(what: Attribution, seen: Changes) -> str:
    """What the change does to the arithmetic; unknown code may round otherwise, but must learn as before."""
    if what.remedy:
        return remedies()[what.remedy].numerics
    return "training" if any(one.name in ALTERS for one in seen.settings) else "close"


def _kept(comparison, what: Attribution, learning: Judgement | None) -> tuple[bool, str]:
    if comparison.verdict != "faster":
        return False, str(comparison)
    if not what.one:
        return False, f"faster, and it cannot be attributed: {what.why}"
    if learning and learning.ok is False:
        return False, f"faster, and it learns worse: {learning.says}"
    return True, str(comparison)


def _elsewhere(before: Snapshot, now) -> str:
    """What differs between where the snapshot was measured and here, which makes its own numbers not comparable."""
    then = before.result.conditions
    if then is None or now is None or then.comparable(now):
        return ""
    names = [name for name in ("machine", "uuid", "driver", "torch") if getattr(then, name) != getattr(now, name)]
    shown = [
        f"{'card' if name == 'uuid' else name} {getattr(then, name) or 'n/a'} -> {getattr(now, name) or 'n/a'}"
        for name in names
    ]
    return ", ".join(shown) or f"device {then.device} -> {now.device}"


def _day(before: Snapshot) -> str:
    return time.strftime("on %Y-%m-%d at %H:%M", time.strptime(before.when[:16], "%Y-%m-%dT%H:%M"))
