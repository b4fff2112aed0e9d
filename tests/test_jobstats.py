"""jobstats' report cards: the public cases, the workshop's own example, every form, and the verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobreports import CPU, GIB, GPU, GPU_MEMORY, MEMORY, METERS, RULE, data, payload, text

from gpuworkshop import cli
from gpuworkshop.cluster import jobstats, jobstats_payload, jobstats_text
from gpuworkshop.cluster.jobstats_result import JobUse, NoReport
from gpuworkshop.cluster.jobstats_targets import targets

SAMPLES = {  # the same jobs in three forms
    "good": data((95.0, 0.82), (94.0, 0.83), cpus=16, cpu=0.7),
    "starved": data((9.7, 0.21), (9.2, 0.2), cpus=4, cpu=0.98),
    "no gpu": data(cpus=16, cpu=0.0625, memory=0.05),
}


def read(given: str | bytes | dict) -> JobUse:
    raw = json.dumps(given) if isinstance(given, dict) else given
    (job,) = jobstats.read(raw.encode() if isinstance(raw, str) else raw)
    assert jobstats.report(job)._repr_mimebundle_()["text/html"] and str(jobstats.report(job))
    return job


def titles(job: JobUse, *levels: str) -> list[str]:
    return [one.title for one in jobstats.findings(job) if not levels or one.level in levels]


def said(job: JobUse) -> str:
    """All words of the findings."""
    return "\n".join(f"{one.level}: {one.title}; {one.evidence}; {one.fix}" for one in jobstats.findings(job))


# ---------------------------------------------------------------- the workshop's own example


def test_the_workshops_example() -> None:
    """Syllabus, chapter 7: 55 minutes of fine-tuning on an RTX card, in a job of eight cores and eight hours."""
    job = read(
        text(
            {"CPU utilization": 13, "CPU memory usage": 55, "GPU utilization": 80, "GPU memory usage": 17},
            {
                CPU: ["rtx-n1: 00:57:12/07:20:00 (efficiency=13.0%)"],
                MEMORY: ["rtx-n1: 17.6GB/32GB (2.2GB/4GB per core of 8)"],
                GPU: ["rtx-n1 (GPU 2): 80.0%"],
                GPU_MEMORY: ["rtx-n1 (GPU 2): 16.3GB/95.6GB (17.0%)"],
            },
            Job_Name="finetune",
            Run_Time="00:55:00",
            Time_Limit="08:00:00",
        )
    )
    found = {one.title.split(":")[0].split("%")[0]: one for one in jobstats.findings(job)}
    assert found["GPU utilization 80"].level == "ok"
    low = found["GPU memory 17"]
    assert low.level == "warning" and "larger batch" in low.title + low.fix
    assert (
        "1.0 of 8 CPUs" in found["CPU utilization 13"].title and "--cpus-per-task=4" in found["CPU utilization 13"].fix
    )
    assert "instead of 8" in found["CPU utilization 13"].fix
    time = found["needed 11"]
    assert time.evidence == "00:55:00 of 08:00:00" and time.fix.startswith("#SBATCH --time=01:06:00")
    assert "average over the whole job" in said(job) and "maximum" in said(job)


# ---------------------------------------------------------------- the public cases


def test_b01_too_short_to_have_data() -> None:
    """B01, PrincetonUniversity/jobstats#10: seff's page, or a sentence: never 0% of a GPU, never a traceback."""
    page = "Very short run:\n\nJob ID: 42\nState: COMPLETED (exit code 0)\nNodes: 1\nCores per node: 4\n"
    page += "CPU Utilized: 00:00:02\nCPU Efficiency: 2.78% of 00:01:12 core-walltime\nJob Wall-clock time: 00:00:18\n"
    job = read(page)
    assert titles(job) == ["no GPU figures for this job (ran 18 s); seff says CPU 2.8%"]
    assert job.gpu is None and job.gpu_memory is None
    for sentence in ("No data for job 61000003.", "There were no statistics of your job 61000003, sorry"):
        other = read(sentence)
        assert other.job == "61000003" and not other.has_figures and "0%" not in said(other)


