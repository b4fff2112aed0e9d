"""A job script from measured numbers: which number makes which line, what is said of the rest, and no fault in any."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import measured_runs as made
import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import GIB
from test_jobscript import TYPED

from gpuworkshop import cli
from gpuworkshop.cluster import site, slurm_time
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.course import replay
from gpuworkshop.loop import evidence, ledger, rightsize
from gpuworkshop.loop.evidence import Evidence, NoResult
from gpuworkshop.loop.ledger import Record
from gpuworkshop.loop.rightsize import Asked, JobScript

AICR = site.load("aicr")
ANY = site.load("generic")
OTHER = site.parse(TYPED, "typed.toml")


def written(*results, site=AICR, **asked) -> JobScript:
    """The script from these results."""
    return rightsize.write(Evidence((f"{type(one).__name__}.json", one) for one in results), site, Asked(**asked))


def directives(script: JobScript) -> dict[str, str]:
    """What the script asks Slurm for."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.text(), re.MULTILINE))


def reason(script: JobScript, name: str) -> str:
    """The comment above a directive."""
    lines = script.text().splitlines()
    return lines[next(place for place, line in enumerate(lines) if line.startswith(f"#SBATCH --{name}=")) - 1]


def test_every_line_has_its_reason() -> None:
    script = written(made.starve(), made.scale({2: 0.9, 4: 0.85}), made.watch(), made.report_card(10), steps=20_000)
    lines = script.text().splitlines()
    for place, line in enumerate(lines):
        if line.startswith("#SBATCH"):
            assert re.match(r"# [A-Z0-9]", lines[place - 1]), f"no reason above {line}"
    assert all(one.reason or not one.text or one.text.startswith("#") for one in script.lines)


def test_cards_are_as_many_as_surely_pay() -> None:
    script = written(made.scale({2: 0.95, 4: 0.86, 8: 0.76}))
    assert directives(script)["gres"] == "gpu:4"
    assert "86" in reason(script, "gres") and "ScalingResult.json" in reason(script, "gres")
    assert "--nproc-per-node" in script.text(), "torchrun makes the ranks"


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (made.scale({2: 0.75}), "not surely above 80%"),
        (made.scale({2: 0.85}, spread=0.2), "not surely above 80%"),
        (made.scale({2: 0.95}, made.CPU), "CPU cores, which says nothing of cards"),
        (made.scale({2: 0.95}, planted="the last rank waits"), "a straggler was planted"),
    ],
)
def test_one_card_where_more_do_not_surely_pay(result, why: str) -> None:
    script = written(result)
    assert directives(script)["gres"] == "gpu:1"
    assert why in reason(script, "gres")


def test_one_card_where_nobody_measured_says_so() -> None:
    assert "was not measured" in reason(written(), "gres")


@pytest.mark.parametrize(("workers", "cards"), [(0, 1), (7, 1), (3, 2), (6, 8)])
def test_cpus_are_workers_and_one_for_each_rank(workers: int, cards: int) -> None:
    script = written(made.starve(workers=workers), cards=cards)
    assert int(directives(script)["cpus-per-task"]) == (workers + 1) * cards
    assert f"{workers} loader worker" in reason(script, "cpus-per-task")


def test_cpus_by_convention_where_no_workers_are_known() -> None:
    script = written(cards=2)
    assert int(directives(script)["cpus-per-task"]) == 2 * AICR.conventions.cpus_per_card
    assert "the convention of AICR" in reason(script, "cpus-per-task")
    assert "was not measured" in reason(script, "cpus-per-task")


@pytest.mark.parametrize(
    ("peak", "asked"), [(10.0, "12G"), (10.1, "13G"), (0.01, "1G"), (80.0, "97G"), (160.0, "193G")]
)
def test_host_memory_is_1_2_times_the_peak_in_full_gib_and_never_looks_like_the_cards(peak: float, asked: str) -> None:
    for_rtx = {"family": "rtx"} if peak == 80 else {"family": "b200"}
    script = written(made.report_card(peak), **for_rtx)
    assert directives(script)["mem"] == asked
    assert "1.2 x the peak" in reason(script, "mem") and "job 104212" in reason(script, "mem")


def test_host_memory_grows_with_the_cards() -> None:
    of_two = made.report_card(20, cards=2)
    assert directives(written(of_two, cards=4))["mem"] == "48G", "20 GiB on 2 cards are 40 on 4"


