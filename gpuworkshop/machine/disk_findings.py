"""What the room on disk means for the course: what is full, nearly full, not writable or silent, and the exact fix."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.machine.disk import Disk, Place, Quota
from gpuworkshop.numbers import number
from gpuworkshop.report import Finding

MB, GB = 10**6, 10**9
FULL = MB
"""Less free room than this is none."""
NAMES = {
    "home": "home folder",
    "state": "your progress",
    "cache": "cache of the kit",
    "tmp": "temporary files",
    "shm": "shared memory",
    "here": "this folder",
}
"""Places as a reader knows them."""
NEEDS = {
    "home": (50 * MB, "notebooks and settings"),
    "state": (10 * MB, "progress and the ledger"),
    "cache": (200 * MB, "the pictures that the kit writes"),
    "tmp": (500 * MB, "what PyTorch unpacks and compiles"),
    "shm": (500 * MB, "batches on their way from loader workers"),
}
"""Free room that a place should have, in bytes, and what for."""
FIXES = {
    "state": "export GPUWORKSHOP_STATE=FOLDER  # a folder with room",
    "cache": "export GPUWORKSHOP_CACHE=FOLDER  # a folder with room",
    "tmp": "export TMPDIR=FOLDER  # a folder with room",
    "shm": "docker run --shm-size=8g ...  # or num_workers=0",
    "home": "du -xh --max-depth=2 ~ | sort -h | tail  # what takes the room",
}
NEAR = 0.9
"""Share of a quota from which on it is worth a word."""
WRITTEN = {"home", "state", "cache", "tmp", "shm"}
"""Places to which somebody must be able to write; the course's own folder may be read-only."""


def findings(disk: Disk) -> tuple[Finding, ...]:
    """What stands in the way; one ok when nothing does."""
    found = [one for place in disk.places for one in _place(place)]
    found += [one for quota in disk.quotas for one in _quota(quota)]
    return tuple(found) or (Finding("ok", "There is room on disk", _summary(disk)),)


def named(place: str) -> str:
    """A place as a reader knows it."""
    return NAMES.get(place, place)


def size(count: int | None) -> str:
    """Bytes in words: MB below 1 GB; "n/a" if not known."""
    if count is None:
        return "n/a"
    unit, name = next((u, n) for u, n in ((1000 * GB, "TB"), (GB, "GB"), (MB, "MB")) if count >= u or n == "MB")
    return f"{number(count / unit)} {name}"


def _place(place: Place) -> Iterator[Finding]:
    where = f"{named(place.place)} ({place.path})"
    if not place.answered:
        says = "its file server may be gone; whatever touches it will wait" if "no answer" in place.problem else ""
        yield Finding("warning", f"{where}: {place.problem or 'its room is not known'}", says)
        return
    if place.writable is False and place.place in WRITTEN:
        yield Finding("warning", f"{where} cannot be written", _is_on(place), FIXES[place.place])
    needed, what_for = NEEDS.get(place.place, (0, ""))
    if place.free < FULL and place.place in NEEDS:
        yield Finding("fail", f"{where} is full", f"{_is_on(place)}; it is for {what_for}", FIXES[place.place])
    elif place.free < needed:
        title = f"{where} has {size(place.free)} left; {what_for} may need {size(needed)}"
        yield Finding("warning", title, _is_on(place), FIXES[place.place])
    elif place.files and not place.files_free and place.place in NEEDS:
        title = f"{where} holds as many files as it can: no new one can be made"
        yield Finding("fail", title, f"{place.files:,} files; {_is_on(place)}", FIXES[place.place])


def _quota(quota: Quota) -> Iterator[Finding]:
    for used, limit, says in (
        (quota.used, quota.limit, f"{size(quota.used)} of {size(quota.limit)}"),
        (quota.files, quota.files_limit, f"{quota.files:,} of {quota.files_limit or 0:,} files"),
    ):
        if limit and used >= limit:
            title = f"Your quota on {quota.filesystem} is used up: {says}"
            yield Finding("fail", title, f"{quota.said_by} says so", FIXES["home"])
        elif limit and used >= NEAR * limit:
            title = f"Your quota on {quota.filesystem} is nearly used up: {says}"
            yield Finding("warning", title, f"{quota.said_by} says so", FIXES["home"])


def _is_on(place: Place) -> str:
    on = " on ".join(filter(None, (place.filesystem, place.mount)))
    return f"{size(place.free)} of {size(place.total)} free" + (f", {on}" if on else "")


def _summary(disk: Disk) -> str:
    """The room of each file system with the places on it, and what quotas say."""
    rooms: dict[str, list[str]] = {}
    for one in disk.places:
        rooms.setdefault(size(one.free), []).append(named(one.place))
    free = [f"{room} free for {', '.join(places)}" for room, places in rooms.items()]
    quotas = [f"quota on {one.filesystem}: {size(one.used)} of {_most(one)}" for one in disk.quotas]
    return "; ".join(free + quotas)


def _most(quota: Quota) -> str:
    return size(quota.limit) if quota.limit else "no limit"
