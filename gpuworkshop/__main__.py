"""The command ``gpuworkshop``, and ``python -m gpuworkshop``.

The command's own modules take a tenth of a second to load; a Ctrl-C in that time ends the process as it ends any
program, without a traceback.
"""

import signal
import sys


def main() -> int:
    """Load the command line and run it on `sys.argv`; its exit code."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    before = None if ignored else signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpuworkshop import cli

    if before is not None:
        signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
