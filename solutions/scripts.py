"""Write the job scripts of slurm/ from the site file of the course's home: ``make scripts``."""

from __future__ import annotations

import sys
from pathlib import Path

from gpuworkshop.cluster import scripts, site

HOME = "aicr"


def main(folder: Path) -> None:
    """Write them all; a script that is no longer made is removed."""
    made = scripts.scripts(site.load(HOME))
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.s*"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 if name.endswith(".sh") else 0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "slurm"))