@pytest.mark.parametrize(
    ("steps", "step_ms", "asked"),
    [(36_000, 100, "01:12:00"), (36_001, 100, "01:13:00"), (10, 1, "00:05:00"), (600_000, 100, "20:00:00")],
)
def test_time_is_1_2_times_steps_times_step(steps: int, step_ms: float, asked: str) -> None:
    by_flag, by_result = written(steps=steps, step_ms=step_ms), None
    assert directives(by_flag)["time"] == asked
    by_result = written(made.starve(batch=64, value=64 / (step_ms / 1e3)), steps=steps)
    assert directives(by_result)["time"] == asked
    assert "StarveResult.json" in reason(by_result, "time") and f"{steps:,} steps" in reason(by_result, "time")


def test_time_on_several_cards_is_that_of_the_world() -> None:
    alone = made.starve(batch=64, value=100.0)
    script = written(alone, made.scale({2: 0.8 + 1e-9 + 0.05}), steps=10_000)
    wanted = 1.2 * 10_000 * 64 / (100 * 0.85)
    assert slurm_time.seconds(directives(script)["time"]) == pytest.approx(wanted, abs=60)
    unknown = written(alone, cards=3, steps=10_000)
    assert "a step on 3 cards was not measured" in reason(unknown, "time"), "one alone says nothing of three"


def test_time_above_every_limit_is_cut_and_said() -> None:
    script = written(steps=10_000_000, step_ms=100)
    assert directives(script)["time"] == "24:00:00"
    assert any("save a checkpoint" in one.title for one in rightsize.findings(script))


def test_time_without_steps_is_the_convention() -> None:
    script = written(made.starve())
    assert directives(script)["time"] == AICR.conventions.time
    assert "--steps" in reason(script, "time")


@pytest.mark.parametrize(
    ("need", "partition"), [(20, "rtx-batch"), (80, "rtx-batch"), (81, "b200-batch"), (150, "b200-batch")]
)
def test_partition_is_the_smallest_card_in_which_it_fits(need: float, partition: str) -> None:
    script = written(made.watch(used=need))
    assert directives(script)["partition"] == partition
    assert f"{need:g} GiB" in reason(script, "partition") and "WatchResult.json" in reason(script, "partition")


def test_a_need_that_no_card_has_is_told() -> None:
    script = written(made.watch(used=177))
    assert directives(script)["partition"] == "b200-batch"
    assert any("too little room" in one.title for one in rightsize.findings(script))


def test_without_a_need_it_is_the_card_that_it_was_measured_on() -> None:
    assert "measured on" in reason(written(made.starve()), "partition")
    assert "the convention of AICR" in reason(written(), "partition")


def test_another_card_than_the_measured_one_is_told() -> None:
    notes = written(made.starve(), family="rtx", steps=1000).notes
    assert any("measured on NVIDIA B200" in note for note in notes)
    assert not written(made.starve(), family="b200", steps=1000).notes


def test_options_of_the_partition_and_types_of_cards_come_from_the_site() -> None:
    script = written(site=OTHER, family="b200")
    assert directives(script)["gres"] == "gpu:b200:1"
    assert "#SBATCH --qos=gpu" in script.text()


def test_staging_is_left_out_where_data_do_not_limit() -> None:
    limited, free = made.starve(limit="data"), made.starve(limit="compute")
    assert "cp -r" in written(limited, script=("train.py",)).text()
    assert "cp -r" not in written(free, script=("train.py",)).text()
    assert "data do not limit" in written(free, script=("train.py",)).text()
    assert 'DATA=${DATA:-"/scratch/$USER/pictures"}' in written(data="/scratch/$USER/pictures").text()


def test_last_line_says_how_to_submit_it_the_folder_first() -> None:
    last = written(name="mine").text().rstrip().splitlines()[-1]
    assert last.startswith("#") and last.endswith("mkdir -p logs && sbatch mine.sbatch")
    elsewhere = written(site=OTHER).text().rstrip().splitlines()[-1]
    assert "mkdir" not in elsewhere, "its logs lie in the present folder"


def test_the_kits_training_gets_the_measured_settings() -> None:
    run = made.starve(workers=5, batch=128, precision="bf16", pin_memory=True)
    last = [line for line in written(run, steps=300).text().splitlines() if "workloads.train" in line][0]
    for words in (
        "--preset card",
        "--batch-size 128",
        "--precision bf16",
        "--pin-memory",
        "--workers 5",
        "--steps 300",
    ):
        assert words in last


def record(kind: str, when: str, run: str, workers: int, kept: bool = True) -> Record:
    config = made.starve(workers=workers).config
    return Record(when, run, made.RESNET, kind, config, made.rate(640), made.B200, kept=kept)


