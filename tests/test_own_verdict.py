"""Which change to make first to somebody's own script: by measured shares, with the source only telling where."""

import ast
import math
import textwrap
import typing

import msgspec
import own_results as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuworkshop.instruments.flops import Achieved
from gpuworkshop.loop.diagnose import which_limit
from gpuworkshop.own.facts import look
from gpuworkshop.own.items import is_random
from gpuworkshop.own.pick import Limit, Verdict
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import Hot, OwnResult, Settings, Wait
from gpuworkshop.own.roles import roles
from gpuworkshop.own.source import Sources
from gpuworkshop.own.verdict import WORTH, findings, report, verdict

SCRIPT = textwrap.dedent("""
    import gc
    import torch

    class Rows(Dataset):
        def __getitem__(self, i):
            picture = Image.open(self.files[i])
            crop = torch.randint(0, 9, (2,))
            values = [value * 2 for value in self.raw[i]]
            return picture, values

    def ranking(scores, targets):
        losses = []
        for i in range(len(scores)):
            losses.append(scores[i, targets[i]].relu())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def evaluate(model, data):
        model.eval()
        return [model(x) for x in data]

    def update_average(model, average):
        for one, two in zip(model.parameters(), average.parameters()):
            two.lerp_(one, 0.1)

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Rows(), batch_size=32, shuffle=True)
    for step, (x, y) in enumerate(loader):
        x = x.to(device, non_blocking=True)
        out = model(x)
        loss = ranking(out, y)
        for sample, truth in zip(x, y):
            hits += int(model(sample[None]).argmax() == truth)
        for guess, truth in zip(out, y):
            right += guess.item() == truth.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average(model, average)
        score = evaluate(model, held_out)
        torch.save(model.state_dict(), "last.pt")
        table = expensive(x)
        gc.collect()
        total += loss.item()
""").lstrip()


def at(words: str):
    return made.place(SCRIPT, words)


HEAD = at("for step,")
SOURCES = Sources({made.FILE: SCRIPT.encode()})


def used(device: str = "cpu", **changes) -> Settings:
    """The script's settings as they are seen."""
    given = dict(
        loaders=(made.loader(at("DataLoader(")),), optimizers=(made.optimizer(at("AdamW(")),),
        model_place=at("out = model"), backward_place=at("backward()"), step_place=at("optimizer.step()"),
    )  # fmt: skip
    return made.settings(device, **(given | changes))


def judged(result: OwnResult, text: str = SCRIPT) -> Verdict:
    return verdict(result, Sources({made.FILE: text.encode()}))


def run(*hot: Hot, wait: float = 0.0, heavy: float = 0.9, cpus: int = 2, settings: Settings | None = None, **changes):
    """A run on a CPU that waits for its loader for this share of the time and computes for most of the rest."""
    here = made.conditions(cpus=cpus, threads=cpus)
    seen = made.starved(wait, here=here)
    return made.own(seen, settings or used(), traced=made.on_host(heavy), hot=hot, **changes)


def on_card(profile, *hot: Hot, wait: float = 0.0, work: float = 0.0, cpus: int = 8, memory: float = 0.2, **changes):
    here = made.conditions("cuda:0", cpus=cpus)
    settings = used("cuda:0", **changes)
    return made.own(made.starved(wait, work, here), settings, traced=profile, hot=hot, memory=memory)


# ---------------------------------------------------------------- what a line is for

LINES = {
    "losses.append": ("batch loop", "loss = ranking(out, y)"),
    "hits += int(model": ("one call", ""),
    "guess.item()": ("read loop", ""),
    "two.lerp_": ("weights loop", "    update_average(model, average)"),
    "for x in data]": ("validation", "score = evaluate"),
    "torch.save": ("saving", ""),
    "expensive(x)": ("beside", ""),
    "gc.collect()": ("collect", ""),
    "backward()": ("backward", ""),
    "loss.item()": ("read", ""),
    "optimizer.step()": ("optimizer", ""),
    "optimizer.zero_grad": ("step", ""),
    "for step, ": ("step", ""),
    "out = model": ("forward", ""),
    "loss = ranking": ("forward", ""),
    "x = x.to(": ("copy", ""),
}