def test_b02_mig_and_unknown_meters() -> None:
    """B02, PrincetonUniversity/jobstats#52: words in the bar; the memory is read, and no advice on utilization."""
    for words in ("[     GPU utilization is unknown for MIG jobs      ]", "(Value is unknown)"):
        job = read(
            text(
                METERS | {"GPU utilization": words, "GPU memory usage": 55},
                {
                    GPU: ["n1 (GPU #): GPU utilization is unknown for MIG jobs", "An error was encountered (1)"],
                    GPU_MEMORY: ["n1 (GPU 1): 5.4GB/9.8GB (55.0%)"],
                },
            )
        )
        assert job.gpu is None and job.gpu_memory == pytest.approx(0.55)
        ((_, card),) = job.cards
        assert (card.index, card.utilization, card.memory) == ("1", None, pytest.approx(0.55))
        unknown = [title for title in titles(job, "unknown") if title.startswith("GPU utilization: n/a")]
        assert len(unknown) == 1 and words.strip("[]() ") in unknown[0]
        assert "starve" not in said(job) and "fix this" not in said(job)


def test_b03_still_running_and_an_older_header() -> None:
    """B03, PrincetonUniversity/jobstats: figures are preliminary, so is the share of the time; no warning."""
    older = text(
        METERS | {"GPU utilization": 41},
        {GPU: ["g2 (GPU 0): 41%"]},
        State="RUNNING",
        Run_Time="00:22:31 (in progress)",
        Time_Limit="12:00:00",
    ).replace("   User/Account:", "  NetID/Account:")
    job = read(older)
    assert job.running and job.seconds == 1351 and job.gpu == pytest.approx(0.41)
    assert titles(job)[0] == "still running: these figures are preliminary" and not titles(job, "warning", "fail")
    assert "time asked for" not in said(job)


def test_b04_never_started_and_limits_in_words() -> None:
    """B04, troycomi/reportseff#11, NordicHPC/slurm2sql#4: words where numbers are expected."""
    rows = (
        "JobIDRaw|Start|End|State|Timelimit|JobName\n"
        "61000010|None|2026-12-01T10:00:00|CANCELLED by 2002|Partition_Limit|train\n"
        "61000011|Unknown|Unknown|PENDING|02:00:00|a|b\n"
    )
    cancelled, pending = jobstats.read(rows.encode())
    assert cancelled.state == "CANCELLED" and cancelled.limit is None and not cancelled.started
    assert titles(cancelled) == ["never started: nothing to learn from it"]
    assert pending.name == "a|b" and titles(pending) == ["it has not started yet"]
    unlimited = read(text(METERS, Time_Limit="UNLIMITED"))
    assert "time asked for" not in said(unlimited) and "--time" not in said(unlimited)
    assert "--time" not in said(read(text(METERS, Time_Limit="Partition_Limit")))


def test_b05_an_average_hides_idle_cards() -> None:
    """B05, StanfordLegion/legion#691: four at 98%, four at 0%: the first finding, and no advice about the loader."""
    cards = [f"g3 (GPU {n}): 98.0%" for n in range(4)] + [f"g4 (GPU {n}): 0% <-- GPU was not used" for n in range(4)]
    memory = [f"g3 (GPU {n}): 48.9GB/80GB (61.1%)" for n in range(4)]
    memory += [f"g4 (GPU {n}): 450.0MB/80GB (0.5%)" for n in range(4)]
    meters = {"CPU utilization": 48, "CPU memory usage": 12, "GPU utilization": 49, "GPU memory usage": 31}
    job = read(text(meters, {GPU: cards, GPU_MEMORY: memory}, Nodes="2", CPU_Cores="64", GPUs="8"))
    first, *rest = jobstats.findings(job)
    assert first.level == "warning" and first.title == "4 of 8 GPUs were not used: node g4"
    assert "not distributed over its nodes" in first.evidence and "98%" in first.evidence
    assert rest[0].title.startswith("GPU utilization 98%") and rest[0].level == "ok"
    assert "starve" not in said(job) and "num_workers" not in said(job)