def test_the_newest_run_of_the_ledger_is_used_and_named() -> None:
    for one in (
        record("final", "2026-11-30T10:00:00+00:00", "old", 1),
        record("baseline", "2026-12-01T10:00:00+00:00", "new", 0),
        record("change", "2026-12-01T10:01:00+00:00", "new", 5),
        record("change", "2026-12-01T10:02:00+00:00", "new", 9, kept=False),
    ):
        assert ledger.add(one)
    script = rightsize.write(evidence.gather(), AICR)
    assert directives(script)["cpus-per-task"] == "6", "the last change that was kept"
    assert "ledger" in reason(script, "cpus-per-task") and "2026-12-01" in reason(script, "cpus-per-task")
    own = rightsize.write(evidence.gather(), AICR, Asked(script=("train.py",)))
    assert any("is that your training?" in note for note in own.notes)
    assert rightsize.write(evidence.gather(with_ledger=False), AICR).choices["CPUs"].measured is False


def test_files_count_more_than_the_ledger_and_flags_more_than_files(tmp_path: Path) -> None:
    ledger.add(record("final", "2026-12-01T10:00:00+00:00", "new", 5))
    files = made.saved(tmp_path, starve=made.starve(workers=3))
    assert directives(rightsize.write(evidence.gather(files), AICR))["cpus-per-task"] == "4"
    assert directives(rightsize.write(evidence.gather(files), AICR, Asked(workers=8)))["cpus-per-task"] == "9"


@pytest.mark.parametrize(
    "name", ["loop", "starve", "sweep", "watch", "memory", "batches", "ceiling", "profile", "verify"]
)
def test_recordings_are_read_as_what_they_are(name: str) -> None:
    file = replay.FOLDER / f"{name}-h200.json"
    assert type(evidence.read(str(file))) is replay.KINDS[name]


def test_numbers_of_different_trainings_are_told() -> None:
    script = written(made.starve(), replay.load("memory"))
    assert any("different trainings" in note for note in script.notes)


def test_numbers_of_the_kits_training_are_told_to_who_writes_for_another() -> None:
    told = [note for note in written(made.starve(), script=("train.py", "--epochs", "3")).notes if "of the kit" in note]
    assert len(told) == 1 and made.RESNET in told[0] and "train.py" in told[0] and "--step-ms" in told[0]
    for script in ((), ("-m", "gpuworkshop.workloads.train", "--steps", "9")):
        assert not any("of the kit" in note for note in written(made.starve(), script=script).notes)


def test_workers_in_the_command_count_more_than_measured_ones_and_a_flag_more_than_both() -> None:
    own = ("train.py", "--num-workers", "7")
    script = written(made.starve(workers=3), script=own)
    assert directives(script)["cpus-per-task"] == "8" and "--num-workers 7" in reason(script, "cpus-per-task")
    assert directives(written(made.starve(workers=3), script=own, workers=1))["cpus-per-task"] == "2"
    assert directives(written(made.starve(workers=3), script=("train.py", "-j", "$N")))["cpus-per-task"] == "4"


def test_for_a_training_of_ones_own_nothing_measures_the_kits_instead() -> None:
    how = [one.how for one in written(script=("mine.py",)).choices.values() if one.how]
    assert not any(word in line for line in how for word in ("starve", "scale --json", "loop"))
    assert any("--step-ms" in line and "mine.py" in line for line in how)


