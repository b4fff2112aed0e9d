"""The change in somebody's own file: it parses, it applies, it changes what it says and nothing else."""

import ast
import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import own_results as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuworkshop.own.patch import change
from gpuworkshop.own.pick import Change
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.source import Source, Sources, last_name

WORKERS = {"num_workers": "2", "persistent_workers": "True"}


def text_of(words: str) -> str:
    return textwrap.dedent(words).lstrip("\n")


def changed(
    remedy: str, data: str | bytes, words: str, values: dict[str, str], file: str = made.FILE, **used
) -> Change:
    """The change of a file's text at its first line with these words; places of settings are given by their words."""
    data = data.encode() if isinstance(data, str) else data
    text = Source(file, data).text
    places = {name: made.place(text, used.pop(name), file) for name in list(used) if name.endswith("_place")}
    result = made.own(None, made.settings(**used, **places), command=("python", file, *COMMAND))
    return change(remedies()[remedy], made.place(text, words, file), values, result, Sources({file: data}))


COMMAND: list[str] = []


def applied(found: Change, data: str | bytes, folder: Path) -> bytes:
    """The file after its diff was applied, by git where it is there and by patch otherwise."""
    data = data.encode() if isinstance(data, str) else data
    file = folder / Path(found.file).name
    file.write_bytes(data)
    tool = ["git", "apply", "-p1", "-"] if shutil.which("git") else ["patch", "-p1", "--binary"]
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        tool, cwd=folder, input=found.text.encode(found.encoding), capture_output=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr.decode() + found.text
    return file.read_bytes()


def by_hand(found: Change, data: bytes) -> bytes:
    """The diff applied in Python, strictly: every line that it shows must be there. Fast, for many examples."""
    lines, out, at = data.split(b"\n"), [], 0
    ends = data.endswith(b"\n")
    shown = found.text.encode(found.encoding).split(b"\n")[2:]
    for line in shown:
        if line.startswith(b"@@"):
            start = int(line.split()[1].split(b",")[0][1:]) - 1
            out += lines[at:start]
            at = start
        elif line[:1] in (b" ", b"-"):
            assert lines[at] == line[1:], (lines[at], line)
            at += 1
            out += [line[1:]] if line[:1] == b" " else []
        elif line[:1] == b"+":
            out.append(line[1:])
        elif line.startswith(b"\\"):
            ends = False
    out += lines[at:]
    return b"\n".join(out) + (b"" if ends or out[-1:] == [b""] else b"")


def keywords(data: bytes) -> dict[str, object]:
    """The literal keywords of the DataLoader call of a file."""
    tree = ast.parse(data.decode().removeprefix("\ufeff"))
    call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n) == "DataLoader")
    return {k.arg: k.value.value if isinstance(k.value, ast.Constant) else ast.unparse(k.value) for k in call.keywords}


# ---------------------------------------------------------------- many ways to write one call

ARGUMENTS = ["batch_size=32", "shuffle=True", "drop_last=not last", "collate_fn=lambda b: (b, [1, 2])",
             'generator=g["a, b"]', "sampler=(one)", "num_workers=0"]  # fmt: skip


