"""The command ``gpuworkshop``, and ``python -m gpuworkshop``.

The command's own modules take a tenth of a second to load. The list of verbs is shown without them, and a Ctrl-C in
that time ends the process as it ends any program, without a traceback.
"""

import signal
import sys

VERBS = {
    "start": "a copy of the course for you, and its Jupyter kernel",
    "verify": "do you have the GPU? five checks, each with its exact fix",
    "watch": "what do the job's cards do while a command runs?",
    "profile": "where does the time of 20 steps go?",
    "starve": "does the step wait for data?",
    "memory": "what lies in the memory, and how large may the batch be?",
    "precision": "how much faster is BF16, and what memory does it need?",
    "scale": "do more cards pay?",
    "loop": "measure, find the limit, change one thing, measure again",
    "claims": "what the workshop states, and what was measured",
    "job": "a job script before it runs, and the job's report card after",
    "site": "what the kit knows about your cluster: show it, draft it, check it",
}


def main() -> int:
    """Load the command line and run it on `sys.argv`; its exit code."""
    if sys.argv[1:] in ([], ["--help"], ["-h"]) and shows_verbs():
        return 0
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    before = None if ignored else signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpuworkshop import cli

    if before is not None:
        signal.signal(signal.SIGINT, before)
    return cli.main()


def shows_verbs() -> bool:
    """Print the list of verbs. False where stdout does not take it: the command line knows what to do then."""
    about = "Measure what a GPU job really does, fix one thing, and prove that it helped."
    verbs = [f"  {verb:10s} {sentence}" for verb, sentence in VERBS.items()]
    try:
        print("Usage: gpuworkshop VERB ...", about, "\n".join(verbs), "gpuworkshop VERB --help says more.", sep="\n\n")
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
