"""The checker held to sbatch: what a real one (22.05.8) said to some 300 scripts is in sbatch_said.toml."""

from __future__ import annotations

import re

import pytest
from hold_sbatch import SAID, script

from gpuworkshop.cluster import site
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.cluster.jobscript.rule import Fault

CLUSTER = """
name = "the test cluster"
source = "it"
[sources]
it = "its slurm.conf"
[[family]]
name = "b200"
gres = "gpu:b200"
cards_per_node = 8
[[family]]
name = "rtx"
gres = "gpu:rtx"
cards_per_node = 8
[[partition]]
name = "b200-devel"
families = ["b200"]
purpose = "devel"
time_limit = "04:00:00"
[[partition]]
name = "b200-batch"
families = ["b200"]
purpose = "batch"
time_limit = "24:00:00"
[[partition]]
name = "rtx-devel"
families = ["rtx"]
purpose = "devel"
time_limit = "04:00:00"
[[partition]]
name = "rtx-batch"
families = ["rtx"]
purpose = "batch"
time_limit = "24:00:00"
[request]
time = "01:00:00"
[conventions]
cpus_per_card = 8
memory = "32G"
time = "04:00:00"
output = "%x_%j.out"
error = "%x_%j.err"
"""
SITE = site.parse(CLUSTER)
SAME_REASON = {  # what sbatch says: the rules that say so too
    r"unrecognized option|invalid option": {"unknown-option", "foreign-option"},
    r"is ambiguous": {"ambiguous-option"},
    r"requires an argument": {"no-value"},
    r"Invalid directive found": {"no-option"},
    r"Unmatched|Unexpected": {"open-quote", "no-option"},
    r"mutually exclusive": {"exclude-each-other"},
    r"requires --|without either|did not request any GPU": {"needs-another"},
    r"Failed to ensure|Based on": {"cards-disagree"},
    r"Invalid generic resource": {"gres"},
    r"time limit is invalid|time-min": {"time-limit", "value"},
    r"No partition": {"late"},
    r"invalid partition specified": {"near-partition", "one-dash", "value"},
    r"job array specification": {"value"},
    r"TRES": {"gres"},
    r"Requested node configuration": {
        "gres",
        "value",
        "wrong-type",
        "wrong-family",
        "too-many-cards",
        "too-many-tasks",
    },
    r"Invalid|not a valid|Maximum node count|unrecognized --": {"value"},
    r"invalid --": {"value"},
}


def refused(lines: list[str]) -> dict[str, Fault]:
    """The faults by rule for which sbatch refuses: those of level fail, and an option that only a plug-in can know."""
    faults = check.check(script(lines), SITE).faults
    return {one.rule: one for one in faults if one.level == "fail" or one.rule == "foreign-option"}


@pytest.mark.parametrize("lines", SAID["accepted"], ids=" | ".join)
def test_what_sbatch_accepts_is_not_refused(lines) -> None:
    assert refused(lines) == {}


@pytest.mark.parametrize("said", SAID["refused"], ids=lambda one: " | ".join(one["lines"]))
def test_what_sbatch_refuses_is_refused_for_the_same_reason(said) -> None:
    found = refused(said["lines"])
    rules = next(rules for words, rules in SAME_REASON.items() if re.search(words, said["said"]))
    assert rules & found.keys(), (said["said"], found)


@pytest.mark.parametrize("said", SAID["cluster"], ids=lambda one: " | ".join(one["lines"]))
def test_what_only_the_cluster_knows_is_not_guessed(said) -> None:
    assert refused(said["lines"]) == {}
