"""Issue E under bad input: job scripts as people write them, sizes and files that nobody means, a Slurm that lies."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from jobreports import GPU_MEMORY, data, payload, text

from gpuworkshop.cluster import discover, jobstats, site, site_check, site_draft
from gpuworkshop.cluster.jobscript import check
from gpuworkshop.loop import evidence, rightsize
from gpuworkshop.loop.evidence import Evidence, NoResult

SCRIPTS = msgspec.toml.decode(Path(__file__).with_name("hostile_scripts.toml").read_bytes())
AICR = site.load("aicr")


def script(body: str, tasks: int = 1, head: str = "#SBATCH --mem=64G", shell: str = "#!/bin/bash") -> bytes:
    lines = (
        shell,
        "#SBATCH --partition=b200-batch",
        "#SBATCH --nodes=1",
        f"#SBATCH --ntasks-per-node={tasks}",
        f"#SBATCH --cpus-per-task={32 // tasks}",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --time=02:00:00",
        head,
        "set -euo pipefail" if shell == "#!/bin/bash" else ":",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        body,
    )
    return "\n".join((*lines, "")).encode()


def rules(data: bytes, at: site.Site = AICR) -> dict[str, check.Fault]:
    return {one.rule: one for one in check.check(data, at).faults}


@pytest.mark.parametrize("one", SCRIPTS["right"], ids=lambda one: one["what"])
def test_a_script_that_is_right_gets_no_complaint(one: dict) -> None:
    data = script(one["body"], one.get("tasks", 1), one.get("head", "#SBATCH --mem=64G"))
    assert not rules(data)


@pytest.mark.parametrize("one", SCRIPTS["wrong"], ids=lambda one: one["rule"])
def test_what_is_wrong_is_seen_behind_wrappers_shells_arrays_and_variables(one: dict) -> None:
    for body in one["bodies"]:
        assert set(rules(script(body, one.get("tasks", 1)))) == {one["rule"]}, body


def test_a_fix_keeps_the_wrapper_in_front() -> None:
    body = "apptainer exec --nv image.sif torchrun --standalone --nproc_per_node=8 train.py"
    fix = rules(script(body))["more-ranks"].fix
    assert fix.startswith("apptainer exec --nv image.sif torchrun --nproc_per_node=") and fix.endswith(" train.py")
    assert "uv run torchrun --standalone" in rules(script("uv run train.py"))["one-process"].fix


def test_zsh_and_sh_stop_in_their_own_way() -> None:
    piped = "python train.py --devices 4 | tee out.log"
    assert not rules(script(f"setopt ERR_EXIT pipefail\n{piped}", shell="#!/bin/zsh"))
    fix = rules(script(f"set -e\n{piped}", shell="#!/bin/sh"))["no-pipefail"].fix
    assert fix.startswith("#!/bin/bash"), "not every sh knows pipefail"


@pytest.mark.parametrize(
    "piece",
    [
        "a=(",
        "a=(b ",
        "bash -c '",
        'bash -c "bash -c ',
        "srun ",
        "uv run ",
        'a="$a $a"\nsrun $a\n',
        '"$(a=( ',
        "cat <<E <<F\n",
    ],
)
def test_a_file_of_one_piece_ends_soon(piece: str) -> None:
    began = time.process_time()
    rules(script(piece * (30_000 // len(piece))))
    assert time.process_time() - began < 2  # as tests/fuzzing.py bounds an input


def test_variables_in_variables_do_not_grow_without_end() -> None:
    lines = [f'v{n}="{f"$v{n + 1} " * 300}"' for n in range(20)] + ["srun $v0"] * 50
    began = time.process_time()
    rules(script("\n".join(lines)))
    assert time.process_time() - began < 2


# ---------------------------------------------------------------- which partitions there are

SINFO = "gpu*|up|2-00:00:00|4|mixed|64|512000|gpu:a100:4\ncpu|up|1:00:00|9|idle|64|256000|(null)\n"


def drafted(every: str) -> site.Site:
    return site.parse(site_draft.draft(discover.parse(SINFO, "ClusterName = here", every)))


def asks_for(partition: str, *more: str) -> bytes:
    lines = ("#!/bin/bash", f"#SBATCH --partition={partition}", "#SBATCH --gres=gpu:1", "#SBATCH --time=1:00:00", *more)
    return "\n".join((*lines, "#SBATCH --cpus-per-task=4", "python train.py", "")).encode()


def test_a_partition_that_slurm_does_not_have_is_refused_where_the_list_is_known_to_be_whole() -> None:
    whole = drafted("gpu\ncpu\nsecret\n")
    assert whole.every_partition == ("cpu", "gpu", "secret")
    for name in ("gpuu", "b200-batch"):
        found = rules(asks_for(name), whole)
        assert set(found) == {"no-such-partition"} and found["no-such-partition"].level == "fail"
        assert found["no-such-partition"].fix == "#SBATCH --partition=gpu"
    assert not {"no-such-partition", "near-partition"} & rules(asks_for("secret"), whole).keys(), "hidden, and there"
    assert "no-such-partition" not in rules(asks_for("other", "#SBATCH --clusters=elsewhere"), whole)


@pytest.mark.parametrize("every", ["", "gpu\n", "gpu*|up|1\ncpu", "\x00", "gpu\ncpu\na b\n"])
def test_a_list_that_may_not_be_whole_is_no_list(every: str) -> None:
    assert not drafted(every).every_partition
    assert rules(asks_for("other"), drafted(every))["unknown-partition"].level == "notice"


def test_a_list_that_slurm_has_outgrown_is_told() -> None:
    live = discover.parse(SINFO, "", "gpu\ncpu\nnew\n")
    told = [one for one in site_check.check(drafted("gpu\ncpu\n"), live) if "every_partition" in one.title]
    assert [(one.level, one.fix) for one in told] == [("warning", 'every_partition = ["cpu", "gpu", "new"]')]
    assert not [one for one in site_check.check(drafted("gpu\ncpu\nnew\n"), live) if "every_partition" in one.title]


# ---------------------------------------------------------------- job write


@pytest.mark.parametrize("said", ["a\ntouch X", "$A\ntouch X", "\r", "\x1b[2J", "a\u2028b"])
def test_no_text_of_the_user_leaves_its_line_of_a_script(said: str) -> None:
    with pytest.raises(ValueError, match="^the training and --data are one line"):
        rightsize.Asked(data=said)
    made = rightsize.write(Evidence(), AICR)
    with pytest.raises(ValueError, match="^--out: no line breaks"):
        made.text(said)
    named = rightsize.write(
        Evidence(),
        site.parse((site.SHIPPED / "generic.toml").read_text().replace('name = "', f"name = {json.dumps(said)} #", 1)),
    )
    commands = [line for line in named.text().splitlines() if line and not line.startswith("#")]
    assert not [line for line in commands if "touch" in line]


WORDS = (
    "x;touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    "${X:-$(touch PWNED)}",
    "\\",
    "#x",
    "$X'",
    "a b",
)


def test_a_training_with_the_shells_own_characters_runs_nothing_else(tmp_path: Path) -> None:
    made = rightsize.write(
        Evidence(), site.load("generic"), rightsize.Asked(script=("train.py", *WORDS), data=WORDS[1])
    )
    own = ("set", "module", "conda", "source", "gpuworkshop", "srun", "df", "du")
    stand_ins = [*(f"{name}() {{ :; }}" for name in own), "python() { printf '%s\\n' \"$@\" > said; }"]
    said = subprocess.run(["bash"], input="\n".join((*stand_ins, made.text("a b'c"))), cwd=tmp_path, text=True)
    assert said.returncode == 0 and not (tmp_path / "PWNED").exists()
    expected = [word.replace("$X", "") if word == "$X'" else word for word in WORDS]
    assert (tmp_path / "said").read_text().splitlines() == ["train.py", *expected]


def test_what_is_no_file_is_called_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file, says in (
        ("/dev/zero", "not a plain file"),
        (tmp_path / "pipe", "not a plain file"),
        (tmp_path, "a folder"),
    ):
        with pytest.raises(NoResult, match=f": {says}$"):
            evidence.read(str(file))
        with pytest.raises(check.NoScript, match=f": {says}$"):
            check.run(str(file), AICR)


# ---------------------------------------------------------------- job stats


def test_a_card_has_no_more_memory_in_use_than_it_has() -> None:
    whole = data((95.0, 0.82))
    (node,) = whole["nodes"].values()
    node["gpu_used_memory"] = {name: 70 * size for name, size in node["gpu_total_memory"].items()}
    (job,) = jobstats.read(json.dumps(whole).encode())
    assert job.gpu_memory is None and "of the card's" in job.why("gpu_memory")
    words = text({"GPU utilization": 80, "GPU memory usage": 180}, {GPU_MEMORY: ["n1 (GPU 0): 95.6GB/16.3GB"]})
    (job,) = jobstats.read(words.encode())
    assert job.gpu_memory is None and job.gpu == 0.8 and "more than 100%" in job.why("gpu_memory")


def test_one_damaged_payload_does_not_take_the_other_jobs_away() -> None:
    rows = f"JobID|State|AdminComment\n1|COMPLETED|JS1:H4sI\n2|FAILED|{payload(data((95.0, 0.82)))}\n"
    first, second = jobstats.read(rows.encode())
    assert not first.has_figures and "JS1" in first.why("all") and second.gpu == 0.95
    with pytest.raises(jobstats.NoReport, match="^JS1: is not followed by base64"):
        jobstats.read("\n".join(rows.splitlines()[:2]).encode())


@pytest.mark.parametrize("nothing", [b"", b" \n\n", b"\0" * 99, b"\xff\xfe"])
def test_nothing_is_called_nothing(nothing: bytes) -> None:
    with pytest.raises(jobstats.NoReport, match="^empty: "):
        jobstats.read(nothing)


def test_names_in_a_report_card_stay_text() -> None:
    whole = data((95.0, 0.82))
    whole["nodes"] = {"<script>alert(1)</script>\x1b[31m": next(iter(whole["nodes"].values()))}
    (job,) = jobstats.read(json.dumps(whole).encode())
    report = jobstats.report(job)
    assert "<script" not in report._repr_mimebundle_()["text/html"] and "\x1b" not in str(report)


# ---------------------------------------------------------------- a Slurm that lies


def test_an_answer_without_an_end_is_given_up_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "LARGEST", 2**20)
    for command in ("cat /dev/zero", "cat /dev/zero >&2"):
        with pytest.raises(discover.NoSlurm, match="^sh: its answer does not end: more than 1 MiB$"):
            discover.run(("sh", "-c", command), 60)
    assert discover.run(("sh", "-c", "printf 'a\\377b'")) == "a\ufffdb"


def test_a_draft_of_nonsense_numbers_still_loads() -> None:
    lines = [f"p{n}|up|99999999-00|999999999999|idle|999999999999|999999999999|gpu:x:999999,gpu:x:9" for n in range(3)]
    for said in ("\n".join(lines), "gpu|up|-1|1|idle|0|0|gpu:a100:2", "gpu|up|0:00|0|idle|0|0|gpu:a100:0"):
        drafted = site.parse(site_draft.draft(discover.parse(said)))
        assert drafted.conventions.cpus_per_card >= 1
