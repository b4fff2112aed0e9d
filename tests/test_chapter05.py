"""Chapter 5: its checks find every typical mistake, and its table has each claim beside what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="chapter 5 trains with PyTorch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from gpuworkshop.child import ChildFailed  # noqa: E402
from gpuworkshop.course import exercise, material, progress, quiz, replay, tradeoffs  # noqa: E402
from gpuworkshop.course.checks import chapter05  # noqa: E402
from gpuworkshop.instruments import memory  # noqa: E402
from gpuworkshop.instruments.memory_result import Line  # noqa: E402
from gpuworkshop.timing import Plan  # noqa: E402

CHAPTER = "05_memory_precision"
SOURCE = Path(__file__).parents[1] / "solutions" / f"{CHAPTER}.py"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As the chapter has it without a card: two threads on busy cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------- exercise 1: a step in BF16


def right_step(model, loss_function, batch, targets, optimizer):
    optimizer.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def drops_at_the_end(model, loss_function, batch, targets, optimizer):
    """Another right way: the gradients go after the update, and the loss comes back as a number."""
    with torch.autocast(device_type=batch.device.type, dtype=torch.bfloat16):
        outputs = model(batch)
        loss = loss_function(outputs, targets)
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def by_decorator(model, loss_function, batch, targets, optimizer):
    """A third: autocast around a function of its own."""

    @torch.autocast(batch.device.type, torch.bfloat16)
    def forward():
        return loss_function(model(batch), targets)

    optimizer.zero_grad()
    loss = forward()
    loss.backward()
    optimizer.step()
    return loss


def in_fp32(model, loss_function, batch, targets, optimizer):
    optimizer.zero_grad()
    loss = loss_function(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss


def no_model(model, loss_function, batch, targets, optimizer):
    optimizer.step()
    return 0.0


def own_loss(model, loss_function, batch, targets, optimizer):
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = cross_entropy(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss


def forward_outside(model, loss_function, batch, targets, optimizer):
    outputs = model(batch)
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(outputs, targets)
    loss.backward()
    optimizer.step()
    return loss


def loss_outside(model, loss_function, batch, targets, optimizer):
    with torch.autocast(batch.device.type, torch.bfloat16):
        outputs = model(batch)
    loss = loss_function(outputs.float(), targets)
    loss.backward()
    optimizer.step()
    return loss


def casts_the_model(model, loss_function, batch, targets, optimizer):
    optimizer.zero_grad()
    loss = loss_function(model.bfloat16()(batch.bfloat16()), targets)
    loss.backward()
    optimizer.step()
    return loss


def in_fp16(model, loss_function, batch, targets, optimizer):
    with torch.autocast(batch.device.type, torch.float16):
        loss = loss_function(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss


def scaled(model, loss_function, batch, targets, optimizer):
    scaler = torch.amp.GradScaler(batch.device.type)
    optimizer.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def backward_inside(model, loss_function, batch, targets, optimizer):
    optimizer.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
        loss.backward()
    optimizer.step()
    return loss


def no_backward(model, loss_function, batch, targets, optimizer):
    optimizer.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    optimizer.step()
    return loss


def no_update(model, loss_function, batch, targets, optimizer):
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    loss.backward()
    return loss


def drops_before_the_update(model, loss_function, batch, targets, optimizer):
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss


def keeps_gradients(model, loss_function, batch, targets, optimizer):
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    loss.backward()
    optimizer.step()
    return loss


def climbs(model, loss_function, batch, targets, optimizer):
    optimizer.zero_grad()
    with torch.autocast(batch.device.type, torch.bfloat16):
        loss = loss_function(model(batch), targets)
    (-loss).backward()
    optimizer.step()
    return loss


def returns_nothing(*job):
    right_step(*job)


def puts_the_weights_back(model, loss_function, batch, targets, optimizer):
    before = [weight.detach().clone() for weight in model.parameters()]
    loss = right_step(model, loss_function, batch, targets, optimizer)
    with torch.no_grad():
        for weight, was in zip(model.parameters(), before, strict=True):
            weight.copy_(was)
    return loss


AUTOCAST_WRONG = {
    "no-function": 0.7,
    "raised": lambda model, batch: None,
    "no-forward": no_model,
    "own-loss": own_loss,
    "no-autocast": in_fp32,
    "forward-outside": forward_outside,
    "casts-the-model": casts_the_model,
    "other-format": in_fp16,
    "scaler": scaled,
    "loss-outside": loss_outside,
    "no-backward": no_backward,
    "backward-inside": backward_inside,
    "no-update": no_update,
    "no-gradients": drops_before_the_update,
    "gradients-kept": keeps_gradients,
    "other-gradients": climbs,
    "returns-nothing": returns_nothing,
    "learns-nothing": puts_the_weights_back,
}


@pytest.mark.parametrize("answer", [right_step, drops_at_the_end, by_decorator])
def test_a_right_step_is_done_and_learns(answer: Callable) -> None:
    result = exercise.open(CHAPTER, "autocast").check(answer)
    assert (result.done, result.mistake) == (True, ""), result.says
    before, after = map(float, re.findall(r"\d+\.\d+", result.says))
    assert after < chapter05.FALLS * before


@pytest.mark.parametrize("mistake", AUTOCAST_WRONG)
def test_a_wrong_step_gets_its_own_hint(mistake: str) -> None:
    assert_mistake("autocast", mistake, AUTOCAST_WRONG[mistake])


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_another_device_s_autocast_is_none() -> None:
    """`torch.autocast("cuda")` around a step on the CPU does nothing, with a warning at most."""

    def step(model, loss_function, batch, targets, optimizer):
        other = "cuda" if batch.device.type == "cpu" else "cpu"
        with torch.autocast(other, torch.bfloat16):
            loss = loss_function(model(batch), targets)
        loss.backward()
        optimizer.step()
        return loss

    assert_mistake("autocast", "no-autocast", step)


@pytest.mark.parametrize("stub", [..., lambda model, loss_function, batch, targets, optimizer: ...])
def test_a_step_that_is_not_there_yet_is_no_try(stub: Any) -> None:
    assert "Not attempted yet" in str(exercise.open(CHAPTER, "autocast").check(stub))
    assert progress.tally(CHAPTER, "exercise", "autocast") == progress.Tally()


def test_the_check_leaves_pytorch_as_it_was() -> None:
    before = torch.autograd.backward, torch.amp.GradScaler.scale, torch.get_rng_state()
    exercise.open(CHAPTER, "autocast").check(scaled)
    assert (torch.autograd.backward, torch.amp.GradScaler.scale) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


# ---------------------------------------------------------------- exercise 2: which batch?

SIZES_WRONG = {
    "no-dict": 64,
    "job-missing": {"pictures": 64},
    "no-batch": chapter05.BATCHES | {"pictures": "64"},
    "does-not-fit": chapter05.BATCHES | {"letters": 256},
    "at-the-edge": chapter05.BATCHES | {"letters": 170},
    "past-the-knee": chapter05.BATCHES | {"pictures": 256},
    "below-the-knee": chapter05.BATCHES | {"letters": 32},
    "grown-while-waiting": chapter05.BATCHES | {"scans": 256},
    "fed-already": chapter05.BATCHES | {"pictures": "feed"},
    "not-measured": chapter05.BATCHES | {"letters": 130},
}


def test_the_right_batches_are_done() -> None:
    assert exercise.open(CHAPTER, "sizes").check(chapter05.BATCHES).done


@pytest.mark.parametrize("mistake", SIZES_WRONG)
def test_a_wrong_batch_gets_its_own_hint(mistake: str) -> None:
    assert_mistake("sizes", mistake, SIZES_WRONG[mistake])


@pytest.mark.parametrize("job", chapter05.BATCHES)
def test_no_other_batch_of_the_table_is_right(job: str) -> None:
    for got in {*chapter05.SWEEPS["pictures"], "feed", True, 1.5, None, -1} - {chapter05.BATCHES[job]}:
        result = exercise.open(CHAPTER, "sizes").check(chapter05.BATCHES | {job: got})
        assert not result.done and result.says.startswith(f"`{job}`")


def test_a_half_filled_table_is_no_try() -> None:
    for stub in (dict.fromkeys(chapter05.BATCHES, ...), chapter05.BATCHES | {"scans": ...}):
        assert not exercise.open(CHAPTER, "sizes").check(stub).attempted


def test_the_table_of_the_chapter_is_that_of_the_check() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    for job, rates in chapter05.SWEEPS.items():
        cells = [f"{rates[size]:,}" if size in rates else "no room" for size in (16, 32, 64, 128, 256)]
        assert f"| `{job}` | {' | '.join(cells)} | {chapter05.CEILING[job]} |" in text


def test_the_loader_of_the_job_to_feed_is_slower_than_its_step_and_no_other_is() -> None:
    rows = re.findall(r"\| `(\w+)` \|.*\| ([\d,]+) ms \| ([\d,]+) ms \|", SOURCE.read_text(encoding="utf-8"))
    assert {job for job, *_ in rows} == set(chapter05.BATCHES)
    for job, loader, step in rows:
        assert (int(loader) > int(step)) is (chapter05.BATCHES[job] == chapter05.FEED)
        slower, at_64 = max(int(loader), int(step)), chapter05.SWEEPS[job][64]
        assert 64 / slower * 1000 == pytest.approx(at_64, rel=0.03)


def assert_mistake(id: str, mistake: str, wrong: Any) -> None:
    """The answer fails with exactly this mistake, in the words of the exercise's file."""
    result = exercise.open(CHAPTER, id).check(wrong)
    assert (result.done, result.attempted, result.mistake) == (False, True, mistake), result.says
    assert len(result.hint) > 20 and "{" not in result.says + result.hint