def test_b06_error_codes_where_numbers_should_be() -> None:
    """B06, PrincetonUniversity/jobstats: the number in the words (100) is none; what else is there is used."""
    meters = {
        "CPU utilization": "(Value was erroneously found to be >100%)",
        "CPU memory usage": "(JSON is malformed)",
        "GPU utilization": 63,
        "GPU memory usage": 104,
    }
    job = read(text(meters, {CPU: ["An error was encountered (2)"], GPU: ["g2 (GPU 0): 63.4%"]}))
    assert job.cpu is None and job.memory is None
    assert job.gpu == pytest.approx(0.634) and job.gpu_memory == pytest.approx(1.04)
    assert "CPU utilization: n/a (Value was erroneously found to be >100%)" in titles(job, "unknown")
    assert "host memory: n/a (JSON is malformed)" in titles(job, "unknown")
    assert read(text(METERS | {"CPU utilization": "(Total CPU time was found to be zero)"})).cpu is None


def test_b07_colored_indented_or_quoted() -> None:
    """B07, Osmantic/ODS#6038: the same result as the clean report."""
    clean = text(
        METERS | {"GPU utilization": 11}, {GPU: ["g2 (GPU 0): 11%"], GPU_MEMORY: ["g2 (GPU 0): 8GB/80GB (10.0%)"]}
    )
    bars = "[|||||" + "11%".rjust(45) + "]"
    assert bars in clean
    colored = clean.replace(
        bars, "\x1b[1m[\x1b[0m\x1b[31m|||||" + " " * 42 + "\x1b[1m\x1b[31m11%\x1b[0m\x1b[1m]\x1b[0m"
    )
    pastes = {
        "colors": colored,
        "colors without the escape character": colored.replace("\x1b", ""),
        "quoted": "".join(f"> {line}\n" for line in clean.split("\n")),
        "quoted twice": "".join(f"> > {line}\n" for line in clean.split("\n")),
        "indented": "".join(f"        {line}\n" for line in clean.split("\n")),
        "Windows": clean.replace("\n", "\r\n"),
        "no-break blanks": clean.replace("  ", "\u00a0\u00a0"),
        "in a mail": f"Hi,\nmy job was slow:\n\n{clean}\nWhat can I do?\n",
        "with a mark": "\ufeff" + clean,
    }
    for name, paste in pastes.items():
        assert read(paste) == read(clean), name
    assert read(clean.encode("utf-16")) == read(clean)


def test_b08_out_of_memory_is_host_memory() -> None:
    """B08, virtualcell/vcell#1913: the card is cleared of blame."""
    meters = {"CPU utilization": 60, "CPU memory usage": 100, "GPU utilization": 75, "GPU memory usage": 22}
    job = read(text(meters, State="OUT_OF_MEMORY", Run_Time="00:14:09", **{"CPU Memory": "32GB (4GB per CPU-core)"}))
    first = next(jobstats.findings(job))
    assert first.level == "fail" and first.title == "ran out of host memory (32GB asked)"
    assert "22%" in first.evidence and "not to blame" in first.evidence
    assert first.fix.startswith("#SBATCH --mem=48G") and "workers" in first.fix
    failed = read(text(METERS, State="FAILED"))
    assert "CUDA out of memory" in next(jobstats.findings(failed)).evidence


# ---------------------------------------------------------------- one result, whatever the form


