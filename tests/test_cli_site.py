"""The verbs of the site file, with a Slurm made of two shell scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuworkshop import cli
from gpuworkshop.cluster.site import VARIABLE, load

SINFO = """\
debug*|up|30:00|1|idle|32|128000|gpu:a100:2
gpu|up|2-00:00:00|4|mixed|64|512000|gpu:a100:4
"""


@pytest.fixture(autouse=True)
def nobody_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No site is chosen, and this is no job."""
    for name in (VARIABLE, "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm cluster of the name `here` with two partitions; its folder is the current one."""
    (tmp_path / "answer").write_text(SINFO)
    for name, script in (("sinfo", f"cat {tmp_path}/answer"), ("scontrol", "echo ClusterName = here")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Slurm; the current folder is empty."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture) -> dict:
    """The envelope, which is all that stands on stdout."""
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"kit", "origin", "result", "findings"}
    return found


def test_show_prints_the_site_that_counts_and_why(no_slurm, monkeypatch, capsys) -> None:
    assert cli.main(["site", "show"]) == 0
    assert "Which site counts: no Slurm answers here" in capsys.readouterr().out
    monkeypatch.setenv(VARIABLE, "aicr")
    assert cli.main(["site", "show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("What the kit knows of AICR\n") and "$GPUWORKSHOP_SITE" in out
    assert cli.main(["site", "show", "generic"]) == cli.main(["site", "show", "--site", "generic"]) == 0
    assert capsys.readouterr().out.count("Which site counts: asked for") == 2


def test_show_follows_the_name_of_the_cluster(slurm, capsys) -> None:
    (slurm / "scontrol").write_text("#!/bin/sh\necho 'ClusterName = AICR'\n")
    assert cli.main(["site", "show", "--json"]) == 0
    shown = printed(capsys)
    assert shown["result"]["name"] == "AICR"
    assert shown["findings"][0]["title"] == "Which site counts: this is the Slurm cluster AICR"


def test_init_drafts_on_stdout_what_loads_and_passes_the_check(slurm, capsys) -> None:
    assert cli.main(["site", "init", "--name", "Mine"]) == 0
    (slurm / "mine.toml").write_text(capsys.readouterr().out)
    assert load("./mine.toml").name == "Mine"
    assert cli.main(["site", "check", "mine.toml"]) == 0
    assert 'partition "gpu" is as the file says' in capsys.readouterr().out


def test_init_writes_a_file_and_says_what_is_next(slurm, capsys) -> None:
    assert cli.main(["site", "init", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert "2 partitions and 1 kind of cards, as Slurm cluster here says" in out
    assert f"export GPUWORKSHOP_SITE={slurm}/mine.toml" in out
    assert "ask: Does the site cancel jobs whose card is idle" in " ".join(out.split())
    assert [one.name for one in load("./mine.toml").partitions] == ["debug", "gpu"]
    assert sorted(path.name for path in slurm.glob("*mine*")) == ["mine.toml"]


@pytest.mark.parametrize("kind", ["a file", "a link to nowhere"])
def test_init_replaces_nothing_unless_forced(slurm, capsys, kind: str) -> None:
    file = slurm / "mine.toml"
    file.write_text("precious") if kind == "a file" else file.symlink_to(slurm / "nowhere")
    assert cli.main(["site", "init", "mine.toml"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and "--force" in shown.err
    assert not file.exists() or file.read_text() == "precious"
    assert cli.main(["site", "init", "mine.toml", "--force"]) == 0
    assert load(file).name == "here"


def test_init_as_json_carries_the_text(slurm, capsys) -> None:
    assert cli.main(["site", "init", "--json"]) == 0
    shown = printed(capsys)
    assert shown["result"]["file"] is None and 'name = "gpu"' in shown["result"]["text"]
    assert cli.main(["site", "init", "mine.toml", "--json"]) == 0
    assert printed(capsys)["result"] == {"file": "mine.toml", "text": (slurm / "mine.toml").read_text()}


def test_check_ends_with_one_where_a_job_would_be_refused(slurm, capsys) -> None:
    cli.main(["site", "init", "mine.toml"])
    (slurm / "answer").write_text(SINFO.replace("2-00:00:00", "1:00:00"))
    capsys.readouterr()
    for words in (["--site", "mine.toml"], ["mine.toml"]):
        assert cli.main(["site", "check", *words, "--json"]) == 1
        shown = printed(capsys)
        assert "fail" in [one["level"] for one in shown["findings"]]
        assert shown["origin"] == shown["origin"] | {"mark": "measured here", "on": "Slurm cluster here"}
        assert [one["name"] for one in shown["result"]["slurm"]["partitions"]] == ["debug", "gpu"]


BAD = {
    "no such site": (["show", "aicrr"], "did you mean aicr?"),
    "no such file": (["show", "no.toml"], "no.toml: no such file"),
    "no Slurm to draft from": (["init"], "there is no Slurm on this machine"),
    "no Slurm to check against": (["check", "generic"], "there is no Slurm on this machine"),
    "no such verb": (["shew"], "shew"),
}


@pytest.mark.parametrize(("words", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_clear_line(no_slurm, capsys, words, says) -> None:
    assert cli.main(["site", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("gpuworkshop: ") and says in shown.err


def test_a_folder_that_is_not_there_is_one_line(slurm, capsys) -> None:
    assert cli.main(["site", "init", "no/such/mine.toml"]) == 2
    assert capsys.readouterr().err == "gpuworkshop: no/such/mine.toml: cannot be written: No such file or directory\n"


def test_a_wrong_file_is_one_line_with_its_key_and_who_chose_it(no_slurm, monkeypatch, capsys) -> None:
    (no_slurm / "mine.toml").write_text('name = "x"\nsauce = "y"\n')
    monkeypatch.setenv(VARIABLE, "./mine.toml")
    assert cli.main(["site", "show"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gpuworkshop: $GPUWORKSHOP_SITE: mine.toml: ") and "sauce" in err
