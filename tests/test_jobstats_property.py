"""Whatever a report says: an answer or one line of refusal, and no number that the report does not have."""

from __future__ import annotations

import json
import re

import msgspec
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from jobreports import CPU, GIB, GPU, GPU_MEMORY, MEMORY, METERS, RULE, data, payload, text

from gpuworkshop.cluster import jobstats, jobstats_sacct
from gpuworkshop.cluster.jobstats_result import JobUse, NoReport

FIGURES = ("cpu", "memory", "gpu", "gpu_memory")
WORDS = (
    "(Value is unknown)",
    "[    100% of nothing    ]",
    "(JSON is malformed)",
    "[|||  ]",
    "[||| 1234%]",
    "(42%)",
    "n/a",
)
percent = st.one_of(st.integers(0, 100), st.sampled_from(WORDS))
meters = st.fixed_dictionaries({}, optional=dict.fromkeys(METERS, percent))
names = st.sampled_from(["g1", "node-02", "a.b.c", "é", "x(1)"])
rows = {
    CPU: st.builds("{}: 1-00:00:00/2-00:00:00 (efficiency={}%)".format, names, st.integers(0, 120)),
    MEMORY: st.builds("{}: {}GB/64GB (1GB/8GB per core of 8)".format, names, st.integers(0, 64)),
    GPU: st.builds("{} (GPU {}): {}%".format, names, st.integers(0, 9), st.integers(0, 120)),
    GPU_MEMORY: st.builds("{} (GPU {}): {}GB/80GB".format, names, st.integers(0, 9), st.integers(0, 80)),
}
noise = st.sampled_from(
    ["", "An error was encountered (1)", "Total used/runtime: 1/2, efficiency=50%", "  ", "\x1b[31m99%"]
)
details = st.fixed_dictionaries(
    {}, optional={head: st.lists(st.one_of(of, noise), max_size=4) for head, of in rows.items()}
)
heads = st.fixed_dictionaries(
    {},
    optional={
        "State": st.sampled_from(["COMPLETED", "RUNNING", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED by 1", "??", "9"]),
        "Run_Time": st.sampled_from(["00:00:59", "1-00:00:00", "00:10:00 (in progress)", "None", "-1", "00:00:00"]),
        "Time_Limit": st.sampled_from(["UNLIMITED", "Partition_Limit", "00:00:00", "365-00:00:00", "12"]),
        "Nodes": st.sampled_from(["0", "2", "many", "9" * 30]),
        "GPUs": st.sampled_from(["0", "8", "", "x"]),
    },
)
reports = st.builds(lambda m, d, h: text(m, d, **h), meters, details, heads)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)


def change(of: dict, path: list[str], value: object) -> dict:
    """The data with another value at some place."""
    whole = json.loads(json.dumps(of))
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return whole


PATHS = [["gpus"], ["nodes"], ["total_time"], ["nodes", "g1"]]
KEYS = ("cpus", "total_time", "total_memory", "used_memory", "gpu_utilization", "gpu_total_memory", "gpu_used_memory")
PATHS += [["nodes", "g1", key] for key in KEYS]
GOOD = data((50.0, 0.5), (60.0, 0.6))
changed = st.builds(lambda path, value: change(GOOD, path, value), st.sampled_from(PATHS), values)


def answered(raw: bytes) -> tuple[JobUse, ...]:
    """The jobs of an input; none where it is refused, in one line. Every face of every report can be shown."""
    try:
        jobs = jobstats.read(raw)
    except NoReport as error:
        assert str(error) and "Traceback" not in str(error)
        return ()
    for job in jobs:
        report = jobstats.report(job)
        assert str(report) and report._repr_mimebundle_()["text/html"] and msgspec.json.encode(job)
        for value in (*(getattr(job, name) for name in FIGURES), *(card.utilization for _, card in job.cards)):
            assert value is None or value >= 0
        for one in (job.cpu, job.gpu, *(card.utilization for _, card in job.cards)):
            assert one is None or one <= 1
    return jobs


def spoiled(raw: str, place: int, letters: str) -> bytes:
    return (raw[:place] + letters + raw[place + 1 :]).encode(errors="replace")


@fuzz()
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(spoiled, reports, st.integers(0, 3000), st.text(max_size=3)),
        st.builds(spoiled, changed.map(payload), st.integers(0, 400), st.text(max_size=3)),
        changed.map(lambda of: json.dumps(of).encode()),
        changed.map(lambda of: f"jobid|state|admincomment|jobname\n1|COMPLETED|{payload(of)}|x|y\n".encode()),
        st.lists(
            st.sampled_from([RULE, "Overall Utilization", "Detailed Utilization", "Notes", GPU, CPU, "> GPUs: 3"])
        ).map(lambda lines: "\n".join(lines).encode()),
    )
)
def test_any_input_is_answered_or_refused(raw) -> None:
    answered(raw)


@fuzz()
@given(reports, st.sampled_from(["", "> ", "   ", "\t"]))
def test_no_number_of_a_text_report_is_invented(report, quote) -> None:
    """Each percentage of a card stands in a line with that card; a figure in words stays unknown."""
    (job,) = answered("".join(f"{quote}{line}\n" for line in report.split("\n")).encode())
    said = {float(word) / 100 for word in re.findall(r"(\d+)%", report)}
    for name, card in job.cards:
        assert f"{name} (GPU {card.index}): " in report
        assert card.utilization is None or card.utilization in said
        assert card.memory_used is None or f"{card.memory_used // GIB}GB/80GB" in report
    if not job.nodes:
        for name in FIGURES:
            value = getattr(job, name)
            assert value is None or any(abs(value - one) < 1e-9 for one in said)


@fuzz()
@given(meters, st.sampled_from(WORDS))
def test_a_figure_in_words_is_unknown_and_said(of, words) -> None:
    (job,) = answered(text({**of, "GPU utilization": words}).encode())
    assert job.gpu is None
    assert words == "n/a" or job.why("gpu")
    assert not [
        one for one in jobstats.findings(job) if one.title.startswith("GPU utilization") and one.level != "unknown"
    ]


@fuzz()
@given(changed)
def test_no_number_of_the_data_is_invented(of) -> None:
    """Sizes and CPUs are those of the data, a share is one size in another; of what is odd nothing is made."""
    for job in answered(json.dumps(of).encode()):
        whole = json.dumps(of)
        for node in job.nodes:
            assert node.cpus is None or str(node.cpus) in whole
            for one in (node, *node.cards):
                if one.memory is not None:
                    assert one.memory == one.memory_used / one.memory_total
            for card in node.cards:
                given_busy = of["nodes"][node.name].get("gpu_utilization")
                known = given_busy.get(card.index) if isinstance(given_busy, dict) else None
                assert card.utilization is None or abs(card.utilization - min(100, known) / 100) < 0.01


@fuzz()
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_name_of_any_kind_breaks_nothing(name) -> None:
    line = " ".join(name.split())
    assert len(answered(text(METERS, Job_Name=line or "x").encode())) <= 1
    row = f"JobID|State|AdminComment|JobName\n5|COMPLETED||{name}"
    assert all(job.job == "5" for job in answered(row.encode()) if "\n" not in name and "\r" not in name)
    assert jobstats_sacct.is_job(name) == bool(
        re.fullmatch(r"[1-9][0-9]{0,11}([_+][0-9]{1,9})?(;\w+)?", name, re.ASCII)
    )