@pytest.mark.parametrize(("words", "kind", "caller"), [(words, *known) for words, known in LINES.items()], ids=LINES)
def test_a_line_is_known_for_what_it_does(words, kind, caller) -> None:
    frames = [at(words), *([at(caller)] if caller else [])]
    found = roles(run(made.hot(0.5, *frames)), SOURCES)
    assert [role.kind for role in found] == [kind]


ITEMS = {"Image.open": "decode", "value * 2": "item loop", "torch.randint(0, 9": "item", "for step,": "collate"}


@pytest.mark.parametrize(("words", "kind"), ITEMS.items(), ids=ITEMS)
def test_a_line_of_the_data_set_is_known_too(words, kind) -> None:
    frames = [at(words), HEAD] if kind != "collate" else [HEAD]
    found = roles(run(made.hot(0.5, *frames, in_loader=True)), SOURCES)
    assert [role.kind for role in found] == [kind]


def test_a_loader_that_a_validation_waits_for_belongs_to_the_validation() -> None:
    frames = [at("Image.open"), at("for x in data]"), at("score = evaluate")]
    found = roles(run(made.hot(0.5, *frames, in_loader=True)), SOURCES)
    assert [(role.kind, role.place.line) for role in found] == [("validation", at("score = evaluate").line)]


def test_a_line_of_a_file_that_cannot_be_read_is_still_told_apart() -> None:
    found = roles(run(made.hot(0.5, at("torch.save"))), Sources({}))
    assert [role.kind for role in found] == ["saving"]


def test_layers_and_time_are_no_loop_over_samples() -> None:
    text = textwrap.dedent("""
        class Net(nn.Module):
            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                for t in range(x.shape[1]):
                    h = self.cell(x[:, t], h)
                for i in range(len(x)):
                    y = self.head(x[i])
        model(batch)
        """)
    sources = Sources({made.FILE: text.encode()})
    for words, kind in (("block(x)", "forward"), ("self.cell", "forward"), ("self.head", "one call")):
        result = run(made.hot(0.5, made.place(text, words), made.place(text, "model(batch)")), settings=made.settings())
        assert [role.kind for role in roles(result, sources)] == [kind], words


def test_where_a_framework_trains_its_line_is_no_work_beside_the_step() -> None:
    text = "for fold in range(5):\n    trainer = Trainer(args, data)\n    trainer.train()\n"
    there = made.place(text, "trainer.train")
    used_ = made.settings(model_place=there, backward_place=there, step_place=there, framework="Trainer",
                          loaders=(made.loader(there),), optimizers=(made.optimizer(None),))  # fmt: skip
    looks = made.hot(0.7, there), made.hot(0.2, there, in_loader=True)
    result = run(*looks, settings=used_)
    sources = Sources({made.FILE: text.encode()})
    assert {role.kind for role in roles(result, sources)} == {"step", "collate"}
    assert verdict(result, sources).pick is None


def test_an_item_that_draws_is_not_kept() -> None:
    head = "class D:\n    def __getitem__(self, i):\n        return self.cut(self.x[i])\n"
    code = head + "    def cut(self, x):\n        {}\n"
    for line, draws in (
        ("return x[::2]", False),
        ("return x[random.randrange(3):]", True),
        ("return self.augment(x)", True),
    ):
        source = Sources({"d.py": code.format(line).encode()}).get("d.py")
        item = next(n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef) and n.name == "__getitem__")
        assert is_random(source, item) == draws, line


# ---------------------------------------------------------------- the first change

CARD_BUSY = made.on_card(0.99)
PICKS: dict[str, tuple[str, OwnResult]] = {}


def case(name: str, remedy: str, result: OwnResult) -> None:
    PICKS[name] = remedy, result