@st.composite
def calls(draw) -> bytes:
    """A file with one DataLoader call, laid out in some way."""
    given = ["data", *draw(st.lists(st.sampled_from(ARGUMENTS), unique=True, max_size=4))]
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    indent = draw(st.sampled_from(["", "    ", "\t"]))
    deeper = draw(st.sampled_from(["    ", "\t", "        "]))
    comma = draw(st.sampled_from(["", ","]))
    space = draw(st.sampled_from(["", " "]))
    note = draw(st.sampled_from(["", "  # größer (als, das)", "  # )"]))
    layout = draw(st.sampled_from(["one line", "hanging", "each", "closing beside"]))
    if layout == "one line":
        inside = f"({space}{', '.join(given)}{comma}{space})"
    elif layout == "hanging":
        inside = f"({newline}{indent}{deeper}{', '.join(given)}{comma}{note}{newline}{indent})"
    elif layout == "each":
        between = f",{note}{newline}{indent}{deeper}"
        inside = f"({newline}{indent}{deeper}{between.join(given)}{comma}{note}{newline}{indent})"
    else:
        inside = f"({given[0]},{note}{newline}{indent}{deeper}{', '.join(given[1:]) or 'shuffle=False'}{comma})"
    before = draw(st.sampled_from(["loader = ", "größe, ñ = 1, ", "a, b = 1, ", "return_value = list("]))
    after = ")" if before.endswith("(") else draw(st.sampled_from(["", "  # the loader", "; x = 1"]))
    head = draw(st.sampled_from(["", "\ufeff", "# Köln" + newline, "\f" + newline]))
    body = f"def f(data, g, last, one):{newline}" if indent else ""
    end = draw(st.sampled_from(["", newline]))
    return f"{head}{body}{indent}{before}DataLoader{inside}{after}{end}".encode()


@settings(max_examples=300, deadline=None)
@given(calls(), st.sampled_from([WORKERS, {"batch_size": "256"}, {"pin_memory": "True"}, {"num_workers": "3"}]))
def test_settings_of_a_loader_are_added_however_it_is_written(data, values) -> None:
    found = changed("workers", data, "DataLoader", values)
    assert found.certain, found.text
    after = by_hand(found, data)
    was, now = keywords(data), keywords(after)
    assert {name: str(now[name]) for name in values} == values
    assert {name: value for name, value in now.items() if name not in values} == {
        name: value for name, value in was.items() if name not in values
    }, "nothing else changes"
    assert (b"\r\n" in data) == (b"\r\n" in after) and after.count(b"\n") - after.count(b"\r\n") in (
        0,
        after.count(b"\n"),
    )
    assert data.endswith(b"\n") == after.endswith(b"\n") and after.startswith(b"\xef\xbb\xbf") == data.startswith(
        b"\xef\xbb\xbf"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"loader = DataLoader(data)",
        b"loader = DataLoader(data,\r\n\tshuffle=True)  # \xc3\xa9\r\nx = 1\r\n",
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\nloader = DataLoader(\n    data,\n    shuffle=True  # \xfc\n)\n",
        b"\xef\xbb\xbfloader = DataLoader(data, num_workers=0)\n",
    ],
    ids=["no end of line", "windows and tabs", "latin-1", "with a mark"],
)
def test_a_diff_applies_to_the_bytes_that_are_there(data, tmp_path) -> None:
    found = changed("workers", data, "DataLoader", WORKERS)
    after = applied(found, data, tmp_path)
    assert after == by_hand(found, data) and b"num_workers=2, persistent_workers=True" in after.replace(b"\r", b"")
    lost = set(data.split()) - set(after.split())
    assert all(b"DataLoader" in word or b")" in word or b"0" in word or b"True" in word for word in lost), lost


# ---------------------------------------------------------------- where a value comes from

FROM = {
    "a constant": ("BATCH = 4\nloader = DataLoader(data, BATCH)\n", "BATCH = 64\n"),
    "an option": (
        "p.add_argument('-b', '--batch-size', type=int, default=4)\nargs = p.parse_args()\n"
        "DataLoader(data, args.batch_size)\n",
        "default=64)\n",
    ),
    "an option with a name of its own": (
        "p.add_argument('--bs', dest='size', default=4)\nargs = p.parse_args()\n"
        "DataLoader(data, batch_size=args.size)\n",
        "default=64)\n",
    ),
    "a dict": ("CONFIG = {'lr': 1, 'bs': 4}\nDataLoader(data, batch_size=CONFIG['bs'])\n", "'bs': 64}"),
    "a class of settings": (
        "class Config:\n    lr: float = 1\n    bs: int = 4\ncfg = Config()\nDataLoader(data, batch_size=cfg.bs)\n",
        "bs: int = 64\n",
    ),
    "a parameter": (
        "def make(data, size, shuffle=True):\n    return DataLoader(data, size, shuffle)\nmake(rows, 4)\n",
        "make(rows, 64)",
    ),
    "a default": ("def make(data, size=4):\n    return DataLoader(data, size)\nmake(rows)\n", "size=64)"),
    "self": (
        "class T:\n    def __init__(self, size=4):\n        self.size = size\n    def go(self):\n"
        "        DataLoader(data, batch_size=self.size)\nT().go()\n",
        "size=64)",
    ),
    "another name": ("A = 4\nB = A\nDataLoader(data, B)\n", "A = 64\n"),
}


