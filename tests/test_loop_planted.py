"""What the planted jobs plant: each setting does what it says, and nothing else."""

from types import SimpleNamespace

import pytest
import torch

from gpuworkshop.workloads import train
from gpuworkshop.workloads.config import Job, TrainConfig
from gpuworkshop.workloads.planted import PLANTED


def text(**settings) -> train.Training:
    return train.build(TrainConfig(batch_size=4, **settings), Job("gpt-tiny"), "cpu")


def test_one_call_a_sample_means_the_same_and_calls_as_often_as_there_are_samples() -> None:
    whole, single = text(), text(calls="a sample")
    x, y = whole.task.random_batch()
    called = []
    single.model.register_forward_hook(lambda model, inputs, outputs: called.append(len(outputs)))
    assert float(single.step(x, y)) == pytest.approx(float(whole.step(x, y)), rel=1e-5)
    assert called == [1] * 4
    both = zip(single.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, atol=1e-5) for a, b in both)


@pytest.mark.parametrize(("setting", "times"), [("rarely", 0), ("each step", 1), ("with samples", 1)])
def test_the_loss_is_read_as_often_as_the_setting_says(setting, times) -> None:
    training, read = text(reads_loss=setting), []
    training.read._outputs = ()
    training.read(SimpleNamespace(item=lambda: read.append(1)))
    assert len(read) == times


def test_every_sample_and_all_outputs_can_be_read() -> None:
    counting = text(reads_loss="with samples")
    counting.step(*counting.task.random_batch())
    looked_at = []
    counting.read._outputs = [
        SimpleNamespace(max=lambda at=at: looked_at.append(at) or torch.zeros(())) for at in range(4)
    ]
    counting.read(torch.zeros(()))
    assert looked_at == [0, 1, 2, 3]
    copying = text(reads_loss="with outputs")
    copying.step(*copying.task.random_batch())
    kept = copying.read._outputs
    assert kept.shape == (4, 32, 16) and kept.device.type == "cpu"
    assert not kept.requires_grad, "what is kept holds no graph"


def test_pictures_cropped_on_the_host_are_like_those_of_the_device() -> None:
    made = {}
    for where in ("device", "host"):
        training = train.build(TrainConfig("pre-decoded", batch_size=64, transform=where), Job(), "cpu")
        made[where], labels = training.prepare(next(iter(training.loader)))
        assert made[where].shape == (64, 3, 64, 64) and labels.shape == (64,)
    assert float(made["host"].mean()) == pytest.approx(float(made["device"].mean()), abs=0.3)
    assert float(made["host"].std()) == pytest.approx(float(made["device"].std()), rel=0.3)


@pytest.mark.parametrize(
    ("settings", "job", "says"),
    [
        (dict(calls="a sample"), Job(), "for text"),
        (dict(transform="host"), Job("gpt-tiny"), "is for pictures"),
    ],
)
def test_settings_that_mean_nothing_for_a_task_are_refused(settings, job, says) -> None:
    with pytest.raises(ValueError, match=says):
        train.build(TrainConfig(**settings), job, "cpu")


def test_a_planted_limit_of_memory_is_held_by_the_allocator_and_told(monkeypatch) -> None:
    job, asked = Job("gpt-tiny", memory_gib=35.0), []
    with pytest.raises(ValueError, match="no GPU"):
        train.need_card(TrainConfig(), job, "cpu")
    assert "35 GiB" in job.planted and "planted limit of memory" in job.title
    facts = SimpleNamespace(total_memory=140 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: asked.append(share))
    monkeypatch.setattr(train, "Training", lambda *how, **more: "a run")
    assert train.build(TrainConfig(), job, "cuda:0") == "a run"
    assert asked == [0.25]


@pytest.mark.parametrize("odd", [0, -1.0, "much", 1e9])
def test_odd_limits_of_memory_are_refused(odd) -> None:
    with pytest.raises(ValueError, match="memory_gib"):
        Job("gpt", memory_gib=odd)


def test_what_is_planted_is_told_in_words() -> None:
    assert all(one.says and one.shows_on for one in PLANTED)
    assert all("cpu" not in one.shows_on for one in PLANTED if one.job.sizes.needs_card or one.job.memory_gib)
