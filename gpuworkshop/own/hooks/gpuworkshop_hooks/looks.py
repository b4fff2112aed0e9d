"""Looks at the stack of the training thread every few ms: at which lines of the script's own code its time goes.

    looks = Looks(thread)      # the session's thread; begins at once
    ...                        # steps, with all that lies between them
    looks.end()                # [{"places": [innermost, ...], "share": 0.4, "in_loader": False}, ...] for `hot`

A run of its own: the looks take the interpreter's lock, so nothing is timed meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from gpuworkshop_hooks import places

EVERY_SECONDS = 0.004
DEEPEST = 8
"""Own frames that are kept of a look."""
MOST = 60
"""Lines that are told, the most frequent first."""
_LOADER = ("torch/utils/data/dataloader.py", "torch\\utils\\data\\dataloader.py")


class Looks:
    """Adds up what is seen until :meth:`end`.

    A look has to wait for the interpreter's lock, longest where pure Python runs: so each counts as the time since
    the look before it.
    """

    def __init__(self, thread: int):
        self.thread, self.seen = thread, {}
        self._over = threading.Event()
        self._helper = threading.Thread(target=self._look, name="gpuworkshop-looks", daemon=True)
        self._helper.start()

    def _look(self) -> None:
        before = time.perf_counter()
        while not self._over.wait(EVERY_SECONDS):
            frame = sys._current_frames().get(self.thread)
            now = time.perf_counter()
            if frame is not None:
                key = _own(frame)
                self.seen[key] = self.seen.get(key, 0.0) + now - before
            before = now

    def end(self) -> list[dict]:
        """The lines with their shares, the most frequent first."""
        self._over.set()
        self._helper.join(1.0)
        whole = sum(self.seen.values())
        ordered = sorted(list(self.seen.items()), key=lambda item: -item[1])[:MOST]
        return [
            {"places": [places.at(*one) for one in lines], "share": seconds / whole, "in_loader": in_loader}
            for (lines, in_loader), seconds in ordered
            if lines
        ]


def _own(frame: Any) -> tuple:
    """The own frames, the innermost first, and whether a loader is at work within the innermost loop of the script."""
    lines, in_loader = [], False
    while frame is not None and len(lines) < DEEPEST:
        file = frame.f_code.co_filename
        if places.is_own(file):
            lines.append((file, frame.f_lineno, frame.f_code.co_name))
        elif file.endswith(_LOADER) and frame.f_code.co_name in ("__next__", "__iter__"):
            in_loader = True
        frame = frame.f_back
    return tuple(lines), in_loader