@pytest.mark.parametrize(("text", "says"), FROM.values(), ids=FROM)
def test_a_value_is_changed_where_it_is_decided(text, says) -> None:
    found = changed("batch", text, "DataLoader(", {"batch_size": "64"})
    after = by_hand(found, text.encode()).decode()
    assert found.certain and says in after
    assert sum(one != two for one, two in zip(text.splitlines(), after.splitlines(), strict=True)) == 1


NOT_CERTAIN = {
    "from a file": ("cfg = yaml.safe_load(open('c.yaml'))\nDataLoader(data, cfg['bs'])\n", "cfg['bs']"),
    "calculated": ("n = 4 * world\nDataLoader(data, n)\n", "4 * world"),
    "set twice": ("n = 4\nif big:\n    n = 8\nDataLoader(data, n)\n", "set in 2 places"),
    "added to": ("n = 4\nn += 1\nDataLoader(data, n)\n", "n"),
    "of a loop": ("for n in (4, 8):\n    DataLoader(data, n)\n", "n"),
    "given in two calls": (
        "def make(n):\n    return DataLoader(data, n)\nmake(4)\nmake(8)\n", "a parameter of make()",
    ),
    "from a dict of keywords": ("DataLoader(data, **kwargs)\n", "**kwargs"),
    "from a list": ("DataLoader(*parts)\n", "list"),
    "from two options of a dict": ("a = {'bs': 4}\nb = {'bs': 8}\nDataLoader(data, a['bs'])\n", "a['bs']"),
    "from nowhere": ("DataLoader(data, size)\n", "set elsewhere"),
    "around itself": ("a = b\nb = a\nDataLoader(data, a)\n", "`"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "says"), NOT_CERTAIN.values(), ids=NOT_CERTAIN)
def test_a_value_that_no_literal_decides_is_told_in_words(text, says) -> None:
    found = changed("batch", text, "DataLoader(", {"batch_size": "64"})
    assert not found.certain and says in found.text, found.text
    assert "train.py:" in found.text and "batch_size=64" in found.text and found.file == ""


def test_an_option_that_the_command_gives_is_changed_there(monkeypatch) -> None:
    text = FROM["an option"][0]
    for words in (["--batch-size", "4"], ["--batch-size=4"], ["-b", "4"]):
        monkeypatch.setattr("test_own_patch.COMMAND", words)
        found = changed("batch", text, "DataLoader(", {"batch_size": "64"})
        assert not found.certain and f"the command gives {words[0].partition('=')[0]}" in found.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a, b = DataLoader(x), DataLoader(y)\n", "not called by itself"),
        ("loader = make(data)\n", "not called by itself"),
        ("def f(:\n    DataLoader(x)\n", "could not be read"),
        ("loader = DataLoader(data)\rx = 1\r", "line ends"),
    ],
)
def test_what_cannot_be_told_apart_is_told_in_words(text, says) -> None:
    file, data = made.FILE, text.encode()
    where = made.place(text, "loader" if "loader" in text else "DataLoader")
    result = made.own(None, made.settings())
    found = change(remedies()["workers"], where, WORKERS, result, Sources({file: data}))
    assert not found.certain and says in found.text and "num_workers=2" in found.text


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.data import DataLoader as Batches\nx = Batches(data)\n",
        "import torch.utils.data as D\nx = D.DataLoader(data)\n",
        "class Mine(DataLoader):\n    pass\nx = Mine(data)\n",
        "class Mine(DataLoader):\n    def __init__(self, data):\n        super().__init__(data)\n",
    ],
)
def test_a_loader_under_another_name_is_found(text) -> None:
    words = "super().__init__" if "super" in text else "x ="
    found = changed("workers", text, words, WORKERS)
    assert found.certain and "data, num_workers=2, persistent_workers=True" in found.text