def test_an_environment_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert any("write your own environment" in note for note in written(site=ANY).notes)
    (tmp_path / "gpuworkshop/bin").mkdir(parents=True)
    (tmp_path / "gpuworkshop/bin/activate").write_text("")
    assert not written(site=ANY).notes
    assert not any("environment" in note for note in written(site=AICR).notes), "conda finds it by its name"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kit": "0.1.0", "result": {"a": 1}}', "\x00", "[" * 100_000])
def test_what_is_no_result_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(NoResult) as said:
        evidence.read(str(file))
    assert "\n" not in str(said.value) and "x.json" in str(said.value)
    assert ("empty" in str(said.value)) is (text == "")


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12)
own = st.one_of(
    st.just(()),
    st.lists(words, max_size=4).map(lambda rest: ("train.py", *rest)),
    st.just(("-m", "pkg.train", "--data", "$DATA")),
)
some = st.one_of
inputs = st.fixed_dictionaries(
    {},
    optional={
        "script": own,
        "data": some(st.just("/scratch/$USER/d"), words),
        "steps": st.integers(1, 40_000),
        "step_ms": st.floats(0.1, 2000),
        "cards": st.integers(1, 8),
        "workers": st.integers(0, 64),
        "host_memory": st.integers(1, 2**40),
        "card_memory": st.integers(1, 2**38),
        "family": st.sampled_from(["b200", "rtx"]),
    },
)
results = st.fixed_dictionaries(
    {},
    optional={
        "starve": st.builds(
            made.starve,
            st.integers(0, 32),
            st.integers(1, 512),
            st.floats(1, 1e5),
            st.sampled_from(["data", "compute", "unknown"]),
        ),
        "scale": st.builds(made.scale, st.dictionaries(st.sampled_from([2, 4, 8]), st.floats(0.3, 1.1), min_size=1)),
        "watch": st.builds(made.watch, st.floats(0, 1), st.floats(1, 170)),
        "report_card": st.builds(made.report_card, st.floats(0.1, 500), st.integers(1, 8)),
    },
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a script is submitted, with the folder for its logs."""
    folder = tmp_path_factory.mktemp("submit")
    (folder / "logs").mkdir()
    return folder


@fuzz(60, costs=20)
@given(inputs, results, st.sampled_from([AICR, OTHER]))
def test_whatever_was_measured_job_check_and_bash_find_no_fault(place: Path, asked: dict, seen: dict, at) -> None:
    script = written(*seen.values(), site=at, **asked)
    text = script.text("my job.sbatch")
    checked = check.check(text.encode(), at, "job.sbatch", (place,))
    assert not checked.faults, f"{checked.faults}\n{text}"
    assert not script.faults
    parsed = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True)
    assert parsed.returncode == 0, parsed.stderr.decode() + text
    if "workers" in asked:
        assert int(directives(script)["cpus-per-task"]) == (asked["workers"] + 1) * script_cards(script)
    limit = at.partition(directives(script)["partition"]).seconds
    assert limit is None or slurm_time.seconds(directives(script)["time"]) <= limit


def script_cards(script: JobScript) -> int:
    return int(directives(script)["gres"].rpartition(":")[2])


@fuzz(60)
@given(st.lists(words, min_size=1, max_size=4))
def test_the_words_of_a_training_reach_it_as_they_are(rest: list[str]) -> None:
    script = written(script=("train.py", *(word.replace("$", "") for word in rest)))
    [line] = [line for line in script.text().splitlines() if line.startswith("python train.py")]
    assert shlex.split(line) == ["python", "train.py", *(word.replace("$", "") for word in rest)]


def test_variables_in_a_training_stay_variables() -> None:
    assert (
        "python train.py --data \"$DATA\" --name 'a b'"
        in written(script=("train.py", "--data", "$DATA", "--name", "a b")).text()
    )


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    for number, asked in enumerate(({}, {"cards": 4}, {"data": "/d/$USER", "script": ("train.py", "--data", "$DATA")})):
        file = tmp_path / f"{number}.sbatch"
        file.write_text(written(made.starve(limit="data"), **asked).text())
        checked = subprocess.run(["shellcheck", "-e", "SC1091", "-s", "bash", file], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


def test_a_site_without_partitions_is_told_once_and_takes_one_by_hand(place: Path) -> None:
    faults = [one.rule for one in check.check(written(site=ANY).text().encode(), ANY, "x", (place,)).faults]
    assert faults == ["no-partition"]
    partition = next(one for one in rightsize.findings(written(site=ANY)) if one.title.startswith("partition"))
    assert "site init" in partition.fix and "not measured" not in partition.title
    script = written(site=ANY, partition="gpu")
    assert not check.check(script.text().encode(), ANY, "x", (place,)).faults


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    files = made.saved(tmp_path, starve=made.starve(), scale=made.scale({2: 0.9}), jobstats=made.report_card(10))
    line = ["job", "write", "--site", "aicr", "--from", *files, "--steps", "5000"]
    assert cli.main([*line, "--", "train.py", "--epochs", "3"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash -l\n") and said.out.endswith("sbatch train.sbatch\n")
    assert "train.py --epochs 3" in said.out and "jobstats.json" in said.out
    assert "job check finds no fault" in said.err
    assert cli.main([*line, "--out", "a.sbatch"]) == 0
    assert "mkdir -p logs && sbatch a.sbatch" in capsys.readouterr().out
    assert Path("a.sbatch").read_text().startswith("#!/bin/bash -l\n")
    assert cli.main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["choices"]["CPUs"]["value"] == "14"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "no.json"], "no.json: no such file"),
        (["--family", "b20"], "--family"),
        (["--partition", "rtx-night"], "--partition"),
        (["--cards", "0"], "--cards is 0"),
        (["--host-memory", "much"], "not a size"),
        (["--name", "a b"], "--name"),
        (["--steps", "1000000000000", "--step-ms", "1000"], "longer than a year"),
        (["--out", "."], "--out"),
        (["--", "train.py", "a\x1eb"], "control characters"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["job", "write", "--site", "aicr", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said and "\n" not in said


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "mine.sbatch"
    file.write_text("mine")
    assert cli.main(["job", "write", "--site", "aicr", "--out", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err and file.read_text() == "mine"


def test_host_memory_flag_is_for_the_whole_job() -> None:
    assert directives(written(host_memory=10 * GIB, cards=4))["mem"] == "12G"
