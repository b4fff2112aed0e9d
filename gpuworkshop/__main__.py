"""``python -m gpuworkshop`` is the command ``gpuworkshop``."""

import sys

from gpuworkshop.cli import main

if __name__ == "__main__":
    sys.exit(main())
