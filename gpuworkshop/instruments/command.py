"""Run a command as if nobody stood between it and its terminal: same streams, same signals, its own exit status.

In a terminal the command stays in the terminal's foreground group, so Ctrl-C reaches it from there; elsewhere it gets
a process group of its own. A signal sent to us alone is passed on. Nothing is ever ended from here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress

from gpuworkshop.machine.process_stat import Stat, pids, stat

PASSED_ON = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)

NOT_FOUND, NOT_STARTED = 127, 126
"""Exit statuses for a command that is not there, and for one that cannot be started; as a shell gives them."""

LOOK = 0.2
"""Seconds between two looks at whether the command has ended, should its own signal be missed."""

GRACE = 0.5
"""Seconds that processes of the command have to follow it before they count as left."""

_FROM_KERNEL = 128  # si_code of a signal that a terminal sends to its whole foreground group
_SUBREAPER = 36  # prctl: orphans below us become our children


class CannotStart(RuntimeError):
    """The command could not be started; ``status`` is what a shell would end with."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Command:
    """One command, running since it was made. ``wait`` gives its status; ``left`` what it left behind."""

    def __init__(self, words: Sequence[str], *, stdout_to_stderr: bool = False, adopt: bool = False):
        """``adopt``: this process takes in what the command leaves orphaned. Only for one that has no other children.

        Raises CannotStart.
        """
        self.words, self._adopt = list(words), adopt and _take_in_orphans(True)
        self._in_terminal = os.isatty(0)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
        try:
            self.pid = self._start(stdout_to_stderr)
        except BaseException:
            self.close()
            raise

    def _start(self, stdout_to_stderr: bool) -> int:
        how = {"setsigmask": self._mask, "setsigdef": [signal.SIGPIPE, signal.SIGXFSZ]}  # Python ignores these two
        if not self._in_terminal:
            how["setpgroup"] = 0
        if stdout_to_stderr:
            how["file_actions"] = [(os.POSIX_SPAWN_DUP2, 2, 1)]
        name = self.words[0]
        if not name:
            raise CannotStart('"": no such command', NOT_FOUND)
        try:
            return os.posix_spawnp(name, self.words, os.environ, **how)
        except FileNotFoundError:
            why = (
                "the program that it names in its first line is missing" if os.path.exists(name) else "no such command"
            )
            raise CannotStart(f"{name}: {why}", NOT_FOUND) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise CannotStart(f"{name}: cannot be started: {why}", NOT_STARTED) from None

    def wait(self) -> int:
        """The command's exit status; 128 + n when signal n ended it. Signals meanwhile are the command's."""
        while (status := self._ended()) is None:
            try:
                number, everybody = _next_signal((*PASSED_ON, signal.SIGCHLD), LOOK)
            except KeyboardInterrupt:  # another thread of ours does not block it
                number, everybody = signal.SIGINT, self._in_terminal
            if number and number != signal.SIGCHLD and not (everybody and self._in_terminal):
                self.send(number)
        return status

    def send(self, number: int) -> None:
        """Send a signal to the command; with its whole group, where it has one of its own."""
        with suppress(ProcessLookupError, PermissionError):
            (os.kill if self._in_terminal else os.killpg)(self.pid, number)

    def _ended(self) -> int | None:
        """The status once the command has ended. Orphans that ended are seen off too."""
        while True:
            try:
                pid, status = os.waitpid(-1 if self._adopt else self.pid, os.WNOHANG)
            except ChildProcessError:
                return 0  # somebody else waited for it
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                return None

    def left(self) -> tuple[str, ...]:
        """What still runs of the command after a moment of grace: "python (4711)". Call after :meth:`wait`."""
        until = time.monotonic() + GRACE
        while (found := self._remaining()) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def _remaining(self) -> tuple[str, ...]:
        with suppress(ChildProcessError):
            while self._adopt and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        running = [found for pid in pids() if (found := stat(pid)) and self._is_ours(found)]
        return tuple(f"{found.name} ({found.pid})" for found in running if found.state not in "ZX")

    def _is_ours(self, found: Stat) -> bool:
        """In the command's own group, or taken in by us."""
        in_group = not self._in_terminal and found.group == self.pid
        return in_group or (self._adopt and found.parent == os.getpid())

    def close(self) -> None:
        """Take signals as before. What was passed on, or came from the terminal, is not heard again."""
        for number in signal.sigpending() & set(PASSED_ON):
            signal.sigwait({number})
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if self._adopt:
            _take_in_orphans(False)


@contextmanager
def running(words: Sequence[str], **how: bool):
    """A :class:`Command` whose signals are given back at the end."""
    command = Command(words, **how)
    try:
        yield command
    finally:
        command.close()


def _next_signal(numbers: Sequence[int], seconds: float) -> tuple[int, bool]:
    """The next of these blocked signals and whether it went to our whole group; (0, False) when none came."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(numbers, seconds)
        return (info.si_signo, info.si_code == _FROM_KERNEL) if info else (0, False)
    until = time.monotonic() + seconds  # macOS: who sent it is not told; in a terminal it is taken to be the terminal
    while not (pending := signal.sigpending() & set(numbers)) and time.monotonic() < until:
        time.sleep(LOOK / 10)
    if not pending:
        return 0, False
    number = signal.sigwait(pending)
    return number, number in (signal.SIGINT, signal.SIGQUIT)


def _take_in_orphans(on: bool) -> bool:
    """Ask Linux for it; whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).prctl(_SUBREAPER, int(on), 0, 0, 0) == 0
    return False
