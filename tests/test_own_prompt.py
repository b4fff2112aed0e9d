"""The prompt of a run: its facts, its two rules; and that nothing of its owner is left in it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import msgspec
import own_runs
import pytest

from gpuworkshop import cli
from gpuworkshop.own import again, code, prompt, snapshot
from gpuworkshop.own.scrub import SECRET_LINE, Known, Scrubber, here

ALICE = Known(("Alice Example", "alice"), ("b200-node07", "login1"))
JOB = """\
#!/bin/bash -l
#SBATCH --partition=b200-batch
#SBATCH --account=smithlab
#SBATCH -A smithlab
#SBATCH --mail-user=alice@uni.example
#SBATCH --output=/scratch/alice/logs/%j.out
#SBATCH --nodelist=b200-node07
module load cuda/13.1
export HF_TOKEN=hf_abcdefghijklmnopqrst
cd ~/thesis && export PYTHONPATH=$PYTHONPATH:/home/alice/lib:$SCRATCH/smithlab/code
srun python train.py --lr 3 --max-tokens 409600 > /dev/null
"""
SCRIPT = '''\
"""Fine-tuning, by Alice Example <alice@uni.example>; runs on b200-node07."""
import os
from alice_tools import Net  # from /home/alice/lib

os.environ["WANDB_API_KEY"] = "abcdefghijkl"
eos_token = "<|endoftext|>"
data = "/scratch/alice/pictures"
print(f"\\n/home/alice/{data}.pt: images/s")
rate = samples / seconds
'''


def scrubbed(text: str, kind: str = "shell") -> str:
    return getattr(Scrubber(ALICE), kind)(text)


# What is taken out

TELLS = (
    "alice", "Alice", "smithlab", "b200-node07", "uni.example", "/scratch/alice", "/home/", "thesis",
    "hf_abcdefghijklmnopqrst", "abcdefghijkl",
)  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), [(JOB, "shell"), (SCRIPT, "python")])
def test_nothing_of_its_owner_is_left(text: str, kind: str) -> None:
    left = scrubbed(text, kind)
    assert [word for word in TELLS if word in left] == []


def test_what_a_job_script_needs_stays() -> None:
    left = scrubbed(JOB)
    for line in ("#!/bin/bash -l", "#SBATCH --partition=b200-batch", "module load cuda/13.1"):
        assert line in left.splitlines()
    assert "srun python train.py --lr 3 --max-tokens 409600 > /dev/null" in left and SECRET_LINE in left
    assert left.count("NAME1") == 2, "the same name has the same stand-in"


def test_python_stays_python_and_only_strings_comments_and_names_change() -> None:
    left = scrubbed(SCRIPT, "python")
    ast.parse(left)
    assert "rate = samples / seconds" in left and '"<|endoftext|>"' in left and "images/s" in left
    assert 'os.environ["WANDB_API_KEY"] = "SECRET"' in left and "from user1_tools import Net" in left.replace(
        "user2", "user1"
    )


SECRETS = {
    "by its name": 'api_key = "zyxwvutsr"',
    "by its key": 'headers = {"secret-token": "zyxwvutsr"}',
    "by its form": 'x = "ghp_abcdefghijklmnopqrstuv"',
    "of a service": 'x = "AKIAABCDEFGHIJKLMNOP"',
    "in hex": 'x = "0123456789abcdef0123456789abcdef"',
    "in a call": 'wandb.login(key="zyxwvutsrq")',
    "as a default": 'parser.add_argument("--hub-token", default="zyxwvutsr")',
    "a bearer": 'h = {"Authorization": "Bearer zyxwvutsr"}',
    "a private key": 'k = """-----BEGIN RSA PRIVATE KEY-----\\nzyxwvutsr\\n-----END RSA PRIVATE KEY-----"""',
    "in a comment": "x = 1  # password: zyxwvutsr",
}
HARMLESS = (
    "num_tokens = 2048",
    'tokens = batch["tokens"]',
    'tokenizer = load("bert-base-uncased")',
    "total / count  # tokens seen so far, images/s",
    'print("step", "train/loss", "10/20")',
    'x = "/tmp/x"; y = "/dev/shm"',
)


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_replaced(text: str) -> None:
    left = scrubbed(text, "python")
    assert not any(part in left for part in ("zyxwvutsr", "ghp_", "AKIA", "0123456789abcdef")) and left != text


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert scrubbed(text, "python") == text


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("export TOKENIZERS_PARALLELISM=false", "export TOKENIZERS_PARALLELISM=false"),
        ("export WANDB_API_KEY=$KEY", "export WANDB_API_KEY=$KEY"),
        ("python t.py --token zyxwvutsr --lr 3", SECRET_LINE),
        ("X=ghp_abcdefghijklmnopqrstuv python t.py", SECRET_LINE),
        ("cd ../../lab/code", "cd /path1"),
        ("cp x.tar $TMPDIR/data", "cp x.tar $TMPDIR/path1"),
        ("ssh 10.1.2.3 ls ~bob/x", "ssh host1 ls /path1"),
        ("python t.py -o/opt/lab/x", "python t.py -o/path1"),
        ("curl https://files.lab.example/x?k=1", "curl https://host1.example/"),
    ],
)
def test_lines_of_a_job_script(line: str, left: str) -> None:
    assert scrubbed(line) == left


def test_a_name_of_everybody_is_no_name() -> None:
    known = here({"USER": "root", "HOSTNAME": "localhost", "SLURMD_NODENAME": "n07-of-a-test"})
    assert "root" not in known.users and "localhost" not in known.hosts and "n07-of-a-test" in known.hosts


def test_what_is_no_python_is_scrubbed_as_any_text() -> None:
    assert scrubbed("def broken(:\n  '/home/alice/x'\n", "python") == "def broken(:\n  '/path1'\n"


# The prompt


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was kept, of a script of Alice's, and her job script; the present folder is an empty one."""
    monkeypatch.setattr("gpuworkshop.own.prompt.here", lambda: ALICE)
    folder = tmp_path / "home" / "alice"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "job.sbatch").write_text(JOB)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    words = ("/home/alice/venv/bin/python", str(folder / "train.py"), "--data", "/scratch/alice/pictures")
    result = own_runs.result(123.0, command=words, watched=None)
    assert again.begin(result, code.look(words))
    return folder / "job.sbatch"


