"""The verb precision: bad input is one line, and a real child gives the envelope."""

import subprocess
import sys

import msgspec
import pytest

from gpuworkshop.cli import main
from gpuworkshop.instruments.precision_result import PrecisionResult


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--checkpointing"], "checkpointing"),
        (["--precision", "bf16"], "precision"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--preset", "gpt", "--launcher", "'"], "--launcher"),
        (["--launcher", "true"], "--preset"),
        (["--bits", "8"], "--bits"),
    ],
)
def test_what_cannot_be_compared_is_one_line(flags, words, capsys) -> None:
    preset = [] if "--preset" in flags or "--launcher" in flags else ["--preset", "gpt-tiny"]
    assert main(["precision", *preset, *flags]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("gpuworkshop: ") and words in said.err


def test_the_command_measures_in_a_child_and_prints_the_envelope() -> None:
    command = [sys.executable, "-m", "gpuworkshop", "precision", "--preset", "gpt-tiny", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=None)
    assert done.returncode == 0, done.stderr
    whole = msgspec.json.decode(done.stdout)
    result = msgspec.convert(whole["result"], PrecisionResult)
    assert result.origin.mark == "measured here" and result.config.reads_loss == "rarely"
    assert {one.arm.id for one in result.arms} == {"fp32", "tf32", "bf16", "bf16-checkpointing"}
    assert result.arm("bf16") and result.arm("fp32") and all(finding["title"] for finding in whole["findings"])