case(
    "a loader on eight CPUs",
    "workers",
    run(made.hot(0.7, at("torch.randint(0, 9"), HEAD, in_loader=True), wait=0.7, cpus=8),
)
case("decoding on two CPUs", "decode-once", run(made.hot(0.8, at("Image.open"), HEAD, in_loader=True), wait=0.85))
case("a loop in each item", "vectorize-item", run(made.hot(0.8, at("value * 2"), HEAD, in_loader=True), wait=0.85))
case("a loader that a card waits for", "workers", on_card(made.on_card(0.3, late=0.1), wait=0.7))
case("a loss sample by sample", "batch-loop", run(made.hot(0.6, at("losses.append"), at("loss = ranking")), heavy=0.3))
case("a model sample by sample", "one-call", run(made.hot(0.6, at("hits += int(model")), heavy=0.1))
case("hits one by one", "one-read", run(made.hot(0.5, at("guess.item()")), heavy=0.2))
case(
    "averages weight by weight",
    "weights-at-once",
    run(made.hot(0.4, at("two.lerp_"), at("    update_average(model, average)"))),
)
case("a validation in each step", "rare-validation", run(made.hot(0.5, at("for x in data]"), at("score =")), heavy=0.9))
case("a file in each step", "rare-saving", run(made.hot(0.5, at("torch.save"))))
case("garbage in each step", "collect", run(made.hot(0.5, at("gc.collect()"))))
case("tiny operators", "batch", run(heavy=0.05))
case("tiny micro-batches", "micro-batch", run(heavy=0.05, settings=used(accumulation=16.0)))
case("an optimizer that takes half", "fused", run(made.hot(0.6, at("optimizer.step()")), heavy=0.9))
case("FP32 on a card", "bf16", on_card(CARD_BUSY))
case(
    "a read in each step",
    "rare-loss",
    on_card(made.on_card(0.5, waited=0.5), waits=(Wait(at("loss.item()"), "item", 1.0),)),
)
case(
    "many reads in each step",
    "one-read",
    on_card(made.on_card(0.4, late=0.2, waited=0.4), waits=(Wait(at("guess.item()"), "item", 64.0),)),
)
case(
    "pageable copies",
    "pin",
    on_card(
        msgspec.structs.replace(made.on_card(0.9, copying=0.5, up=1.0), pageable=True), precision="bf16", autocast=True
    ),
)
case(
    "launches with a large batch",
    "compile",
    on_card(made.on_card(0.6, late=0.4), precision="bf16", autocast=True, loaders=()),
)
case(
    "activations computed twice",
    "no-checkpointing",
    on_card(CARD_BUSY, precision="bf16", autocast=True, checkpointing=True),
)
case(
    "one thread of eight",
    "threads",
    msgspec.structs.replace(run(heavy=0.95, cpus=8), conditions=made.conditions(cpus=8, threads=1)),
)
case(
    "waits for other cards",
    "no-sync",
    msgspec.structs.replace(
        on_card(CARD_BUSY, precision="bf16", autocast=True, ddp="DDP", accumulation=8.0, world=4), communication=0.5
    ),
)
case("several cards by one process", "ddp", on_card(CARD_BUSY, precision="bf16", autocast=True, ddp="DataParallel"))


@pytest.mark.parametrize(("remedy", "result"), PICKS.values(), ids=PICKS.keys())
def test_the_first_change_is_the_one_that_should_bring_most(remedy, result) -> None:
    made_ = judged(result)
    assert made_.pick is not None and made_.pick.remedy == remedy, (made_.pick, made_.others)
    assert 1 < made_.pick.expected <= made_.pick.at_most
    assert made_.pick.title not in made_.others
    assert made_.pick.change.text and "{" not in made_.pick.change.text.replace("{}", "").split("@@")[0]


LEFT_ALONE = {
    "a step that computes": run(heavy=0.9),
    "a loader that is hardly waited for": run(heavy=0.9, wait=0.03),
    "a card at work in BF16": on_card(CARD_BUSY, precision="bf16", autocast=True),
    "a validation that was seen once": run(Hot((at("for x in data]"), at("score =")), 0.5, False, steps=1)),
    "no loader and no profile": made.own(None, used(loaders=())),
}