def test_a_name_that_a_diff_cannot_hold_is_told_in_words(tmp_path) -> None:
    for name in ("my train.py", "träin.py", "a\tb.py"):
        assert not changed("workers", "DataLoader(data)\n", "DataLoader", WORKERS, f"/made/up/{name}").certain


def test_workers_import_the_file_where_processes_are_not_forked() -> None:
    text, file = "loader = DataLoader(data)\n", made.FILE
    here = made.conditions(python="3.14.0")
    for guard, certain in (("", False), ('if __name__ == "__main__":\n    main()\n', True)):
        result = made.own(None, made.settings(), conditions=here)
        found = change(
            remedies()["workers"],
            made.place(text, "DataLoader"),
            WORKERS,
            result,
            Sources({file: (text + guard).encode()}),
        )
        assert found.certain == certain and (certain or "__main__" in found.text)


# ---------------------------------------------------------------- lines put in, moved, taken out

LOOP = text_of("""
    import torch
    from torch import nn

    model = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,  # small
    )
    total = 0.0
    for step, (x, y) in enumerate(loader):
        x = x.to(device)
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        print(step, loss.item())
        score = evaluate(model)
        history.append(score)
        torch.cuda.empty_cache()
    print(total)
    """)
PLACES = dict(model_place="out = model", backward_place="loss.backward", step_place="optimizer.step")
MADE = {
    "fused": ("AdamW(", {"optimizer": "AdamW"}, "    lr=1e-3,  # small\n    fused=True,\n"),
    "tf32": ("out = model", {}, 'from torch import nn\n\ntorch.set_float32_matmul_precision("high")\n'),
    "cudnn-benchmark": ("out = model", {}, "from torch import nn\n\ntorch.backends.cudnn.benchmark = True\n"),
    "compile": ("out = model", {}, ".to(device)\nmodel.compile()\n"),
    "channels-last": ("out = model", {}, ".to(device)\nmodel.to(memory_format=torch.channels_last)\n"),
    "bf16": (
        "out = model",
        {"device": "cuda"},
        (
            '    with torch.autocast("cuda", dtype=torch.bfloat16):\n        out = model(x)\n'
            "        loss = criterion(out, y)\n    optimizer.zero_grad()\n"
        ),
    ),
    "rare-validation": (
        "score = evaluate",
        {"every": "100"},
        "    if step % 100 == 0:\n        score = evaluate(model)\n        history.append(score)\n    torch",
    ),
    "empty-cache": ("empty_cache", {}, "history.append(score)\nprint(total)"),
    "rare-loss": ("total += loss", {"every": "100"}, "    total += loss.detach()\n"),
    "rare-saving": ("print(step", {"every": "100"}, "    if step % 100 == 0:\n        print(step, loss.item())\n"),
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(("remedy", "words", "values", "says"), [(n, *one) for n, one in MADE.items()], ids=MADE)
def test_a_line_is_put_where_it_belongs(remedy, words, values, says, ends) -> None:
    text = LOOP.replace("\n", ends)
    found = changed(remedy, text.encode(), words, values, device="cuda:0", **PLACES)
    assert found.certain, found.text
    after = by_hand(found, text.encode()).decode()
    ast.parse(after)
    if ends == "\n":
        assert says in after, after
    else:
        assert after.count("\n") == after.count("\r\n")


def test_tabs_stay_tabs() -> None:
    text = LOOP.replace("    ", "\t")
    found = changed("bf16", text, "out = model", {"device": "cpu"}, **PLACES)
    assert found.certain and '+\twith torch.autocast("cpu", dtype=torch.bfloat16):\n' in found.text
    assert "+\t\tout = model(x)\n" in found.text


def test_a_diff_of_every_kind_is_taken_by_git(tmp_path) -> None:
    for remedy, (words, values, _) in MADE.items():
        found = changed(remedy, LOOP, words, values, device="cuda:0", **PLACES)
        assert applied(found, LOOP, tmp_path) == by_hand(found, LOOP.encode()), remedy


IN_WORDS = {
    "one line": (
        "bf16", "criterion(model(x), y).backward()\n", "criterion",
        {"model_place": "criterion", "backward_place": "criterion"},
    ),
    "a text of several lines": (
        "bf16", 'import torch\nout = model("""a\nb""")\nloss.backward()\n', "out =",
        {"model_place": "out =", "backward_place": "loss.backward"},
    ),
    "torch by another name": (
        "bf16", "import torch as t\nout = model(x)\nloss.backward()\n", "out =",
        {"model_place": "out =", "backward_place": "loss.backward"},
    ),
    "two models": ("compile", "a = A()\nb = B()\nout = a(b(x))\n", "out =", {"model_place": "out ="}),
    "a wrapped model": ("compile", "m = DDP(Net())\nout = m(x)\n", "out =", {"model_place": "out ="}),
    "used later": (
        "rare-validation", "for i in range(9):\n    s = evaluate(m)\n    best = 1\nprint(s)\n", "s = evaluate", {},
    ),
    "no counter": ("rare-saving", "for x in data:\n    save(x)\n", "save(x)", {}),
    "within the step": (
        "rare-loss", "for i, x in enumerate(d):\n    s = loss.item()\n    loss.backward()\n    print(s)\n", "s =", {},
    ),
    "foreach": ("fused", "o = AdamW(w, foreach=True)\n", "AdamW", {}),
    "two statements": ("empty-cache", "for x in d:\n    f(x); torch.cuda.empty_cache()\n", "empty_cache", {}),
    "for the reader": ("batch-loop", "for x in d:\n    f(x)\n", "for x", {}),
}  # fmt: skip


@pytest.mark.parametrize(("remedy", "text", "words", "places"), IN_WORDS.values(), ids=IN_WORDS)
def test_a_change_that_is_not_certain_is_told_with_its_line(remedy, text, words, places) -> None:
    values = {"device": "cuda", "every": "100", "optimizer": "AdamW"}
    found = changed(remedy, text, words, values, **places)
    assert not found.certain, found.text
    assert found.text.startswith("# train.py:") and words in found.text and found.text.count("\n") >= 1


def test_the_only_statement_of_a_block_leaves_a_pass(tmp_path) -> None:
    text = "for x in d:\n    if x:\n        torch.cuda.empty_cache()\n"
    found = changed("empty-cache", text, "empty_cache", {})
    assert applied(found, text, tmp_path) == b"for x in d:\n    if x:\n        pass\n"


def test_an_interval_that_is_there_is_made_longer() -> None:
    head = "EVERY = 1\nfor step, x in enumerate(d):\n    if step % EVERY == 0:\n"
    text = head + "        score = evaluate(m)\n        print(score)\n"
    found = changed("rare-validation", text, "score = evaluate", {"every": "100"})
    assert found.certain and "+EVERY = 100\n" in found.text and found.text.count("\n+") == 2
    longer = changed("rare-validation", text.replace("= 1\n", "= 250\n"), "score = evaluate", {"every": "100"})
    assert longer.certain and "+EVERY = 1000\n" in longer.text


def test_a_sum_becomes_a_tensor_only_where_it_is_only_told() -> None:
    head = "total = 0.0\nfor x in d:\n    total += loss.item()\n"
    uses = {
        "print(total / 9)": True,
        "print(f'{total / 9:.3f}')": True,
        "history.append(total)": False,
        "json.dump({'loss': total}, f)": False,
    }
    for line, certain in uses.items():
        found = changed("rare-loss", f"{head}{line}\n", "total +=", {"every": "100"})
        assert found.certain == certain and (certain or "line 4" in found.text), found.text


def test_what_is_done_in_each_epoch_is_done_in_every_few() -> None:
    text = "for epoch in range(1, n + 1):\n    train(epoch)\n    test(model)\n"
    found = changed("rare-validation", text, "test(model)", {"every": "100"})
    assert found.certain and "+    if epoch % 10 == 0:\n+        test(model)\n" in found.text


def test_an_average_is_not_made_of_a_few_steps() -> None:
    """A meter that is fed rarely tells something else; a progress bar may tell its number rarely."""
    head = "for i, x in enumerate(d):\n    "
    for line, certain in (("meter.update(loss.item(), 8)", False), ("bar.set_postfix(loss=loss.item())", True)):
        found = changed("rare-loss", f"{head}{line}\n", line, {"every": "100"})
        assert found.certain == certain, found.text


def test_micro_batches_change_both_numbers() -> None:
    text = text_of("""
        p.add_argument("--bs", type=int, default=2)
        p.add_argument("--accum-steps", type=int, default=16)
        args = p.parse_args()
        loader = DataLoader(data, batch_size=args.bs)
        for i, x in enumerate(loader):
            (model(x) / args.accum_steps).backward()
            if (i + 1) % args.accum_steps == 0:
                optimizer.step()
        """)
    values = {"batch_size": "8", "accumulation": "4", "accumulation_now": "16"}
    found = changed("micro-batch", text, "DataLoader(", values)
    assert found.certain and '--bs", type=int, default=8' in found.text and "default=4" in found.text
    other = changed(
        "micro-batch", text.replace("accum_steps", "every").replace("accum-steps", "every"), "DataLoader(", values
    )
    assert not other.certain and "16" in other.text


def test_a_framework_takes_settings_by_its_own_names() -> None:
    text = "args = TrainingArguments(\n    output_dir='out',\n    per_device_train_batch_size=4,\n)\ntrainer.train()\n"
    how = dict(framework="Trainer")
    workers = changed("workers", text, "trainer.train", WORKERS | {"pin_memory": "True"}, **how)
    assert workers.certain and "+    dataloader_num_workers=2, dataloader_persistent_workers=True" in workers.text
    assert "per_device_train_batch_size=64" in changed("batch", text, "trainer.train", {"batch_size": "64"}, **how).text
    assert "bf16=True" in changed("bf16", text, "trainer.train", {"bf16": "True", "device": "cuda"}, **how).text
    assert 'optim="adamw_torch_fused"' in changed("fused", text, "trainer.train", {"optimizer": "AdamW"}, **how).text
    without = changed("workers", "trainer.train()\n", "trainer.train", WORKERS, **how)
    assert not without.certain and "TrainingArguments(..., dataloader_num_workers=2" in without.text
    lightning = changed("bf16", "trainer.fit(m)\n", "trainer.fit", {"device": "cuda"}, framework="Lightning")
    assert 'Trainer(..., precision="bf16-mixed")' in lightning.text


def test_their_file_is_never_written(tmp_path) -> None:
    file = tmp_path / "train.py"
    file.write_text("loader = DataLoader(data)\n")
    file.chmod(0o444)
    where = made.Place(str(file), 1, "loader = DataLoader(data)")
    found = change(remedies()["workers"], where, WORKERS, made.own(None, made.settings()), Sources())
    assert found.certain and found.file == str(file) and file.read_text() == "loader = DataLoader(data)\n"