@pytest.mark.parametrize(("id", "tested"), [("autocast", AUTOCAST_WRONG), ("sizes", SIZES_WRONG)])
def test_every_mistake_with_words_has_a_typical_wrong_answer(id: str, tested: dict) -> None:
    assert {*tested, "unforeseen"} == set(material.exercises(CHAPTER)[id].mistakes)


# ---------------------------------------------------------------- the question with a number


def test_the_largest_batch_is_computed_and_each_slip_has_words_of_its_own() -> None:
    question = quiz.ask(CHAPTER, "largest-batch")
    card, share, beside, sample = (140, 0.8, 12, 0.5)
    assert all(f"{number:g}" in question.prompt for number in (card, beside, sample))
    assert question.answer == pytest.approx((share * card - beside) / sample)
    assert question.check(question.answer).right
    for slip in (share * card / sample, card / sample, (card - beside) / sample):
        said = question.check(slip)
        assert not said.right and said.says != question.data.wrong


# ---------------------------------------------------------------- what the chapter shows

RECORDED = tuple(replay.load(what) for what in ("precision", "batches", "ceiling"))


def small() -> tuple[nn.Module, Callable, torch.Tensor]:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return model, lambda network, batch: network(batch).square().mean(), torch.randn(8, 16)


def test_each_claim_stands_beside_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Plan(block_seconds=0.005, min_steps=1, min_rounds=2, budget_seconds=0.02, max_warm_up_blocks=1)
    monkeypatch.setattr(tradeoffs, "FORMATS", {"cpu": short, "card": short})
    monkeypatch.setattr(tradeoffs, "SWEEP", {"cpu": short, "card": short})
    model, loss, batch = small()
    told: list[float] = []
    measured = tradeoffs.formats(
        model, loss, [batch], lambda network: None, progress=lambda seen: told.append(seen.share)
    )
    swept = tradeoffs.sweep(lambda size: loss(model, batch[:size]).backward(), (2, 4, 8))
    assert told == sorted(told) and 0 <= told[0] and told[-1] <= 1
    (table,) = tradeoffs.beside(measured, swept, None, RECORDED).tables
    assert [row[:2] for row in table.rows] == list(tradeoffs.CLAIMS)
    rows = {row[0]: row for row in table.rows}
    assert "x FP32" in rows["BF16, a large product"][2]
    assert re.fullmatch(r"[\d.]+x at 2, [\d.]+x at 4", rows["batch doubled, throughput"][2])
    assert rows["memory at 15 to 20%, batch"][2] == "n/a"
    assert all(row[3] != "n/a" for row in table.rows)
    assert "claimed by" in table.caption and "measured here" in table.caption and "recorded on" in table.caption


