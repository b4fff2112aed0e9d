"""What a watched command begins with, and which cards are watched for it."""

import os

import pytest
from standins import pynvml as fake_nvml
from watching import card

from gpuworkshop.instruments import launched, watch
from gpuworkshop.instruments.launched import NAMES_CARDS

CUDA = "CUDA_VISIBLE_DEVICES"
HERE = {"PATH": os.environ["PATH"], CUDA: "0"}


def cards(words: str, env: dict[str, str] = HERE) -> dict[str, str]:
    """The variables that name cards, as the command has them."""
    _, own = launched.read(words.split(), env)
    return {name: own[name] for name in NAMES_CARDS if name in own}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("env CUDA_VISIBLE_DEVICES=1 python train.py", {CUDA: "1"}),
        ("/usr/bin/env A=b CUDA_VISIBLE_DEVICES=1,2 CUDA_DEVICE_ORDER=PCI_BUS_ID python train.py", {CUDA: "1,2"}),
        ("env CUDA_VISIBLE_DEVICES= python train.py", {CUDA: ""}),
        ("env CUDA_VISIBLE_DEVICES=1 env CUDA_VISIBLE_DEVICES=2 python", {CUDA: "2"}),
        ("env -u CUDA_VISIBLE_DEVICES python train.py", {}),
        ("env --unset=CUDA_VISIBLE_DEVICES -C /tmp python train.py", {}),
        ("env -uCUDA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES=3 python", {CUDA: "3"}),
        ("env -i python train.py", {}),
        ("env - CUDA_VISIBLE_DEVICES=1 python train.py", {CUDA: "1"}),
        ("env -- CUDA_VISIBLE_DEVICES=1 python", {CUDA: "1"}),
        ("env --no-such-option CUDA_VISIBLE_DEVICES=1", {CUDA: "0"}),
        ("python train.py CUDA_VISIBLE_DEVICES=1", {CUDA: "0"}),
        ("env python train.py CUDA_VISIBLE_DEVICES=1", {CUDA: "0"}),
    ],
)
def test_the_environment_that_env_gives_is_taken_into_account(words, says) -> None:
    found = cards(words)
    assert found.pop("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID" and found == says


def test_a_string_is_split_as_env_splits_it() -> None:
    _, own = launched.read(["env", "-S", f"{CUDA}=1 python train.py"], HERE)
    assert own[CUDA] == "1"


@pytest.mark.parametrize(
    "words", ["python train.py", "env OMP_NUM_THREADS=1 python", f"env {CUDA}=0 python", "env", ""]
)
def test_where_nothing_bears_on_the_cards_nothing_is_said(words) -> None:
    begins, own = launched.read(words.split(), HERE)
    assert begins is None and own is HERE


@pytest.mark.parametrize("name", ["srun", "/opt/slurm/bin/srun", "mpirun", "ssh", "apptainer", "sbatch", "sudo"])
def test_a_launcher_is_said(name) -> None:
    begins, own = launched.read([name, "-n", "2", "python", "train.py"], HERE)
    found = launched.finding(begins)
    short = name.rpartition("/")[2]
    assert own is HERE and begins.by == short
    assert found.level == "notice" and f"begins with {short}: " in found.title and "it may " in found.evidence
    assert "gpuworkshop watch -- " in found.fix and "NAME" not in found.fix


def test_env_before_a_launcher_is_one_finding() -> None:
    begins, own = launched.read(["env", f"{CUDA}=1", "srun", "python"], HERE)
    assert own[CUDA] == "1"
    assert launched.finding(begins).title.endswith(
        "srun: watched were the cards that its own environment names: " + CUDA + "=1"
    )


def test_the_cards_of_the_commands_environment_are_watched(monkeypatch) -> None:
    other = card(uuid="GPU-2", bus_id="00000000:4b:00.0")
    fake_nvml.install({"devices": [card(), other]}, monkeypatch)
    monkeypatch.setenv(CUDA, "0")
    command = ["python", "-c", "import time; time.sleep(0.5)"]
    assert [one.card.uuid for one in watch.run(command).cards] == [card()["uuid"]]
    result = watch.run(["env", f"{CUDA}=1", *command])
    assert [one.card.uuid for one in result.cards] == ["GPU-2"] and result.status == 0
    titles = [one.title for one in watch.findings(result)]
    assert sum("begins with env" in title and f"{CUDA}=1" in title for title in titles) == 1


def test_pytorch_here_says_nothing_of_a_command_with_other_cards(monkeypatch) -> None:
    """The devices and the tensors of this process are not the command's."""
    fake_nvml.install({"devices": [card()]}, monkeypatch)
    monkeypatch.setattr("gpuworkshop.machine.gpus.seen_by_torch", lambda: pytest.fail("PyTorch was asked"))
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.delenv(CUDA, raising=False)
    (one,) = watch.run(["env", f"{CUDA}=0", "python", "-c", ""]).cards
    assert one.torch is None