def test_the_prompt_asks_to_measure_first_and_for_one_change(job: Path) -> None:
    text = prompt.prompt(snapshot.newest(), job).text
    assert text.index("Measure first") < text.index("Choose one") < text.index("Change exactly one thing")
    for word in ("50 steps", "20 steps", "loader workers with pinned memory", "BF16", "checkpointing", "second GPU"):
        assert word in text
    assert "{{" not in text


def test_the_prompt_holds_the_facts_and_both_scripts_and_nothing_of_their_owner(job: Path) -> None:
    made = prompt.prompt(snapshot.newest(), job)
    assert "123 samples/s" in made.text and "workers 0" in made.text and "GPU utilization: n/a" in made.text
    assert "rate = samples / seconds" in made.text and "#SBATCH --partition=b200-batch" in made.text
    assert [word for word in TELLS if word in made.text] == []
    assert "paths" in made.replaced and "secret" in made.replaced


def test_a_text_cannot_fill_the_slots_of_the_prompt_or_leave_its_block(job: Path) -> None:
    job.write_text("# {{script}}\n```\nend\n")
    made = prompt.prompt(snapshot.newest(), job).text
    assert "# {{script}}" in made and "````bash" in made


@pytest.mark.parametrize("name", ["none.sbatch", "."])
def test_a_job_script_that_cannot_be_read_is_bad_input(job: Path, name: str, capsys: Any) -> None:
    assert cli.main(["loop", "--prompt", str(job.parent / name)]) == 2
    assert "name the job script" in capsys.readouterr().err