@pytest.mark.parametrize("result", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_nothing_worth_changing_is_a_verdict(result) -> None:
    found = judged(result)
    assert found.pick is None and found.limit == "nothing", found
    assert next(findings(result, SOURCES)).level == "ok"


@pytest.mark.parametrize(("remedy", "result"), PICKS.values(), ids=PICKS.keys())
def test_the_limit_is_the_loops_own(remedy, result) -> None:
    found = judged(result)
    assert found.limit in (which_limit(look(result)), "communication")
    assert (found.limit == "communication") == bool(result.communication)


def test_a_larger_batch_fits_the_memory_and_the_data() -> None:
    late = made.on_card(0.05, late=0.95)
    times = {}
    for memory, batches in ((0.05, 1000), (0.2, 1000), (0.05, 16)):
        loaders = (made.loader(at("DataLoader("), batches=2 * batches),)
        found = judged(on_card(late, memory=memory, precision="bf16", autocast=True, loaders=loaders, compiled=True))
        times[memory, batches] = int(found.pick.change.values["batch_size"]) / 32
    assert times[0.05, 1000] > times[0.2, 1000] <= 0.8 / 0.2 and times[0.05, 16] <= 4


def test_what_alters_the_training_must_bring_more() -> None:
    """The same cost of calls: fewer and larger micro-batches are worth it, another batch size is not."""
    for share, accumulation, remedy in ((0.2, 8.0, "micro-batch"), (0.2, 1.0, None)):
        found = judged(run(heavy=1 - share, settings=used(accumulation=accumulation)))
        assert (found.pick.remedy if found.pick else None) == remedy


def test_safer_comes_first_where_the_gain_is_the_same() -> None:
    order = ["same", "close", "training"]
    for name, (_, result) in PICKS.items():
        found = judged(result)
        assert order.index(found.pick.numerics) == order.index(remedies()[found.pick.remedy].numerics), name
    half = run(made.hot(0.5, at("gc.collect()")), made.hot(0.5, at("expensive(x)")))
    assert judged(half).pick.remedy == "collect"


def test_a_gain_of_the_steps_counts_for_less_where_much_lies_between_them() -> None:
    """Half of all time between steps: three times as fast in the steps is 1.5 times in all. Validation goes first."""
    looks = made.hot(0.5, at("for x in data]"), at("score =")), made.hot(0.4, HEAD, in_loader=True)
    waits = run(*looks, wait=0.67, cpus=16, heavy=0.2)
    assert judged(waits).pick.remedy == "workers"
    found = judged(msgspec.structs.replace(waits, beside=0.5))
    assert found.pick.remedy == "rare-validation" and remedies()["workers"].title in found.others


def test_a_card_that_is_kept_busy_gains_nothing_from_its_host() -> None:
    """The host waits in the optimizer's line: the card has queued work, and takes no longer with a faster host."""
    slow_host = on_card(CARD_BUSY, made.hot(0.8, at("expensive(x)")), precision="bf16", autocast=True)
    assert judged(slow_host).pick is None


def test_more_workers_are_not_asked_for_where_they_are_all_there() -> None:
    many = run(wait=0.6, settings=used(loaders=(made.loader(at("DataLoader("), workers=2),)))
    assert judged(many).pick.remedy != "workers"
    assert judged(many).pick.remedy == "lighter-item" and "__getitem__" in judged(many).pick.change.text


def test_workers_that_only_take_the_cpus_away() -> None:
    seen = msgspec.structs.replace(made.starved(0.01, headroom=1.5, workers=2), slowed_share=0.33, agrees=None)
    result = made.own(seen, used(loaders=(made.loader(at("DataLoader("), workers=2),)), traced=made.on_host(0.9))
    found = judged(result)
    assert found.pick.remedy == "fewer-workers" and found.pick.change.values["num_workers"] == "0"


def test_rows_of_tensors_are_taken_by_whole_batches() -> None:
    loaders = (made.loader(at("DataLoader("), dataset="TensorDataset", batch_size=512),)
    found = judged(run(made.hot(0.8, HEAD, in_loader=True), wait=0.8, settings=used(loaders=loaders)))
    assert found.pick.remedy == "whole-batches" and "512" in found.pick.change.text


# ---------------------------------------------------------------- what a reader sees


def test_a_report_says_limit_change_place_and_numbers() -> None:
    _, result = PICKS["a validation in each step"]
    text = str(report(msgspec.structs.replace(result, planted="a test"), SOURCES))
    line = SCRIPT.splitlines().index("    score = evaluate(model, held_out)") + 1
    assert "Planted: a test" in text and "Change first: validation less often (<= 2.33x)" in text
    assert "+    if step % 100 == 0:" in text and f"@@ -{line - 3}," in text
    assert "10 ms" in text and "3,200 samples/s" in text and text.count("n/a") >= 4


def test_what_alters_the_training_says_so() -> None:
    _, result = PICKS["tiny operators"]
    first = [finding for finding in findings(result, SOURCES) if finding.title.startswith("Change first")]
    assert "compare the losses" in first[0].evidence


def test_ranks_that_each_see_all_of_the_data_are_told_of() -> None:
    result = on_card(CARD_BUSY, precision="bf16", autocast=True, ddp="DDP", world=4)
    said = [one.title for one in findings(result, SOURCES) if one.level == "warning"]
    assert any("DistributedSampler" in title for title in said)
    divided = Sources({made.FILE: f"sampler = DistributedSampler(data)\n{SCRIPT}".encode()})
    alone = on_card(CARD_BUSY, precision="bf16", autocast=True)
    for run_, sources in ((result, divided), (alone, SOURCES), (result, Sources({}))):
        assert not any("DistributedSampler" in one.title for one in findings(run_, sources))


def test_cudnn_is_only_named_where_it_is_not_switched_already() -> None:
    convolutions = on_card(CARD_BUSY, precision="bf16", autocast=True, channels_last=True)
    title = remedies()["cudnn-benchmark"].title
    assert title in judged(convolutions).others
    assert title not in judged(convolutions, f"torch.backends.cudnn.benchmark = True\n{SCRIPT}").others


def test_a_run_of_which_too_little_was_seen_says_what_to_do() -> None:
    words = "No step in 600 s. Put this after each: step()"
    blind = made.own(None, None, settings=None, rate=None, step_seconds=None, not_seen=(words,))
    found = judged(blind)
    assert found.limit == "unknown" and found.pick is None and found.reason == words
    said = list(findings(blind))
    assert [one.level for one in said] == ["unknown", "unknown"] and said[-1].title == words


@pytest.mark.parametrize(("ended", "code"), [("error", 1), ("signal", -9)])
def test_a_script_that_failed_says_so_in_its_own_words(ended, code) -> None:
    words = "Traceback (most recent call last):\n  File 'train.py'\n\nValueError: no data at <here>\n"
    blind = made.own(
        None, None, settings=None, rate=None, step_seconds=None, ended=ended, exit_code=code, own_words=words
    )
    shown = report(blind)
    assert shown.failed and f"exit code {code}" in shown.findings[0].title
    assert "ValueError: no data at <here>" in str(shown) and "at &lt;here&gt;" in shown._repr_mimebundle_()["text/html"]


def test_the_numbers_are_never_invented() -> None:
    blind = made.own(None, None, settings=None, rate=None, step_seconds=None, conditions=None)
    rows = dict(report(blind).tables[0].rows)
    assert {rows[name] for name in ("throughput", "step", "headroom", "achieved", "communication alone")} == {"n/a"}
    fast = made.own(made.starved(), used(), achieved=Achieved(made.rate(2e12, "FLOP/s"), of_product=0.5, of_peak=0.25))
    assert dict(report(fast).tables[0].rows)["of the published peak (MFU)"] == "25%"


def test_no_change_is_promised_more_than_its_bound() -> None:
    for name, (_, result) in PICKS.items():
        pick = judged(result).pick
        assert pick.expected >= WORTH and (math.isinf(pick.at_most) or pick.at_most >= pick.expected), name


def test_a_loop_before_backward_has_its_part_of_the_backward_pass() -> None:
    """A third of the time in the loop, half in backward(), of which two thirds belong to the loop by what is ahead."""
    found = judged(
        run(
            made.hot(0.32, at("losses.append"), at("loss = ranking")),
            made.hot(0.16, at("out = model")),
            made.hot(0.48, at("backward()")),
        )
    )
    effect = remedies()["batch-loop"].effect
    assert found.pick.remedy == "batch-loop" and found.pick.expected == pytest.approx(1 / (1 - 0.64 * effect))
    assert found.pick.at_most > 1 / (1 - 0.96), "the graph that the loop fills is gone through on other lines"
    behind = judged(run(made.hot(0.4, at("guess.item()")), made.hot(0.5, at("backward()"))))
    assert behind.pick.remedy == "one-read" and 1 / 0.6 < behind.pick.at_most < 1 / 0.5


@st.composite
def runs(draw) -> OwnResult:
    """Runs of every kind, also such as cannot be."""
    share = st.floats(0, 1)
    card, workers, wait = draw(st.booleans()), draw(st.sampled_from([0, 1, 2, 16])), draw(st.floats(0, 0.98))
    here = made.conditions("cuda:0" if card else "cpu", cpus=draw(st.sampled_from([1, 2, 8, 64])), threads=1)
    lines = draw(st.lists(st.sampled_from([*LINES, *ITEMS]), unique=True, max_size=6))
    left, looks = 1.0, []
    for words in lines:
        part = left * draw(share)
        left -= part
        looks.append(Hot((at(words), HEAD), part, words in ITEMS and draw(st.booleans()), draw(st.integers(0, 9))))
    loaders = [
        made.loader(
            draw(st.sampled_from([at("DataLoader("), None])), workers, draw(st.sampled_from([None, 1, 32, 4096])),
            iterable=draw(st.booleans()), epochs=draw(st.integers(0, 3)), batches=draw(st.integers(0, 500)),
            dataset=draw(st.sampled_from(["Rows", "TensorDataset", "Other"])),
        )
    ][: draw(st.integers(0, 1))]  # fmt: skip
    settings_ = used(
        here.device, loaders=tuple(loaders), accumulation=draw(st.sampled_from([0.5, 1.0, 3.0, 64.0])),
        precision=draw(st.sampled_from([None, "fp32", "tf32", "bf16", "mixed"])), compiled=draw(st.booleans()),
        channels_last=draw(st.sampled_from([None, True, False])), checkpointing=draw(st.booleans()),
        ddp=draw(st.sampled_from(["", "DDP", "DataParallel"])), world=draw(st.sampled_from([1, 4])),
        waits=(Wait(at("loss.item()"), draw(st.sampled_from(["item", "cpu", "empty_cache"])), draw(st.floats(0, 99))),),
        model_place=draw(st.sampled_from([None, at("out = model")])), framework=draw(st.sampled_from(["", "Trainer"])),
    )  # fmt: skip
    profile = made.on_card(draw(share), draw(share), draw(share), draw(share), draw(share))
    profile = profile if card else made.on_host(draw(share), draw(st.floats(0.1, 1e3)))
    seen = made.starved(wait, here=here, workers=workers, headroom=draw(st.floats(0.9, 30)))
    return made.own(
        draw(st.sampled_from([seen, None])), settings_, traced=draw(st.sampled_from([profile, None])),
        hot=tuple(looks), memory=draw(st.sampled_from([None, 0.01, 1.0])) if card else None,
        communication=draw(st.sampled_from([None, 0.0, 0.5, 1.0])), conditions=here, beside=draw(st.floats(0, 0.99)),
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(runs())
def test_any_run_gets_a_verdict_that_keeps_to_its_bound(result) -> None:
    found = judged(result)
    assert found.limit in typing.get_args(Limit)
    assert (found.limit in ("nothing",)) <= (found.pick is None)
    if found.pick:
        assert WORTH <= found.pick.expected <= found.pick.at_most and found.pick.change.text
        assert found.pick.title not in found.others and found.pick.remedy in remedies()
        if found.pick.certain:
            assert found.pick.change.text.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert str(report(result, SOURCES)) and len(set(found.others)) == len(found.others)
