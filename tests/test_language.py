"""The made-up language and the GPT that learns it, with every setting that its training has."""

import msgspec
import numpy as np
import pytest
import torch

from gpuworkshop.loop import trial
from gpuworkshop.loop.remedies import Facts, by_id, proposals, remedies
from gpuworkshop.timing import Plan
from gpuworkshop.workloads import config as configs
from gpuworkshop.workloads import language, train
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.language import ALPHABET, FAITHFUL, GPT

QUICK = Plan(block_seconds=0.02, min_rounds=4, budget_seconds=0.3)


@pytest.fixture(autouse=True)
def small(monkeypatch) -> configs.Preset:
    """A smaller tiny GPT, which learns in a second."""
    text = msgspec.structs.replace(configs.PRESETS["gpt-tiny"].text, context=16, width=32, sequences=512)
    preset = msgspec.structs.replace(configs.PRESETS["gpt-tiny"], text=text, learning_samples=1600, learning_rate=1e-2)
    monkeypatch.setitem(configs.PRESETS, "gpt-tiny", preset)
    return preset


def text(**settings) -> train.Training:
    return train.build(Job("gpt-tiny").sizes.start.with_(**settings), Job("gpt-tiny"), "cpu")


def test_the_language_follows_its_rule_as_often_as_it_says() -> None:
    words = language.write(400, 50, seed=3)
    rule = language._rule()
    kept = (rule[words[:, :-2], words[:, 1:-1]] == words[:, 2:]).mean()
    assert kept == pytest.approx(FAITHFUL + (1 - FAITHFUL) / ALPHABET, abs=0.01)
    assert np.array_equal(words, language.write(400, 50, seed=3))
    assert not np.array_equal(words, language.write(400, 50, seed=4))


def test_the_floor_is_the_loss_of_a_model_that_knows_the_rule() -> None:
    words, rule = torch.from_numpy(language.write(20_000, 30, seed=5)), torch.from_numpy(language._rule())
    odds = torch.full((ALPHABET, ALPHABET, ALPHABET), (1 - FAITHFUL) / ALPHABET)
    odds.scatter_add_(2, rule[:, :, None], torch.full((ALPHABET, ALPHABET, 1), FAITHFUL))
    known = odds[words[:, :-2], words[:, 1:-1]].gather(2, words[:, 2:, None])
    assert language.floor() == pytest.approx(-known.log().mean().item(), abs=0.01)
    assert language.floor() < np.log(ALPHABET) / 3


def test_it_is_learned_and_a_learning_rate_of_zero_fails_the_gate(small, monkeypatch) -> None:
    bench = trial.Bench(Job("gpt-tiny"), small.start, "cpu", QUICK)
    learned = bench.learn(bench.build(small.start))
    assert learned.start == pytest.approx(np.log(ALPHABET), abs=0.1)
    assert learned.fall > 0.2
    assert bench.judge(small.start.with_(fused=True), "close").ok is True
    monkeypatch.setitem(configs.PRESETS, "gpt-tiny", msgspec.structs.replace(small, learning_rate=0.0))
    assert bench.judge(small.start.with_(fused=True), "close").ok is False


def test_nothing_of_the_future_is_seen() -> None:
    model = GPT(configs.PRESETS["gpt-tiny"].text).eval()
    tokens = torch.randint(0, ALPHABET, (1, 10))
    other = tokens.clone()
    other[0, 7:] = (other[0, 7:] + 1) % ALPHABET
    with torch.no_grad():
        assert torch.allclose(model(tokens)[0, :7], model(other)[0, :7], atol=1e-6)
        assert not torch.allclose(model(tokens)[0, 7:], model(other)[0, 7:], atol=1e-6)


@pytest.mark.parametrize("settings", [{"checkpointing": True}, {"fused": True}, {"reads_loss": "rarely"}])
def test_these_settings_change_no_gradient(settings) -> None:
    gradients = []
    for training in (text(), text(**settings)):
        x, y = training.prepare(training.task.loader.dataset.tokens[:8])
        training.loss(x, y).backward()
        gradients.append([weight.grad for weight in training.model.parameters()])
    for plain, changed in zip(*gradients, strict=True):
        assert torch.allclose(plain, changed, atol=1e-6)


def test_checkpointing_keeps_fewer_activations() -> None:
    kept = {}
    for on in (False, True):
        training, saved = text(checkpointing=on), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=saved: s.append(x.numel()) or x, lambda x: x):
            training.loss(*training.task.random_batch())
        kept[on] = sum(saved)
    assert kept[True] < kept[False] / 2


def test_random_batches_look_like_prepared_ones() -> None:
    training = text()
    real = training.prepare(next(iter(training.loader)))
    for mine, theirs in zip(training.task.random_batch(), real, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data_path": "pre-decoded"}, "for pictures"),
        ({"memory_format": "channels_last"}, "for pictures"),
        ({"batch_size": 600}, "use batch_size <= 512"),
    ],
)
def test_what_makes_no_sense_for_text_is_said(settings, says) -> None:
    with pytest.raises(ValueError, match=says):
        text(**settings)


@pytest.mark.parametrize("odd", [{"data": "pictures"}, {"storage_wait_ms": 3.0}])
def test_a_job_on_text_reads_no_files(odd) -> None:
    with pytest.raises(ValueError, match="pictures"):
        Job("gpt-tiny", **odd)


def test_checkpointing_a_network_with_nothing_worth_it_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpointing is for"):
        train.build(TrainConfig(checkpointing=True), Job("tiny"), "cpu")


def test_no_remedy_for_pictures_is_proposed_for_text() -> None:
    facts = Facts(cpus=2, card=True, knee=lambda config: 64, pictures=False)
    start = configs.PRESETS["gpt-tiny"].start
    proposed = {remedy.id: proposals(remedy, start, facts) for remedy in remedies()}
    assert not (proposed["pre-decode"] or proposed["card-decode"] or proposed["channels-last"])
    assert proposed["rare-loss"] == (start.with_(reads_loss="rarely"),)
    assert proposed["fused"] == (start.with_(fused=True),) and proposed["tf32"] == (start.with_(precision="tf32"),)
    assert proposals(by_id("tf32"), start.with_(precision="bf16"), facts) == ()
    assert not proposals(by_id("compile"), start, msgspec.structs.replace(facts, card=False))


def test_the_script_trains_on_text(capsys) -> None:
    train.main(["--preset", "gpt-tiny", "--steps", "10", "--device", "cpu"])
    assert "sequences/s" in capsys.readouterr().out
