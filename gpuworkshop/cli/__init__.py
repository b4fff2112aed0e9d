"""The command `gpuworkshop`: one module for each group of verbs, one function for each verb.

Exit codes: 0 fine, 1 a finding of level fail, 2 bad usage or input (one line on stderr), 130 interrupted.
A new verb is a function under `@app.command`, in the module of its group or in one of its own; importing the module
here is what registers it. It imports its instrument when it runs, so that `--help` stays fast.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from gpuworkshop.cli import (  # noqa: F401  their verbs
    claims,
    job,
    loop,
    measure,
    memory,
    precision,
    scale,
    site,
    start,
    verify,
    watch,
)
from gpuworkshop.cli.base import BAD_INPUT, FAILED, FINE, INTERRUPTED, BadInput, app, say

__all__ = ["app", "main"]

for verb in app:  # a verb's help has paragraphs; the list of verbs has none, and answers faster without
    app[verb].help_format = "markdown"


_TAKES_A_COMMAND = {"watch": "COMMAND", "loop": "COMMAND", "scale": "SCRIPT"}
"""Verbs that run something of the learner's, and what stands for it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` if none is given, and return its exit code."""
    if sys.platform == "win32":
        return _say("native Windows is not supported; everything works in WSL2", BAD_INPUT)
    words = sys.argv[1:] if arguments is None else list(arguments)
    _usable_streams()
    try:
        with _ended_in_order():
            status = app(words, exit_on_error=False, print_error=False, result_action="return_value") or FINE
            sys.stdout.flush()
            return status
    except KeyboardInterrupt as error:
        status = getattr(error, "status", INTERRUPTED)
        message = "interrupted; what was recorded until then is kept"
    except BrokenPipeError:  # whoever reads has seen enough
        _give_up_stdout()
        return FINE
    except OSError as error:
        _give_up_stdout()
        message, status = _why(error), FAILED
    except CycloptsError as error:
        message, status = _usage(error), BAD_INPUT
    except BadInput as error:
        message, status = str(error), BAD_INPUT
    except RuntimeError as error:
        if not _child_failed(error):
            raise
        message, status = str(error), BAD_INPUT if error.bad_input else FAILED
        if error.log.strip() and not error.bad_input:
            _print(error.log)
    return _say(message, status)  # said out here, where the measurement is over and its progress bar gone


def _usage(error: CycloptsError) -> str:
    """What does not fit in the words that were typed, and what does."""
    verb = " ".join(error.command_chain or ())
    if isinstance(error, UnusedCliTokensError):
        words = " ".join(error.unused_tokens or ())
        return f'{verb}: "{words}" has no option in front; gpuworkshop {verb} --help names the options'
    if isinstance(error, UnknownOptionError) and verb in _TAKES_A_COMMAND:
        return f"{error} Is it the command's? That goes after --: gpuworkshop {verb} -- {_TAKES_A_COMMAND[verb]}"
    return str(error)


def _why(error: OSError) -> str:
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the present folder has been removed: cd to another one"
    return str(error)


def _say(message: str, status: int) -> int:
    _print("gpuworkshop: " + " ".join(message.split()))
    return status


def _print(words: str) -> None:
    """Words for stderr, if it is still there."""
    with suppress(OSError):
        say(words)


class _Ended(KeyboardInterrupt):
    """Somebody asked this process to end: as with Ctrl-C, what it started ends first."""

    def __init__(self, number: int):
        super().__init__()
        self.status = 128 + number


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end a verb as Ctrl-C does, where nobody ignores them on purpose (nohup)."""

    def stop(number: int, _frame: object) -> None:
        raise _Ended(number)

    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] == signal.SIG_DFL:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)


def _usable_streams() -> None:
    """Streams that can be written: one that was closed swallows, and no letter is too odd for one that knows ASCII."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  as long as the process lives
        with suppress(AttributeError, ValueError):
            getattr(sys, name).reconfigure(errors="replace" if name == "stdout" else "backslashreplace")


def _give_up_stdout() -> None:
    """Let what is still in stdout's buffer go nowhere, or Python would complain once more at its end."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def _child_failed(error: RuntimeError) -> bool:
    from gpuworkshop.child import ChildFailed

    return isinstance(error, ChildFailed)