# The command


def test_it_is_shown_and_not_written_where_nobody_can_answer(job: Path, capsys: Any) -> None:
    assert cli.main(["loop", "--prompt", str(job)]) == 0
    shown = capsys.readouterr()
    assert "Measure first" in shown.out and "Not written" in shown.err and "Replaced in it" in shown.err
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(("flags", "file"), [(["--yes"], "prompt.md"), (["--into", "ask.txt"], "ask.txt")])
def test_it_is_written_where_that_was_asked_for(job: Path, capsys: Any, flags: list[str], file: str) -> None:
    assert cli.main(["loop", "--prompt", str(job), *flags]) == 0
    assert Path(file).read_text() in capsys.readouterr().out
    if "--yes" not in flags:
        assert cli.main(["loop", "--prompt", str(job), *flags]) == 2, "a file that is there is not written over"


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_in_a_terminal_it_asks(job: Path, monkeypatch: pytest.MonkeyPatch, answer: str, written: bool) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

    monkeypatch.setattr("sys.stdin", Terminal())
    assert cli.main(["loop", "--prompt", str(job)]) == 0
    assert Path("prompt.md").exists() is written


BAD = {
    "no run yet": (["--prompt", "x"], "no run was kept yet"),
    "again, no run yet": (["--again"], "gpuworkshop loop -- COMMAND"),
    "both": (["--again", "--prompt", "x"], "one after the other"),
    "a preset": (["--preset", "tiny", "--", "python", "x.py"], "--preset is for the built-in job"),
    "changes": (["--again", "--max-changes", "2"], "--max-changes is for the built-in job, not for --again"),
    "yes": (["--yes"], "belong to --prompt"),
    "show": (["--show"], "a script of your own"),
    "json": (["--prompt", "x", "--json"], "no JSON"),
    "an option without --": (["python", "x.py", "--lr", "3"], "That goes after --: gpuworkshop loop -- COMMAND"),
}


@pytest.mark.parametrize(("words", "says"), BAD.values(), ids=BAD)
def test_what_does_not_go_together_is_one_line(words: list[str], says: str, capsys: Any) -> None:
    assert cli.main(["loop", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and says in shown.err and shown.err.count("\n") == 1


def test_a_command_is_run_kept_and_reported(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    output = job.parent / "output.txt"
    output.write_text("epoch 0\n")
    words = ("python", str(job.parent / "train.py"), "--lr", "3")
    seen: dict[str, Any] = {}

    def started(command: tuple[str, ...], **how: Any) -> Any:
        seen.update(how, command=command)
        return own_runs.result(command=command, output=str(output), not_seen=("No loader was seen.",))

    monkeypatch.setattr("gpuworkshop.own.launch.run", started)
    before = len(snapshot.read_all())
    assert cli.main(["loop", "--budget", "90s", "--show", "--", *words]) == 0
    shown = capsys.readouterr()
    assert seen["command"] == words and seen["budget_seconds"] == 90
    assert shown.out.index("epoch 0") < shown.out.index("Your script") and "gpuworkshop loop --again" in shown.err
    assert len(snapshot.read_all()) == before + 1
    assert cli.main(["loop", "--json", "--show", "--", *words]) == 0
    shown = capsys.readouterr()
    assert "epoch 0" in shown.err and msgspec.json.decode(shown.out)["result"]["command"] == list(words)


def test_a_script_that_fails_ends_with_one_and_its_own_words(tmp_path: Path, capsys: Any) -> None:
    """A real run; it ends before it imports anything, so it takes no time."""
    (tmp_path / "broken.py").write_text("print('so far')\ndef x(:\n")
    assert cli.main(["loop", "--", sys.executable, str(tmp_path / "broken.py")]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "failed with exit code 1, before it could be measured" in shown and "SyntaxError" in shown
    assert snapshot.read_all() == []
