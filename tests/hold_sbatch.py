"""Not a test: ask a live sbatch again what `sbatch_said.toml` says that it said, on a cluster as described there.

SLURM_CONF=... python tests/hold_sbatch.py
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

SAID = tomllib.loads(Path(__file__).with_name("sbatch_said.toml").read_text(encoding="utf-8"))


def script(lines: list[str]) -> bytes:
    """The job script of these lines."""
    return "\n".join(["#!/bin/bash", *lines, "echo", ""]).encode()


def ask(lines: list[str]) -> str:
    """Why sbatch refuses this script; "" if it takes it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.sbatch")
        file.write_bytes(script(lines))
        command = ["sbatch", "--test-only", file.name]
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    return (done.stderr + done.stdout).decode(errors="replace").strip() if done.returncode else ""


def main() -> int:
    """Print every script of which this sbatch thinks otherwise."""
    accepted = [(lines, False) for lines in SAID["accepted"]]
    refused = [(one["lines"], True) for one in SAID["refused"] + SAID["cluster"]]
    others = [(lines, said) for lines, wanted in accepted + refused if bool(said := ask(lines)) != wanted]
    for lines, said in others:
        print(" | ".join(lines), "->", said or "accepted")
    print(f"{len(accepted) + len(refused)} scripts, {len(others)} otherwise than in sbatch_said.toml")
    return bool(others)


if __name__ == "__main__":
    sys.exit(main())
