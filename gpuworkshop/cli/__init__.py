"""The command `gpuworkshop`: one module for each group of verbs, one function for each verb.

Exit codes: 0 fine, 1 a finding of level fail, 2 bad usage or input (one line on stderr), 130 interrupted.
A new verb is a function under `@app.command`, in the module of its group or in one of its own; importing the module
here is what registers it. It imports its instrument when it runs, so that `--help` stays fast.
"""

import sys
from collections.abc import Sequence

from cyclopts import CycloptsError

from gpuworkshop.cli import measure, site, start, verify, watch  # noqa: F401  registers their verbs
from gpuworkshop.cli.base import BAD_INPUT, FAILED, FINE, INTERRUPTED, BadInput, app

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, `sys.argv` if none is given, and return its exit code."""
    if sys.platform == "win32":
        return _say("native Windows is not supported; everything works in WSL2", BAD_INPUT)
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return app(words, exit_on_error=False, print_error=False, result_action="return_value") or FINE
    except KeyboardInterrupt:
        message, status = "interrupted; what was recorded until then is kept", INTERRUPTED
    except (CycloptsError, BadInput) as error:
        message, status = str(error), BAD_INPUT
    except RuntimeError as error:
        if not _child_failed(error):
            raise
        message, status = str(error), BAD_INPUT if error.bad_input else FAILED
        if not error.bad_input:
            print(error.log, file=sys.stderr)
    return _say(message, status)  # said out here, where the measurement is over and its progress bar gone


def _say(message: str, status: int) -> int:
    print("gpuworkshop:", " ".join(message.split()), file=sys.stderr)
    return status


def _child_failed(error: RuntimeError) -> bool:
    from gpuworkshop.child import ChildFailed

    return isinstance(error, ChildFailed)
