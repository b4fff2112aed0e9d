"""The live chart of a watch: drawn in Python, four times a second, from a thread that holds nothing up.

The samples stay with the watch, the picture in a widget of the kernel: a page that is loaded again shows both. A widget
may not show, so nothing is in it alone: the same output carries a face without one, which says where the picture will
be, and when the chart ends the output becomes the last picture. A saved notebook keeps that.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from gpuworkshop.figures.live import Meter, Row, live_strip
from gpuworkshop.instruments import idle, live_rows
from gpuworkshop.instruments.live_screen import Screen, forget_cell_end, on_cell_end, screen_for
from gpuworkshop.instruments.samples import Sample, WatchedCard
from gpuworkshop.instruments.watch import Watch
from gpuworkshop.machine.conditions import processor
from gpuworkshop.report import Figure, Origin, measured_here

PERIOD = 0.25
"""Seconds from one picture to the next."""


class Watched(Protocol):
    """What can be shown: a :class:`.watch.Watch`, or its sampler."""

    @property
    def samples(self) -> Sequence[Sample]:
        """What was seen until now, the oldest first."""

    @property
    def watched(self) -> Sequence[WatchedCard]:
        """The cards of the job; empty until they are known, and where there is none."""

    @property
    def over(self) -> bool:
        """Whether no further sample comes."""


class Live:
    """One chart on the page. Ends with its watch, with an interrupted cell, and with :meth:`stop`."""

    def __init__(
        self, watch: Watched, screen: Screen, policy: idle.Policy | None = None, own: Callable[[], None] | None = None
    ):
        """`own` ends a watch that is there for this chart alone; it is called when the chart ends."""
        self._watch, self._end_own = weakref.ref(watch), own
        self._screen = screen
        self._meter = idle.IdleMeter(policy or idle.policy())
        self._rows: tuple[Row, ...] = ()
        self._reading: Meter | None = None
        self._origin = _origin(())
        self._at, self._seen = -1.0, ""
        self.failure = ""
        """An error of our own that ended the chart; what is watched goes on."""
        self._stopping = threading.Event()
        self._ending = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="gpuworkshop-live", daemon=True)

    @property
    def running(self) -> bool:
        """Whether the chart still follows its watch."""
        return not self._stopping.is_set()

    def start(self) -> None:
        """Show the chart and begin to draw, once. Returns at once."""
        if self._thread.ident is not None:
            return
        self._look()
        self._screen.open(self.figure(), self.stop)
        on_cell_end(self._cell_ended)
        self._thread.start()

    def stop(self) -> None:
        """End the chart and leave its last picture; a watch that was given goes on. May be called twice."""
        with self._ending:  # whoever comes second waits until the last picture is there
            if self._stopping.is_set():
                return
            self._stopping.set()
            forget_cell_end(self._cell_ended)
            if self._end_own:
                self._end_own()
            self._look()
            self._screen.close(self.figure())

    def figure(self) -> Figure:
        """The last picture."""
        state = "live" if self.running else f"ended: {self.failure}" if self.failure else "ended"
        stamp = f"{state}, last sample {self._seen or 'n/a'}"
        return live_strip(self._rows, self._reading, self._origin, stamp, live_rows.SECONDS)

    def __str__(self) -> str:
        return str(self.figure())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.figure()._repr_mimebundle_()

    def _ipython_display_(self) -> None:
        self._screen.show_again(self)

    def _cell_ended(self, result: Any) -> None:
        """IPython's word that a cell has ended: so does the chart if it was interrupted, or if the watch is over."""
        if isinstance(result.error_in_exec, KeyboardInterrupt) or self._over():
            self.stop()

    def _over(self) -> bool:
        watch = self._watch()
        return watch is None or watch.over

    def _look(self) -> None:
        """Take what is new; the last reading stays when the watch is gone."""
        watch = self._watch()
        samples = watch.samples if watch else []
        if not samples or samples[-1].at == self._at:
            return
        cards = watch.watched
        self._at, self._seen = samples[-1].at, datetime.now().strftime("%H:%M:%S")
        self._meter.add(samples)
        self._rows = live_rows.rows(cards, live_rows.newest(samples))
        self._reading = self._meter.read(cards)
        self._origin = _origin(cards)

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # a chart must never disturb what it shows
            self.failure = f"{type(error).__name__}: {error}"
        self.stop()

    def _follow(self) -> None:
        """Draw at a steady pace until somebody stops it; a late picture is not made up for."""
        due = time.monotonic()
        while not self._over():
            due = max(due + PERIOD, time.monotonic())
            if self._stopping.wait(due - time.monotonic()):
                return
            with self._ending:  # nothing is drawn over the last picture
                if self.running:
                    self._look()
                    self._screen.draw(self.figure())


def live(watch: Watched | None = None) -> Live:
    """Show `watch` below this cell while it runs::

        with Watch() as seen:
            live(seen)
            train()

    `live()` watches from now on, over the cells that follow, until it is stopped. Only the newest chart of a watch is
    live. Where a notebook shows no widgets, the whole output is replaced once a second; outside a notebook nothing
    shows by itself: print what this returns.
    """
    if watch is None:
        return _alone()
    before = _charts.get(watch)
    if before is not None:
        before.stop()
    chart = _charts[watch] = Live(watch, screen_for())
    chart.start()
    return chart


_charts: weakref.WeakKeyDictionary[Any, Live] = weakref.WeakKeyDictionary()
_by_itself: list[Live] = []
"""The chart that has a watch of its own, if there is one."""


def _alone() -> Live:
    """A chart with a watch of its own, in the place of the one before."""
    while _by_itself:
        _by_itself.pop().stop()
    watch = Watch(what="this kernel")
    watch.__enter__()
    chart = Live(watch, screen_for(), own=watch.stop)
    _by_itself.append(chart)
    chart.start()
    return chart


def _origin(cards: Sequence[WatchedCard]) -> Origin:
    return measured_here(", ".join(dict.fromkeys(card.name for card in cards)) or processor())
