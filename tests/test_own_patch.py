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
    before = draw(st.sampled_from(["loader = ", "a, b = 1, ", "return_value = list("]))
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