def as_text(of: dict) -> str:
    """The same job as jobstats' text report would have it."""
    ((name, node),) = of["nodes"].items()
    cpu = node["total_time"] / node["cpus"] / of["total_time"]
    share, cards = node["used_memory"] / node["total_memory"], node.get("gpu_total_memory", {})
    meters = {"CPU utilization": int(100 * cpu), "CPU memory usage": round(100 * share)}
    details = {
        CPU: [f"{name}: 00:00:00/00:00:00 (efficiency={100 * cpu:.1f}%)"],
        MEMORY: [f"{name}: {node['used_memory'] / GIB:.1f}GB/64GB (1GB/4GB per core of {node['cpus']})"],
    }
    if cards:
        used = node["gpu_used_memory"]
        meters["GPU utilization"] = round(sum(node["gpu_utilization"].values()) / len(cards))
        meters["GPU memory usage"] = round(100 * sum(used.values()) / sum(cards.values()))
        details[GPU] = [f"{name} (GPU {n}): {busy}%" for n, busy in node["gpu_utilization"].items()]
        details[GPU_MEMORY] = [
            f"{name} (GPU {n}): {used[n] / GIB:.1f}GB/80GB ({100 * used[n] / cards[n]:.1f}%)" for n in cards
        ]
    return text(meters, details, GPUs=str(of["gpus"]) if cards else "", **{"CPU Cores": str(node["cpus"])})


@pytest.mark.parametrize("name", SAMPLES)
def test_text_json_and_payload_are_one_result(name) -> None:
    of = SAMPLES[name]
    by_json, by_payload, by_text = read(of), read(f"  {payload(of)}\n"), read(as_text(of))
    assert by_payload.nodes == by_json.nodes
    row = f"jobidraw|elapsedraw|state|admincomment|jobname\n7|4200|COMPLETED|{payload(of)}|x\n"
    assert read(row).nodes == by_json.nodes and read(row).job == "7"
    for figure in ("cpu", "memory", "gpu", "gpu_memory"):
        one, other = getattr(by_json, figure), getattr(by_text, figure)
        assert (one is None) == (other is None) and (one is None or one == pytest.approx(other, abs=0.002)), figure
    levels = [[one.level for one in jobstats.findings(job)] for job in (by_json, by_text)]
    assert levels[0] == [
        level for level, title in zip(levels[1], titles(by_text), strict=True) if "time asked" not in title
    ]


def test_several_nodes_keep_their_cards_apart() -> None:
    two = data((90.0, 0.7), node="g1")
    two["nodes"]["g2"] = data((50.0, 0.3), cpus=24, cpu=0.1)["nodes"]["g1"]
    job = read(two)
    assert [(node, card.index, card.utilization) for node, card in job.cards] == [("g1", "0", 0.9), ("g2", "0", 0.5)]
    assert job.cpu == pytest.approx((0.7 * 8 + 0.1 * 24) / 32) and job.gpu == pytest.approx(0.7)
    assert any("unevenly" in title for title in titles(job, "warning"))


def test_mig_has_no_utilization_in_the_data() -> None:
    job = read(data((None, 0.9)))
    assert job.gpu is None and job.cards[0][1].memory == pytest.approx(0.9) and "MIG" in "".join(titles(job, "unknown"))


@pytest.mark.parametrize("marker", ["JS1:Short", "JS1:None", '{"gpus":1,"nodes":{},"total_time":20}'])
def test_a_job_without_a_sample_has_no_figures(marker) -> None:
    job = read(marker)
    assert not job.has_figures and titles(job)[-1].startswith("no ") and "%" not in said(job)


def test_notes_are_never_parsed() -> None:
    """Not even when they look like a report: they are the site's own words."""
    notes = ("CPU utilization  [||||   99%]", "GPU utilization per node", "g1 (GPU 7): 99%", "State: FAILED", RULE)
    more = ("Overall Utilization", RULE, "GPU utilization [|||| 5%]", "     GPUs: 512")
    plain = text(METERS, {GPU: ["g1 (GPU 0): 85%"]}, ("the site says something",))
    lines = "\n".join(f"  {line}" for line in (*notes, *more))
    assert read(plain + lines + "\n") == read(plain)


def test_a_batch_script_in_the_report_is_never_parsed() -> None:
    plain = text(METERS)
    script = f"\n{'Batch Script'.center(80)}\n{RULE}\n#!/bin/bash\n#SBATCH --gpus=4\n  GPUs: 512\n\n"
    assert read(
        plain.replace(f"\n{'Overall Utilization'.center(80)}", script + f"{'Overall Utilization'.center(80)}")
    ) == read(plain)


