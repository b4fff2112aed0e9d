"""Ends a launcher when whoever started it is gone: a job that waits in a queue must not start for nobody.

A child of ours sees its stdin close and ends itself. A launcher that still waits in a queue reads nothing and would
stay. So this stands beside it, in a process of its own: ``python -I -S guard.py GROUP``. One byte on stdin says that
the launcher has been dealt with; an end without it says that nobody is left, and the launcher's group is ended.
"""

import os
import signal
import sys
import time

PATIENCE = 0.5
"""Seconds between asking the launcher to end and ending it: `srun` cancels its job when it is asked."""


def main(group: int) -> None:
    """Wait until stdin says something or closes; in the second case end the process group."""
    if os.read(0, 1):
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(PATIENCE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