def test_without_recordings_the_table_says_so() -> None:
    measured, swept, _ = RECORDED
    (table,) = tradeoffs.beside(measured, swept, None, (None, None, None)).tables
    assert {row[3] for row in table.rows} == {"n/a"} and "nothing is recorded" in table.caption


def test_the_room_at_a_share_of_the_card_follows_the_measured_line() -> None:
    found = msgspec.structs.replace(RECORDED[2], ceiling=90, total=100 * 2**30, line=Line(5 * 2**30, 2**30))
    assert tradeoffs._room(found) == "6.0 to 9.0x"
    assert tradeoffs._room(msgspec.structs.replace(found, line=None)) == "n/a"


def test_what_was_not_compared_has_no_number() -> None:
    nothing = msgspec.structs.replace(RECORDED[0], arms=(), pairs=())
    assert tradeoffs.bf16_speed(nothing) is None and tradeoffs.bf16_saving(nothing) is None
    speed = tradeoffs.bf16_speed(RECORDED[0])
    assert speed.low < speed.value < speed.high and speed.unit == "times"


def test_the_knee_is_held_against_the_smallest_batch_and_not_against_itself() -> None:
    swept = RECORDED[1]
    assert tradeoffs.grown(swept).verdict == "faster"
    assert tradeoffs.grown(msgspec.structs.replace(swept, points=swept.points[:1])) is None


def test_a_child_that_dies_is_said_and_the_lesson_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """On a CPU the planted limit holds for the whole process, and a library may die of it."""

    def died(**how: Any) -> None:
        raise ChildFailed("the measuring process was ended by SIGSEGV")

    monkeypatch.setattr(memory, "cured", died)
    assert tradeoffs.cure() is None
    assert "Not measured here: the measuring process was ended by SIGSEGV" in capsys.readouterr().out


def test_the_bits_and_the_pairs_are_shown_once() -> None:
    assert len(tradeoffs.table(RECORDED[0]).figures) == 1
    shown = tradeoffs.life(replay.load("memory"))
    assert shown.figures and not shown.tables