OTHERS = {
    "another program": "*** jobstats 2.1 ***\nJob 1234 on cluster x: 4 of 16 cores used, plot saved to x.png\n" * 4,
    "a simulated report": "Job Efficiency Report\n=====\nGPU memory used (avg): 12 GB\nGPU utilization: 84%\n" * 3,
    "JSON of something else": '{"jobs": [{"gpus": 4}]}',
    "a list": "[1, 2, 3]",
    "nothing": "",
    "blanks": "\n\n   \n",
    "lower case": "js1:h4siaaaaaaaca1wosw6dmaxe7",
    "two reports": text(METERS) + text(METERS),
    "a damaged payload": "JS1:" + "QUJD" * 10,
    "a payload that is cut off": payload(SAMPLES["good"])[:80],
    "a bomb": payload({"gpus": 0, "nodes": {}, "total_time": 1, "x": "0" * 2**23}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_report_is_refused_in_one_line(name, tmp_path, capsys) -> None:
    file = tmp_path / "report"
    file.write_text(OTHERS[name])
    assert cli.main(["job", "stats", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "Traceback" not in said.err


# ---------------------------------------------------------------- findings by the targets


def test_findings_turn_at_the_targets() -> None:
    """Each target from its file: just above is fine, just below is not."""
    good = targets()

    def level(wanted: str, **figures: float) -> str:
        job = JobUse("JSON", gpus=1, cpus=8, state="COMPLETED", **{"gpu": 0.9, "gpu_memory": 0.8, **figures})
        return next(one.level for one in jobstats.findings(job) if one.title.startswith(wanted))

    for wanted, figure, at, above, below in (
        ("GPU utilization", "gpu", good.gpu, "ok", "notice"),
        ("GPU utilization", "gpu", good.gpu_fix_first, "notice", "warning"),
        ("GPU memory", "gpu_memory", good.gpu_memory[0], "ok", "notice"),
        ("GPU memory", "gpu_memory", good.gpu_memory[1], "warning", "ok"),
        ("GPU memory", "gpu_memory", good.gpu_memory_low, "notice", "warning"),
        ("CPU utilization", "cpu", good.cpu, "ok", "notice"),
        ("host memory", "memory", good.memory, "ok", "notice"),
    ):
        assert level(wanted, **{figure: at / 100 + 0.01}) == above, wanted
        assert level(wanted, **{figure: at / 100 - 0.01}) == below, wanted


def test_two_cards_at_43_percent_try_one() -> None:
    job = read(data((43.0, 0.7), (43.0, 0.7)))
    one = next(one for one in jobstats.findings(job) if "try" in one.title)
    assert one.title == "2 GPUs at 43%: try 1 GPU" and one.fix == "#SBATCH --gres=gpu:1"
    assert not [title for title in titles(read(data((60.0, 0.7), (60.0, 0.7)))) if "try" in title]


def test_a_starved_job_with_full_cpus_needs_cpus_and_one_with_free_ones_needs_workers() -> None:
    full, free = read(data((10.0, 0.2), cpus=2, cpu=0.99)), read(data((10.0, 0.2), cpus=16, cpu=0.1))
    assert "the CPUs are the limit" in said(full) and "--cpus-per-task=4" in said(full)
    assert "num_workers=15" in said(free) and "instead of 16" not in said(free)
    assert "leave the batch as it is" in said(full)


def test_no_gpu_used_at_all_fails() -> None:
    job = read(data((0.0, 0.01), (0.0, 0.01)))
    assert titles(job, "fail") == ["none of the 2 GPUs was used: utilization 0% over the whole job"]
    assert "starve" not in said(job)


def test_a_short_run_is_not_judged_hard() -> None:
    job = read(data((5.0, 0.1), seconds=200))
    assert "too short to be judged" in titles(job) and not titles(job, "warning", "fail")


def test_one_core_of_many_and_no_gpu() -> None:
    job = read(SAMPLES["no gpu"])
    assert job.gpu is None and "--cpus-per-task=1 " in said(job) and "no GPU in this job" in said(job)
    assert "--mem=4G" in said(job)


def test_what_is_not_known_is_never_zero() -> None:
    job = read(text(METERS | {"GPU utilization": "(Value is unknown)"}, {GPU_MEMORY: ["g1 (GPU 3): 8GB/80GB (10.0%)"]}))
    table = jobstats.report(job).tables[0]
    assert table.rows == (("g1 GPU 3", "n/a", "8 GiB", "80 GiB", "10%"),)


# ---------------------------------------------------------------- the verb


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sacct that prints the file `rows` and keeps its arguments."""
    script = f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/rows\n'
    (tmp_path / "sacct").write_text(script)
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_number_is_asked_of_sacct(slurm, capsys) -> None:
    head = "JobIDRaw|JobID|State|ElapsedRaw|TimelimitRaw|Start|NNodes|NCPUS|ReqMem|AllocTRES|AdminComment|JobName\n"
    row = f"9|9_1|COMPLETED|4200|480|2026-12-01T09:00:00|1|16|64G|cpu=16,gres/gpu=2|{payload(SAMPLES['good'])}|a|b"
    (slurm / "rows").write_text(head + row + "\n")
    assert cli.main(["job", "stats", "9_1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["result"]["job"] == "9_1" and found["result"]["name"] == "a|b" and found["result"]["gpus"] == 2
    assert found["origin"]["mark"] == "claimed by" and any("needed 15%" in one["title"] for one in found["findings"])
    asked = (slurm / "asked").read_text().split()
    assert asked[-2:] == ["-j", "9_1"] and "-X" in asked


def test_a_job_without_a_payload_is_asked_of_jobstats(slurm, capsys) -> None:
    (slurm / "rows").write_text(
        "JobIDRaw|State|ElapsedRaw|Start|AdminComment|JobName\n9|RUNNING|4200|2026-12-01T09:00||x\n"
    )
    assert cli.main(["job", "stats", "9"]) == 0
    assert "no figures" in capsys.readouterr().out
    (slurm / "jobstats").write_text(f"#!/bin/sh\necho '{json.dumps(SAMPLES['good'])}'\n")
    (slurm / "jobstats").chmod(0o755)
    assert cli.main(["job", "stats", "9"]) == 0
    out = capsys.readouterr().out
    assert "still running" in out and "GPU utilization 94%" in out


def test_the_verb(slurm, monkeypatch, capsys) -> None:
    import io

    (slurm / "rows").write_text("JobIDRaw|State|JobName\n")
    assert cli.main(["job", "stats", "9"]) == 2 and "sacct knows no job 9" in capsys.readouterr().err
    (slurm / "rows").unlink()
    assert cli.main(["job", "stats", "9"]) == 2 and "jobstats 9 | gpuworkshop job stats -" in capsys.readouterr().err
    for bad in ("no-such-file", ".", "0", "-9", "--nine"):
        assert cli.main(["job", "stats", bad]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text(METERS, State="TIMEOUT").encode())))
    assert cli.main(["job", "stats", "-"]) == 1
    assert "ended by its time limit" in capsys.readouterr().out
    Path("12").write_text(text(METERS))
    assert cli.main(["job", "stats", "12"]) == 0, "a file of that name comes first"


def test_no_name_of_a_person_is_kept() -> None:
    assert "someone" not in repr(read(text(METERS)))


def test_sizes_and_times_as_jobstats_writes_them() -> None:
    assert jobstats_text.size("582.4MB") == round(582.4 * 2**20) and jobstats_text.size("15GB") == 15 * GIB
    assert jobstats_text.seconds("1-12:20:00") == 130800 and jobstats_text.seconds("1:2") is None
    with pytest.raises(NoReport):
        jobstats_payload.payload("JS1:")
